//! `ipam conflicts`: blocks that two nodes have.

use std::path::Path;

use clap::{ArgMatches, Command};

use super::super::block::Block;
use super::super::engine::{ClusterState, ConflictNote, Name, RealmState};
use super::super::held::{Blocks, State};
use super::arguments::{config, data_dir, is_json, output, value};
use super::session::{Session, unreadable};
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::steps::allocation::files::{Place, operator};
use crate::terminal::manual::Terms;
use crate::terminal::table::{self, Members, put, put_text};

/// For the manual.
pub const EXAMPLES: Terms =
    &[("cni-multi ipam conflicts", "List the blocks that two nodes have, after a restore.")];

/// The columns of the table.
const COLUMNS: [(&str, &str); 6] = [
    ("REALM", "realm"),
    ("BLOCK", "block"),
    ("NODE", "node"),
    ("LEASES", "leases"),
    ("OTHER", "other"),
    ("NETWORK", "network"),
];

/// A conflict.
struct Conflict {
    realm: Name,
    block: Block,
    /// A node that has the block without the key; None of this node without a configuration.
    node: Option<Name>,
    leases: u64,
    /// The node with the key, as far as etcd says.
    other: String,
    /// The network of this node that it is in.
    network: String,
}

/// The command line.
pub fn command(conflicts: Command) -> Command {
    conflicts
        .about("List the blocks that two nodes have, and that neither allocates from")
        .arg(data_dir())
        .arg(config())
        .arg(output())
}

/// The list. What this node knows is listed also where etcd cannot be asked.
pub fn run(matches: &ArgMatches) -> Result<String> {
    let asked = Session::open(&value(matches, "config"));
    let own = asked.as_ref().ok().map(|session| session.settings.node.clone());
    let here = here(&value(matches, "data-dir"), own.as_ref())?;
    let state = asked.and_then(|mut session| session.survey());
    let as_json = is_json(matches);
    let problem = match &state {
        Ok(state) if as_json => state.unreadable.iter().map(|key| unread(key)).collect(),
        Ok(_) => vec![],
        Err(error) => vec![table::row_of_problem(&error.to_string())],
    };
    let end = state.as_ref().map(unreadable).unwrap_or_default();
    let all = merged(here, state.map(|state| noted(&state)).unwrap_or_default());
    let rows = all.iter().map(Conflict::row).chain(problem).collect();
    let text = table::of_rows(rows, &COLUMNS, as_json);
    Ok(if as_json { text } else { text + &end })
}

/// The conflicts that nodes have noted.
fn noted(state: &ClusterState) -> Vec<Conflict> {
    let realms = state.realms.iter();
    let notes = realms.flat_map(|(realm, of)| of.notes.iter().map(move |note| (realm, of, note)));
    notes.map(|(realm, of, (block, note))| conflict(realm, of, (*block, note))).collect()
}

fn conflict(realm: &Name, state: &RealmState, noted: (Block, &ConflictNote)) -> Conflict {
    let (block, note) = noted;
    let owners = state.blocks.iter().filter(|found| found.block.overlaps(block));
    let owners = owners.filter_map(|found| found.claimed.as_ref());
    let mut others: Vec<&str> = owners.map(|claimed| claimed.owner.node.as_str()).collect();
    others.dedup();
    Conflict {
        realm: realm.clone(),
        block,
        node: Some(note.by.node.clone()),
        leases: note.leases,
        other: others.join(","),
        network: String::new(),
    }
}

/// The conflicts that this node's files have.
fn here(data_dir: &Path, own: Option<&Name>) -> Result<Vec<Conflict>> {
    let mut all = vec![];
    for network in operator::networks(data_dir) {
        let place = Place::new(data_dir, &network, Deadline::default()).of_this_boot();
        let Some(blocks) = Blocks::read(place.dir())? else { continue };
        let taken = place.taken()?;
        let contested = blocks.blocks.iter().filter(|held| held.state == State::Conflict);
        for block in contested.map(|held| held.block) {
            all.push(Conflict {
                realm: blocks.realm.clone(),
                block,
                node: own.cloned(),
                leases: taken.iter().filter(|ip| block.contains(**ip)).count() as u64,
                other: String::new(),
                network: network.as_str().to_owned(),
            });
        }
    }
    Ok(all)
}

/// One row for each block and node: what a node has noted and what its files have is one conflict.
fn merged(here: Vec<Conflict>, noted: Vec<Conflict>) -> Vec<Conflict> {
    let mut all = noted;
    for own in here {
        let is_same =
            |other: &&mut Conflict| other.realm == own.realm && other.block.overlaps(own.block);
        match all.iter_mut().find(is_same) {
            Some(other) => other.network.clone_from(&own.network),
            None => all.push(own),
        }
    }
    all.sort_by(|a, b| (&a.realm, a.block, &a.node).cmp(&(&b.realm, b.block, &b.node)));
    all
}

impl Conflict {
    fn row(&self) -> Value {
        let mut row = Members::new();
        put_text(&mut row, "realm", self.realm.as_str());
        put_text(&mut row, "block", &self.block.prefix().to_string());
        put_text(&mut row, "node", self.node.as_ref().map_or("", Name::as_str));
        put(&mut row, "leases", Value::number(self.leases));
        put_text(&mut row, "other", &self.other);
        put_text(&mut row, "network", &self.network);
        Value::Object(row)
    }
}

fn unread(key: &str) -> Value {
    table::row_of_problem(&format!("the key {key:?} cannot be read"))
}
