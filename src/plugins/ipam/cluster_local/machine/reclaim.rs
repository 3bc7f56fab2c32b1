//! The reclaim of a node that is gone, as a state machine without clock and store.
//!
//! It marks the node's record. A living daemon writes its next beat over the mark, and the reclaim
//! ends. A record that did not move for 100 s is ended, which is the fence: no beat of the old uid
//! succeeds any more. What was listed after the fence, and before the record was read again, is of uids
//! that have ended, and is deleted as it was listed. The record goes last, so a reclaim that was
//! interrupted is run again, and two at once do the same.

use std::time::Duration;

use super::super::name::Name;
use super::super::store::{
    Answer, Key, NodeRecord, Operation, Outcome, Record, Selection, Stored, Token, Value,
};
use crate::sys::clock::Moment;

/// How long a marked record must not move: three beats and the timeouts of a fourth.
pub const UNMOVED: Duration = Duration::from_secs(100);
/// The pause between two looks at it: a living daemon shows earlier.
const LOOK: Duration = Duration::from_secs(10);
/// The pause after an operation whose outcome is unknown, or that did not reach the store.
const PAUSE: Duration = Duration::from_secs(2);

/// What is due.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant)] // one exists at a time
pub enum Step {
    /// This operation; then [`Reclaim::answered`].
    Ask(Operation),
    /// Nothing before this moment.
    Wait(Moment),
    /// Nothing any more.
    Done(End),
}

/// How a reclaim ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The node has nothing any more.
    Freed,
    /// The node has no record; that many claims and notes have its name.
    NoRecord(usize),
    /// A daemon beats in the node's name: nothing was freed.
    Lives,
    /// A daemon registered in the node's name after the fence. It takes over what is left.
    IsBack,
    /// The node allocates after a boot before it reaches the store, and it is not said to be destroyed.
    NotDestroyed,
    /// The store refused; the reason.
    Refused(String),
}

/// The operation that is due.
#[derive(Clone, Debug)]
enum Stage {
    /// Read the record, and decide.
    Look,
    /// Write the mark over the record.
    Mark(Stored, NodeRecord),
    /// End the record.
    Fence(Stored, NodeRecord),
    /// List what has the node's name. The record that is ended, if there is one.
    List(Option<Stored>),
    /// Read the want.
    Want(Stored, Vec<Stored>),
    /// Read the record again.
    Verify(Stored, Vec<Stored>),
    /// Delete the last of these, and at last the record, which is the first.
    Delete(Vec<Stored>),
    /// Nothing.
    Done(End),
}

/// A reclaim.
#[derive(Clone, Debug)]
pub struct Reclaim {
    node: Name,
    mark: Token,
    is_destroyed: bool,
    stage: Stage,
    /// The marked record, and when it has not moved for long enough.
    watched: Option<(Stored, Moment)>,
    is_fenced: bool,
    not_before: Moment,
    freed: Vec<Stored>,
}

impl Reclaim {
    /// Begins the reclaim of a node with a fresh token. A record of a node that allocates after a boot
    /// before it reaches the store is reclaimed only if the machine is destroyed.
    pub fn new(node: Name, mark: Token, is_destroyed: bool) -> Reclaim {
        Reclaim {
            node,
            mark,
            is_destroyed,
            stage: Stage::Look,
            watched: None,
            is_fenced: false,
            not_before: Moment::ZERO,
            freed: vec![],
        }
    }

    /// The claims that were deleted.
    pub fn freed(&self) -> &[Stored] {
        &self.freed
    }

    /// Until when the record must not move, while it is watched.
    pub fn watched_until(&self) -> Option<Moment> {
        let is_before = matches!(self.stage, Stage::Look) && !self.is_fenced;
        self.watched.as_ref().filter(|_| is_before).map(|(_, until)| *until)
    }

    /// How many records are still to be deleted; None before the fence.
    pub fn remaining(&self) -> Option<usize> {
        match &self.stage {
            Stage::Delete(records) => Some(records.len()),
            _ => None,
        }
    }

    /// What is due now.
    pub fn next(&self, now: Moment) -> Step {
        if let Stage::Done(end) = &self.stage {
            return Step::Done(end.clone());
        }
        if now < self.not_before {
            return Step::Wait(self.not_before);
        }
        let key = Key::Node(self.node.clone());
        let write = |record: NodeRecord, seen: &Stored| {
            Operation::Update(Record { key: key.clone(), value: Value::Node(record) }, seen.clone())
        };
        Step::Ask(match &self.stage {
            Stage::Mark(seen, record) => {
                write(NodeRecord { mark: Some(self.mark), ..record.clone() }, seen)
            }
            Stage::Fence(seen, record) => write(NodeRecord { ended: true, ..record.clone() }, seen),
            Stage::List(_) => Operation::List(Selection::Node(self.node.clone())),
            Stage::Want(..) => Operation::Get(Key::Want(self.node.clone())),
            Stage::Delete(records) if !records.is_empty() => {
                Operation::Delete(records[records.len() - 1].clone())
            }
            Stage::Look | Stage::Verify(..) | Stage::Delete(_) | Stage::Done(_) => {
                Operation::Get(key)
            }
        })
    }

    /// The outcome of the operation.
    pub fn answered(&mut self, outcome: Outcome<Answer>, now: Moment) {
        let stage = std::mem::replace(&mut self.stage, Stage::Look);
        self.stage = match outcome {
            Outcome::Done(answer) => self.done(stage, Some(answer), now),
            Outcome::Lost => self.done(stage, None, now),
            Outcome::Refused(reason) | Outcome::Unauthenticated(reason) => {
                Stage::Done(End::Refused(reason))
            }
            Outcome::Busy(wait) => {
                self.not_before = now + wait;
                stage
            }
            Outcome::Unknown(_) | Outcome::Unreachable(_) => {
                self.not_before = now + PAUSE;
                // The node cannot beat either while the store is away.
                if let Some((_, until)) = &mut self.watched {
                    *until = now + UNMOVED;
                }
                match stage {
                    // Whether it was written, the record tells.
                    Stage::Mark(..) | Stage::Fence(..) => Stage::Look,
                    other => other,
                }
            }
        };
    }

    /// The operation was done, or lost without an answer.
    fn done(&mut self, stage: Stage, answer: Option<Answer>, now: Moment) -> Stage {
        match (stage, answer) {
            (Stage::Look, Some(Answer::Found(found))) => self.look(found, now),
            (Stage::Mark(..), Some(Answer::Written(marked))) => self.watch(marked, now),
            (Stage::Fence(..), Some(Answer::Written(fence))) => self.free(fence),
            (Stage::List(None), Some(Answer::Listed(listed))) => {
                let is_done = listed.is_empty() && self.is_fenced; // perhaps by another reclaim
                Stage::Done(if is_done { End::Freed } else { End::NoRecord(listed.len()) })
            }
            (Stage::List(Some(fence)), Some(Answer::Listed(listed))) => Stage::Want(fence, listed),
            (Stage::Want(fence, mut listed), Some(Answer::Found(want))) => {
                listed.extend(want);
                Stage::Verify(fence, listed)
            }
            (Stage::Verify(fence, mut listed), Some(Answer::Found(Some(found))))
                if found == fence =>
            {
                listed.insert(0, fence);
                Stage::Delete(listed)
            }
            (Stage::Verify(..), Some(Answer::Found(found))) => self.look(found, now),
            (Stage::Delete(records), answer) => self.deleted(records, answer.is_some()),
            _ => Stage::Look, // the record has moved
        }
    }

    /// What is due with this record.
    fn look(&mut self, found: Option<Stored>, now: Moment) -> Stage {
        let Some(found) = found else { return Stage::List(None) };
        let Value::Node(record) = found.record.value.clone() else {
            return Stage::Done(End::Refused("the node's record cannot be read".to_owned()));
        };
        if record.ended {
            return self.free(found);
        }
        if self.is_fenced {
            return Stage::Done(End::IsBack);
        }
        if record.trusts_reboot && !self.is_destroyed {
            return Stage::Done(End::NotDestroyed);
        }
        let Some((watched, until)) = &self.watched else {
            // The mark of another reclaim serves this one.
            return match record.mark {
                Some(_) => self.watch(found, now),
                None => Stage::Mark(found, record),
            };
        };
        if *watched == found {
            self.not_before = now.max((now + LOOK).min(*until));
            return if now < *until { Stage::Look } else { Stage::Fence(found, record) };
        }
        match &watched.record.value {
            // Another reclaim has marked the same beat.
            Value::Node(before) if record.mark.is_some() && before.nonce == record.nonce => {
                self.watch(found, now)
            }
            _ => Stage::Done(End::Lives),
        }
    }

    fn watch(&mut self, marked: Stored, now: Moment) -> Stage {
        self.not_before = now + LOOK;
        self.watched = Some((marked, now + UNMOVED));
        Stage::Look
    }

    fn free(&mut self, fence: Stored) -> Stage {
        self.is_fenced = true;
        Stage::List(Some(fence))
    }

    /// A record was deleted, or is no longer as it was listed.
    fn deleted(&mut self, mut records: Vec<Stored>, is_done: bool) -> Stage {
        match records.pop().filter(|_| is_done) {
            Some(claim) if matches!(claim.record.value, Value::Claim(_)) => self.freed.push(claim),
            _ => (),
        }
        match records.is_empty() {
            false => Stage::Delete(records),
            true if is_done => Stage::Done(End::Freed),
            true => Stage::Look,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::super::store::tests::memory::Memory;
    use super::super::super::store::{Claim, Store as _, Want};
    use super::*;
    use crate::sys::clock::NEVER;
    use crate::sys::random::Random;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    /// A store in which node n1 of this uid has a record, a want, a note, and claims of two uids.
    fn store() -> Memory {
        let mut store = Memory::default();
        let mut put = |key, value| {
            store.create(&Record { key, value });
        };
        put(Key::Node(name("n1")), Value::Node(record(7)));
        for (block, node, uid) in
            [("4-0a580100-32", "n1", 7), ("4-0a580101-32", "n1", 6), ("4-0a580102-32", "n2", 2)]
        {
            let claim = Claim {
                node: name(node),
                uid: Token(uid),
                token: Token(uid),
                taken: None,
                name: None,
            };
            put(Key::Block(name("r"), block.parse().unwrap()), Value::Claim(claim));
        }
        let note = Key::Conflict(name("r"), "4-0a580102-32".parse().unwrap());
        put(note, Value::Conflict(name("n1")));
        let want = Want {
            uid: Token(7),
            nonce: Token(1),
            realm: name("r"),
            spans: vec![],
            name: None,
            renewal: 0,
            gifts: vec![],
        };
        put(Key::Want(name("n1")), Value::Want(want));
        store
    }

    fn record(uid: u128) -> NodeRecord {
        NodeRecord {
            uid: Token(uid),
            machine: Token(9),
            boot: String::new(),
            session: Token(uid),
            number: 1,
            nonce: Token(1),
            version: String::new(),
            trusts_reboot: false,
            mark: None,
            ended: false,
        }
    }

    /// The keys that are left, in short.
    fn left(store: &Memory) -> String {
        let key = |key: &Key| match key {
            Key::Meta => "meta".to_owned(),
            Key::Node(_) => "node".to_owned(),
            Key::Block(_, block) => block.first().to_string(),
            Key::Want(_) => "want".to_owned(),
            Key::Conflict(..) => "note".to_owned(),
        };
        store.records.keys().map(key).collect::<Vec<_>>().join(" ")
    }

    /// Two reclaims of n1, its daemon, and a store.
    struct Play {
        store: Memory,
        now: Moment,
        reclaims: [Reclaim; 2],
        /// What the daemon believes its record to be.
        seen: Stored,
        /// Whether the daemon beats while time passes.
        beats: bool,
        /// The claims that it has taken over.
        taken: Vec<Key>,
    }

    impl Play {
        fn new(is_destroyed: bool) -> Play {
            let reclaim = |mark| Reclaim::new(name("n1"), Token(mark), is_destroyed);
            let mut store = store();
            let Outcome::Done(Some(seen)) = store.get(&Key::Node(name("n1"))) else { panic!() };
            let reclaims = [reclaim(101), reclaim(102)];
            Play { store, now: Moment::ZERO, reclaims, seen, beats: false, taken: vec![] }
        }

        /// What is due is done; its answer may be lost, or it may be.
        fn step(&mut self, who: usize, is_sent: bool, is_answered: bool) {
            let Step::Ask(operation) = self.reclaims[who].next(self.now) else { return };
            let lost = || Outcome::Unknown("lost".to_owned());
            let outcome = if is_sent { operation.perform(&mut self.store) } else { lost() };
            let outcome = if is_answered { outcome } else { lost() };
            self.reclaims[who].answered(outcome, self.now);
        }

        /// A beat of the daemon: over a mark, and over an ended record with a new uid.
        fn beat(&mut self) {
            let Outcome::Done(now) = self.store.get(&self.seen.record.key) else { panic!() };
            let Value::Node(mut record) = self.seen.record.value.clone() else { panic!() };
            record.number += 1;
            record.nonce.0 += 1;
            let is_ended = now
                .as_ref()
                .is_none_or(|now| matches!(&now.record.value, Value::Node(record) if record.ended));
            if is_ended {
                record.uid.0 += 1;
            }
            let record = Record { key: self.seen.record.key.clone(), value: Value::Node(record) };
            let written = match &now {
                Some(now) => self.store.update(&record, now),
                None => self.store.create(&record),
            };
            let Outcome::Done(written) = written else { panic!() };
            self.seen = written;
        }

        /// The daemon takes over the first claim of its name.
        fn take_over(&mut self) {
            let Value::Node(record) = &self.seen.record.value else { panic!() };
            let claims = Operation::List(Selection::Node(name("n1"))).perform(&mut self.store);
            let Outcome::Done(Answer::Listed(claims)) = claims else { panic!() };
            let Some(claim) = claims.first() else { return };
            let value = Claim {
                node: name("n1"),
                uid: record.uid,
                token: Token(5),
                taken: None,
                name: None,
            };
            let record = Record { key: claim.record.key.clone(), value: Value::Claim(value) };
            self.store.update(&record, claim);
            self.taken.push(record.key);
        }

        fn pass(&mut self, time: Duration) {
            self.now += time;
            if self.beats {
                self.beat();
            }
        }

        fn act(&mut self, act: char) {
            match act {
                'a' => self.step(0, true, true),
                'b' => self.step(1, true, true),
                'u' => self.step(0, true, false),
                'x' => self.step(0, false, false),
                't' => self.pass(UNMOVED),
                's' => self.pass(PAUSE),
                'B' => self.beat(),
                'T' => self.take_over(),
                'n' => self.reclaims[0] = Reclaim::new(name("n1"), Token(103), false),
                'A' => self.finish(0),
                other => panic!("{other}"),
            }
        }

        fn finish(&mut self, who: usize) {
            while !matches!(self.reclaims[who].next(self.now), Step::Done(_)) {
                self.step(who, true, true);
                if let Step::Wait(until) = self.reclaims[who].next(self.now) {
                    self.pass(until - self.now);
                }
            }
        }

        fn end(&self, who: usize) -> Option<End> {
            match self.reclaims[who].next(self.now) {
                Step::Done(end) => Some(end),
                _ => None,
            }
        }
    }

    const ALL: &str = "node 10.88.1.0 10.88.1.1 10.88.1.2 want note";
    const FREED: &str = "10.88.1.2";

    #[test]
    fn reclaims_end_as_the_interleaving_says() {
        // Look, mark, 100 s, look, fence, list, want, look, then five deletions.
        for (acts, end, remains) in [
            ("A", End::Freed, FREED),
            ("aatBa", End::Lives, ALL),
            // The daemon beats before the mark: it lives, if it beats again.
            ("aBaaatBa", End::Lives, ALL),
            ("aBA", End::Freed, FREED),
            // Answers are lost: the record tells.
            ("ausatausaA", End::Freed, FREED),
            ("axsaatxsaA", End::Freed, FREED),
            ("aataaaaausususususA", End::Freed, FREED),
            // The daemon returns after the fence, before or after the record is read again.
            ("aataaaBaA", End::IsBack, ALL),
            ("aataaaaaBTA", End::IsBack, "node 10.88.1.0 10.88.1.2"),
            ("aataaaaaaaaaBA", End::IsBack, "node 10.88.1.2"),
            // The fence is written, its answer is lost, and the daemon returns over it.
            ("aatauBsa", End::Lives, ALL),
            // Interrupted after the mark, after the fence, and in the middle of the deletions.
            ("aanA", End::Freed, FREED),
            ("aanatBA", End::Lives, ALL),
            ("aataanA", End::Freed, FREED),
            ("aataaaaaaanA", End::Freed, FREED),
            // Another one marks, fences, deletes, or ends in between.
            ("abaA", End::Freed, FREED),
            ("aabbtbbbA", End::Freed, FREED),
            ("aabtbbbbbbbA", End::Freed, FREED),
            ("aabtabbaaaabbbbbbbbbA", End::Freed, FREED),
            ("aabtaaaaabbbbbbbbbbbbA", End::Freed, FREED),
            ("aaBbbtaA", End::Lives, ALL),
        ] {
            let mut play = Play::new(false);
            acts.chars().for_each(|act| play.act(act));
            assert_eq!(play.end(0), Some(end), "{acts}");
            assert_eq!(left(&play.store), remains, "{acts}");
        }
    }

    #[test]
    fn without_a_record_nothing_is_deleted() {
        let mut play = Play::new(false);
        play.store.records.remove(&Key::Node(name("n1")));
        play.finish(0);
        assert_eq!(play.end(0), Some(End::NoRecord(3)));
        assert_eq!(left(&play.store), ALL.replace("node ", ""));
    }

    #[test]
    fn a_node_that_trusts_its_reboot_must_be_destroyed() {
        for (is_destroyed, end) in [(false, End::NotDestroyed), (true, End::Freed)] {
            let mut play = Play::new(is_destroyed);
            let Value::Node(mut record) = play.seen.record.value.clone() else { panic!() };
            record.trusts_reboot = true;
            let record = Record { value: Value::Node(record), ..play.seen.record.clone() };
            play.store.update(&record, &play.seen.clone());
            play.finish(0);
            assert_eq!(play.end(0), Some(end));
        }
    }

    #[test]
    fn refusals_end_a_reclaim_and_a_busy_store_delays_it() {
        let mut reclaim = Reclaim::new(name("n1"), Token(1), false);
        reclaim.answered(Outcome::Busy(Duration::from_secs(9)), Duration::from_secs(1));
        assert_eq!(reclaim.next(Duration::from_secs(2)), Step::Wait(Duration::from_secs(10)));
        reclaim.answered(Outcome::Refused("no".to_owned()), Duration::from_secs(10));
        assert_eq!(reclaim.next(NEVER), Step::Done(End::Refused("no".to_owned())));
    }

    /// A node that beats is never reclaimed, and of one that returns and beats no claim is deleted that
    /// it has taken over.
    #[test]
    fn no_schedule_deletes_a_claim_of_a_living_node() {
        for seed in 0..4000 {
            let mut random = Random::seeded(seed);
            let mut play = Play::new(false);
            play.beats = seed % 2 == 0;
            let was_alive = play.beats;
            let mut acts = String::new();
            for _ in 0..80 {
                let all = b"aaaabbbbuxstnBTT";
                let act = char::from(all[random.number() as usize % all.len()]);
                if act == 'B' {
                    play.beats = true;
                }
                if play.beats || act != 'T' {
                    acts.push(act);
                    play.act(act);
                }
            }
            play.finish(0);
            play.finish(1);
            let Value::Node(own) = &play.seen.record.value else { panic!() };
            assert!(!was_alive || own.uid == Token(7), "{acts}: reclaimed");
            for key in &play.taken {
                assert!(play.store.records.contains_key(key), "{acts}: {key:?} is gone");
            }
        }
    }
}
