//! Cases that the simulation found, each as the shortest schedule that shows it.

mod absence;
mod freeing;
mod lists;
mod names;
mod term;

use std::collections::VecDeque;
use std::time::Duration;

use super::super::block::Block;
use super::super::engine::{Claimed, Identity, Name, Operation, Outcome, PoolNote};
use super::super::held::{Blocks, Held, State, Token};
use super::super::simulation::store::Store;
use super::*;
use crate::sys::random::Random;

/// More actions than any case needs.
const LIMIT: usize = 200;

/// Which operations fail, and how.
type Fault = (fn(&Operation) -> bool, Outcome);

/// A machine, a store that answers at once, and the operations that meet a fault.
struct Lab {
    machine: Machine,
    store: Store,
    random: Random,
    now: Duration,
    faults: Vec<Fault>,
    /// Which operations are answered late, and their outcomes.
    is_late: fn(&Operation) -> bool,
    late: Vec<Event>,
    watches: Vec<OperationId>,
    replies: Vec<Reply>,
    /// Why no file can be written.
    unwritable: Option<&'static str>,
    /// A block that has a lease on the disk.
    leased: Option<Block>,
    /// Whether the ends of writes are kept back, too.
    is_disk_slow: bool,
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn block(text: &str) -> Block {
    text.parse().unwrap()
}

fn held(text: &str, state: State) -> Held {
    let block = block(text);
    Held {
        block,
        token: Token(7),
        mod_revision: 0,
        state,
        since: 0,
        incarnation: 0,
        of: None,
        sticky: None,
    }
}

fn blocks(held: Vec<Held>) -> Blocks {
    let pool = serde_json::from_str(r#"{"length":30,"spans":["10.1.0.2-10.1.0.14"]}"#).unwrap();
    let names = serde_json::from_str(r#"{"length":32,"spans":["10.1.0.20-10.1.0.21"]}"#).unwrap();
    let new = Blocks::new(name("default"), vec![pool], 1);
    Blocks { blocks: held, names: vec![names], ..new }
}

fn claimed(token: u128) -> Claimed {
    let owner = Identity { node: name("n1"), uid: Token(1), incarnation: 0 };
    Claimed { owner, token: Token(token), sticky: None, vacant: false }
}

fn away() -> Outcome {
    Outcome::Unreachable { reason: "connection refused".to_owned() }
}

impl Lab {
    fn new(held: Vec<Held>, file: NodeFile) -> Lab {
        Lab::of(blocks(held), file, None)
    }

    /// The same with a file of blocks, and with `reclaimAfter`.
    fn of(blocks: Blocks, file: NodeFile, reclaim_after: Option<Duration>) -> Lab {
        let setup = Setup {
            node: name("n1"),
            uid: Token(1),
            version: "0.1.0".to_owned(),
            boot: "boot".to_owned(),
            settle: Duration::from_secs(30),
            reclaim_after,
            is_complete: true,
        };
        let now = Duration::from_secs(1);
        let machine = Machine::new(setup, file, vec![(name("net"), blocks)], now);
        Lab {
            machine,
            store: Store::default(),
            random: Random::seeded(1),
            now,
            faults: vec![],
            is_late: |_| false,
            late: vec![],
            watches: vec![],
            replies: vec![],
            unwritable: None,
            leased: None,
            is_disk_slow: false,
        }
    }

    /// Gives an event, and does all that follows from it.
    fn give(&mut self, event: Event) -> usize {
        let mut events = VecDeque::from([event]);
        let mut count = 0;
        while let Some(event) = events.pop_front() {
            for action in self.machine.on(event, Turn::new(self.now, 0, &mut self.random)) {
                count += 1;
                assert!(count < LIMIT, "it does not come to rest: {action:?}");
                events.extend(self.act(action));
            }
        }
        count
    }

    fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Write { id, record } => {
                let written = self.written(&record);
                self.or_late(Event::Written { id, written }, self.is_disk_slow)
            }
            Action::Send { id, operation: Operation::Watch { .. } } => {
                self.watches.push(id);
                None
            }
            Action::Send { id, operation } => {
                let fault = self.faults.iter().position(|(meets, _)| meets(&operation));
                let outcome = match fault {
                    Some(place) => self.faults.remove(place).1,
                    None => self.store.apply(&operation, self.now),
                };
                self.or_late(Event::Outcome { id, outcome }, (self.is_late)(&operation))
            }
            Action::Reply { reply, .. } => {
                self.replies.push(reply);
                None
            }
            Action::Log(_) => None,
        }
    }

    fn written(&self, record: &Record) -> Written {
        if let Some(why) = self.unwritable {
            return Written::Failed(why.to_owned());
        }
        let has_lease = |unleased: &[Block]| self.leased.is_some_and(|it| unleased.contains(&it));
        match record {
            Record::Marks { unleased, .. } if has_lease(unleased) => Written::Leased,
            _ => Written::Done,
        }
    }

    /// The event, unless it is kept back.
    fn or_late(&mut self, event: Event, is_late: bool) -> Option<Event> {
        if is_late {
            self.late.push(event);
            return None;
        }
        Some(event)
    }

    /// Lets the time pass to each deadline within a span.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while self.machine.deadline() <= end {
            self.now = self.machine.deadline();
            self.give(Event::Time);
        }
        self.now = end;
    }

    fn exhausted(&mut self) {
        self.request(None);
    }

    /// An ADD that needs an address, or that of a name.
    fn request(&mut self, sticky: Option<&str>) {
        let until = self.now + Duration::from_secs(10);
        let (network, sticky) = (name("net"), sticky.map(str::to_owned));
        let id = RequestId(1);
        let request = Request { id, network, pool: 0, address: None, name: sticky, until };
        self.give(Event::Exhausted(request));
    }

    fn states(&self) -> Vec<State> {
        let network = self.machine.network(&name("net")).unwrap();
        network.blocks.values().map(|tracked| tracked.held.state).collect()
    }
}

impl Lab {
    /// Tells the machine of all that happened in the store.
    fn tell_all(&mut self) {
        for _ in 0..5 {
            for change in std::mem::take(&mut self.store.changes) {
                self.give(Event::Changed { realm: name("default"), change });
            }
            self.pass(Duration::from_secs(1));
        }
    }
}

fn is_claim(operation: &Operation) -> bool {
    matches!(operation, Operation::Claim { .. })
}

fn is_read(operation: &Operation) -> bool {
    matches!(operation, Operation::ReadBlock { .. })
}

fn is_list(operation: &Operation) -> bool {
    matches!(operation, Operation::List { .. })
}

fn is_release(operation: &Operation) -> bool {
    matches!(operation, Operation::Release { .. })
}

#[test]
fn an_exhausted_add_claims_a_block_of_the_pool() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    lab.exhausted();
    assert_eq!(lab.states(), [State::Active]);
    assert_eq!(lab.store.blocks.len(), 1);
}

#[test]
fn a_claim_stays_in_doubt_while_it_cannot_be_read() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    lab.faults.push((is_claim, Outcome::Unknown { reason: "no answer within 5 s".to_owned() }));
    lab.faults.push((is_read, away()));
    lab.exhausted();
    assert_eq!(lab.states(), [State::Claiming], "it may have been done");
    // The claim was not done in this lab, so the read finds nothing, and the waiting ADD gets another.
    lab.pass(Duration::from_secs(5));
    assert_eq!(lab.states(), [State::Active]);
    assert_eq!(lab.store.blocks.len(), 1);
}

#[test]
fn a_claim_whose_answer_was_lost_is_found_by_its_token() {
    let mut lab = Lab::new(
        vec![held("4-0a010004-30", State::Claiming)],
        NodeFile { incarnation: 0, epoch: Some(0) },
    );
    lab.store.insert(block("4-0a010004-30"), &claimed(7));
    lab.give(Event::Time);
    assert_eq!(lab.states(), [State::Active]);
}

#[test]
fn an_orphan_is_deleted_though_the_first_try_fails() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.store.insert(block("4-0a010004-30"), &claimed(9));
    lab.faults.push((is_release, away()));
    lab.give(Event::Time);
    assert_eq!(lab.store.blocks.len(), 1);
    lab.pass(Duration::from_secs(10));
    assert_eq!(lab.store.blocks.len(), 0);
}

#[test]
fn a_part_that_a_restore_brought_back_is_an_orphan() {
    let mut lab = Lab::new(
        vec![held("4-0a010004-31", State::Active)],
        NodeFile { incarnation: 0, epoch: Some(0) },
    );
    lab.store.insert(block("4-0a010004-31"), &claimed(7));
    lab.store.insert(block("4-0a010006-31"), &claimed(7));
    lab.give(Event::Time);
    let left: Vec<String> = lab.store.blocks.keys().map(|block| block.to_string()).collect();
    assert_eq!(left, ["4-0a010004-31"], "the parts of a split share their token");
}

#[test]
fn a_restore_with_a_new_epoch_is_verified_once() {
    let mut lab = Lab::new(
        vec![held("4-0a010004-30", State::Active)],
        NodeFile { incarnation: 0, epoch: Some(0) },
    );
    lab.store.insert(block("4-0a010004-30"), &claimed(7));
    lab.give(Event::Time);
    lab.store = Store::default();
    lab.store.epoch = 1;
    lab.pass(Duration::from_secs(40));
    assert_eq!(*lab.machine.contact(), Contact::Together);
    assert_eq!(lab.machine.file().epoch, Some(1));
    assert_eq!(lab.store.blocks.len(), 1, "claimed again with its token");
    assert_eq!(lab.states(), [State::Active]);
}

#[test]
fn a_block_that_another_has_is_in_conflict_until_it_is_free() {
    let mut lab = Lab::new(
        vec![held("4-0a010004-30", State::Active)],
        NodeFile { incarnation: 0, epoch: Some(0) },
    );
    let mut other = claimed(8);
    other.owner.uid = Token(2);
    lab.store.insert(block("4-0a010004-31"), &other);
    lab.give(Event::Leases { network: name("net"), leases: ["10.1.0.5".parse().unwrap()].into() });
    assert_eq!(lab.states(), [State::Conflict]);
    assert_eq!(lab.store.notes.len(), 1);
    lab.give(Event::Leases { network: name("net"), leases: [].into() });
    lab.pass(Duration::from_secs(20));
    assert!(lab.states().is_empty() && lab.store.notes.is_empty());
}

#[test]
fn a_fenced_node_registers_anew_without_old_leases() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    lab.exhausted();
    let all = (1..16).map(|last| format!("10.1.0.{last}").parse().unwrap());
    lab.give(Event::Leases { network: name("net"), leases: all.collect() });
    lab.now += Duration::from_secs(100);
    lab.store.reclaim(&name("n1"), lab.now);
    lab.give(Event::Time);
    assert_eq!(lab.states(), [State::Lost]);
    assert!(matches!(lab.machine.contact(), Contact::Fenced { .. }));
    lab.give(Event::Leases { network: name("net"), leases: [].into() });
    lab.pass(Duration::from_secs(20));
    assert_eq!((lab.machine.file().incarnation, lab.states().len()), (1, 0));
    assert_eq!(*lab.machine.contact(), Contact::Together);
}

/// At its start the daemon reads the leases network by network. Until then the machine knows no lease
/// of a lost block.
#[test]
fn a_lost_block_is_not_forgotten_before_its_leases_are_read() {
    let lost = held("4-0a010004-30", State::Lost);
    let mut lab = Lab::new(vec![lost], NodeFile { incarnation: 1, epoch: Some(0) });
    lab.leased = Some(block("4-0a010004-30"));
    lab.give(Event::Leases { network: name("another"), leases: [].into() });
    assert_eq!(lab.states(), [State::Lost]);
    lab.give(Event::Leases { network: name("net"), leases: ["10.1.0.5".parse().unwrap()].into() });
    lab.pass(Duration::from_secs(60));
    assert_eq!(lab.states(), [State::Lost]);
    lab.leased = None;
    lab.give(Event::Leases { network: name("net"), leases: [].into() });
    lab.pass(Duration::from_secs(60));
    assert!(lab.states().is_empty(), "{:?}", lab.states());
}

#[test]
fn pools_are_noted_and_other_pools_of_a_network_are_marked() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    let note = |by: &str, network: &str, span: &str| PoolNote {
        by: name(by),
        network: network.to_owned(),
        spans: vec![span.parse().unwrap()],
        length: 30,
    };
    let notes = [
        ("stale", note("n1", "net", "10.9.0.1-10.9.0.9")),
        ("differs", note("n2", "net", "10.1.0.2-10.1.0.9")),
        ("unrelated", note("n3", "another", "10.1.0.2-10.1.0.9")),
    ];
    lab.store.pools = notes.map(|(hash, note)| (hash.to_owned(), note)).into();
    lab.give(Event::Time);
    let differs = |lab: &Lab| lab.machine.network(&name("net")).unwrap().differs.clone();
    assert_eq!(differs(&lab), Some(name("n2")));
    let left: Vec<&PoolNote> =
        lab.store.pools.values().filter(|note| note.by == name("n1")).collect();
    assert_eq!(left, [&note("n1", "net", "10.1.0.2-10.1.0.14")]);
    assert_eq!(lab.store.pools.len(), 3);
    // The other node is configured alike now.
    lab.store.pools.remove("differs");
    lab.pass(Duration::from_secs(1));
    let changed = Blocks { spare: 2, pools: vec![], ..blocks(vec![]) };
    for blocks in [changed, blocks(vec![])] {
        lab.give(Event::Configured { network: name("net"), blocks });
    }
    assert_eq!(differs(&lab), None);
}
