//! `ipam blocks`: the blocks that this node has, and why its daemon cannot claim more; with `--all`
//! those of the cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use clap::{ArgMatches, Command};

use super::super::block::Block;
use super::super::client;
use super::super::held::{Blocks, Held, State};
use super::super::name::Name;
use super::super::node::CONFIGURATION;
use super::super::store::{Claim, Key, NodeRecord, Selection, Stored, Value as Content};
use super::{config, data_dir, is_json, open, output, read, value};
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::steps::allocation::files::{Place, operator};
use crate::terminal::Streams;
use crate::terminal::arguments::{flag, has_flag};
use crate::terminal::manual::Terms;
use crate::terminal::table::{self, Members, PROBLEM, put, put_text};

/// For the manual.
pub const EXAMPLES: Terms = &[
    ("cni-multi ipam blocks", "List the blocks that this node has borrowed."),
    ("cni-multi ipam blocks --all", "List those of all nodes, and which two nodes have."),
];

/// The columns of the node's table.
const COLUMNS: [(&str, &str); 6] = [
    ("NETWORK", "network"),
    ("BLOCK", "block"),
    ("STATE", "state"),
    ("HELD", "held"),
    ("REALM", "realm"),
    ("NAME", "name"),
];

/// The columns of the cluster's table.
const OF_ALL: [(&str, &str); 7] = [
    ("REALM", "realm"),
    ("BLOCK", "block"),
    ("ADDRESSES", "addresses"),
    ("NODE", "node"),
    ("OWNER", "owner"),
    ("CONFLICT", "conflict"),
    ("NAME", "name"),
];

/// How long the command waits for the daemon's state.
const PATIENCE: Duration = Duration::from_secs(5);

/// The command line.
pub fn command(blocks: Command) -> Command {
    blocks
        .about("List the blocks of addresses that this node has borrowed")
        .args([flag("all", "Those of all nodes, as the cluster's store has them")])
        .args([data_dir(), config(), output()])
}

/// The list.
pub fn run(matches: &ArgMatches, _: &mut Streams<'_>) -> Result<String> {
    if has_flag(matches, "all") {
        let (_, mut store) = open(&value(matches, "config"))?;
        return Ok(cluster(&read(store.list(&Selection::All))?, is_json(matches)));
    }
    let data_dir = value(matches, "data-dir");
    let mut rows = vec![];
    for network in operator::networks(&data_dir) {
        let place = Place::new(&data_dir, &network, Deadline::default()).of_this_boot();
        let Some(blocks) = Blocks::read(place.dir())? else { continue };
        let taken = place.taken()?;
        rows.extend(blocks.blocks.iter().map(|held| {
            let leases = taken.iter().filter(|ip| held.block.contains(**ip)).count();
            local(network.as_str(), &blocks.realm, held, leases)
        }));
    }
    // The daemon's reason, as STATUS has it.
    let is_of_cluster = std::path::Path::new(CONFIGURATION).exists();
    let status = is_of_cluster.then(|| client::status(Deadline::after(PATIENCE)));
    let problem = status.and_then(Result::err);
    rows.extend(problem.map(|problem| table::row_of_problem(&problem.to_string())));
    Ok(table::of_rows(rows, &COLUMNS, is_json(matches)))
}

fn local(network: &str, realm: &Name, held: &Held, leases: usize) -> Value {
    let is_contested = held.contested && held.state != State::Lost;
    let state = if is_contested { "contested".to_owned() } else { held.state.to_string() };
    let mut row = Members::new();
    put_text(&mut row, "network", network);
    put_text(&mut row, "block", &held.block.prefix().to_string());
    put_text(&mut row, "state", &state);
    put(&mut row, "held", Value::number(leases as u64));
    put_text(&mut row, "realm", realm.as_str());
    put_text(&mut row, "name", held.name.as_deref().unwrap_or_default());
    Value::Object(row)
}

/// The records of the store: claims with the state of their owners, nodes with leases in blocks of
/// others, and how many chunks of 64 addresses are divided.
fn cluster(records: &[Stored], as_json: bool) -> String {
    let (mut nodes, mut notes) = (HashMap::new(), BTreeMap::new());
    for Stored { record, .. } in records {
        match (&record.key, &record.value) {
            (Key::Node(name), Content::Node(node)) => {
                nodes.insert(name, node);
            }
            (Key::Conflict(realm, block), Content::Conflict(node)) => {
                notes.insert((realm, *block), node);
            }
            _ => (),
        }
    }
    let mut divided: BTreeMap<&Name, u64> = BTreeMap::new();
    let mut contested = BTreeSet::new();
    let mut rows = vec![];
    for Stored { record, .. } in records {
        let Key::Block(realm, block) = &record.key else { continue };
        match &record.value {
            Content::Claim(claim) => {
                let of_block = |at: &(&Name, Block)| at.0 == realm && at.1.overlaps(*block);
                let note = notes.iter().find(|(at, _)| of_block(at));
                contested.extend(note.map(|(at, _)| *at));
                let owner = owner(claim, nodes.get(&claim.node).copied());
                rows.push(row((realm, *block), Some((claim, owner)), note.map(|(_, node)| *node)));
            }
            Content::Divided(_) => *divided.entry(realm).or_default() += 1,
            _ => rows.push(unreadable(realm, *block)),
        }
    }
    let unclaimed = notes.iter().filter(|(at, _)| !contested.contains(*at));
    rows.extend(unclaimed.map(|(at, node)| row(*at, None, Some(*node))));
    let counted = |(realm, count): (&&Name, &u64)| {
        let members =
            [("realm", Value::text(realm.as_str())), ("dividedChunks", Value::number(*count))];
        Value::object(members)
    };
    if as_json {
        rows.extend(divided.iter().map(counted));
        return table::of_rows(rows, &OF_ALL, true);
    }
    let lines = divided.iter().map(|(realm, count)| {
        format!("realm {realm}: chunks of 64 addresses that are divided: {count}\n")
    });
    table::of_rows(rows, &OF_ALL, false) + &lines.collect::<String>()
}

/// What the claim's owner is by its record.
fn owner(claim: &Claim, node: Option<&NodeRecord>) -> &'static str {
    match node {
        None => "no record",
        Some(node) if node.ended => "ended",
        Some(node) if node.uid != claim.uid => "earlier uid",
        Some(node) if node.mark.is_some() => "marked",
        Some(_) => "live",
    }
}

fn row(at: (&Name, Block), claim: Option<(&Claim, &str)>, other: Option<&Name>) -> Value {
    let (realm, block) = at;
    let mut row = Members::new();
    put_text(&mut row, "realm", realm.as_str());
    put_text(&mut row, "block", &block.prefix().to_string());
    put(&mut row, "addresses", Value::number(u64::from(block.size())));
    if let Some((claim, owner)) = claim {
        put_text(&mut row, "node", claim.node.as_str());
        put_text(&mut row, "owner", owner);
        put_text(&mut row, "name", claim.name.as_deref().unwrap_or_default());
    }
    put_text(&mut row, "conflict", other.map_or("", Name::as_str));
    Value::Object(row)
}

fn unreadable(realm: &Name, block: Block) -> Value {
    let mut row = Members::new();
    put_text(&mut row, "realm", realm.as_str());
    put_text(&mut row, "block", &block.prefix().to_string());
    put_text(&mut row, PROBLEM, "its record cannot be read: was it edited by hand?");
    Value::Object(row)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::store::memory::Memory;
    use super::super::super::store::{Record, Store as _, Token};
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn node(uid: u128, mark: Option<Token>, ended: bool) -> Content {
        Content::Node(NodeRecord {
            uid: Token(uid),
            machine: Token(9),
            boot: String::new(),
            session: Token(1),
            number: 1,
            nonce: Token(1),
            version: String::new(),
            trusts_reboot: false,
            mark,
            ended,
        })
    }

    fn store() -> Memory {
        let mut store = Memory::default();
        let block = |text: &str| Key::Block(name("default"), text.parse().unwrap());
        let claim = |node: &str, uid, sticky: Option<&str>| {
            let sticky = sticky.map(str::to_owned);
            Content::Claim(Claim {
                node: name(node),
                uid: Token(uid),
                token: Token(1),
                name: sticky,
            })
        };
        let note = Key::Conflict(name("default"), "4-0a580109-32".parse().unwrap());
        let alone = Key::Conflict(name("lab"), "4-0a580109-32".parse().unwrap());
        for (key, value) in [
            (Key::Node(name("n1")), node(1, None, false)),
            (Key::Node(name("n2")), node(2, Some(Token(5)), false)),
            (Key::Node(name("n3")), node(3, None, true)),
            (block("4-0a580100-26"), Content::Divided(8)),
            (block("4-0a580100-29"), claim("n1", 1, None)),
            (block("4-0a580108-29"), claim("n2", 2, None)),
            (block("4-0a580110-29"), claim("n3", 3, None)),
            (block("4-0a580118-29"), claim("n4", 4, None)),
            (block("4-0a5801f9-32"), claim("n1", 7, Some("pods shop/till"))),
            (block("4-0a5801fa-32"), Content::Unreadable),
            (note, Content::Conflict(name("n1"))),
            (alone, Content::Conflict(name("n2"))),
        ] {
            store.create(&Record { key, value });
        }
        store
    }

    #[test]
    fn claims_have_the_state_of_their_owner_and_the_node_with_leases_in_them() {
        let records = read(store().list(&Selection::All)).unwrap();
        assert_eq!(
            cluster(&records, false),
            "\
REALM    BLOCK           ADDRESSES  NODE  OWNER        CONFLICT  NAME
default  10.88.1.0/29    8          n1    live         -         -
default  10.88.1.8/29    8          n2    marked       n1        -
default  10.88.1.16/29   8          n3    ended        -         -
default  10.88.1.24/29   8          n4    no record    -         -
default  10.88.1.249/32  1          n1    earlier uid  -         pods shop/till
default  10.88.1.250/32  -          -     -            -         -  its record cannot be read: was it edited by hand?
lab      10.88.1.9/32    1          -     -            n2        -
realm default: chunks of 64 addresses that are divided: 1
"
        );
        let json = cluster(&records, true);
        assert!(json.contains(r#"{"realm":"default","dividedChunks":1}"#), "{json}");
    }
}
