//! Members that are gone, cut off, stopped, full, or have no gateway.

use std::time::{Duration, Instant};

use cni_multi::plugins::ipam::cluster_local::engine::{Operation, Outcome};
use nix::sys::signal::Signal;

use super::etcd::{block, claim, claimed, name, node_state, realm, realm_state, register, written};
use crate::support::etcd::{Driver, Etcd, ONE, THREE};

#[track_caller]
fn unreachable(outcome: Outcome) -> String {
    match outcome {
        Outcome::Unreachable { reason } => reason,
        other => panic!("{other:?}"),
    }
}

fn read_node() -> Operation {
    Operation::ReadNode { node: name("n1") }
}

/// The member is stopped after it has the connection: the claim is in its buffers.
#[test]
fn a_claim_at_a_stopped_member_is_unknown_and_then_read() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let ground = register(&mut driver, "n1");
        etcd.members[0].signal(Signal::SIGSTOP);
        let began = Instant::now();
        let outcome = driver.run(claim("n1", "4-0a580100-26", ground));
        let Outcome::Unknown { reason } = outcome else { panic!("{outcome:?}") };
        assert_eq!(reason, "http://127.0.0.1:2379 did not answer within 5 s");
        assert!(began.elapsed() >= Duration::from_secs(5));
        etcd.members[0].signal(Signal::SIGCONT);
        // The server executes what it finds in its buffers, at the latest before what comes after.
        std::thread::sleep(Duration::from_millis(500));
        let read =
            driver.run(Operation::ReadBlock { realm: realm(), block: block("4-0a580100-26") });
        let found = realm_state(read).1.blocks;
        assert!(
            found.iter().all(|found| found.claimed == Some(claimed("n1", 1))),
            "ours or none: {found:?}"
        );
    });
}

#[test]
fn without_a_member_attempts_are_spaced_out() {
    let Some(mut etcd) = Etcd::none() else { return };
    etcd.inside(|| {
        let urls = [ONE, "http://127.0.0.3:2379"];
        let mut driver = Driver::of(&urls);
        let first = unreachable(driver.run(read_node()));
        assert_eq!(
            first, "connect to http://127.0.0.3:2379: connection refused",
            "the last of both"
        );
        let second = unreachable(driver.run(read_node()));
        assert!(second.starts_with(&format!("{first}; the next attempt is in 0.")), "{second}");
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(550));
            unreachable(driver.run(read_node()));
        }
        let third = unreachable(driver.run(read_node()));
        assert!(third.contains("the next attempt is in "), "{third}");
    });
    etcd.start_one(&[]);
    etcd.inside(|| {
        let mut driver = Driver::of(&["http://127.0.0.3:2379", "http://no-such-name.invalid", ONE]);
        assert_eq!(node_state(driver.run(read_node())).record, None, "the third member serves");
    });
}

/// The bridge's address answers nothing: packets to a member that is cut off are lost.
#[test]
fn a_member_that_is_cut_off_is_left_for_the_next() {
    let Some(etcd) = Etcd::three() else { return };
    let leader = etcd.leader();
    let others = [1, 2, 3].map(|number| (number + leader - 1) % 3 + 1); // the one after the leader first
    etcd.inside(|| {
        let urls = [others[2], others[0], others[1]].map(|number| THREE[number - 1]);
        assert_eq!(urls[0], THREE[leader - 1]);
        let mut driver = Driver::of(&urls);
        let ground = register(&mut driver, "n1");
        etcd.cut(leader);
        let began = Instant::now();
        let outcome = driver.run(claim("n1", "4-0a580100-26", ground));
        assert!(matches!(outcome, Outcome::Unknown { .. }), "sent to the leader: {outcome:?}");
        // A new leader is elected meanwhile, and a read goes on until it is served.
        let read =
            driver.run(Operation::ReadBlock { realm: realm(), block: block("4-0a580100-26") });
        let found = realm_state(read).1.blocks;
        assert_eq!(found, []);
        written(&driver.run(claim("n1", "4-0a580100-26", ground)));
        assert!(began.elapsed() < Duration::from_secs(30));
    });
}

/// The client is with the minority: both members that it reaches have no quorum and answer 503.
#[test]
fn a_minority_answers_503_which_is_unknown_for_a_write() {
    let Some(etcd) = Etcd::three() else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[THREE[0]]);
        let ground = register(&mut driver, "n1");
        etcd.cut(2);
        etcd.cut(3);
        let read = unreachable(driver.run(read_node()));
        assert!(read.starts_with(THREE[0]), "{read}");
        std::thread::sleep(Duration::from_millis(600)); // the back-off
        let outcome = driver.run(claim("n1", "4-0a580100-26", ground));
        assert!(matches!(outcome, Outcome::Unknown { .. }), "{outcome:?}");
    });
}

#[test]
fn a_full_store_refuses_claims_and_says_what_to_do() {
    let Some(etcd) = Etcd::one_with(&["--quota-backend-bytes", "65536"]) else { return };
    etcd.inside(|| {
        let mut driver = Driver::of(&[ONE]);
        let ground = register(&mut driver, "n1");
        etcd.lab
            .host
            .sh("head -c 60000 /dev/zero | tr '\\0' x | ETCDCTL_API=3 etcdctl put big || true");
        let mut outcomes = (0..20)
            .map(|number| driver.run(claim("n1", &format!("4-0a58{number:02x}00-26"), ground)));
        let refused = outcomes.find(|outcome| !matches!(outcome, Outcome::Done { .. })).unwrap();
        let Outcome::Refused { reason } = refused else { panic!("{refused:?}") };
        assert_eq!(
            reason,
            "etcdserver: mvcc: database space exceeded; compact and defragment the store or raise \
             --quota-backend-bytes, then `etcdctl alarm disarm`"
        );
    });
}

#[test]
fn a_gateway_that_is_off_is_told_in_words() {
    let Some(etcd) = Etcd::one_with(&["--enable-grpc-gateway=false"]) else { return };
    etcd.inside(|| {
        let reason = unreachable(Driver::of(&[ONE]).run(read_node()));
        assert_eq!(
            reason,
            "http://127.0.0.1:2379: the member has no JSON gateway; start etcd without --enable-grpc-gateway=false"
        );
    });
}

#[test]
fn a_server_that_restarts_ends_the_watch_and_serves_again() {
    let Some(mut etcd) = Etcd::one() else { return };
    let mut driver = Driver::of(&[ONE]);
    let watch = etcd.inside(|| {
        register(&mut driver, "n1");
        let watch = driver.submit(Operation::Watch { realm: realm(), from: 1 });
        driver.run(read_node());
        watch
    });
    etcd.members.clear();
    etcd.inside(|| {
        let ended = driver.outcome(watch);
        assert!(unreachable(ended).contains(ONE));
    });
    etcd.start_one(&[]);
    etcd.inside(|| {
        // The idle connection ended with the server that had it.
        assert!(node_state(driver.run(read_node())).record.is_some());
    });
}
