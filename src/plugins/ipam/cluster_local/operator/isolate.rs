//! `ipam isolate`: sets the host ends of containers down whose addresses other nodes may have allocated.
//!
//! The unit `cni-multi-ipam-isolate.service` runs it for a node with `onFence: "down"`: the daemon, which talks
//! to the network, keeps no capability.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use clap::{ArgMatches, Command};

use super::super::held::{Blocks, State};
use super::arguments::{data_dir, is_json, output, value};
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorList, Result};
use crate::net::netlink::{Link, LinkChange, Netlink};
use crate::plugin::leases::Holding;
use crate::steps::allocation::files::{Place, operator};
use crate::steps::veth;
use crate::terminal::manual::Terms;
use crate::terminal::table::{self, Members, put_text};

/// For the manual.
pub const EXAMPLES: Terms =
    &[("cni-multi ipam isolate", "Cut off what still has addresses of a node that was reclaimed.")];

/// The columns of the table.
const COLUMNS: [(&str, &str); 6] = [
    ("NETWORK", "network"),
    ("ADDRESS", "address"),
    ("CONTAINER", "containerId"),
    ("IFNAME", "ifname"),
    ("LINK", "link"),
    ("STATE", "state"),
];

/// The command line.
pub fn command(isolate: Command) -> Command {
    isolate
        .about("Set the host ends of containers down whose blocks this node has lost")
        .arg(data_dir())
        .arg(output())
}

/// Sets the host ends down, and lists the attachments. Does all it can, and reports every failure at
/// the end.
pub fn run(matches: &ArgMatches) -> Result<String> {
    let data_dir = value(matches, "data-dir");
    require_readable(&data_dir)?;
    let mut isolation =
        Isolation { host: Netlink::open()?, rows: vec![], errors: ErrorList::default() };
    for network in operator::networks(&data_dir) {
        let done = isolation.of_network(&data_dir, &network);
        isolation.errors.push(done);
    }
    let Isolation { rows, errors, .. } = isolation;
    errors.finish().map(|()| table::of_rows(rows, &COLUMNS, is_json(matches)))
}

/// [`operator::networks`] takes an unreadable directory for an empty one, which would be reported as
/// success.
fn require_readable(dir: &Path) -> Result<()> {
    match fs::read_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::at_path("open", dir)(e)),
        _ => Ok(()),
    }
}

/// What has been done, and what has failed.
struct Isolation {
    host: Netlink,
    rows: Vec<Value>,
    errors: ErrorList,
}

impl Isolation {
    fn of_network(&mut self, data_dir: &Path, network: &NetworkName) -> Result<()> {
        let place = Place::new(data_dir, network, Deadline::default()).of_this_boot();
        let before = leases_in_lost(&place)?;
        let ends: Vec<_> =
            before.into_iter().map(|held| (host_end(&self.host, network, &held), held)).collect();
        // A DEL and an ADD meanwhile may have made a link of the same name, with another address. If
        // the lease is still there, the link that was found before it is of this lease.
        let still = leases_in_lost(&place)?;
        for (end, held) in ends.into_iter().filter(|(_, held)| still.contains(held)) {
            let done = end.and_then(|end| isolate(&self.host, network, end.as_ref(), &held));
            self.errors.push(done.map(|row| self.rows.push(row)));
        }
        Ok(())
    }
}

/// The leases in blocks that the node has lost.
fn leases_in_lost(place: &Place) -> Result<Vec<Holding>> {
    let Some(blocks) = Blocks::read(place.dir())? else { return Ok(vec![]) };
    let lost = blocks.blocks.iter().filter(|held| held.state == State::Lost);
    let lost: Vec<_> = lost.map(|held| held.block).collect();
    if lost.is_empty() {
        return Ok(vec![]);
    }
    let mut held = operator::holdings(place, &[])?.held;
    held.retain(|lease| lost.iter().any(|block| block.contains(lease.address)));
    Ok(held)
}

/// The host's end of the pair, which a plugin of ours has named.
fn host_end(host: &Netlink, network: &NetworkName, held: &Holding) -> Result<Option<Link>> {
    match Key::parse(network.as_str(), &held.container_id, &held.ifname) {
        Ok(key) => veth::find_host_end(host, &key),
        Err(_) => Ok(None), // a lease of an old plugin, without an interface
    }
}

fn isolate(
    host: &Netlink,
    network: &NetworkName,
    end: Option<&Link>,
    held: &Holding,
) -> Result<Value> {
    let state = match end {
        Some(link) => set_down(host, link, held.address)?,
        None => "no host end: delete the container",
    };
    Ok(row(network, end, held, state))
}

/// Sets the link down; one that is gone by now is cut off, too.
fn set_down(host: &Netlink, link: &Link, address: IpAddr) -> Result<&'static str> {
    let down = LinkChange { up: Some(false), ..LinkChange::default() };
    match host.change_link(link, &down) {
        Ok(()) => Ok("down"),
        Err(error) if error.is_not_found() => Ok("gone"),
        Err(error) => Err(error.context(format_args!("{address} is not cut off"))),
    }
}

fn row(network: &NetworkName, end: Option<&Link>, held: &Holding, state: &str) -> Value {
    let mut row = Members::new();
    put_text(&mut row, "network", network.as_str());
    put_text(&mut row, "address", &held.address.to_string());
    put_text(&mut row, "containerId", &held.container_id);
    put_text(&mut row, "ifname", &held.ifname);
    put_text(&mut row, "link", end.map_or("", |link| &link.name));
    put_text(&mut row, "state", state);
    Value::Object(row)
}
