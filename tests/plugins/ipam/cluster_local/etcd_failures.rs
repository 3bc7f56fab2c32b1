//! Members that are gone, cut off, stopped, full, of another cluster, or have no gateway.

use std::time::{Duration, Instant};

use cni_multi::plugins::ipam::cluster_local::store::{Heard, Key, Outcome, Store as _};
use nix::sys::signal::Signal;

use super::etcd::{claim, done, heard};
use crate::support::etcd::{Etcd, ONE, THREE, engine};

#[track_caller]
fn reason(outcome: Outcome<impl std::fmt::Debug>) -> String {
    match outcome {
        Outcome::Unreachable(reason) | Outcome::Unknown(reason) => reason,
        other => panic!("{other:?}"),
    }
}

/// The member is stopped after it has the connection: the claim is in its buffers.
#[test]
fn a_claim_at_a_stopped_member_is_unknown_and_then_read() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut store = engine(&[ONE]);
        let record = claim("n1", "4-0a580100-26");
        assert_eq!(store.get(&record.key), Outcome::Done(None));
        etcd.members[0].signal(Signal::SIGSTOP);
        let began = Instant::now();
        let outcome = store.create(&record);
        assert_eq!(outcome, Outcome::Unknown(format!("{ONE} did not answer within 5 s")));
        assert!(began.elapsed() >= Duration::from_secs(5));
        etcd.members[0].signal(Signal::SIGCONT);
        // The server executes what it finds in its buffers, at the latest before what comes after.
        std::thread::sleep(Duration::from_millis(500));
        let found = done(store.get(&record.key));
        assert!(found.is_none_or(|found| found.record == record), "ours or none");
    });
}

#[test]
fn members_are_tried_until_one_serves() {
    let Some(mut etcd) = Etcd::none() else { return };
    etcd.inside(|| {
        let mut store = engine(&[ONE, "http://127.0.0.3:9"]);
        let outcome = store.create(&claim("n1", "4-0a580100-26"));
        let expected = "connect to http://127.0.0.3:9: connection refused"; // the last of both
        assert_eq!(outcome, Outcome::Unreachable(expected.to_owned()));
    });
    etcd.start_one("");
    etcd.inside(|| {
        let urls = ["http://127.0.0.3:9", "http://no-such-name.invalid", ONE];
        done(engine(&urls).create(&claim("n1", "4-0a580100-26")));
    });
}

/// The bridge's address answers nothing: packets to a member that is cut off are lost.
#[test]
fn a_member_that_is_cut_off_is_left_for_the_next() {
    let Some(etcd) = Etcd::three() else { return };
    let leader = etcd.find_leader().unwrap();
    let others = [1, 2, 3].map(|number| (number + leader - 1) % 3 + 1); // the one after the leader first
    etcd.inside(|| {
        let urls = [others[2], others[0], others[1]].map(|number| THREE[number - 1]);
        assert_eq!(urls[0], THREE[leader - 1]);
        let mut store = engine(&urls);
        assert_eq!(store.get(&Key::Meta), Outcome::Done(None));
        etcd.cut(leader);
        let began = Instant::now();
        let record = claim("n1", "4-0a580100-26");
        let outcome = store.create(&record);
        assert!(matches!(outcome, Outcome::Unknown(_)), "sent to the leader: {outcome:?}");
        // A new leader is elected meanwhile, and a read goes on until it is served.
        assert_eq!(store.get(&record.key), Outcome::Done(None));
        done(store.create(&record));
        assert!(began.elapsed() < Duration::from_secs(30));
    });
}

/// The client is with the minority: the member that it reaches has no quorum.
#[test]
fn what_a_minority_answers_is_unknown() {
    let Some(etcd) = Etcd::three() else { return };
    etcd.inside(|| {
        let mut store = engine(&[THREE[0]]);
        assert_eq!(store.get(&Key::Meta), Outcome::Done(None));
        etcd.cut(2);
        etcd.cut(3);
        let read = reason(store.get(&Key::Meta));
        assert!(read.starts_with(THREE[0]), "{read}");
        let outcome = store.create(&claim("n1", "4-0a580100-26"));
        assert!(matches!(outcome, Outcome::Unknown(_)), "{outcome:?}");
    });
}

/// The second URL leads to an etcd of its own.
#[test]
fn another_etcd_behind_an_endpoint_is_noticed() {
    let Some(mut etcd) = Etcd::three() else { return };
    etcd.start_one("--initial-cluster-token other");
    etcd.inside(|| {
        let mut store = engine(&[THREE[0], ONE]);
        done(store.create(&claim("n1", "4-0a580100-26")));
        etcd.cut(1);
        let other = claim("n1", "4-0a580140-26");
        assert!(matches!(store.create(&other), Outcome::Unknown(_)), "sent to the first");
        let reason = reason(store.create(&other));
        assert!(reason.ends_with("is an endpoint of another etcd?"), "{reason}");
    });
}

#[test]
fn a_server_that_restarts_ends_the_watch_and_serves_again() {
    let Some(mut etcd) = Etcd::one() else { return };
    let mut store = engine(&[ONE]);
    etcd.inside(|| done(store.create(&claim("n1", "4-0a580100-26"))));
    let kill = |next: &mut dyn FnMut() -> Heard| {
        assert_eq!(next(), Heard::Now(vec![]));
        std::thread::sleep(Duration::from_millis(300)); // until it watches
        etcd.members[0].signal(Signal::SIGKILL);
    };
    let ended = reason(heard(&etcd, ONE, kill, || ()));
    assert!(ended.contains(ONE), "{ended}");
    etcd.restart(1);
    etcd.wait_until_ready(1);
    // The idle connection ended with the server that had it.
    etcd.inside(|| assert!(done(store.get(&claim("n1", "4-0a580100-26").key)).is_some()));
}
