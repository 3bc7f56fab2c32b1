//! `ipam reclaim NODE`: frees the blocks of a node that is gone.
//!
//! The command first fences the node, in one transaction that fails if the node is alive. After that no
//! write of the node succeeds, so the command can delete its blocks one by one. The fence states which
//! incarnations have ended, so that a command that was interrupted continues where it stopped.

use clap::{Arg, ArgMatches, Command};

use super::super::ended::{Ended, release};
use super::super::engine::{ClusterState, Found, Member, Name, Operation, Standing};
use super::super::machine::contact::ALIVE;
use super::arguments::{config, is_json, output, value};
use super::session::{Session, Write, unreadable};
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::terminal::manual::Terms;
use crate::terminal::nearest::nearest;
use crate::terminal::table::{self, Members, put, put_text};

/// For the manual.
pub const EXAMPLES: Terms =
    &[("cni-multi ipam reclaim node-7", "Free the blocks of a node that is gone for good.")];

/// The columns of the table.
const COLUMNS: [(&str, &str); 4] =
    [("REALM", "realm"), ("BLOCK", "block"), ("ADDRESSES", "addresses"), ("NAME", "name")];

/// How often a change by others, or a lost reply, is met with another look.
const ROUNDS: u32 = 5;

/// The command line.
pub fn command(reclaim: Command) -> Command {
    let node = Arg::new("node").value_name("NODE").required(true);
    reclaim
        .about("Free the blocks of a node that is gone: fails while the node is alive")
        .arg(node.help("Name of the node, as in its configuration"))
        .arg(config())
        .arg(output())
}

/// Reclaims the node and lists what was freed.
pub fn run(matches: &ArgMatches) -> Result<String> {
    let typed = matches.get_one::<String>("node").map_or("", String::as_str);
    let node: Name = typed.parse().map_err(|no_name| Error::config("NODE", no_name))?;
    let mut session = Session::open(&value(matches, "config"))?;
    if node == session.settings.node {
        return Err(own_name(&node));
    }
    let fence = fence(&mut session, &node)?;
    let freed = free(&mut session, &fence)?;
    let state = session.survey()?;
    let as_json = is_json(matches);
    let end = if as_json { String::new() } else { unreadable(&state) };
    Ok(text(&fence, freed, as_json) + &end)
}

/// Fences the node, unless it is fenced already.
fn fence(session: &mut Session, node: &Name) -> Result<Ended> {
    for _ in 0..ROUNDS {
        let state = session.survey()?;
        let member = state.nodes.get(node).ok_or_else(|| unknown(node, &state))?;
        let Member { record: Some(seen), alive } = member else {
            return Err(without_record(node));
        };
        let incarnation = seen.value.incarnation;
        let fence = |is_back| Ended { node: node.clone(), incarnation, is_back };
        match seen.value.standing {
            Standing::Fenced => return Ok(fence(false)),
            // An interrupted command has left keys; they can be deleted although the node is back.
            Standing::Live if alive.is_some() && !is_done(&state, &fence(true)) => {
                return Ok(fence(true));
            }
            Standing::Live if alive.is_some() => return Err(is_alive(node)),
            Standing::Live => {
                let (node, seen) = (node.clone(), seen.clone());
                session.write(Operation::Fence { node, seen })?; // the next look tells how it ended
            }
        }
    }
    Err(busy(node))
}

/// Deletes what the ended incarnations of the node have; returns the blocks.
fn free(session: &mut Session, fence: &Ended) -> Result<Vec<Value>> {
    let mut freed = vec![];
    let mut doubtful: Vec<(Name, Found)> = vec![];
    for _ in 0..ROUNDS {
        let state = session.survey()?;
        doubtful.retain(|(realm, found)| !has(&state, realm, found));
        freed.extend(doubtful.drain(..).map(|(realm, found)| row(&realm, &found)));
        for (realm, of_realm) in &state.realms {
            for (found, claimed) in fence.blocks(of_realm) {
                match session.write(release(realm, found, claimed))? {
                    Write::Done(_) => freed.push(row(realm, found)),
                    Write::Lost(_) => (), // it has changed: it is read again
                    Write::Unknown => doubtful.push((realm.clone(), found.clone())),
                }
            }
            for operation in fence.drop_notes(realm, of_realm) {
                session.write(operation)?;
            }
        }
        if is_done(&state, fence) {
            return Ok(freed);
        }
    }
    Err(busy(&fence.node))
}

/// Whether no realm has a block or a note of a conflict of the ended incarnations.
fn is_done(state: &ClusterState, fence: &Ended) -> bool {
    state.realms.values().all(|realm| fence.is_gone(realm))
}

fn has(state: &ClusterState, realm: &Name, found: &Found) -> bool {
    state.realms.get(realm).is_some_and(|realm| realm.blocks.contains(found))
}

fn row(realm: &Name, found: &Found) -> Value {
    let mut row = Members::new();
    put_text(&mut row, "realm", realm.as_str());
    put_text(&mut row, "block", &found.block.prefix().to_string());
    put(&mut row, "addresses", Value::number(found.block.size()));
    let sticky = found.claimed.as_ref().and_then(|claimed| claimed.sticky.as_deref());
    put_text(&mut row, "name", sticky.unwrap_or_default());
    Value::Object(row)
}

fn text(fence: &Ended, freed: Vec<Value>, as_json: bool) -> String {
    let standing = if fence.is_back { "live" } else { "fenced" };
    if as_json {
        return table::json(&Value::object([
            ("node", Value::text(fence.node.as_str())),
            ("standing", Value::text(standing)),
            ("incarnation", Value::number(fence.incarnation)),
            ("freed", Value::Array(freed)),
        ]));
    }
    let said = match fence.is_back {
        false => "is fenced until it registers again",
        true => "has registered again; what an interrupted reclaim had left is freed",
    };
    let head = format!("node {:?} {said}; blocks freed: {}\n", fence.node.as_str(), freed.len());
    if freed.is_empty() { head } else { head + &table::of_rows(freed, &COLUMNS, false) }
}

fn own_name(node: &Name) -> Error {
    let problem = format_args!("{:?} is the node that this command runs on", node.as_str());
    Error::config("NODE", problem)
        .expecting("another node of the cluster")
        .with_details("reclaim it from another node, once this one is gone")
}

/// No node of this name: perhaps it is a typo.
fn unknown(node: &Name, state: &ClusterState) -> Error {
    let names: Vec<&str> = state.nodes.keys().map(Name::as_str).collect();
    let error = Error::config(
        "NODE",
        format_args!("no node of the cluster was ever called {:?}", node.as_str()),
    );
    match nearest(node.as_str(), names.iter().copied()) {
        Some(meant) => error.with_details(format_args!("did you mean {meant:?}?")),
        None if names.is_empty() => error.with_details("the cluster has no node yet"),
        None => error.with_details(format_args!("the nodes are {}", shortened(&names))),
    }
}

/// The first names of many.
fn shortened(names: &[&str]) -> String {
    const MOST: usize = 20;
    let first = names[..names.len().min(MOST)].join(", ");
    let more = names.len().saturating_sub(MOST);
    if more == 0 { first } else { format!("{first} and {more} more") }
}

fn without_record(node: &Name) -> Error {
    let msg = format!("the record of node {:?} cannot be read", node.as_str());
    Error::new(Code::CONFLICT, msg).with_details(
        "was it edited by hand? Delete the key n/NODE with etcdctl: the node's daemon, or a new \
         machine of that name, writes it again",
    )
}

fn is_alive(node: &Name) -> Error {
    let msg = format!("node {:?} is alive", node.as_str());
    Error::new(Code::CONFLICT, msg).with_details(format_args!(
        "a heartbeat lasts {ALIVE} s: if the machine is gone, try again after that; if it \
         runs, first detach its containers and stop its daemon, or power it off"
    ))
}

fn busy(node: &Name) -> Error {
    let msg = format!("the keys of node {:?} change all the time", node.as_str());
    Error::new(Code::TRY_AGAIN, msg).with_details("run the command again: it goes on from here")
}
