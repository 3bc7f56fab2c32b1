//! The engine's operations on a real etcd.

use std::sync::mpsc::channel;
use std::time::Duration;

use cni_multi::plugins::ipam::cluster_local::name::Name;
use cni_multi::plugins::ipam::cluster_local::store::{
    Claim, Heard, Key, Outcome, Record, Selection, Store, Stored, Token, Value,
};

use crate::support::etcd::{Etcd, ONE, THREE, engine};

pub fn name(text: &str) -> Name {
    text.parse().unwrap()
}

pub fn block(text: &str) -> Key {
    Key::Block(name("default"), text.parse().unwrap())
}

/// A node's claim of a block.
pub fn claim(node: &str, at: &str) -> Record {
    let claim = Claim { node: name(node), uid: Token(7), token: Token(1), taken: None, name: None };
    Record { key: block(at), value: Value::Claim(claim) }
}

#[track_caller]
pub fn done<T: std::fmt::Debug>(outcome: Outcome<T>) -> T {
    match outcome {
        Outcome::Done(value) => value,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_write_compares_its_key_alone() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let [mut store, mut other] = [engine(&[ONE]), engine(&[ONE])];
        let (first, second) = (claim("n1", "4-0a580100-26"), claim("n2", "4-0a580100-26"));
        assert_eq!(store.get(&first.key), Outcome::Done(None));
        let created = done(store.create(&first));
        assert_eq!(store.create(&second), Outcome::Lost);
        assert_eq!(store.get(&first.key), Outcome::Done(Some(created.clone())));
        let updated = done(other.update(&second, &created));
        assert_eq!(store.update(&first, &created), Outcome::Lost);
        assert_eq!(store.delete(&created), Outcome::Lost);
        assert_eq!(done(store.get(&first.key)), Some(updated.clone()));
        assert_eq!(store.delete(&updated), Outcome::Done(()));
        assert_eq!(store.delete(&updated), Outcome::Lost);
        assert_eq!(store.update(&first, &updated), Outcome::Lost, "it brings nothing back");
        assert_eq!(done(store.get(&first.key)), None);
    });
}

#[test]
fn of_two_claimers_exactly_one_wins() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let won = |node: &str| -> Vec<bool> {
            let mut store = engine(&[ONE]);
            let claims = (0..60).map(|number| claim(node, &format!("4-0a58{number:02x}40-26")));
            claims.map(|record| matches!(store.create(&record), Outcome::Done(_))).collect()
        };
        let (first, second) = std::thread::scope(|scope| {
            let [first, second] = ["n1", "n2"].map(|node| scope.spawn(move || won(node)));
            (first.join().unwrap(), second.join().unwrap())
        });
        assert!(first.iter().zip(&second).all(|(first, second)| first != second));
    });
}

/// 3500 keys are four pages.
#[test]
fn a_list_of_many_pages_is_of_one_revision() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let puts: Vec<String> = (0..3500)
            .map(|number| 0x0a00_0000 + number * 64)
            .map(|at| format!("put /cni-multi/v2/test/b/default/4-{at:08x}-26 x"))
            .collect();
        // A transaction has room for 128.
        for some in puts.chunks(120) {
            let script = format!("\n{}\n\n\n", some.join("\n"));
            std::fs::write(etcd.scratch.join("txn"), script).unwrap();
            etcd.members[0].ctl(&format!("txn < {}", etcd.scratch.join("txn").display()));
        }
        let mut store = engine(&[ONE]);
        for selection in [Selection::Realm(name("default")), Selection::All] {
            let found = done(store.list(&selection));
            assert_eq!(found.len(), 3500);
            assert!(found.is_sorted_by_key(|stored| stored.record.key.clone()));
            assert!(found.iter().all(|stored| stored.record.value == Value::Unreadable));
        }
        let node = Selection::Node(name("n1"));
        assert_eq!(store.list(&node), Outcome::Done(vec![]), "nobody knows whose they are");
        let stored = done(store.get(&block("4-0a000000-26"))).unwrap();
        assert_eq!(store.delete(&stored), Outcome::Done(()));
    });
}

#[test]
fn a_confirmation_has_blocks_and_conflicts_of_the_realm() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut store = engine(&[ONE]);
        let realm = name("default");
        let blocks = ["4-0a580100-32", "4-0a580101-32"];
        let mut written: Vec<Stored> =
            blocks.iter().map(|at| done(store.create(&claim("n1", at)))).collect();
        done(store.create(&claim("n1", "4-0a580102-32")));
        written.push(done(store.create(&conflict("default"))));
        done(store.create(&conflict("other")));
        let asked = ["4-0a580100-32", "4-0a580101-32", "4-0a580103-32"];
        let blocks = asked.map(|at| at.parse().unwrap()).to_vec();
        let confirm = Selection::Confirm { node: name("n1"), realm, blocks };
        assert_eq!(done(store.list(&confirm)), written);
        let of_node = done(store.list(&Selection::Node(name("n2"))));
        assert_eq!(of_node.len(), 2, "its conflicts in both realms");
    });
}

/// What a watch hears, on a thread of its own. Nobody listens during the last change.
pub fn heard(
    etcd: &Etcd,
    url: &'static str,
    work: impl FnOnce(&mut dyn FnMut() -> Heard),
    last: impl FnOnce(),
) -> Outcome<()> {
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            etcd.inside(|| engine(&[url]).watch(&mut |heard| tell.send(heard).is_ok()))
        });
        work(&mut || told.recv_timeout(Duration::from_secs(15)).unwrap());
        drop(told);
        last();
        watch.join().unwrap()
    })
}

/// A note that a node has leases in another's block.
fn conflict(realm: &str) -> Record {
    let key = Key::Conflict(name(realm), "4-0a580200-26".parse().unwrap());
    Record { key, value: Value::Conflict(name("n2")) }
}

#[test]
fn changes_are_heard_until_nobody_listens() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut store = engine(&[ONE]);
        let meta = Record { key: Key::Meta, value: Value::Meta(Token(9)) };
        let meta = done(store.create(&meta));
        let work = |next: &mut dyn FnMut() -> Heard| {
            assert_eq!(next(), Heard::Now(vec![meta.clone()]));
            done(store.create(&claim("n1", "4-0a580100-26"))); // no hint
            let written = done(store.create(&conflict("default")));
            assert_eq!(next(), Heard::Put(written.clone()));
            done(store.delete(&written));
            assert_eq!(next(), Heard::Gone(written.record.key));
        };
        let outcome = heard(&etcd, ONE, work, || done(engine(&[ONE]).delete(&meta)));
        assert_eq!(outcome, Outcome::Done(()));
    });
}

/// Between its list and its watch, where nothing but the member's refusal tells what it has missed.
#[test]
fn a_watch_that_was_compacted_away_begins_anew() {
    let Some(etcd) = Etcd::one() else { return };
    etcd.inside(|| {
        let mut store = engine(&[ONE]);
        let (mut told, mut written) = (vec![], vec![]);
        let outcome = engine(&[ONE]).watch(&mut |heard| {
            told.push(heard);
            if told.len() == 1 {
                written = ["default", "other"].map(|at| done(store.create(&conflict(at)))).into();
                etcd.members[0].ctl(&format!("compact {}", etcd.members[0].revision()));
            }
            told.len() == 1
        });
        assert_eq!(outcome, Outcome::Done(()));
        assert_eq!(told, [Heard::Now(vec![]), Heard::Now(written)]);
    });
}

/// A member without a leader would be silent for ever.
#[test]
fn a_watch_ends_with_its_members_leader() {
    let Some(etcd) = Etcd::three() else { return };
    etcd.inside(|| {
        let cut = |next: &mut dyn FnMut() -> Heard| {
            assert_eq!(next(), Heard::Now(vec![]));
            std::thread::sleep(Duration::from_millis(500)); // until it watches
            etcd.cut(2);
            etcd.cut(3);
        };
        let outcome = heard(&etcd, THREE[0], cut, || ());
        let Outcome::Unknown(reason) = outcome else { panic!("{outcome:?}") };
        assert!(reason.ends_with("the server has ended the stream"), "{reason}");
    });
}
