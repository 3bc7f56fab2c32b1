//! Sticky addresses on machines of a cluster, with a real etcd.

use nix::sys::signal::Signal;
use serde_json::json;

use super::daemon::etcd;
use crate::support::attachment::ips;
use crate::support::call::Outcome;
use crate::support::node::Node;

/// 31 addresses for names, from 10.1.0.224 on.
const WIDE: &str = "10.1.0.0/24";
/// One address for names.
const SMALL: &str = "10.1.0.0/28";

#[track_caller]
fn add(node: &Node, subnet: &str, id: &str, name: &str) -> String {
    let outcome = node.try_add_named(subnet, id, name);
    assert!(outcome.status == 0, "{}\n{}", outcome.stdout, node.log());
    ips(&outcome.ok()).join(" ")
}

#[track_caller]
fn refused(outcome: &Outcome, code: u64, text: &str) {
    let error = outcome.err();
    assert!(error.code == code && error.text().contains(text), "{error:?}");
}

#[test]
fn a_name_keeps_its_address_and_moves_with_its_container() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    let address = add(&one, WIDE, "a", "web");
    let last: u8 = address.trim_start_matches("10.1.0.").parse().unwrap();
    assert!(last >= 224, "names live in the last eighth: {address}");
    one.del(WIDE, "a");
    one.kill();
    assert_eq!(add(&one, WIDE, "b", "web"), address, "local files alone");
    one.start();
    let held = two.try_add_named(WIDE, "c", "web");
    refused(&held, 11, &format!("{address} of \"web/eth0\" is held by node n1"));
    assert!(held.err().text().contains("after the DEL of its container there"), "{}", held.stdout);
    one.del(WIDE, "b");
    assert_eq!(add(&two, WIDE, "c", "web"), address);
    refused(&one.try_add_named(WIDE, "d", "web"), 11, "is held by node n2");
    assert_ne!(add(&one, WIDE, "d", "db"), address);
}

#[test]
fn a_name_stays_on_a_node_that_cannot_give_it_up() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    let address = add(&one, WIDE, "a", "web");
    one.del(WIDE, "a");
    one.kill();
    refused(&two.try_add_named(WIDE, "b", "web"), 11, "is held by node n1");
    one.start();
    assert_eq!(add(&two, WIDE, "b", "web"), address);
    etcd.members[0].signal(Signal::SIGSTOP);
    two.del(WIDE, "b");
    refused(&one.try_add_named(WIDE, "c", "web"), 11, "the store cannot be used");
    assert_eq!(add(&two, WIDE, "d", "web"), address, "etcd is away, and the name is here");
    etcd.members[0].signal(Signal::SIGCONT);
    two.del(WIDE, "d");
    one.wait_until(|node| node.try_add_named(WIDE, "e", "web").status == 0);
}

#[test]
fn a_new_name_takes_the_address_of_one_that_is_not_used() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    assert_eq!(add(&one, SMALL, "a", "first"), "10.1.0.14");
    let full = two.try_add_named(SMALL, "b", "second");
    refused(&full, 101, "every address that is kept for names is held by an attachment");
    one.del(SMALL, "a");
    assert_eq!(add(&two, SMALL, "b", "second"), "10.1.0.14");
    refused(&one.try_add_named(SMALL, "a", "first"), 101, "no address is free for \"first/eth0\"");
    two.del(SMALL, "b");
    assert_eq!(add(&two, SMALL, "c", "third"), "10.1.0.14", "its own unused name");
}

#[test]
fn one_of_two_nodes_gets_a_name_at_one_time() {
    let Some(etcd) = etcd() else { return };
    let (one, two) = (Node::join(&etcd, 1), Node::join(&etcd, 2));
    let outcomes = std::thread::scope(|scope| {
        let all = [&one, &two].map(|node| scope.spawn(|| node.try_add_named(WIDE, "a", "web")));
        all.map(|outcome| outcome.join().unwrap())
    });
    let served = outcomes.iter().filter(|outcome| outcome.status == 0).count();
    assert_eq!(served, 1, "{outcomes:?}");
    let other = outcomes.iter().find(|outcome| outcome.status != 0).unwrap();
    refused(other, 11, "of \"web/eth0\" is held by node n");
}

/// The name of a container that runs keeps its address when its machine joins.
#[test]
fn a_machine_joins_with_its_names() {
    let Some(etcd) = etcd() else { return };
    let three = Node::alone(&etcd, 3);
    let ipam = json!({"type": "cluster-local", "scope": "machine", "sticky": "arg:VM",
        "ranges": [[{"subnet": WIDE}]]});
    let conf =
        json!({"cniVersion": "1.1.0", "name": "pods", "type": "cluster-local", "ipam": ipam});
    let alone = three.attachment(&conf, "a").args("VM=web").try_add().ok();
    let address = ips(&alone).join(" ");
    let joined = three.ipam("join");
    assert!(joined.status == 0 && joined.stdout.contains("web/eth0"), "{joined:?}");
    three.configure(&json!({"node": "n3"}));
    three.start();
    three.wait_until(|node| node.blocks("pods").iter().any(|(_, state)| state == "active"));
    let two = Node::join(&etcd, 2);
    refused(&two.try_add_named(WIDE, "b", "web"), 11, "is held by node n3");
    three.del(WIDE, "a");
    assert_eq!(add(&three, WIDE, "c", "web"), address);
    three.del(WIDE, "c");
    assert_eq!(add(&two, WIDE, "b", "web"), address, "the name moves with its address");
}
