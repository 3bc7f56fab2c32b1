//! The last DEL takes what all containers share, and the first ADD makes it. Each is stopped at
//! every system call that changes something, while the other runs to its end: the container that
//! was added has all it needs, and nothing is left after its DEL.

use serde_json::{Value, json};

use super::One;
use crate::plugins::meta::firewall::isolation;
use crate::support::attachment::{for_ours, with};
use crate::support::beside::{run_beside, stops};
use crate::support::netns::Lab;
use crate::support::networks::firewall::{DROPPING, firewall, network as forwarded};
use crate::support::networks::portmap::{network as published, portmap, web};
use crate::support::patience;
use crate::support::tracer::is_waited_for;

/// The lock of those that change rules of iptables.
const LOCK: &str = "/run/cni/iptables/lock";

/// Of the first the DEL, of the second the ADD: one is stopped, and the other runs.
fn assert_last_del_and_first_add_do_not_meet(lab: &Lab, confs: [(Value, Option<Value>); 2]) {
    // The main plugins are done: only the plugin that owns the table takes turns.
    let ones = confs.map(|conf| One::add(lab, &conf));
    let call = |at: usize, command: &str| {
        ones[at].chained.as_ref().unwrap().call(command, Some(&ones[at].result.borrow()))
    };
    let run = |at: usize, command: &str| drop(call(at, command).run().ok());
    let left = || {
        lab.host.sh(
            "(iptables-save; ip6tables-save; nft list tables) | grep -e CNI-FORWARD -e CNI-DN- -e cni_multi || true",
        )
    };
    run(1, "DEL");
    let of_del = stops(&call(0, "DEL"));
    assert_eq!(left(), "");
    let of_add = stops(&call(1, "ADD"));
    run(1, "DEL");
    eprintln!("{} stops of DEL, {} of ADD", of_del.len(), of_add.len());
    for (stopped, running, numbers) in [("DEL", "ADD", of_del), ("ADD", "DEL", of_add)] {
        let at = |command: &str| usize::from(command == "ADD");
        for number in numbers {
            run(0, "ADD");
            let [first, other] = [stopped, running].map(|command| call(at(command), command));
            let lock = lab.path(LOCK);
            let outcomes = run_beside(&first, number, &other, || is_waited_for(&lock), patience(5));
            outcomes.iter().for_each(|outcome| drop(outcome.ok()));
            eprintln!("{stopped} was stopped at {number}"); // shown when CHECK fails
            ones[1].check();
            run(1, "DEL");
            assert_eq!(left(), "", "{stopped} was stopped at {number}");
        }
    }
}

#[test]
fn last_del_takes_no_nftables_table_from_the_first_add() {
    for_ours("firewall", |lab| {
        let conf = || (forwarded(), Some(isolation::policy(None, "isolated")));
        assert_last_del_and_first_add_do_not_meet(lab, [conf(), conf()]);
    });
    for_ours("portmap", |lab| {
        let conf = |port: u16| {
            let ports = json!([with(&web(), json!({"hostPort": port}))]);
            (published(), Some(portmap(Some("nftables"), ports)))
        };
        assert_last_del_and_first_add_do_not_meet(lab, [conf(8080), conf(8081)]);
    });
}

#[test]
fn last_del_takes_no_chain_of_iptables_from_the_first_add() {
    // Both backends have the same DEL.
    for second in [None, Some("iptables")] {
        for_ours("firewall", |lab| {
            lab.host.sh(DROPPING);
            let confs = [None, second].map(|backend| (forwarded(), Some(firewall(backend))));
            assert_last_del_and_first_add_do_not_meet(lab, confs);
        });
    }
}
