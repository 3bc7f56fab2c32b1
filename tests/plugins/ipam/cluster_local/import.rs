//! `ipam import` on a node of a cluster: each lease is in a block that the node has claimed.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::daemon::{SMALL, WIDE, add_all, etcd};
use crate::support::attachment::with;
use crate::support::call::Outcome;
use crate::support::node::Node;

/// A large range, in blocks of 64 addresses.
const PLENTY: &str = "10.1.0.0/16";
const LINE: &str = "import --conf-dir /run/net.d /run/leases.json";
const DRY: &str = "import --dry-run --conf-dir /run/net.d /run/leases.json";

/// Writes a network's configuration.
fn configure(node: &Node, network: &str, ipam: &Value) {
    let plugin = json!({"type": "bridge", "bridge": "pods0", "ipam": ipam});
    let list = json!({"cniVersion": "1.1.0", "name": network, "plugins": [plugin]});
    let file = format!("/run/net.d/{network}.conflist");
    node.lab.host.sh("mkdir -p /run/net.d");
    std::fs::write(node.lab.path(&file), list.to_string()).unwrap();
}

/// The network that [`Node::add`] attaches to.
fn pods(node: &Node, subnet: &str) {
    configure(node, "pods", &ipam(subnet));
}

fn ipam(subnet: &str) -> Value {
    json!({"type": "cluster-local", "ranges": [[{"subnet": subnet}]], "patience": 3})
}

fn section(network: &str, leases: &[(&str, &str)]) -> Value {
    let lease =
        |(ip, id): &(&str, &str)| json!({"address": ip, "containerId": id, "ifname": "eth0"});
    let leases: Vec<Value> = leases.iter().map(lease).collect();
    json!({"network": network, "ipam": "cluster-local", "leases": leases})
}

fn write(node: &Node, sections: &[Value]) {
    let document = json!({"cniMultiLeases": 1, "networks": sections});
    std::fs::write(node.lab.path("/run/leases.json"), document.to_string()).unwrap();
}

/// The document of leases of network "pods".
fn document(node: &Node, leases: &[(&str, &str)]) {
    write(node, &[section("pods", leases)]);
}

#[track_caller]
fn done(outcome: &Outcome) -> &str {
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
    &outcome.stdout
}

#[track_caller]
fn failed(outcome: &Outcome, texts: &[&str]) {
    assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""), "{outcome:?}");
    for text in texts {
        assert!(outcome.stderr.contains(text), "{text}: {outcome:?}");
    }
}

fn number_of_leases(node: &Node) -> usize {
    node.leases("pods").len()
}

/// Leases of 10.1.0.2 and the addresses after it, for containers of the same numbers.
fn consecutive(count: u8) -> Vec<(String, String)> {
    (2..2 + count).map(|number| (format!("10.1.0.{number}"), format!("c{number}"))).collect()
}

fn texts(leases: &[(String, String)]) -> Vec<(&str, &str)> {
    leases.iter().map(|(ip, id)| (ip.as_str(), id.as_str())).collect()
}

#[test]
fn an_import_claims_a_block_once_for_all_of_its_leases() {
    let Some(etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    pods(&one, PLENTY);
    let leases = consecutive(200);
    document(&one, &texts(&leases));
    let dry = one.ipam(DRY);
    let claims = "10.1.0.0/26, 10.1.0.64/26, 10.1.0.128/26, 10.1.0.192/26";
    let would = format!(
        "pods: would import 200, already there 0\npods: would claim in the cluster: {claims}\n"
    );
    assert_eq!(done(&dry), would);
    assert_eq!(etcd.block_keys(), BTreeSet::new());
    let begun = Instant::now();
    assert_eq!(done(&one.ipam(LINE)), "pods: imported 200, already there 0\n");
    eprintln!("200 leases in 4 blocks: {:?}", begun.elapsed());
    assert_eq!(etcd.block_keys().len(), 4, "{:?}", etcd.block_keys());
    assert_eq!((number_of_leases(&one), one.lease_of("pods", "10.1.0.7")), (200, "c7".to_owned()));
    assert_eq!(done(&one.ipam(LINE)), "pods: imported 0, already there 200\n");
    let others = add_all(&two, PLENTY, &["a", "b", "c"]);
    assert!(others.iter().all(|ip| !leases.iter().any(|(lease, _)| lease == ip)), "{others:?}");
    assert_eq!(one.check(PLENTY, "c7", "10.1.0.7").status, 0);
    one.del(PLENTY, "c7");
    assert_eq!(number_of_leases(&one), 199);
}

/// The most claims that an import can need: each block has four addresses.
#[test]
fn an_import_of_many_blocks_takes_seconds() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    pods(&one, WIDE);
    document(&one, &texts(&consecutive(200)));
    let begun = Instant::now();
    assert_eq!(done(&one.ipam(LINE)), "pods: imported 200, already there 0\n");
    let took = begun.elapsed();
    eprintln!("200 leases in {} blocks: {took:?}", etcd.block_keys().len());
    assert!(took < crate::support::patience(20), "{took:?}");
}

#[test]
fn an_address_in_use_on_another_node_is_named() {
    let Some(etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    let theirs = two.add(WIDE, "there");
    let last: u8 = theirs.trim_start_matches("10.1.0.").parse().unwrap();
    let beside = format!("10.1.0.{}", if last < 100 { 200 } else { 50 });
    pods(&one, WIDE);
    document(&one, &[(&beside, "fine"), (&theirs, "here")]);
    let before = etcd.block_keys();
    let dry = one.ipam(DRY);
    let asked = format!(
        "pods: {theirs} of container \"here\": node \"n2\" has 10.1.0.{}/30, and is asked for the address",
        last / 4 * 4
    );
    assert!(done(&dry).contains(&asked), "{dry:?}");
    let refused = one.ipam(LINE);
    failed(
        &refused,
        &[
            &format!("network \"pods\": {theirs} of container \"here\": node \"n2\" has "),
            "no lease was written: `cni-multi ipam ls` on n2",
        ],
    );
    assert_eq!((number_of_leases(&one), etcd.block_keys()), (0, before), "nothing was claimed");
    two.del(WIDE, "there");
    assert_eq!(done(&one.ipam(LINE)), "pods: imported 2, already there 0\n");
    assert_eq!(one.lease_of("pods", &theirs), "here");
}

/// Two nodes have leases in one block, as after a move from a plugin without blocks.
#[test]
fn nodes_import_leases_of_one_block_in_turn() {
    let Some(etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    let leases = consecutive(40);
    for (node, parity) in [(&one, 0), (&two, 1)] {
        pods(node, PLENTY);
        let own: Vec<_> = leases.iter().skip(parity).step_by(2).cloned().collect();
        document(node, &texts(&own));
    }
    for node in [&one, &two] {
        let begun = Instant::now();
        assert_eq!(done(&node.ipam(LINE)), "pods: imported 20, already there 0\n");
        eprintln!("20 leases of one block: {:?}", begun.elapsed());
    }
    assert!(one.leases("pods").is_disjoint(&two.leases("pods")));
    let mut more = add_all(&one, PLENTY, &["a", "b"]);
    more.extend(add_all(&two, PLENTY, &["a", "b"]));
    assert!(leases.iter().all(|(ip, _)| !more.contains(ip)), "{more:?}");
}

#[test]
fn blocks_of_a_failed_import_go_to_a_node_that_needs_them() {
    let Some(etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    let theirs = two.add("10.2.0.0/28", "there");
    two.lab.host.sh("mv /var/lib/cni/cluster-local/pods /var/lib/cni/cluster-local/other");
    two.kill();
    two.start();
    two.wait_until(|node| node.log().matches("the store answers").count() == 2);
    pods(&one, SMALL);
    configure(&one, "other", &ipam("10.2.0.0/28"));
    let all: Vec<_> = consecutive(13);
    write(&one, &[section("pods", &texts(&all)), section("other", &[(&theirs, "here")])]);
    let before = etcd.block_keys().len();
    failed(
        &one.ipam(LINE),
        &[&format!("network \"other\": {theirs} of container \"here\": node \"n2\" has")],
    );
    assert!(etcd.block_keys().len() > before, "the blocks of \"pods\" were claimed");
    assert_eq!((number_of_leases(&one), one.leases("other").len()), (0, 0));
    let ids: Vec<String> = (0..13).map(|number| format!("c{number}")).collect();
    let got: BTreeSet<String> = ids.iter().map(|id| two.add(SMALL, id)).collect();
    assert_eq!(got.len(), 13, "{got:?}");
    let full = one.ipam(LINE);
    failed(&full, &["network \"pods\": 10.1.0.", "node \"n2\" has "]);
}

#[test]
fn an_import_without_the_daemon_says_what_to_start() {
    let Some(etcd) = etcd() else { return };
    let one = Node::named(&etcd, 1, "n1");
    pods(&one, WIDE);
    document(&one, &[("10.1.0.9", "a")]);
    let texts =
        ["it does not run: start cni-multi-ipam.socket", "only the daemon may claim another"];
    for line in [LINE, DRY] {
        failed(&one.ipam(line), &texts);
    }
    assert_eq!(number_of_leases(&one), 0);
    one.start();
    one.wait_until(|node| node.log().contains("the store answers"));
    assert_eq!(done(&one.ipam(LINE)), "pods: imported 1, already there 0\n");
    one.kill();
    assert_eq!(done(&one.ipam(LINE)), "pods: imported 0, already there 1\n", "files alone");
    document(&one, &[("10.1.0.9", "a"), ("10.1.0.10", "b")]);
    assert_eq!(done(&one.ipam(LINE)), "pods: imported 1, already there 1\n", "the block is held");
}

#[test]
fn an_import_waits_for_blocks_that_settle() {
    let Some(etcd) = etcd() else { return };
    let one = Node::configured(&etcd, 1, &json!({"settle": 6}));
    one.start();
    let of_a = one.add(WIDE, "a");
    one.kill();
    one.ipam_text("recover");
    one.start();
    one.wait_until(|node| node.log().matches("the store answers").count() == 2);
    pods(&one, WIDE);
    let mut free = ["10.1.0.250", "10.1.0.200", "10.1.0.150"].into_iter().filter(|ip| *ip != of_a);
    document(&one, &["b", "c"].map(|id| (free.next().unwrap(), id)));
    let begun = Instant::now();
    assert_eq!(done(&one.ipam(LINE)), "pods: imported 2, already there 0\n");
    assert!(begun.elapsed() > Duration::from_secs(3), "{:?}", begun.elapsed());
    let states: BTreeSet<String> = one.blocks("pods").into_iter().map(|(_, state)| state).collect();
    assert_eq!(states, BTreeSet::from(["active".to_owned()]));
}

/// A block that settles waits for the daemon, which is dead: neither an address of it nor one of another block
/// is waited for.
#[test]
fn a_dead_daemon_is_told_at_once_while_blocks_settle() {
    let Some(etcd) = etcd() else { return };
    let one = Node::configured(&etcd, 1, &json!({"settle": 30}));
    one.start();
    let of_a = one.add(WIDE, "a");
    one.kill();
    one.lab
        .host
        .sh("sed -i 's/\"active\"/\"settling\"/g' /var/lib/cni/cluster-local/pods/blocks.json");
    let blocks = one.blocks("pods");
    assert!(blocks.iter().all(|(_, state)| state == "settling"), "{blocks:?}");
    let is_held = |last: u8| {
        let block = format!("4-0a0100{:02x}-30", last / 4 * 4);
        blocks.iter().any(|(held, _)| *held == block)
    };
    let free = |last: &u8| format!("10.1.0.{last}") != of_a;
    let inside = (2..254).filter(free).find(|last| is_held(*last)).unwrap();
    let outside = (2..254).find(|last| !is_held(*last)).unwrap();
    pods(&one, WIDE);
    for last in [inside, outside] {
        document(&one, &[(&format!("10.1.0.{last}"), "b")]);
        let begun = Instant::now();
        failed(&one.ipam(LINE), &["it does not run: start cni-multi-ipam.socket"]);
        let took = begun.elapsed();
        assert!(took < crate::support::patience(4), "{last}: {took:?}");
    }
}

/// Both nodes import the same leases. One import may succeed, or both may fail; never do both nodes have a
/// lease.
#[test]
fn two_nodes_that_import_the_same_leases_never_both_get_them() {
    let Some(etcd) = etcd() else { return };
    let nodes = [1, 2].map(|number| Node::join(&etcd, number));
    for node in &nodes {
        pods(node, WIDE);
        document(node, &texts(&consecutive(40)));
    }
    let outcomes = thread::scope(|scope| {
        nodes.each_ref().map(|node| scope.spawn(|| node.ipam(LINE))).map(|run| run.join().unwrap())
    });
    for (node, outcome) in nodes.iter().zip(&outcomes) {
        eprintln!("{}: {}{}", outcome.status, outcome.stdout, outcome.stderr);
        let expected = if outcome.status == 0 { 40 } else { 0 };
        assert_eq!(number_of_leases(node), expected, "{outcome:?}");
    }
    assert!(outcomes.iter().any(|outcome| outcome.status == 1), "{outcomes:?}");
    if outcomes.iter().all(|outcome| outcome.status == 1) {
        assert_eq!(done(&nodes[0].ipam(LINE)), "pods: imported 40, already there 0\n");
    }
}

/// An address that another network uses, one that is kept for a name, and an excluded one.
#[test]
fn an_import_of_an_unavailable_address_gives_the_reason() {
    let Some(etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    let here = one.add(WIDE, "here");
    configure(&one, "other", &ipam(WIDE));
    write(&one, &[section("other", &[(&here, "there")])]);
    let said = format!(
        "network \"other\": {here} of container \"there\": network \"pods\" of this node has"
    );
    failed(
        &one.ipam(LINE),
        &[&said, "`cni-multi ipam ls` lists the container that has the address"],
    );
    let named = two.try_add_named("10.2.0.0/24", "a", "web").ok();
    let kept = named["ips"][0]["address"].as_str().unwrap().trim_end_matches("/24");
    let sticky = json!({"sticky": "arg:VM"});
    configure(&one, "names", &with(&ipam("10.2.0.0/24"), sticky));
    write(&one, &[section("names", &[(kept, "b")])]);
    let begun = Instant::now();
    for line in [DRY, LINE] {
        let said =
            format!("{kept} of container \"b\": node \"n2\", for the name \"pods/web/eth0\", has");
        failed(&one.ipam(line), &[&said, "only an attachment of that name gets the address"]);
    }
    assert!(begun.elapsed() < crate::support::patience(3), "no daemon is asked");
    let excluding = with(
        &ipam("10.2.0.0/24"),
        json!({"ranges": [[{"subnet": "10.2.0.0/24", "exclude": ["10.2.0.9"]}]]}),
    );
    configure(&one, "less", &excluding);
    write(&one, &[section("less", &[("10.2.0.9", "b")])]);
    failed(
        &one.ipam(LINE),
        &["10.2.0.9 of container \"b\": the network's configuration excludes it"],
    );
    // If no node has claimed it, an address of the part for names is imported like any other, in a block of one.
    write(&one, &[section("names", &[("10.2.0.253", "b"), ("10.2.0.3", "c")])]);
    assert_eq!(done(&one.ipam(LINE)), "names: imported 2, already there 0\n");
    assert!(
        etcd.block_keys().iter().any(|key| key.contains("4-0a0200fd-32")),
        "{:?}",
        etcd.block_keys()
    );
}
