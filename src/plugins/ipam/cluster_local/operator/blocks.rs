//! `ipam blocks`: the blocks that this node has, and why its daemon cannot claim more; with `--all`
//! those of the cluster.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use clap::ArgMatches;

use super::super::client;
use super::super::held::{Blocks, State};
use super::super::name::Name;
use super::super::store::settings::Settings;
use super::super::store::{Claim, Key, NodeRecord, Record, Selection, Stored, Value as Content};
use super::super::wire::DAEMON;
use super::{Verb, config, data_dir, is_json, open, output, read, value};
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::service::wire::is_not_running;
use crate::steps::allocation::files::{Place, operator};
use crate::terminal::Streams;
use crate::terminal::arguments::{flag, has_flag};
use crate::terminal::table::{self, Members, put, put_text};

/// The command.
pub const VERB: Verb = Verb {
    name: "blocks",
    about: "List the blocks of addresses that this node has borrowed",
    arguments: || {
        let all = flag("all", "Those of all nodes, as the cluster's store has them");
        vec![all, data_dir(), config(), output()]
    },
    run,
    examples: &[
        ("cni-multi ipam blocks", "List the blocks that this node has borrowed."),
        ("cni-multi ipam blocks --all", "List those of all nodes, and which two nodes have."),
    ],
};

/// The columns of the node's table.
const COLUMNS: [&str; 6] = ["network", "block", "state", "held", "realm", "name"];

/// The columns of the cluster's table.
const OF_ALL: [&str; 6] = ["realm", "block", "addresses", "node", "state", "name"];

/// How long the command waits for the daemon's state.
const PATIENCE: Duration = Duration::from_secs(5);

fn run(matches: &ArgMatches, _: &mut Streams<'_>) -> Result<String> {
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
        for held in &blocks.blocks {
            let is_contested = held.contested && held.state != State::Lost;
            let state = if is_contested { "contested" } else { &held.state.to_string() };
            let leases = taken.iter().filter(|ip| held.block.contains(**ip)).count();
            let mut row = Members::new();
            put_text(&mut row, "network", network.as_str());
            put_text(&mut row, "block", &held.block.prefix().to_string());
            put_text(&mut row, "state", state);
            put(&mut row, "held", Value::number(leases as u64));
            put_text(&mut row, "realm", blocks.realm.as_str());
            put_text(&mut row, "name", held.name.as_deref().unwrap_or_default());
            rows.push(Value::Object(row));
        }
    }
    // The daemon's reason, as STATUS has it. What an ADD could do without a daemon is not said.
    if !rows.is_empty() || value(matches, "config").exists() {
        let problem = client::status(Deadline::after(PATIENCE)).err();
        rows.extend(problem.map(|problem| {
            if !is_not_running(&problem) {
                return table::row_of_problem(&problem.to_string());
            }
            let config = value(matches, "config");
            let fault = Settings::load(&config).err().filter(|_| config.exists());
            let fault = fault.map_or_else(String::new, |fault| format!("; {fault}"));
            let msg = &problem.msg;
            table::row_of_problem(&format!("{msg}; it does not run: start {}{fault}", DAEMON.units))
        }));
    }
    Ok(super::table(rows, &COLUMNS, is_json(matches)))
}

/// Claims with the state of their owners, nodes with leases in blocks of others, and how many chunks
/// of 64 addresses are divided.
fn cluster(records: &[Stored], as_json: bool) -> String {
    let mut nodes: HashMap<&Name, &NodeRecord> = HashMap::new();
    let mut divided: BTreeMap<&Name, u64> = BTreeMap::new();
    let mut rows = vec![];
    for Stored { record, .. } in records {
        if let Record { key: Key::Node(name), value: Content::Node(node) } = record {
            nodes.insert(name, node);
        }
    }
    for Stored { record, .. } in records {
        let (Key::Block(realm, block) | Key::Conflict(realm, block)) = &record.key else {
            continue;
        };
        let (node, state, name) = match &record.value {
            Content::Divided(_) => {
                *divided.entry(realm).or_default() += 1;
                continue;
            }
            Content::Claim(claim) => {
                let state = state(claim, nodes.get(&claim.node).copied());
                (claim.node.as_str(), state, claim.name.as_deref())
            }
            Content::Conflict(node) => (node.as_str(), "conflict", None),
            _ => ("", "unreadable", None),
        };
        let mut row = Members::new();
        put_text(&mut row, "realm", realm.as_str());
        put_text(&mut row, "block", &block.prefix().to_string());
        put(&mut row, "addresses", Value::number(block.size()));
        put_text(&mut row, "node", node);
        put_text(&mut row, "state", state);
        put_text(&mut row, "name", name.unwrap_or_default());
        rows.push(((realm, *block), Value::Object(row)));
    }
    rows.sort_by_key(|(at, _)| *at); // a conflict comes after the claim
    let mut rows: Vec<Value> = rows.into_iter().map(|(_, row)| row).collect();
    let mut lines = String::new();
    for (realm, count) in divided {
        let members =
            [("realm", Value::text(realm.as_str())), ("dividedChunks", Value::number(count))];
        match as_json {
            true => rows.push(Value::object(members)),
            false => {
                lines +=
                    &format!("realm {realm}: chunks of 64 addresses that are divided: {count}\n");
            }
        }
    }
    super::table(rows, &OF_ALL, as_json) + &lines
}

/// What the claim's owner is by its record.
fn state(claim: &Claim, node: Option<&NodeRecord>) -> &'static str {
    match node {
        None => "no record",
        Some(node) if node.ended => "ended",
        Some(node) if node.uid != claim.uid => "earlier uid",
        Some(node) if node.mark.is_some() => "marked",
        Some(_) => "live",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::store::tests::memory::Memory;
    use super::super::super::store::{Store as _, Token};
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
                taken: None,
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
    fn claims_have_the_state_of_their_owner_and_conflicts_follow_them() {
        let records = read(store().list(&Selection::All)).unwrap();
        assert_eq!(
            cluster(&records, false),
            "\
REALM    BLOCK           ADDRESSES  NODE  STATE        NAME
default  10.88.1.0/29    8          n1    live         -
default  10.88.1.8/29    8          n2    marked       -
default  10.88.1.9/32    1          n1    conflict     -
default  10.88.1.16/29   8          n3    ended        -
default  10.88.1.24/29   8          n4    no record    -
default  10.88.1.249/32  1          n1    earlier uid  pods shop/till
default  10.88.1.250/32  1          -     unreadable   -
lab      10.88.1.9/32    1          n2    conflict     -
realm default: chunks of 64 addresses that are divided: 1
"
        );
        let json = cluster(&records, true);
        assert!(json.contains(r#"{"realm":"default","dividedChunks":1}"#), "{json}");
    }
}
