//! `ipam join`: a machine that allocated with `"scope": "machine"` becomes a node of a cluster, and
//! keeps every address.
//!
//! For each network the leases move out of the directories of realms into that of the network, and
//! each address gets a claim of its own in the network's file of blocks. The daemon makes the claims
//! when it starts: the command asks no store. The claims are on the disk before the first lease moves,
//! and a lease is written before the old one is removed, so a command that was interrupted is run
//! again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use clap::{ArgMatches, Command};

use super::super::block::{Block, width};
use super::super::conf::DEFAULT_SPARE;
use super::super::held::{Blocks, Held, State};
use super::super::machine_scope::{REALMS, realms};
use super::super::name::Name;
use super::super::realm_names::RealmNames;
use super::super::store::Token;
use super::{data_dir, is_json, output, value, without_daemon};
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::rollback::transaction;
use crate::steps::allocation::files::{FileStore, Place};
use crate::steps::allocation::{Lease, Owner, Store as _};
use crate::sys::random::Random;
use crate::terminal::Streams;
use crate::terminal::arguments::{flag, has_flag};
use crate::terminal::manual::Terms;
use crate::terminal::table::{self, Members, put_text};

/// For the manual.
pub const EXAMPLES: Terms = &[
    ("cni-multi ipam join --dry-run", "Print the leases whose addresses would be claimed."),
    ("cni-multi ipam join", "Keep the addresses of this machine in a cluster."),
];

/// The columns of the table.
const COLUMNS: [(&str, &str); 5] = [
    ("NETWORK", "network"),
    ("ADDRESS", "address"),
    ("CONTAINER", "containerId"),
    ("REALM", "realm"),
    ("NAME", "name"),
];

/// The limit of the wait for locks: ADDs hold them for milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The command line.
pub fn command(join: Command) -> Command {
    join.about("Keep the addresses that this machine has allocated with scope machine, in a cluster")
        .args([data_dir(), flag("dry-run", "Only print what would be claimed"), output()])
}

/// The leases of a network in a realm, each with the name that its address is kept for.
type Leases = Vec<(Lease, Option<String>)>;

/// Moves the leases, and lists them.
pub fn run(matches: &ArgMatches, _: &mut Streams<'_>) -> Result<String> {
    let (data_dir, is_dry) = (value(matches, "data-dir"), has_flag(matches, "dry-run"));
    let _no_daemon = if is_dry { None } else { Some(without_daemon(&data_dir)?) };
    let mut rows = vec![];
    for realm in realms(&data_dir)? {
        let place = Place::realm(&data_dir.join(REALMS), realm.as_str(), Deadline::after(PATIENCE));
        let mut files = if is_dry { None } else { FileStore::open_whole(&place)? };
        files.as_ref().map_or(Ok(()), FileStore::require_all_read)?;
        let names = RealmNames::read(place.dir())?;
        let mut networks: BTreeMap<String, Leases> = BTreeMap::new();
        let all = match &files {
            Some(files) => files.leases().to_vec(),
            None => place.leases()?.unwrap_or_default(),
        };
        for Lease { ip, owner } in all {
            let Some(network) = owner.network.clone() else { continue }; // not ours
            let name = names.name_at(ip).map(str::to_owned);
            let lease = Lease { ip, owner: Owner { network: None, ..owner } };
            networks.entry(network).or_default().push((lease, name));
        }
        for (network, mut leases) in networks {
            leases.sort_by_key(|(lease, _)| lease.ip);
            rows.extend(leases.iter().map(|lease| row(&network, &realm, lease)));
            if let Some(files) = &mut files {
                let network = NetworkName::parse(&network)?;
                take_over(&data_dir, &network, &realm, &leases)?;
                leases.iter().try_for_each(|(lease, _)| files.release(lease.ip))?;
            }
        }
    }
    let end = if is_dry || is_json(matches) {
        ""
    } else {
        "remove \"scope\" from the networks' configurations now, and start the daemon\n"
    };
    Ok(table::of_rows(rows, &COLUMNS, is_json(matches)) + end)
}

/// Writes the claims and the leases of a network: all or none.
fn take_over(
    data_dir: &Path,
    network: &NetworkName,
    realm: &Name,
    leases: &[(Lease, Option<String>)],
) -> Result<()> {
    let place = Place::new(data_dir, network, Deadline::after(PATIENCE)).of_this_boot();
    let mut files = FileStore::create_whole(&place)?;
    files.require_all_read()?;
    let mut missing = vec![];
    for (lease, _) in leases {
        match files.leases().iter().find(|found| found.ip == lease.ip) {
            Some(found) if found.owner == lease.owner => (), // the command was interrupted
            None if !place.is_taken(lease.ip) => missing.push(lease),
            _ => {
                let msg = format!("{} of network {:?} has two leases", lease.ip, network.as_str());
                return Err(Error::new(Code::CONFLICT, msg).with_details(format_args!(
                    "one in {}, one in {}: delete that of the container that is gone; leases of \
                     networks before this one have moved",
                    place.dir().display(),
                    data_dir.join(REALMS).join(realm.as_str()).display()
                )));
            }
        }
    }
    let addresses = leases.iter().map(|(lease, name)| (lease.ip, name.clone()));
    claim(&place, Blocks::new(realm.clone(), vec![], DEFAULT_SPARE), addresses)?;
    let written = transaction(|rb| {
        for lease in missing {
            if !files.insert(lease)? {
                let msg = format!("{} appeared in {}", lease.ip, place.dir().display());
                return Err(Error::new(Code::CONFLICT, msg));
            }
            files.release_on_failure(lease.ip, rb);
        }
        Ok(())
    });
    written.inspect_err(|_| files.forget_what_is_gone())
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
        let msg = format!("{}: it has blocks of realm {:?}", place.dir().display(), own.realm.as_str());
        return Err(Error::new(Code::CONFLICT, msg)
            .with_details("a network with leases stays in its realm: detach its containers first"));
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
                let block = Block::at(Family::of(ip), super::super::block::number(ip), width(Family::of(ip)));
                let token = Token::random(&mut random);
                let state = State::Claiming;
                own.blocks.push(Held { block, token, state, since, contested: false, name });
            }
        }
    }
    own.write(place.dir())
}

fn row(network: &str, realm: &Name, (lease, name): &(Lease, Option<String>)) -> Value {
    let mut row = Members::new();
    put_text(&mut row, "network", network);
    put_text(&mut row, "address", &lease.ip.to_string());
    put_text(&mut row, "containerId", &lease.owner.container_id);
    put_text(&mut row, "realm", realm.as_str());
    put_text(&mut row, "name", name.as_deref().unwrap_or_default());
    Value::Object(row)
}
