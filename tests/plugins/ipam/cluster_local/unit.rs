//! The units of the daemon.

use std::collections::BTreeSet;

use crate::support::etcd::Etcd;
use crate::support::node::{LISTENING, Node};

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
    assert_eq!(value("socket", "ListenStream"), "/run/cni-multi/ipam.sock");
    assert_eq!(value("socket", "SocketMode"), "0600");
    assert_eq!(value("socket", "DirectoryMode"), "0700");
    assert!(value("service", "ExecStart").ends_with("/cni-multi ipam daemon"));
    assert_eq!(value("service", "CapabilityBoundingSet"), "");
    assert_eq!(value("service", "RestrictAddressFamilies"), "AF_INET AF_INET6 AF_NETLINK");
    let Some(etcd) = Etcd::one_with(&LISTENING) else { return };
    let node = Node::named(&etcd, 1, "n1");
    node.start_by(&["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]);
    let ids = ["a", "b", "c", "d", "e", "f"];
    let all: BTreeSet<String> = ids.iter().map(|id| node.add("10.1.0.0/24", id)).collect();
    assert_eq!(all.len(), 6);
}
