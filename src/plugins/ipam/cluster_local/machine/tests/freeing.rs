//! The keys that a reclaimed node has left.

use super::absence::{AFTER, THEIRS, lab, seconds};
use super::*;
use crate::plugins::ipam::cluster_local::engine::{Change, Found, NodeRecord, Standing};
use crate::plugins::ipam::cluster_local::machine::freeing::MOST;

/// The other node with this number of more blocks.
fn lab_with_blocks(count: usize) -> Lab {
    let mut lab = lab(Some(AFTER.as_secs()));
    let owner = Identity { node: name("n2"), uid: Token(2), incarnation: 0 };
    for number in 0..count {
        let block = block(&format!("4-0a02{:04x}-30", number * 4));
        lab.store.insert(block, &Claimed { owner: owner.clone(), ..claimed(7) });
    }
    lab
}

/// The answers of operations that the lab has kept back.
fn answer_late(lab: &mut Lab) {
    for event in std::mem::take(&mut lab.late) {
        lab.give(event);
    }
}

/// The client executes operations one after the other: heartbeats and claims would wait behind them.
#[test]
fn at_most_64_keys_of_a_reclaimed_node_are_deleted_at_once() {
    let mut lab = lab_with_blocks(150);
    lab.is_late = is_free;
    lab.pass(AFTER + seconds(80));
    // A conflict's note, a pool's note and 151 blocks.
    for (under_way, left) in [(MOST, 89), (MOST, 25), (25, 0)] {
        assert_eq!(lab.late.len(), under_way);
        lab.pass(seconds(60));
        assert_eq!((lab.late.len(), lab.store.blocks.len()), (under_way, left));
        answer_late(&mut lab);
    }
    assert!(lab.late.is_empty() && !lab.store.blocks.contains_key(&block(THEIRS)));
}

#[test]
fn keys_whose_deletion_failed_are_deleted_later() {
    let mut lab = lab_with_blocks(100);
    lab.faults.push((is_release, Outcome::Refused { reason: "no space".to_owned() }));
    lab.pass(AFTER + seconds(80));
    assert!(lab.faults.is_empty() && lab.store.blocks.is_empty());
}

/// Its notes contain no incarnation.
#[test]
fn pool_notes_of_a_node_that_is_back_stay() {
    let mut lab = lab(Some(AFTER.as_secs()));
    while lab.record("n2").value.standing == Standing::Live {
        lab.pass(seconds(1));
    }
    let seen = lab.record("n2");
    let record = NodeRecord { standing: Standing::Live, ..seen.value };
    let owner = Identity { node: name("n2"), uid: Token(2), incarnation: record.incarnation };
    let register = Operation::Register { node: name("n2"), record, seen: seen.revision };
    lab.store.apply(&register, lab.now);
    let claimed = Claimed { owner, ..claimed(8) };
    lab.store.insert(block(THEIRS), &claimed);
    let found =
        Found { block: block(THEIRS), claimed: Some(claimed), revision: lab.store.revision };
    lab.give(Event::Changed { realm: name("default"), change: Change::Claimed(found) });
    let spans = vec!["10.1.0.2-10.1.0.9".parse().unwrap()];
    let note = PoolNote { by: name("n2"), network: "another".to_owned(), spans, length: 30 };
    lab.store.pools.insert("theirs".to_owned(), note);
    for pause in [0, 60, 60] {
        lab.pass(seconds(pause));
        lab.list();
        assert!(lab.store.pools.contains_key("theirs"));
    }
}

fn is_free(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Release { .. } | Operation::EndConflict { .. } | Operation::DropPool { .. }
    )
}
