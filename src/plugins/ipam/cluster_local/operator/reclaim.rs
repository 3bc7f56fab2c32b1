//! `ipam reclaim NODE`: frees the blocks of a node that is gone.

use std::thread;
use std::time::Duration;

use clap::ArgMatches;

use super::super::machine::reclaim::{End, Reclaim, Step};
use super::super::name::Name;
use super::super::store::{Key, Outcome, Selection, Store, Stored, Token, Value as Content};
use super::{Verb, config, is_json, open, output, read, unusable};
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::sys::clock::since_boot;
use crate::sys::random::Random;
use crate::terminal::Streams;
use crate::terminal::arguments::{flag, has_flag, positional, text};
use crate::terminal::nearest::nearest;
use crate::terminal::table::{self, Members, put, put_text};

/// The command.
pub const VERB: Verb = Verb {
    name: "reclaim",
    about: "Free the blocks of a node that is off: takes 100 s, and changes nothing if it lives",
    arguments: || {
        let node = positional("node", "NODE", "Name of the node, as in its configuration");
        let destroyed = "The machine is destroyed, not only off: for a node with trustReboot";
        vec![node, flag("destroyed", destroyed), config(), output()]
    },
    run,
    examples: &[
        ("cni-multi ipam reclaim node-7", "Free the blocks of a node that is off for good."),
        (
            "cni-multi ipam reclaim node-7 --destroyed",
            "The same of a node with trustReboot, whose machine no longer exists.",
        ),
    ],
};

/// The columns of the table.
const COLUMNS: [&str; 4] = ["realm", "block", "addresses", "name"];

/// The pause between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);
/// How long a store may not answer that has answered before.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reclaims the node and lists what was freed.
fn run(matches: &ArgMatches, io: &mut Streams<'_>) -> Result<String> {
    let node: Name =
        text(matches, "node").parse().map_err(|no_name| Error::config("NODE", no_name))?;
    let (settings, mut store) = open(text(matches, "config").as_ref())?;
    if node == settings.node {
        let problem = format_args!("{:?} is the node that this command runs on", node.as_str());
        return Err(Error::config("NODE", problem)
            .expecting("another node of the cluster")
            .with_details("reclaim it from another node, once this one is off"));
    }
    let token = Token::random(&mut Random::new());
    let mut reclaim = Reclaim::new(node.clone(), token, has_flag(matches, "destroyed"));
    let end = drive(&mut reclaim, &mut *store, io)?;
    let freed = reclaim.freed();
    match end {
        End::Freed => Ok(report(&node, freed, is_json(matches))),
        End::NoRecord(0) if is_json(matches) => Ok(report(&node, freed, true)),
        End::NoRecord(0) => unknown(&node, &settings.node, &mut *store),
        other => Err(failure(&node, other, freed.len())),
    }
}

/// Does what is due until the end.
fn drive(reclaim: &mut Reclaim, store: &mut dyn Store, io: &mut Streams<'_>) -> Result<End> {
    // When the next line of progress is due, and when the store has answered last.
    let (mut due, mut answered) = (since_boot(), None);
    loop {
        let now = since_boot();
        let step = reclaim.next(now);
        let progress = match &step {
            Step::Done(_) => None,
            Step::Wait(_) => reclaim.watched_until().filter(|end| *end > now).map(|end| {
                format!("a living node would answer in the next {} s", (end - now).as_secs())
            }),
            Step::Ask(_) => reclaim.remaining().map(|left| format!("records left: {left}")),
        };
        if let Some(line) = progress.filter(|_| due <= now) {
            let _ = writeln!(io.stderr, "{line}"); // the work goes on without a reader
            due = now + PROGRESS;
        }
        match step {
            Step::Done(end) => return Ok(end),
            Step::Wait(until) => thread::sleep(until.saturating_sub(now)),
            Step::Ask(operation) => {
                let outcome = operation.perform(store);
                match &outcome {
                    Outcome::Unreachable(reason) | Outcome::Unknown(reason)
                        if answered.is_none_or(|at| since_boot() > at + PATIENCE) =>
                    {
                        return Err(unusable(reason)
                            .with_details("run the command again: it goes on from here"));
                    }
                    Outcome::Unreachable(_) | Outcome::Unknown(_) => (),
                    _ => answered = Some(since_boot()),
                }
                reclaim.answered(outcome, since_boot());
            }
        }
    }
}

fn report(node: &Name, freed: &[Stored], as_json: bool) -> String {
    let mut rows = vec![];
    for Stored { record, .. } in freed.iter().rev() {
        if let (Key::Block(realm, block), Content::Claim(claim)) = (&record.key, &record.value) {
            let mut row = Members::new();
            put_text(&mut row, "realm", realm.as_str());
            put_text(&mut row, "block", &block.prefix().to_string());
            put(&mut row, "addresses", Value::number(block.size()));
            put_text(&mut row, "name", claim.name.as_deref().unwrap_or_default());
            rows.push(Value::Object(row));
        }
    }
    if as_json {
        let members = [("node", Value::text(node.as_str())), ("freed", Value::Array(rows))];
        return table::json(&Value::object(members));
    }
    let head = format!("node {:?} is reclaimed; blocks freed: {}\n", node.as_str(), rows.len());
    if rows.is_empty() { head } else { head + &super::table(rows, &COLUMNS, false) }
}

/// Nothing has the name: the node was reclaimed before, or the name is a typo.
fn unknown(node: &Name, own: &Name, store: &mut dyn Store) -> Result<String> {
    let nodes = read(store.list(&Selection::Nodes))?;
    let names = nodes.iter().filter_map(|stored| match &stored.record.key {
        Key::Node(name) if name != own => Some(name.as_str()),
        _ => None,
    });
    let meant = nearest(node.as_str(), names);
    let meant = meant.map(|meant| format!("; did you mean {meant:?}?")).unwrap_or_default();
    Ok(format!("node {:?} has nothing in the cluster{meant}\n", node.as_str()))
}

fn failure(node: &Name, end: End, freed: usize) -> Error {
    let node = node.as_str();
    let (msg, details) = match end {
        End::Lives => (
            format!("node {node:?} lives: nothing was freed"),
            "if the machine is gone, another one has its name; else detach its containers and stop \
             its daemon, or power it off",
        ),
        End::IsBack => (
            format!("node {node:?} has registered again; blocks freed before: {freed}"),
            "it takes over what is left: there is nothing more to reclaim",
        ),
        End::NotDestroyed => (
            format!(
                "node {node:?} may allocate after its next boot without the store (trustReboot)"
            ),
            "if its machine no longer exists, add --destroyed: were it only off, it would use \
             addresses that others have by then",
        ),
        End::NoRecord(keys) => (
            format!("node {node:?} has no record, and {keys} claims and notes: nothing was freed"),
            "a running daemon registers again, and keeps or deletes them; if the machine is gone, \
             start the daemon once on any machine with that node name",
        ),
        End::Refused(reason) => return unusable(&reason),
        End::Freed => (String::new(), ""),
    };
    Error::new(Code::CONFLICT, msg).with_details(details)
}
