//! `ipam join`: a machine that allocated with `"scope": "machine"` becomes a node of a cluster, and
//! keeps every address.
//!
//! For each network the leases move out of the directories of realms into that of the network, and
//! each address gets a claim of its own in the network's file of blocks. The daemon makes the claims
//! when it starts: the command asks no store. Leases and claims are written before the old leases are
//! removed, so a command that was interrupted is run again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use clap::ArgMatches;

use super::super::block::{Block, number, width};
use super::super::conf::DEFAULT_SPARE;
use super::super::held::{Blocks, Held, State};
use super::super::machine_scope::{REALMS, realms};
use super::super::realm_names::RealmNames;
use super::super::store::Token;
use super::{Verb, data_dir, is_json, output, value, without_daemon};
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::plugin::leases::{Holding, Incoming};
use crate::steps::allocation::Lease;
use crate::steps::allocation::files::{FileStore, Place, operator};
use crate::sys::random::Random;
use crate::terminal::Streams;
use crate::terminal::arguments::{flag, has_flag};
use crate::terminal::table::{Members, put_text};

/// The command.
pub const VERB: Verb = Verb {
    name: "join",
    about: "Keep the addresses that this machine has allocated with scope machine, in a cluster",
    arguments: || vec![data_dir(), flag("dry-run", "Only print what would be claimed"), output()],
    run,
    examples: &[
        ("cni-multi ipam join --dry-run", "Print the leases whose addresses would be claimed."),
        ("cni-multi ipam join", "Keep the addresses of this machine in a cluster."),
    ],
};

/// The columns of the table.
const COLUMNS: [&str; 5] = ["network", "address", "containerId", "realm", "name"];

/// The limit of the wait for locks: ADDs hold them for milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Moves the leases, and lists them.
fn run(matches: &ArgMatches, _: &mut Streams<'_>) -> Result<String> {
    let (is_dry, as_json) = (has_flag(matches, "dry-run"), is_json(matches));
    let rows = join(&value(matches, "data-dir"), is_dry)?;
    let end = match rows.is_empty() {
        true => "no network has addresses with scope machine: nothing is to be done\n",
        false if is_dry => "",
        false => "remove \"scope\" from the networks' configurations now, and start the daemon\n",
    };
    let end = if as_json { "" } else { end };
    Ok(super::table(rows, &COLUMNS, as_json) + end)
}

/// Moves the leases of all realms unless `is_dry`; a row for each.
fn join(data_dir: &Path, is_dry: bool) -> Result<Vec<Value>> {
    let _no_daemon = if is_dry { None } else { Some(without_daemon(data_dir)?) };
    let mut places = vec![];
    let mut realms = realms(data_dir)?;
    realms.sort();
    for realm in realms {
        // All leases of the directory, whatever their networks are.
        let name = NetworkName::parse(realm.as_str())?;
        let place = Place::new(&data_dir.join(REALMS), &name, Deadline::after(PATIENCE));
        places.push((realm, place.of_this_boot()));
    }
    let (mut rows, mut realm_of) = (vec![], BTreeMap::new());
    for (realm, place) in &places {
        let names = RealmNames::read(place.dir())?;
        for (network, leases) in of_networks(&place.leases()?.unwrap_or_default()) {
            for Holding { address, container_id, .. } in leases {
                let mut row = Members::new();
                put_text(&mut row, "network", &network);
                put_text(&mut row, "address", &address.to_string());
                put_text(&mut row, "containerId", &container_id);
                put_text(&mut row, "realm", realm.as_str());
                put_text(&mut row, "name", names.name_at(address).unwrap_or_default());
                rows.push(Value::Object(row));
            }
            if let Some(other) = realm_of.insert(network.clone(), realm) {
                let msg = format!("network {network:?} has leases in realms {other} and {realm}");
                return Err(Error::new(Code::CONFLICT, msg)
                    .with_details("in a cluster it has one: detach its containers of the other"));
            }
        }
    }
    for (realm, place) in places.iter().filter(|_| !is_dry) {
        let Some(mut files) = FileStore::open_whole(place)? else { continue };
        files.require_all_read()?;
        let names = RealmNames::read(place.dir())?; // as it is under the lock
        for (network, leases) in of_networks(files.leases()) {
            // The leases and the claims of a network: all or none.
            let name = NetworkName::parse(&network)?;
            let place = Place::new(data_dir, &name, Deadline::after(PATIENCE)).of_this_boot();
            let incoming = Incoming { leases: &leases, tell: &|_, _| () };
            let named =
                |held: &Holding| (held.address, names.name_at(held.address).map(str::to_owned));
            let mut claim_them = || {
                let fresh = Blocks::new(realm.clone(), vec![], DEFAULT_SPARE);
                claim(&place, fresh, leases.iter().map(named))
            };
            operator::write(&place, &incoming, &mut claim_them).map_err(|e| {
                e.context(format_args!("network {network:?}"))
                    .with_details("networks before this one have joined: run the command again")
            })?;
            leases.iter().try_for_each(|held| files.release(held.address))?;
        }
    }
    Ok(rows)
}

/// The leases in a realm's directory by network.
fn of_networks(leases: &[Lease]) -> BTreeMap<String, Vec<Holding>> {
    let mut networks: BTreeMap<String, Vec<Holding>> = BTreeMap::new();
    for Lease { ip, owner } in leases {
        let Some(network) = &owner.network else { continue }; // another program's
        networks.entry(network.clone()).or_default().push(Holding {
            address: *ip,
            container_id: owner.container_id.clone(),
            ifname: owner.ifname.clone().unwrap_or_default(),
            since: None,
            netns_path: String::new(),
        });
    }
    networks.values_mut().for_each(|leases| leases.sort_by_key(|held| held.address));
    networks
}

/// Writes claims of leased addresses into a network's file of blocks, which is `fresh` if there is none.
/// The caller has the lock of the network's leases, and no daemon runs. A claim without a lease is
/// forgotten by the daemon.
pub fn claim(
    place: &Place,
    fresh: Blocks,
    addresses: impl Iterator<Item = (IpAddr, Option<String>)>,
) -> Result<()> {
    let realm = fresh.realm.clone();
    let mut own = Blocks::read(place.dir())?.unwrap_or(fresh);
    if own.blocks.is_empty() {
        own.realm = realm.clone();
    }
    if own.realm != realm {
        let msg =
            format!("{}: it has blocks of realm {:?}", place.dir().display(), own.realm.as_str());
        return Err(Error::new(Code::CONFLICT, msg).with_details(
            "a network with leases stays in its realm: detach its containers first",
        ));
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = since.map_or(0, |since| since.as_secs());
    let mut random = Random::new();
    for (ip, name) in addresses {
        match own.blocks.iter_mut().find(|held| held.block.contains(ip)) {
            // Without a lease it would be given back.
            Some(held) if held.state == State::Returning => held.state = State::Claiming,
            Some(_) => (),
            None => {
                let block = Block::at(Family::of(ip), number(ip), width(Family::of(ip)));
                let token = Token::random(&mut random);
                let state = State::Claiming;
                own.blocks.push(Held { block, token, state, since, contested: false, name });
            }
        }
    }
    own.write(place.dir())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::daemon::identity::{self, Journal};
    use super::super::super::wire::DAEMON;
    use super::*;
    use crate::scratch::Scratch;
    use crate::steps::allocation::Owner;

    /// Two networks of one realm, and one of another.
    fn machine() -> Scratch {
        let dir = Scratch::new();
        for (file, text) in [
            ("default/10.1.0.2", "a\r\neth0\r\npods"),
            ("default/10.1.0.4", "b\r\neth0\r\npods"),
            ("default/10.1.0.3", "a\r\neth1\r\nother"),
            ("default/10.1.0.9", "foreign\r\neth0"),
            ("lab/fd00::2", "a\r\neth2\r\nlab"),
        ] {
            dir.write(&format!("{REALMS}/{file}"), text);
        }
        let kept = r#"{"10.1.0.4":{"network":"pods","name":"shop/till","used":1}}"#;
        dir.write(&format!("{REALMS}/default/names.json"), kept);
        dir
    }

    /// The leases and claims of a network, in words.
    fn network(dir: &Scratch, name: &str) -> (Vec<String>, Vec<String>) {
        let place = Place::new(dir.path(), &NetworkName::parse(name).unwrap(), Deadline::default());
        let lease = |lease: Lease| {
            let Owner { container_id, ifname, network } = lease.owner;
            assert_eq!(network, None);
            format!("{} {container_id} {}", lease.ip, ifname.unwrap())
        };
        let mut leases: Vec<String> =
            place.leases().unwrap().unwrap_or_default().into_iter().map(lease).collect();
        leases.sort();
        let claims = Blocks::read(place.dir()).unwrap();
        let claim = |held: &Held| {
            let name = held.name.as_deref().unwrap_or("-");
            format!("{} {} {name}", held.block.prefix(), held.state)
        };
        (leases, claims.iter().flat_map(|own| own.blocks.iter().map(claim)).collect())
    }

    const PODS: [&str; 2] = ["10.1.0.2 a eth0", "10.1.0.4 b eth0"];
    const CLAIMS: [&str; 2] = ["10.1.0.2/32 claiming -", "10.1.0.4/32 claiming shop/till"];

    fn is_joined(dir: &Scratch) {
        let (leases, claims) = network(dir, "pods");
        assert_eq!(leases, PODS);
        assert_eq!(claims, CLAIMS);
        assert_eq!(network(dir, "other").1, ["10.1.0.3/32 claiming -"]);
        assert_eq!(network(dir, "lab").1, ["fd00::2/128 claiming -"]);
        let left = Scratch::path(dir).join(REALMS).join("default");
        assert!(!left.join("10.1.0.2").exists() && left.join("10.1.0.9").exists());
    }

    #[test]
    fn leases_move_into_their_networks_with_a_claim_each() {
        let dir = machine();
        let dry = join(dir.path(), true).unwrap();
        assert_eq!(network(&dir, "pods"), (vec![], vec![]), "a dry run changes nothing");
        assert!(!dir.path().join(".node").exists());
        let rows = join(dir.path(), false).unwrap();
        assert_eq!((rows.len(), &rows), (4, &dry));
        is_joined(&dir);
        assert_eq!(join(dir.path(), false).unwrap(), []);
        is_joined(&dir);
    }

    /// Wherever the command ends, another one completes it.
    #[test]
    fn an_interrupted_join_is_run_again() {
        for stop in ["one lease", "leases", "claims", "one removed"] {
            let dir = machine();
            let place =
                Place::new(dir.path(), &NetworkName::parse("pods").unwrap(), Deadline::default());
            let mut files = FileStore::create_whole(&place).unwrap();
            let ips = ["10.1.0.2", "10.1.0.4"].map(|ip| ip.parse().unwrap());
            let leases = ips.into_iter().zip(["a", "b"]);
            for (ip, id) in leases.take(if stop == "one lease" { 1 } else { 2 }) {
                files.insert(&Lease { ip, owner: Owner::new(id, "eth0") }).unwrap();
            }
            drop(files);
            if matches!(stop, "claims" | "one removed") {
                let fresh = Blocks::new("default".parse().unwrap(), vec![], 1);
                let name = |ip| (ip, Some("shop/till".to_owned()).filter(|_| ip == ips[1]));
                claim(&place, fresh, ips.into_iter().map(name)).unwrap();
            }
            if stop == "one removed" {
                std::fs::remove_file(dir.path().join(REALMS).join("default/10.1.0.2")).unwrap();
            }
            join(dir.path(), false).unwrap();
            is_joined(&dir);
        }
    }

    #[test]
    fn a_network_is_joined_whole_or_not_at_all() {
        for (file, text, reason) in [
            (
                ".machine/lab/10.1.0.8",
                "c\r\neth0\r\npods",
                "network \"pods\" has leases in realms default and lab",
            ),
            ("pods/10.1.0.4", "another\r\neth0", "network \"pods\": 10.1.0.4 is held by "),
            ("pods/10.1.0.4", "x y z", "network \"pods\": 10.1.0.4 is held by "),
            (
                "pods/blocks.json",
                r#"{"version":2,"realm":"lab","pools":[],"spare":1,"blocks":[{"block":"4-0a010100-32",
                "token":"000000000000000000000000000000ab","state":"active","since":1}]}"#,
                "it has blocks of realm \"lab\"",
            ),
        ] {
            let dir = machine();
            dir.write(file, text);
            let before = network(&dir, "pods");
            let error = join(dir.path(), false).unwrap_err();
            assert!(error.msg.contains(reason), "{}", error.msg);
            assert_eq!(network(&dir, "pods"), before);
            assert!(dir.path().join(REALMS).join("default/10.1.0.2").exists());
        }
    }

    /// A block that is about to be given back is kept for the lease in it.
    #[test]
    fn a_lease_in_a_block_of_the_node_needs_no_other_claim() {
        for (state, then) in [("returning", "claiming"), ("active", "active")] {
            let dir = machine();
            let blocks = format!(
                r#"{{"version":2,"realm":"default","pools":[],"spare":1,"blocks":[{{"block":"4-0a010000-29",
                "token":"000000000000000000000000000000ab","state":"{state}","since":1}}]}}"#
            );
            dir.write("pods/blocks.json", &blocks);
            join(dir.path(), false).unwrap();
            assert_eq!(network(&dir, "pods").1, [format!("10.1.0.0/29 {then} -")]);
        }
    }

    #[test]
    fn no_lease_moves_while_a_daemon_runs() {
        let dir = machine();
        let mut daemon = Journal::open(&DAEMON, &identity::directory(dir.path())).unwrap();
        daemon.started();
        let error = join(dir.path(), false).unwrap_err();
        assert!(error.details().starts_with("stop the daemon first"), "{error}");
        drop(daemon);
        join(dir.path(), false).unwrap();
    }
}
