//! Machines whose daemons borrow blocks from a real etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::attachment::ips;
use crate::support::etcd::Etcd;
use crate::support::node::{Node, SMALL, WIDE, conf};

#[test]
fn machines_share_a_subnet_to_its_last_address_and_what_it_grows_by() {
    let Some((_etcd, [one, two])) = Node::cluster() else { return };
    let mut all = one.add_all(SMALL, "a b c d e f g");
    all.extend(two.add_all(SMALL, "h i j k l m"));
    assert_eq!(all.len(), 13, "each address has one owner: {all:?}");
    let full = two.try_add(SMALL, "n").err();
    assert_eq!(full.code, 101, "{full:?}\n{}", two.log());
    one.del(SMALL, "c");
    assert!(all.contains(&two.add(SMALL, "n")), "what one machine frees, another gets");
    two.del(SMALL, "h");
    one.add(SMALL, "c");
    let larger = "10.1.0.0/27";
    all.extend(two.add_all(larger, "o p q"));
    all.extend(one.add_all(larger, "r s"));
    assert_eq!(all.len(), 18, "each address has one owner: {all:?}");
    one.del(larger, "c");
    two.del(SMALL, "o");
}

#[test]
fn a_machine_that_starts_again_goes_on_with_its_blocks() {
    let Some((_etcd, [one, two])) = Node::cluster() else { return };
    let mut all = one.add_all(WIDE, "a b c d e");
    one.kill();
    all.extend(one.add_all(WIDE, "f"));
    all.extend(two.add_all(WIDE, "g h"));
    one.start();
    all.extend(one.add_all(WIDE, "i j k l m"));
    assert_eq!(all.len(), 13, "each address has one owner: {all:?}");
}

/// The first claim in a chunk of 64 addresses divides it: claims of another size go elsewhere.
#[test]
fn claims_of_three_sizes_exclude_each_other() {
    let Some((etcd, nodes)) = Node::cluster::<3>() else { return };
    let add = |node: &Node, size: u8| -> Vec<String> {
        let conf = conf("10.1.0.0/24", json!({"blockSize": size}));
        let added = (0..12).map(|id| node.attachment(&conf, &format!("c{id}")).add());
        added.flat_map(|result| ips(&result)).collect()
    };
    let added: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = nodes
            .iter()
            .zip([1, 8, 64])
            .map(|(node, size)| scope.spawn(move || add(node, size)))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let different: BTreeSet<&String> = added.iter().collect();
    assert_eq!(different.len(), 36, "each address has one owner: {added:?}");
    // The lengths of the claims in each chunk.
    let mut lengths: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for key in etcd.block_keys().iter().filter(|key| !key.ends_with(" ?")) {
        let at = u32::from_str_radix(&key[2..10], 16).unwrap();
        lengths.entry(at / 64).or_default().insert(key[11..13].to_owned());
    }
    assert!(lengths.values().all(|of_chunk| of_chunk.len() == 1), "{lengths:?}");
    let all: BTreeSet<String> = lengths.into_values().flatten().collect();
    assert_eq!(all, ["26", "29", "32"].map(str::to_owned).into());
}

/// Blocks that are confirmed with an empty id would stay confirmed after a reboot.
#[test]
fn without_the_id_of_the_boot_no_daemon_starts() {
    let Some(etcd) = Etcd::one() else { return };
    let one = Node::configured(&etcd, 1, json!({}));
    let path = "/proc/sys/kernel/random/boot_id";
    one.lab.host.sh(&format!("touch /run/boot_id && mount --bind /run/boot_id {path}"));
    let refused = one.ipam("daemon");
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(refused.stderr.contains(&format!("read {path}: it is empty")), "{refused:?}");
    one.lab.host.sh(&format!("umount {path}"));
    one.start();
    one.add(SMALL, "a");
}

#[test]
fn held_blocks_serve_while_etcd_is_away() {
    let Some((etcd, [one])) = Node::cluster() else { return };
    one.add(WIDE, "a");
    etcd.members[0].signal(Signal::SIGSTOP);
    one.add_all(WIDE, "b c");
    let more = (0..16).map(|number| one.try_add(WIDE, &format!("more{number}")));
    let away = more.into_iter().find(|outcome| outcome.status != 0).unwrap();
    away.fails(11, "the store cannot be used");
    assert_eq!(one.status(WIDE).err().code, 50);
    etcd.members[0].signal(Signal::SIGCONT);
    one.wait_until(|node| node.try_add(WIDE, "f").status == 0);
}

/// Other tests run beside this one, so the best of several counts. Each free address can be given: blocks
/// have one.
#[test]
fn the_last_free_address_is_reached_within_a_second() {
    const SINGLE: &str = "10.1.0.0/26";
    let Some((_etcd, [rich, poor])) = Node::cluster() else { return };
    for number in 0..61 {
        rich.add(SINGLE, &format!("c{number}"));
    }
    let mut least = Duration::MAX;
    for number in [7, 30, 52] {
        rich.del(SINGLE, &format!("c{number}"));
        let began = Instant::now();
        poor.add(SINGLE, &format!("p{number}"));
        least = least.min(began.elapsed());
    }
    eprintln!("the last free address is reached after {least:.2?}");
    assert!(least < Duration::from_secs(1), "{least:?}\n{}\n{}", rich.log(), poor.log());
}

#[test]
fn the_daemon_keeps_no_capability_and_few_system_calls() {
    let Some((_etcd, [one])) = Node::cluster() else { return };
    one.add(WIDE, "a");
    let threads = one.daemon_threads();
    assert_eq!(threads.len(), 3, "the event loop, the worker and the watcher");
    for thread in threads {
        for line in [
            "CapEff:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "CapBnd:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ] {
            assert!(thread.contains(&format!("\n{line}\n")), "{line}: {thread}");
        }
    }
}

/// A value of a unit.
fn value(unit: &str, key: &str) -> String {
    let units = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/systemd/cni-multi-ipam");
    let text = std::fs::read_to_string(format!("{units}.{unit}")).unwrap();
    let found =
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').map(str::to_owned));
    found.unwrap_or_else(|| panic!("no {key} in the {unit}"))
}

/// Without any capability, and with the umask and the limits of the unit, the daemon claims.
/// `tests/packages` starts the units by a real systemd.
#[test]
fn the_restrictions_of_the_unit_leave_what_the_daemon_needs() {
    for (unit, key, expected) in [
        ("socket", "ListenStream", "/run/cni-multi/ipam.sock"),
        ("socket", "SocketMode", "0600"),
        ("socket", "DirectoryMode", "0700"),
        ("service", "CapabilityBoundingSet", ""),
        ("service", "RestrictAddressFamilies", "AF_INET AF_INET6 AF_NETLINK"),
    ] {
        assert_eq!(value(unit, key), expected, "{unit} {key}");
    }
    assert!(value("service", "ExecStart").ends_with("/cni-multi ipam daemon"));
    let Some(etcd) = Etcd::one() else { return };
    let node = Node::configured(&etcd, 1, json!({}));
    node.start_by(&["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]);
    assert_eq!(node.add_all("10.1.0.0/24", "a b c d e f").len(), 6);
}

#[test]
fn a_wrong_configuration_is_refused_with_its_place() {
    let Some(etcd) = Etcd::one() else { return };
    let node = Node::alone(&etcd, 1);
    let with_url = |url: &str| format!(r#"{{"cluster":"c","etcd":{{"endpoints":["{url}"]}}}}"#);
    let mode = "mode 0644 of user 0, expected 0600 or stricter of root; chown root";
    let scheme = "etcd.endpoints[0]: \"127.0.0.1\", expected http://HOST:PORT";
    for (text, mode, said) in [
        (with_url("http://127.0.0.1"), "644", mode),
        (with_url("127.0.0.1"), "600", scheme),
        (with_url("https://127.0.0.1"), "600", "etcd.ca: missing, expected the path of a file"),
        (r#"{"cluster":"c","etcd":{"endpoints":"#.to_owned(), "600", "/run/conf"),
    ] {
        node.lab.host.sh(&format!("echo '{text}' >/run/conf; chmod {mode} /run/conf"));
        let refused = node.ipam("daemon --config /run/conf");
        assert_eq!(refused.status, 1, "{text}: {refused:?}");
        assert!(refused.stderr.contains(said), "{text}: {refused:?}");
    }
}
