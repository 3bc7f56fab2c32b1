//! What happens to an import that has claimed blocks and cannot end yet.

use std::thread;

use nix::sys::signal::Signal;
use serde_json::json;

use super::{
    LINE, configure, consecutive, done, failed, ipam, number_of_leases, pods, section, texts, write,
};
use crate::plugins::ipam::cluster_local::daemon::{WIDE, etcd};
use crate::support::attachment::{ips, with};
use crate::support::call::Outcome;
use crate::support::etcd::Etcd;
use crate::support::node::Node;

/// The range of network "other".
const OTHER: &str = "10.2.0.0/28";

/// Two nodes, of which the first imports into "pods" and then this address of the second into "other". The second one
/// is stopped, so the import cannot end before it continues, or within a minute.
fn stalled(etcd: &Etcd) -> ([Node; 2], String) {
    let [one, two] = [1, 2].map(|number| Node::join(etcd, number));
    let theirs = two.add(OTHER, "there");
    two.del(OTHER, "there");
    two.signal(Signal::SIGSTOP);
    pods(&one, WIDE);
    configure(&one, "other", &with(&ipam(OTHER), json!({"patience": 60})));
    ([one, two], theirs)
}

#[test]
fn an_import_whose_daemon_is_killed_is_run_again() {
    let Some(etcd) = etcd() else { return };
    let ([one, two], theirs) = stalled(&etcd);
    let sections =
        [section("pods", &texts(&consecutive(200))), section("other", &[(&theirs, "last")])];
    write(&one, &sections);
    thread::scope(|scope| {
        let import = scope.spawn(|| one.ipam(LINE));
        one.wait_until(|node| node.blocks("pods").len() > 5);
        one.kill();
        let outcome = import.join().unwrap();
        failed(&outcome, &["network \"", " of container \"", "IPAM daemon"]);
    });
    assert_eq!((number_of_leases(&one), one.leases("other").len()), (0, 0));
    two.signal(Signal::SIGCONT);
    one.start();
    one.wait_until(|node| node.log().matches("the store answers").count() == 2);
    let again = one.ipam(LINE);
    for line in ["pods: imported 200, already there 0\n", "other: imported 1, already there 0\n"] {
        assert!(done(&again).contains(line), "{again:?}");
    }
}

/// An ADD that requests this address while an import has claimed the block around it, and has written none of its
/// leases: those of 10.1.0.2 to 10.1.0.58.
fn add_beside_an_import(etcd: &Etcd, requested: &str) -> (Node, Outcome) {
    let ([one, two], theirs) = stalled(etcd);
    let sections =
        [section("pods", &texts(&consecutive(57))), section("other", &[(&theirs, "last")])];
    write(&one, &sections);
    let conf =
        json!({"cniVersion": "1.1.0", "name": "pods", "type": "cluster-local", "ipam": ipam(WIDE)});
    let last = ("4-0a010038-30".to_owned(), "active".to_owned());
    let outcome = thread::scope(|scope| {
        let import = scope.spawn(|| one.ipam(LINE));
        one.wait_until(|node| node.blocks("pods").contains(&last));
        let args = format!("IP={requested}");
        let added = one.attachment(&conf, "a").args(&args).try_add();
        assert!(!import.is_finished(), "the second node is stopped");
        two.signal(Signal::SIGCONT);
        assert_eq!(ips(&added.ok()), [requested]);
        import.join().unwrap()
    });
    assert_eq!(one.lease_of("pods", requested), "a");
    (one, outcome)
}

#[test]
fn an_address_of_an_add_beside_an_import_is_not_imported() {
    let Some(etcd) = etcd() else { return };
    let (one, outcome) = add_beside_an_import(&etcd, "10.1.0.7");
    failed(&outcome, &["10.1.0.7 is held by a", " here, and by c7"]);
    assert_eq!((number_of_leases(&one), one.leases("other").len()), (1, 0));
}

#[test]
fn an_add_of_another_address_beside_an_import_leaves_it_alone() {
    let Some(etcd) = etcd() else { return };
    let (one, outcome) = add_beside_an_import(&etcd, "10.1.0.59");
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert_eq!((number_of_leases(&one), one.leases("other").len()), (58, 1));
}
