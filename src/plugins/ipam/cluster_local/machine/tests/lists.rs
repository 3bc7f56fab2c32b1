//! Lists that fail, come late or find nothing of this node.

use super::super::super::engine::{Change, ConflictNote, Found, Want};
use super::*;

fn orphan(lab: &mut Lab) -> Change {
    lab.store.insert(block("4-0a010004-30"), &claimed(9));
    let claimed = Some(claimed(9));
    Change::Claimed(Found { block: block("4-0a010004-30"), claimed, revision: lab.store.revision })
}

#[test]
fn a_watch_is_renewed_though_the_list_before_it_fails() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    let ended = lab.watches[0];
    lab.faults.push((is_list, away()));
    lab.give(Event::Outcome { id: ended, outcome: Outcome::Compacted { revision: 9 } });
    lab.pass(Duration::from_secs(20));
    assert!(lab.faults.is_empty(), "the list has failed");
    assert_eq!(lab.watches.len(), 2);
}

#[test]
fn a_realm_without_blocks_is_listed_at_the_start() {
    let mut lab = Lab::new(vec![], NodeFile { incarnation: 0, epoch: Some(0) });
    orphan(&mut lab);
    lab.give(Event::Time);
    assert_eq!(lab.store.blocks.len(), 0, "a claim that came late is on no disk");
}

#[test]
fn orphans_that_are_listed_without_contact_are_deleted_later() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    lab.is_late = is_list;
    let change = orphan(&mut lab);
    lab.give(Event::Changed { realm: name("default"), change });
    lab.faults.push((is_claim, away()));
    lab.exhausted();
    assert!(matches!(lab.machine.contact(), Contact::Away { .. }));
    lab.is_late = |_| false;
    for event in std::mem::take(&mut lab.late) {
        lab.give(event);
    }
    lab.pass(Duration::from_secs(20));
    let tokens: Vec<u128> = lab.store.blocks.values().map(|key| key.value.token.0).collect();
    assert!(!tokens.contains(&9), "{tokens:?}");
}

#[test]
fn a_network_that_is_configured_after_the_contact_is_confirmed() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    let (network, blocks) = (name("later"), blocks(vec![]));
    lab.give(Event::Configured { network: network.clone(), blocks });
    assert_eq!(lab.machine.network(&network).unwrap().confirmed, "boot");
}

#[test]
fn a_network_gives_another_one_of_its_node_what_it_does_not_use() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    for _ in 0..4 {
        lab.exhausted();
        let all = (1..15).map(|last| format!("10.1.0.{last}").parse().unwrap());
        lab.give(Event::Leases { network: name("net"), leases: all.collect() });
    }
    assert_eq!(lab.store.blocks.len(), 4, "the first network has all");
    let network = name("other");
    let blocks = blocks(vec![]);
    lab.give(Event::Configured { network: network.clone(), blocks });
    lab.give(Event::Leases { network: name("net"), leases: ["10.1.0.2".parse().unwrap()].into() });
    let until = lab.now + Duration::from_secs(10);
    let request = Request { id: RequestId(2), network, pool: 0, address: None, name: None, until };
    lab.replies.clear();
    lab.give(Event::Exhausted(request));
    lab.tell_all();
    assert_eq!(lab.replies, [Reply::LookAgain]);
}

fn want(node: &str, want: Option<Want>) -> Event {
    Event::Changed { realm: name("default"), change: Change::Wanted(name(node), want) }
}

fn of_the_pool() -> Want {
    Want { count: 1, spans: vec!["10.1.0.2-10.1.0.14".parse().unwrap()], names: vec![] }
}

/// The store executes the claim after the read that was to show its outcome.
#[test]
fn a_claim_that_arrives_after_its_read_is_deleted() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    lab.faults.push((is_claim, Outcome::Unknown { reason: "no answer within 5 s".to_owned() }));
    lab.is_late = is_read;
    lab.exhausted();
    lab.pass(Duration::from_secs(1)); // the answer of the read is late
    let network = lab.machine.network(&name("net")).unwrap();
    let intent = network.blocks.values().next().unwrap().held.clone();
    lab.store.insert(intent.block, &claimed(intent.token.0));
    for change in std::mem::take(&mut lab.store.changes) {
        lab.give(Event::Changed { realm: name("default"), change });
    }
    for event in std::mem::take(&mut lab.late) {
        lab.give(event); // the read found no key
    }
    lab.is_late = |_| false;
    lab.pass(Duration::from_secs(1));
    require_no_orphan(&lab);
}

#[track_caller]
fn require_no_orphan(lab: &Lab) {
    let network = lab.machine.network(&name("net")).unwrap();
    let on_disk: Vec<Block> = network.blocks.keys().copied().collect();
    let in_store: Vec<Block> = lab.store.blocks.keys().copied().collect();
    assert_eq!(in_store, on_disk, "each key belongs to a block on the disk");
}

/// The store executes the claim after the read that was to show its outcome, and before a list that the node has
/// requested earlier. The list arrives while the node deletes the intent from its disk.
#[test]
fn a_claim_that_a_list_shows_while_it_is_given_up_is_deleted() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    lab.is_late = |operation| is_read(operation) || is_list(operation);
    let ended = lab.watches[0];
    lab.give(Event::Outcome { id: ended, outcome: Outcome::Compacted { revision: 1 } });
    lab.pass(Duration::from_secs(3));
    let listing = late_outcome(&mut lab);
    lab.faults.push((is_claim, Outcome::Unknown { reason: "no answer within 5 s".to_owned() }));
    lab.exhausted();
    lab.pass(Duration::from_secs(1));
    let network = lab.machine.network(&name("net")).unwrap();
    let intent = network.blocks.values().next().unwrap().held.clone();
    let [read] = std::mem::take(&mut lab.late).try_into().unwrap();
    lab.is_disk_slow = true;
    lab.give(read);
    assert_eq!(lab.late.len(), 1, "the intent is being deleted");
    lab.store.insert(intent.block, &claimed(intent.token.0));
    let outcome = lab.store.apply(&Operation::List { realm: name("default") }, lab.now);
    lab.give(Event::Outcome { id: listing, outcome });
    lab.is_late = |_| false;
    lab.is_disk_slow = false;
    for event in std::mem::take(&mut lab.late) {
        lab.give(event);
    }
    lab.pass(Duration::from_secs(3));
    require_no_orphan(&lab);
}

/// The operation of the only outcome that is kept back; the outcome is dropped.
fn late_outcome(lab: &mut Lab) -> OperationId {
    match std::mem::take(&mut lab.late)[..] {
        [Event::Outcome { id, .. }] => id,
        _ => panic!("one outcome is late"),
    }
}

/// Another node writes its want after the store has read the realm for a list, and before the list arrives.
#[test]
fn a_hint_outlives_an_older_list() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    lab.exhausted();
    assert_eq!(lab.states(), [State::Active]);
    lab.is_late = is_list;
    let ended = lab.watches[0];
    lab.give(Event::Outcome { id: ended, outcome: Outcome::Compacted { revision: 1 } });
    lab.pass(Duration::from_secs(3));
    assert_eq!(lab.late.len(), 1, "it is being listed");
    lab.give(want("n2", Some(of_the_pool())));
    for event in std::mem::take(&mut lab.late) {
        lab.give(event);
    }
    lab.pass(Duration::from_secs(1));
    assert!(lab.states().is_empty(), "the free block is given back");
}

/// The store executes a late request of this node, with an earlier want.
#[test]
fn an_earlier_want_in_the_store_is_overwritten() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    let mut other = claimed(8);
    other.owner.uid = Token(2);
    lab.store.insert(block("4-0a010000-28"), &other);
    lab.exhausted();
    lab.pass(Duration::from_millis(100)); // the claim is lost, and the pool is listed as full
    let wants = |lab: &mut Lab| -> Vec<Option<Want>> {
        let all = std::mem::take(&mut lab.store.changes).into_iter();
        all.filter_map(|change| match change {
            Change::Wanted(_, want) => Some(want),
            _ => None,
        })
        .collect()
    };
    assert_eq!(wants(&mut lab), [Some(of_the_pool())]);
    lab.give(want("n1", Some(of_the_pool())));
    assert!(wants(&mut lab).is_empty(), "the key is as this node has written it");
    lab.give(want("n1", None));
    assert_eq!(wants(&mut lab), [Some(of_the_pool())]);
}

/// The store executes a late request of this node, with a note of a conflict that has ended.
#[test]
fn a_note_that_is_written_late_is_deleted() {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    let note = ConflictNote { by: claimed(7).owner, leases: 1 };
    lab.store.notes.insert(block("4-0a010004-32"), note.clone());
    let change = Change::Noted(block("4-0a010004-32"), Some(note));
    lab.give(Event::Changed { realm: name("default"), change });
    lab.pass(Duration::from_secs(1));
    assert!(lab.store.notes.is_empty());
}
