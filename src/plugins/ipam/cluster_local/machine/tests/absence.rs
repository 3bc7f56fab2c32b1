//! `reclaimAfter`: how long a node uses its blocks without a heartbeat, and when other nodes reclaim it.

use super::*;
use crate::plugins::ipam::cluster_local::engine::{
    Answer, Change, ConflictNote, NodeRecord, Standing, Versioned,
};

pub(super) const AFTER: Duration = Duration::from_secs(600);
/// The block of the other node.
pub(super) const THEIRS: &str = "4-0a010004-30";

pub(super) fn seconds(number: u64) -> Duration {
    Duration::from_secs(number)
}

/// A machine with `reclaimAfter`, and in its store another node that has a block and notes.
pub(super) fn lab(theirs: Option<u64>) -> Lab {
    let mut lab = Lab::of(blocks(vec![]), NodeFile::default(), Some(AFTER));
    let record = NodeRecord {
        uid: Token(2),
        incarnation: 0,
        standing: Standing::Live,
        version: "0.1.0".to_owned(),
        reclaim_after: theirs,
    };
    let register = Operation::Register { node: name("n2"), record, seen: 0 };
    lab.store.apply(&register, lab.now);
    let owner = Identity { node: name("n2"), uid: Token(2), incarnation: 0 };
    lab.store.insert(block(THEIRS), &Claimed { owner: owner.clone(), ..claimed(7) });
    lab.store.notes.insert(block("4-0a010008-30"), ConflictNote { by: owner, leases: 1 });
    let note = PoolNote {
        by: name("n2"),
        network: "another".to_owned(),
        spans: vec!["10.1.0.2-10.1.0.9".parse().unwrap()],
        length: 30,
    };
    lab.store.pools.insert("theirs".to_owned(), note);
    lab.give(Event::Time);
    lab
}

impl Lab {
    pub(super) fn record(&mut self, node: &str) -> Versioned<NodeRecord> {
        match self.store.apply(&Operation::ReadNode { node: name(node) }, self.now) {
            Outcome::Done { answer: Answer::Node(state), .. } => state.record.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn is_reclaimed(&mut self) -> bool {
        let is_fenced = self.record("n2").value.standing == Standing::Fenced;
        assert_eq!(is_fenced, !self.store.blocks.contains_key(&block(THEIRS)));
        is_fenced
    }

    /// The other node is not reclaimed within `before` seconds, and is reclaimed within `more` after them.
    #[track_caller]
    fn require_reclaim_after(&mut self, before: u64, more: u64) {
        self.pass(seconds(before));
        assert!(!self.is_reclaimed(), "it may have sent a heartbeat {before} s ago");
        self.pass(seconds(more));
        assert!(self.is_reclaimed());
    }

    fn send_their_heartbeat(&mut self) {
        let node_revision = self.record("n2").revision;
        let (node, boot) = (name("n2"), "b".to_owned());
        let heartbeat = Operation::Heartbeat { node, boot, lease: None, ttl: 60, node_revision };
        self.store.apply(&heartbeat, self.now);
    }

    /// The store does not answer this number of next operations.
    fn cut(&mut self, operations: usize) {
        self.faults = (0..operations).map(|_| (is_any as fn(&Operation) -> bool, away())).collect();
    }

    /// Has the realm listed, by a note of this node that the node does not know of.
    pub(super) fn list(&mut self) {
        let listed = |lab: &Lab| lab.machine.realms[&name("default")].listed;
        let before = listed(self);
        let by = Identity { node: name("n1"), uid: Token(1), incarnation: 0 };
        let change = Change::Noted(block(THEIRS), Some(ConflictNote { by, leases: 1 }));
        self.give(Event::Changed { realm: name("default"), change });
        self.pass(Duration::from_millis(30));
        assert!(listed(self) > before);
    }

    fn until(&self) -> Option<u64> {
        self.machine.network(&name("net")).unwrap().until
    }
}

fn is_any(_: &Operation) -> bool {
    true
}

#[test]
fn an_absent_node_is_fenced_and_its_blocks_and_notes_are_freed() {
    let mut lab = lab(Some(600));
    lab.require_reclaim_after(590, 80);
    assert_eq!(lab.record("n2").value.incarnation, 1);
    assert!(lab.store.notes.is_empty());
    assert!(lab.store.pools.values().all(|note| note.by != name("n2")));
    assert_eq!(*lab.machine.contact(), Contact::Together);
}

#[test]
fn a_node_is_reclaimed_no_sooner_than_its_record_allows() {
    for theirs in [None, Some(3600)] {
        let mut lab = lab(theirs);
        lab.pass(seconds(3500));
        assert!(!lab.is_reclaimed(), "{theirs:?}");
        lab.pass(seconds(200));
        assert_eq!(lab.is_reclaimed(), theirs.is_some());
    }
}

#[test]
fn a_heartbeat_ends_an_absence() {
    let mut lab = lab(Some(600));
    lab.pass(seconds(550));
    lab.send_their_heartbeat();
    lab.require_reclaim_after(640, 100);
}

#[test]
fn time_without_contact_does_not_count() {
    let mut lab = lab(Some(600));
    lab.pass(seconds(550));
    lab.cut(1000);
    lab.pass(seconds(90));
    lab.faults.clear();
    lab.require_reclaim_after(550, 180);
}

#[test]
fn a_restored_store_ends_each_absence() {
    let mut lab = lab(Some(600));
    let snapshot = lab.store.clone();
    lab.pass(seconds(550));
    lab.store = snapshot;
    lab.store.epoch = 1;
    lab.require_reclaim_after(550, 120);
}

#[test]
fn keys_that_an_interrupted_reclaim_has_left_are_freed() {
    let mut lab = lab(Some(600));
    let (seen, node) = (lab.record("n2"), name("n2"));
    lab.store.apply(&Operation::Fence { node, seen }, lab.now);
    lab.pass(seconds(60));
    assert!(lab.is_reclaimed());
}

/// A node without a record, or with one that this node may not read, takes no other node's place.
#[test]
fn an_absent_node_behind_200_unreadable_records_is_reclaimed() {
    let mut lab = lab(Some(600));
    for number in 0..200 {
        let owner =
            Identity { node: name(&format!("n1-{number:03}")), uid: Token(3), incarnation: 0 };
        let block = block(&format!("4-0a02{:04x}-30", number * 4));
        lab.store.insert(block, &Claimed { owner, ..claimed(9) });
    }
    let refused = || Outcome::Refused { reason: "permission denied".to_owned() };
    lab.faults =
        (0..50).map(|_| (is_read_of_another as fn(&Operation) -> bool, refused())).collect();
    lab.list();
    lab.pass(seconds(200 / 3 * 30 + 700));
    assert!(lab.faults.is_empty() && lab.is_reclaimed());
}

fn is_read_of_another(operation: &Operation) -> bool {
    matches!(operation, Operation::ReadNode { node } if node.as_str().starts_with("n1-"))
}

#[test]
fn a_node_without_contact_stops_allocating_in_time() {
    let mut lab = lab(Some(600));
    lab.exhausted();
    assert_eq!(lab.replies, [Reply::LookAgain]);
    lab.pass(seconds(3000));
    let until = lab.until().unwrap();
    let now = lab.now.as_secs();
    assert!((now + 270..=now + 450).contains(&until), "{until} at {now}");
    lab.cut(1000);
    lab.pass(seconds(200));
    assert!(!lab.machine.is_stopped(lab.now));
    lab.pass(seconds(260));
    assert_eq!(lab.until(), Some(until), "nothing extends it");
    assert!(lab.machine.is_stopped(lab.now));
    lab.exhausted();
    assert_eq!(lab.replies.len(), 1, "no ADD gets the free addresses of its block");
    lab.faults.clear();
    lab.pass(seconds(60));
    assert!(!lab.machine.is_stopped(lab.now) && lab.until().unwrap() > lab.now.as_secs() + 270);
    assert_eq!(lab.replies.last(), Some(&Reply::LookAgain), "{:?}", lab.replies);
}

/// Starts the daemon of a node with `reclaimAfter` set to `after` and the limit `until` in `blocks.json`. Returns
/// the lab, the daemon's first write to the disk if there is one, and its first read of the record. The lab has
/// finished neither.
fn changed(until: Option<u64>, after: Option<Duration>) -> (Lab, Option<WriteId>, OperationId) {
    let used =
        Blocks { confirmed: "boot".to_owned(), until, ..blocks(vec![held(THEIRS, State::Active)]) };
    let file = NodeFile { incarnation: 0, epoch: Some(0) };
    let mut lab = Lab::of(used, file, after);
    let record = NodeRecord {
        uid: Token(1),
        incarnation: 0,
        standing: Standing::Live,
        version: "0.1.0".to_owned(),
        reclaim_after: until.map(|_| 3600),
    };
    let register = Operation::Register { node: name("n1"), record, seen: 0 };
    lab.store.apply(&register, lab.now);
    lab.store.insert(block(THEIRS), &claimed(7));
    let actions = lab.machine.on(Event::Time, Turn::new(lab.now, 0, &mut lab.random));
    let (mut write, mut meet) = (None, None);
    for action in actions {
        match action {
            Action::Write { id, record: Record::Marks { .. } } => write = Some(id),
            Action::Send { id, operation: Operation::ReadNode { .. } } => meet = Some(id),
            other => panic!("{other:?}"),
        }
    }
    (lab, write, meet.unwrap())
}

#[test]
fn files_get_a_limit_before_the_record_changes() {
    for (before, bounded) in [(None, 1), (Some(5000), 451)] {
        let (mut lab, write, meet) = changed(before, Some(AFTER));
        let outcome = lab.store.apply(&Operation::ReadNode { node: name("n1") }, lab.now);
        lab.give(Event::Outcome { id: meet, outcome });
        let promised = lab.record("n1").value.reclaim_after;
        assert_eq!(
            promised,
            before.map(|_| 3600),
            "the record changes only once the file is on the disk"
        );
        lab.give(Event::Written { id: write.unwrap(), written: Written::Done });
        assert_eq!(lab.until(), Some(bounded));
        lab.pass(seconds(5));
        assert_eq!(lab.record("n1").value.reclaim_after, Some(600));
        assert!(lab.until().unwrap() > 300);
        assert_eq!(*lab.machine.contact(), Contact::Together);
    }
}

#[test]
fn without_the_key_the_record_changes_before_the_files() {
    let (mut lab, write, meet) = changed(Some(50), None);
    assert_eq!(write, None);
    lab.faults.push((is_register, away()));
    let outcome = lab.store.apply(&Operation::ReadNode { node: name("n1") }, lab.now);
    lab.give(Event::Outcome { id: meet, outcome });
    assert_eq!(lab.until(), Some(50));
    lab.pass(seconds(5));
    assert_eq!((lab.record("n1").value.reclaim_after, lab.until()), (None, None));
}

fn is_register(operation: &Operation) -> bool {
    matches!(operation, Operation::Register { .. })
}
