//! `cni-multi ipam metrics`: what the daemon counts.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;

use super::daemon::SMALL;
use crate::metrics::openmetrics::{self, Values};
use crate::support::etcd::Etcd;
use crate::support::node::{LISTENING, Node};

/// The values, in a text that breaks no rule of the format.
#[track_caller]
fn metrics(node: &Node) -> Values {
    let text = node.ipam_text("metrics");
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

#[test]
fn metrics_count_blocks_addresses_and_operations() {
    let Some(etcd) = Etcd::one_with(&LISTENING) else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    for id in ["a", "b", "c"] {
        one.add(SMALL, id);
    }
    let claims = value(&one, "claims_total");
    let held = value(&one, &of_network("addresses_held"));
    assert_eq!((claims, held), (3.0, 3.0), "blocks of a /28 are single addresses");
    assert_eq!(value(&one, &blocks("active")), 3.0);
    assert_eq!(value(&one, &blocks("contested")), 0.0);
    assert_eq!(value(&one, &of_network("addresses_free")), 0.0);
    assert_eq!(value(&one, "connected"), 1.0);
    let created = value(&one, "requests_total{verb=\"create\",outcome=\"done\"}");
    assert!(created > claims, "blocks, divisions and the node's record: {created}");
    assert_eq!(value(&one, "needs_total{answer=\"claimed\"}"), 3.0);
    one.del(SMALL, "c");
    assert_eq!(value(&one, &of_network("addresses_free")), 1.0, "read at the moment of the call");
    for number in 0..11 {
        two.add(SMALL, &number.to_string());
    }
    assert_eq!(value(&one, "returns_total"), 1.0, "{}", one.log());
    let full = two.try_add(SMALL, "full").err();
    assert_eq!(full.code, 101, "{full:?}");
    assert_eq!(value(&two, "needs_total{answer=\"full\"}"), 1.0);
}

#[test]
fn metrics_tell_since_when_etcd_is_away() {
    let Some(etcd) = Etcd::one_with(&LISTENING) else { return };
    let one = Node::join(&etcd, 1);
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

/// Neither addresses nor containers are labels: there are no more values with more of them.
#[test]
fn the_number_of_values_does_not_grow_with_addresses() {
    let Some(etcd) = Etcd::one_with(&LISTENING) else { return };
    let one = Node::join(&etcd, 1);
    one.add(SMALL, "a");
    let names = |node: &Node| metrics(node).into_keys().collect::<Vec<_>>();
    let before = names(&one);
    for number in 0..8 {
        one.add(SMALL, &number.to_string());
    }
    assert_eq!(names(&one), before);
}

#[test]
fn a_taken_name_is_a_value_and_a_missing_daemon_an_error() {
    let Some(etcd) = Etcd::one_with(&LISTENING) else { return };
    let one = Node::join(&etcd, 1);
    one.add(SMALL, "a");
    let two = Node::named(&etcd, 2, "n1");
    two.start();
    two.wait_until(|node| metrics(node).contains_key("cni_ipam_standing{standing=\"name_taken\"}"));
    assert_eq!(value(&two, "connected"), 0.0);
    two.kill();
    let said = two.ipam_text("metrics 2>&1; echo status $?");
    assert!(said.contains("connect to the IPAM daemon at \"/run/cni-multi/ipam.sock\""), "{said}");
    assert!(said.contains("cni-multi-ipam.service") && said.ends_with("status 1\n"), "{said}");
}

#[test]
fn every_metric_of_the_daemon_is_in_the_page() {
    let Some(etcd) = Etcd::one_with(&LISTENING) else { return };
    let one = Node::join(&etcd, 1);
    one.add(SMALL, "a");
    let printed: BTreeSet<String> =
        metrics(&one).into_keys().map(|name| name.split('{').next().unwrap().to_owned()).collect();
    let page = include_str!("../../../../docs/cluster-etcd.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `cni_ipam_"));
    let told: BTreeSet<String> =
        rows.map(|row| format!("cni_ipam_{}", row.split('`').next().unwrap())).collect();
    assert_eq!(printed, told);
}
