//! What the kernel and the disk say about the attachments, independent of the plugins.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::world::{Life, World, own_ips};
use crate::support::netns::{Container, UPLINK};
use crate::support::networks::dhcp::journal;
use crate::support::patience;
use crate::support::snapshot::Snapshot;
use crate::support::traffic::{TcpServer, assert_pings_with, connect};

/// The container has the interface with the addresses of the result. With `by_packets` its gateway
/// answers, and the container answers connections from outside to its host port.
#[track_caller]
pub fn assert_is_attached(world: &World<'_>, container: &Container, life: &Life, by_packets: bool) {
    let network = world.network(life);
    let what = format!("{} {} in {}", life.id, life.ifname, network.name);
    let listed = container.try_sh(&format!("ip -j addr show dev {}", life.ifname));
    assert!(listed.status.success(), "REMOVED: the interface of {what}");
    let link = serde_json::from_slice::<Value>(&listed.stdout).unwrap()[0].take();
    let is_up = link["flags"].as_array().unwrap().contains(&"UP".into());
    assert!(is_up, "REMOVED: {what} is not up: {link}");
    let own = own_ips(life.result.as_ref().expect("it lives"));
    let infos = link["addr_info"].as_array().unwrap();
    let is_there = |ip: &String| infos.iter().any(|has| has["local"] == ip.as_str());
    assert!(own.iter().all(is_there), "REMOVED: {what} has not all of {own:?}: {link}");
    if !by_packets {
        return;
    }
    if let (Some(gateway), Some(source)) = (&network.gateway, own.first()) {
        world.tally.count("pings of gateways");
        assert_pings_with(container, gateway, &format!("-I {source}"));
    }
    if let Some(port) = life.capabilities["portMappings"][0]["hostPort"].as_u64() {
        world.tally.count("connections to published ports");
        let _server = TcpServer::start(container, 80);
        let to = format!("{}:{port}", UPLINK[0]);
        let answer = (0..3).find_map(|_| connect(&world.lab.outside, &to));
        assert!(answer.is_some(), "REMOVED: nobody answers at {to} for {what}");
    }
}

/// The addresses with a file on the disk, and their owners.
fn leases(world: &World<'_>, network: &str) -> BTreeMap<String, (String, String)> {
    let dir = world.lab.path(&format!("/var/lib/cni/networks/{network}"));
    let Ok(entries) = std::fs::read_dir(&dir) else { return BTreeMap::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let read = |name: String| {
        name.parse::<std::net::IpAddr>().ok()?;
        let text = std::fs::read_to_string(dir.join(&name)).unwrap();
        let (id, ifname) = text.split_once("\r\n").unwrap_or((&text, ""));
        Some((name, (id.to_owned(), ifname.to_owned())))
    };
    names.filter_map(read).collect()
}

/// While no worker runs: every address on the disk belongs to a living attachment, and every living
/// attachment holds its addresses.
#[track_caller]
pub fn assert_leases_are_those_of_the_living(world: &World<'_>) {
    let mut by_daemon = 0;
    for (number, network) in world.networks.iter().enumerate() {
        match network.ipam() {
            "host-local" => {
                let (found, name) = (leases(world, &network.name), &network.name);
                assert_eq!(found, world.holders(number), "LEAKED or REMOVED: leases of {name}");
            }
            "dhcp" => by_daemon += world.holders(number).len(),
            _ => (),
        }
    }
    let otherwise = format!("LEAKED or REMOVED: of the daemon's leases {by_daemon} are held");
    settles(world, &otherwise, || {
        let written = journal(world.lab);
        if written.len() == by_daemon { String::new() } else { written.join("\n") }
    });
}

/// While no worker runs: everything on the host that names an owner belongs to a living attachment.
#[track_caller]
pub fn assert_names_are_those_of_the_living(world: &World<'_>, living: &BTreeSet<String>) {
    let dead = || {
        let snapshot = Snapshot::of_host(world.lab);
        let of_dead = |line: &&String| containers_in(line).any(|id| !living.contains(id));
        snapshot.lines().iter().filter(of_dead).cloned().collect::<Vec<_>>().join("\n")
    };
    settles(world, "LEAKED: this is of somebody who has ended", dead);
}

/// The container is in its initial state.
#[track_caller]
pub fn assert_is_pristine(world: &World<'_>, container: &Container, id: &str) {
    world.tally.count("namespaces compared");
    settles(world, &format!("LEAKED: {id} is not as it was made"), || {
        world.pristine.difference(&Snapshot::of(container))
    });
}

/// Waits a little until nothing is left: the kernel deletes some things asynchronously.
#[track_caller]
fn settles(world: &World<'_>, otherwise: &str, rest: impl Fn() -> String) {
    let deadline = Instant::now() + patience(world.patience);
    loop {
        let rest = rest();
        if rest.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{otherwise}:\n{rest}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The IDs of our containers in a text.
fn containers_in(text: &str) -> impl Iterator<Item = &str> {
    const LENGTH: usize = "life-000000".len();
    text.match_indices("life-").filter_map(|(at, _)| text.get(at..at + LENGTH))
}
