//! `cni-multi ipam metrics`: what the daemon counts.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use serde_json::json;

use crate::metrics::openmetrics::{self, Values};
use crate::support::node::{Node, SMALL};

/// The values, in a text that breaks no rule of the format.
#[track_caller]
fn metrics(node: &Node) -> Values {
    let text = node.prints("metrics");
    openmetrics::parse(&text).unwrap_or_else(|problem| panic!("{problem}\n{text}"))
}

#[track_caller]
fn value(node: &Node, name: &str) -> f64 {
    let values = metrics(node);
    let found = values.get(&format!("cni_ipam_{name}"));
    *found.unwrap_or_else(|| panic!("no {name} in {values:#?}"))
}

/// A value of the network.
fn of_network(name: &str) -> String {
    format!("{name}{{network=\"pods\",realm=\"default\"}}")
}

fn blocks(state: &str) -> String {
    format!("blocks{{network=\"pods\",realm=\"default\",state=\"{state}\"}}")
}

/// The names of the values.
fn names(node: &Node) -> Vec<String> {
    metrics(node).into_keys().collect()
}

#[test]
fn metrics_count_blocks_addresses_and_operations() {
    let Some((_etcd, [one, two])) = Node::cluster() else { return };
    one.add(SMALL, "a");
    let before = names(&one);
    one.add_all(SMALL, "b c");
    assert_eq!(names(&one), before, "neither addresses nor containers are labels");
    let values = metrics(&one);
    let of = |name: &str| values[&format!("cni_ipam_{name}")];
    let active = of(&blocks("active"));
    assert_eq!(of("claims_total"), active, "blocks of a /28 are single addresses");
    assert_eq!(of(&blocks("contested")), 0.0);
    assert_eq!(of(&of_network("addresses_held")), 3.0);
    assert_eq!(of(&of_network("addresses_free")), active - 3.0, "after a burst it claims two");
    assert_eq!(of("connected"), 1.0);
    assert!(of("requests_total{verb=\"create\",outcome=\"done\"}") > active, "divisions, too");
    assert!((1.0..=3.0).contains(&of("needs_total{answer=\"claimed\"}")));
    one.del(SMALL, "c");
    let free = value(&one, &of_network("addresses_free"));
    assert_eq!(free, active - 2.0, "read at the moment of the call");
    two.add_all(SMALL, "0 1 2 3 4 5 6 7 8 9 10");
    assert_eq!(value(&one, "returns_total"), active - 2.0, "{}", one.log());
    let full = two.try_add(SMALL, "full").err();
    assert_eq!(full.code, 101, "{full:?}");
    assert_eq!(value(&two, "needs_total{answer=\"full\"}"), 1.0);

    let page = include_str!("../../../../docs/cluster-etcd.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `cni_ipam_"));
    let told = rows.map(|row| format!("cni_ipam_{}", row.split('`').next().unwrap()));
    let printed = before.iter().map(|name| name.split('{').next().unwrap().to_owned());
    assert_eq!(printed.collect::<BTreeSet<_>>(), told.collect());
}

#[test]
fn metrics_tell_since_when_etcd_is_away() {
    let Some((etcd, [one])) = Node::cluster() else { return };
    one.add(SMALL, "a");
    let since = value(&one, "connection_changed_timestamp_seconds");
    assert!(value(&one, "last_failure{class=\"unreachable\"}") < 1.0);
    etcd.members[0].signal(Signal::SIGSTOP);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_eq!(one.try_add(SMALL, "b").err().code, 11, "{}", one.log());
    assert_eq!(value(&one, "connected"), 0.0);
    let away = value(&one, "connection_changed_timestamp_seconds");
    assert!(away > since, "{away} {since}");
    let is_failure = |name: &String| {
        name.starts_with("cni_ipam_requests_total{") && name.contains("outcome=\"un")
    };
    let failures = metrics(&one).into_iter().filter(|(name, _)| is_failure(name));
    assert!(failures.map(|(_, count)| count).sum::<f64>() >= 1.0);
    assert_eq!(value(&one, "needs_total{answer=\"refused\"}"), 1.0);
    etcd.members[0].signal(Signal::SIGCONT);
    one.wait_until(|node| value(node, "connected") > 0.0);
}

#[test]
fn a_taken_name_is_a_value_and_a_missing_daemon_an_error() {
    let Some((etcd, [one])) = Node::cluster() else { return };
    one.add(SMALL, "a");
    let two = Node::configured(&etcd, 2, json!({"node": "n1"}));
    two.start();
    let taken = "cni_ipam_standing{standing=\"name_taken\"}".to_owned();
    two.wait_until(|node| names(node).contains(&taken));
    assert_eq!(value(&two, "connected"), 0.0);
    two.kill();
    let refused = two.ipam("metrics");
    assert_eq!(refused.status, 1, "{refused:?}");
    for said in
        ["connect to the IPAM daemon at \"/run/cni-multi/ipam.sock\"", "cni-multi-ipam.service"]
    {
        assert!(refused.stderr.contains(said), "{refused:?}");
    }
}
