//! `ipam blocks`: the blocks that this node has, and why its daemon cannot claim more.

use std::time::Duration;

use clap::{ArgMatches, Command};

use super::super::client;
use super::super::held::{Blocks, Held};
use super::super::node::is_of_cluster;
use super::arguments::{data_dir, is_json, output, value};
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::steps::allocation::files::{Place, operator};
use crate::terminal::manual::Terms;
use crate::terminal::table::{self, Members, PROBLEM, put, put_text};

/// For the manual.
pub const EXAMPLES: Terms =
    &[("cni-multi ipam blocks", "List the blocks that this node has borrowed.")];

/// The columns of the table.
const COLUMNS: [(&str, &str); 6] = [
    ("NETWORK", "network"),
    ("BLOCK", "block"),
    ("STATE", "state"),
    ("HELD", "held"),
    ("REALM", "realm"),
    ("NAME", "name"),
];

/// How long the command waits for the daemon's state.
const PATIENCE: Duration = Duration::from_secs(5);

/// The command line.
pub fn command(blocks: Command) -> Command {
    blocks
        .about("List the blocks of addresses that this node has borrowed")
        .arg(data_dir())
        .arg(output())
}

/// The list.
pub fn run(matches: &ArgMatches) -> Result<String> {
    let data_dir = value(matches, "data-dir");
    let mut rows = vec![];
    for network in operator::networks(&data_dir) {
        let place = Place::new(&data_dir, &network, Deadline::default()).of_this_boot();
        let Some(blocks) = Blocks::read(place.dir())? else { continue };
        rows.extend(rows_of(network.as_str(), &blocks, &place)?);
        rows.extend(difference(network.as_str(), &blocks));
    }
    rows.extend(trouble().map(|problem| table::row_of_problem(&problem)));
    Ok(table::of_rows(rows, &COLUMNS, is_json(matches)))
}

fn rows_of(network: &str, blocks: &Blocks, place: &Place) -> Result<Vec<Value>> {
    let taken = place.taken()?;
    let held = |block: &Held| taken.iter().filter(|ip| block.block.contains(**ip)).count();
    let row = |block: &Held| {
        let mut row = Members::new();
        put_text(&mut row, "network", network);
        put_text(&mut row, "block", &block.block.prefix().to_string());
        put_text(&mut row, "state", &block.state.to_string());
        put(&mut row, "held", Value::number(held(block) as u64));
        put_text(&mut row, "realm", blocks.realm.as_str());
        put(&mut row, "name", Value::text(block.sticky.clone().unwrap_or_default()));
        Value::Object(row)
    };
    Ok(blocks.blocks.iter().map(row).collect())
}

/// The row of a network that another node has otherwise.
fn difference(network: &str, blocks: &Blocks) -> Option<Value> {
    let node = blocks.differs.as_ref()?;
    let mut row = Members::new();
    put_text(&mut row, "network", network);
    put_text(&mut row, "realm", blocks.realm.as_str());
    let problem = format!("node {:?} has other ranges or another block size", node.as_str());
    put_text(&mut row, PROBLEM, &problem);
    Some(Value::Object(row))
}

/// Why the daemon of a node of a cluster cannot claim now: the error that STATUS has.
fn trouble() -> Option<String> {
    let status = is_of_cluster().then(|| client::status(Deadline::after(PATIENCE)))?;
    status.err().map(|error| error.to_string())
}
