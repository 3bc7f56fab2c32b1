//! Sticky addresses on machines of a cluster, with a real etcd.

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::attachment::ips;
use crate::support::node::{Node, SMALL, conf};

/// 31 addresses for names, from 10.1.0.224 on; of [`SMALL`] one is for names.
const WIDE: &str = "10.1.0.0/24";

#[track_caller]
pub fn add(node: &Node, subnet: &str, id: &str, name: &str) -> String {
    let outcome = node.try_add_named(subnet, id, name);
    assert!(outcome.status == 0, "{}\n{}", outcome.stdout, node.log());
    ips(&outcome.ok()).join(" ")
}

#[test]
fn a_name_keeps_its_address_and_moves_with_its_container() {
    let Some((_etcd, [one, two])) = Node::cluster() else { return };
    let address = add(&one, WIDE, "a", "web");
    let last: u8 = address.trim_start_matches("10.1.0.").parse().unwrap();
    assert!(last >= 224, "names live in the last eighth: {address}");
    one.del(WIDE, "a");
    one.kill();
    assert_eq!(add(&one, WIDE, "b", "web"), address, "local files alone");
    one.start();
    let said = format!("{address} of \"web/eth0\" is held by node n1");
    let held = two.try_add_named(WIDE, "c", "web").fails(11, &said);
    assert!(held.details.contains("after the DEL of its container there"), "{held:?}");
    one.del(WIDE, "b");
    assert_eq!(add(&two, WIDE, "c", "web"), address);
    one.try_add_named(WIDE, "d", "web").fails(11, "is held by node n2");
    assert_ne!(add(&one, WIDE, "d", "db"), address);
}

#[test]
fn a_name_stays_on_a_node_that_cannot_give_it_up() {
    let Some((etcd, [one, two])) = Node::cluster() else { return };
    let address = add(&one, WIDE, "a", "web");
    one.del(WIDE, "a");
    one.kill();
    two.try_add_named(WIDE, "b", "web").fails(11, "is held by node n1");
    one.start();
    assert_eq!(add(&two, WIDE, "b", "web"), address);
    etcd.members[0].signal(Signal::SIGSTOP);
    two.del(WIDE, "b");
    one.try_add_named(WIDE, "c", "web").fails(11, "the store cannot be used");
    assert_eq!(add(&two, WIDE, "d", "web"), address, "etcd is away, and the name is here");
    etcd.members[0].signal(Signal::SIGCONT);
    two.del(WIDE, "d");
    one.wait_until(|node| node.try_add_named(WIDE, "e", "web").status == 0);
}

#[test]
fn a_new_name_takes_the_address_of_one_that_is_not_used() {
    let Some((_etcd, [one, two])) = Node::cluster() else { return };
    assert_eq!(add(&one, SMALL, "a", "first"), "10.1.0.14");
    let full = "every address that is kept for names is held by an attachment";
    two.try_add_named(SMALL, "b", "second").fails(101, full);
    one.del(SMALL, "a");
    assert_eq!(add(&two, SMALL, "b", "second"), "10.1.0.14");
    let none = "no address is free for \"first/eth0\"";
    one.try_add_named(SMALL, "a", "first").fails(101, none);
    two.del(SMALL, "b");
    assert_eq!(add(&two, SMALL, "c", "third"), "10.1.0.14", "its own unused name");
}

#[test]
fn one_of_two_nodes_gets_a_name_at_one_time() {
    let Some((_etcd, [one, two])) = Node::cluster() else { return };
    let outcomes = std::thread::scope(|scope| {
        let all = [&one, &two].map(|node| scope.spawn(|| node.try_add_named(WIDE, "a", "web")));
        all.map(|outcome| outcome.join().unwrap())
    });
    let served = outcomes.iter().filter(|outcome| outcome.status == 0).count();
    assert_eq!(served, 1, "{outcomes:?}");
    let other = outcomes.iter().find(|outcome| outcome.status != 0).unwrap();
    other.fails(11, "of \"web/eth0\" is held by node n");
}

/// The name of a container that runs keeps its address when its machine joins.
#[test]
fn a_machine_joins_with_its_names() {
    let Some((etcd, [one])) = Node::cluster() else { return };
    let three = Node::alone(&etcd, 3);
    let alone = conf(WIDE, json!({"scope": "machine", "sticky": "arg:VM"}));
    let address = ips(&three.attachment(&alone, "a").args("VM=web").add()).join(" ");
    assert!(three.prints("join").contains("web/eth0"));
    three.configure(json!({}));
    three.start();
    three.wait_until(|node| node.blocks("pods").iter().any(|(_, state)| state == "active"));
    one.try_add_named(WIDE, "b", "web").fails(11, "is held by node n3");
    three.del(WIDE, "a");
    assert_eq!(add(&three, WIDE, "c", "web"), address);
    three.del(WIDE, "c");
    assert_eq!(add(&one, WIDE, "b", "web"), address, "the name moves with its address");
}
