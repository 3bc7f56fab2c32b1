//! Names from their first address to the node that has it next.

use super::super::super::engine::{Change, ConflictNote, NodeRecord, Standing, Want};
use super::*;

const WEB: &str = "4-0a010014-32";

/// A key of another node's network with this name.
fn of_other(sticky: &str, vacant: bool) -> Claimed {
    let owner = Identity { node: name("n2"), uid: Token(2), incarnation: 0 };
    Claimed { owner, token: Token(8), sticky: Some(sticky.to_owned()), vacant }
}

/// A node that has the name "web".
fn with_web() -> Lab {
    let web = Held { sticky: Some("web".to_owned()), ..held(WEB, State::Active) };
    let mut lab = Lab::new(vec![web], NodeFile { incarnation: 0, epoch: Some(0) });
    let sticky = Some("net/web".to_owned());
    lab.store.insert(block(WEB), &Claimed { sticky, ..claimed(7) });
    lab.give(Event::Time);
    lab
}

fn ready() -> Lab {
    let mut lab = Lab::new(vec![], NodeFile::default());
    lab.give(Event::Time);
    lab
}

/// Another node wants this name.
fn wanted(lab: &mut Lab, sticky: &str) {
    wanted_by(lab, "n2", sticky);
}

fn wanted_by(lab: &mut Lab, node: &str, sticky: &str) {
    let want = Want { count: 1, spans: vec![], names: vec![sticky.to_owned()] };
    let change = Change::Wanted(name(node), Some(want));
    lab.give(Event::Changed { realm: name("default"), change });
    lab.pass(Duration::from_secs(1));
}

fn keys(lab: &Lab) -> Vec<(String, bool, u128)> {
    let sticky = |key: &Claimed| key.sticky.clone().unwrap_or_default();
    let keys = lab.store.blocks.values().map(|key| &key.value);
    keys.map(|key| (sticky(key), key.vacant, key.owner.uid.0)).collect()
}

#[test]
fn a_name_gets_one_address_of_those_for_names() {
    let mut lab = ready();
    lab.request(Some("web"));
    assert_eq!(lab.replies, [Reply::LookAgain]);
    assert_eq!(keys(&lab), [("net/web".to_owned(), false, 1)]);
    lab.request(Some("web"));
    assert_eq!((lab.replies.len(), lab.store.blocks.len()), (2, 1));
    lab.request(None);
    assert_eq!(lab.states().len(), 2, "no other ADD gets the address");
}

#[test]
fn an_unused_name_is_given_to_the_node_that_wants_it() {
    let mut lab = with_web();
    wanted(&mut lab, "other/web");
    assert_eq!(lab.states(), [State::Active], "a name of another network");
    let leases = ["10.1.0.20".parse().unwrap()].into();
    lab.give(Event::Leases { network: name("net"), leases });
    wanted(&mut lab, "net/web");
    assert_eq!(lab.states(), [State::Active], "an attachment has it");
    lab.give(Event::Leases { network: name("net"), leases: [].into() });
    wanted(&mut lab, "net/web");
    assert_eq!(keys(&lab), [("net/web".to_owned(), true, 1)]);
    assert!(lab.states().is_empty());
    lab.request(Some("web"));
    assert_eq!(keys(&lab), [("net/web".to_owned(), false, 1)], "it may take it again");
}

/// A want that is still in the store after it was served.
#[test]
fn the_node_s_own_want_takes_no_name_from_it() {
    let mut lab = with_web();
    wanted_by(&mut lab, "n1", "net/web");
    assert_eq!(lab.states(), [State::Active]);
}

#[test]
fn a_vacant_name_is_forgotten_though_the_answer_was_lost() {
    let mut lab = with_web();
    let is_hold = |operation: &Operation| matches!(operation, Operation::Hold { .. });
    let reason = "no answer within 5 s".to_owned();
    let found = lab.store.blocks[&block(WEB)].clone();
    lab.faults.push((is_hold, Outcome::Unknown { reason }));
    lab.faults.push((is_read, away()));
    wanted(&mut lab, "net/web");
    assert_eq!(lab.states(), [State::Returning]);
    let sticky = Some("net/web".to_owned());
    let seen = super::super::super::engine::Seen {
        block: block(WEB),
        claimed: found.value,
        revision: found.revision,
    };
    lab.store.apply(&Operation::Release { realm: name("default"), seen }, lab.now);
    lab.store.insert(block(WEB), &Claimed { sticky, vacant: true, ..claimed(7) });
    lab.pass(Duration::from_secs(10));
    assert!(lab.states().is_empty());
    assert_eq!(keys(&lab), [("net/web".to_owned(), true, 1)], "no orphan");
}

#[test]
fn a_vacant_name_is_taken_over_with_its_address() {
    let mut lab = ready();
    lab.store.insert(block("4-0a010015-32"), &of_other("net/web", true));
    lab.request(Some("web"));
    lab.tell_all();
    let keys: Vec<_> =
        lab.store.blocks.iter().map(|(at, key)| (*at, key.value.owner.uid.0)).collect();
    assert_eq!(keys, [(block("4-0a010015-32"), 1)]);
    assert_eq!(lab.replies, [Reply::LookAgain]);
}

#[test]
fn a_name_that_a_restore_has_made_vacant_is_taken_again() {
    let web = Held { sticky: Some("web".to_owned()), ..held(WEB, State::Active) };
    let mut lab = Lab::new(vec![web], NodeFile { incarnation: 0, epoch: Some(0) });
    lab.store.insert(block(WEB), &of_other("net/web", true));
    lab.give(Event::Time);
    assert_eq!(lab.states(), [State::Active]);
    assert_eq!(keys(&lab), [("net/web".to_owned(), false, 1)]);
}

#[test]
fn the_holder_of_a_name_is_named_with_its_heartbeat() {
    for is_alive in [true, false] {
        let mut lab = ready();
        lab.store.insert(block(WEB), &of_other("net/web", false));
        let record = NodeRecord {
            reclaim_after: None,
            uid: Token(2),
            incarnation: 0,
            standing: Standing::Live,
            version: String::new(),
        };
        lab.store.apply(&Operation::Register { node: name("n2"), record, seen: 0 }, lab.now);
        let (node, boot, node_revision) = (name("n2"), "b".to_owned(), lab.store.revision);
        if is_alive {
            let sign = Operation::Heartbeat { node, boot, lease: None, ttl: 60, node_revision };
            lab.store.apply(&sign, lab.now);
        }
        lab.request(Some("web"));
        lab.pass(Duration::from_millis(300));
        assert_eq!(lab.replies, [], "it may have just come back");
        lab.pass(Duration::from_secs(if is_alive { 11 } else { 2 }));
        let (address, node) = ("10.1.0.20".parse().unwrap(), name("n2"));
        let holder = Holder { address, node, is_alive: Some(is_alive) };
        assert_eq!(lab.replies, [Reply::Elsewhere(holder)]);
        assert_eq!(keys(&lab), [("net/web".to_owned(), false, 2)]);
    }
}

#[test]
fn a_new_name_takes_an_address_that_no_attachment_has() {
    let mut lab = with_web();
    lab.store.insert(block("4-0a010015-32"), &of_other("net/db", false));
    lab.request(Some("new"));
    lab.tell_all();
    let all: Vec<String> = keys(&lab).into_iter().map(|(sticky, ..)| sticky).collect();
    assert_eq!(all, ["net/new", "net/db"], "its own unused name has lost it");
    let leases = ["10.1.0.20".parse().unwrap()].into();
    lab.give(Event::Leases { network: name("net"), leases });
    lab.replies.clear();
    lab.request(Some("newer"));
    lab.pass(Duration::from_secs(11));
    assert_eq!(lab.replies, [Reply::Full]);
}

#[test]
fn a_name_that_has_an_address_already_is_claimed_nowhere_else() {
    let mut lab = ready();
    lab.store.names.insert("net/web".to_owned(), block("4-0a010063-32"));
    lab.request(Some("web"));
    lab.pass(Duration::from_secs(11));
    assert!(lab.store.blocks.is_empty() && lab.states().is_empty());
    assert!(matches!(lab.replies[..], [Reply::Away(_)]), "{:?}", lab.replies);
}

#[test]
fn a_reclaimed_node_has_no_names() {
    let mut lab = with_web();
    lab.now += Duration::from_secs(100);
    lab.store.reclaim(&name("n1"), lab.now);
    assert!(lab.store.names.is_empty() && lab.store.blocks.is_empty());
    lab.give(Event::Time);
    lab.pass(Duration::from_secs(20));
    assert!(lab.states().is_empty());
}

#[test]
fn a_vacant_name_of_a_network_that_keeps_none_is_an_orphan() {
    for (sticky, left) in [("net/web", 1), ("gone/web", 0)] {
        let mut lab = Lab::new(vec![], NodeFile::default());
        let sticky = Some(sticky.to_owned());
        lab.store.insert(block(WEB), &Claimed { sticky, vacant: true, ..claimed(7) });
        lab.give(Event::Time);
        assert_eq!(lab.store.blocks.len(), left);
    }
}

/// An ADD that needs the address of a name that is vacant, while node n3 has noted a conflict about it.
fn contested() -> Lab {
    let mut lab = ready();
    lab.store.insert(block(WEB), &Claimed { vacant: true, ..of_other("net/web", true) });
    let by = Identity { node: name("n3"), uid: Token(3), incarnation: 0 };
    lab.store.notes.insert(block(WEB), ConflictNote { by, leases: 1 });
    lab.request(Some("web"));
    lab
}

/// Otherwise the node would claim the address, find the conflict and give the address up, without end.
#[test]
fn a_vacant_address_in_conflict_is_left_alone() {
    let mut lab = contested();
    let before = lab.store.revision;
    lab.pass(Duration::from_secs(11));
    assert_eq!(lab.store.revision, before, "nothing is claimed");
    let contest = Contest { address: block(WEB).first(), node: name("n3") };
    assert_eq!(lab.replies, [Reply::Contested(contest)]);
}

#[test]
fn a_contested_name_is_served_once_the_conflict_has_ended() {
    let mut lab = contested();
    lab.pass(Duration::from_millis(100));
    assert!(lab.machine.deadline() >= lab.now + Duration::from_secs(9), "{:?}", lab.replies);
    lab.store.notes.clear();
    let change = Change::Noted(block(WEB), None);
    lab.give(Event::Changed { realm: name("default"), change });
    assert_eq!(lab.replies, [Reply::LookAgain]);
    assert_eq!(keys(&lab), [("net/web".to_owned(), false, 1)]);
}

#[test]
fn a_conflict_without_leases_ends_though_its_key_is_vacant() {
    let web = Held { sticky: Some("web".to_owned()), ..held(WEB, State::Conflict) };
    let mut lab = Lab::new(vec![web], NodeFile { incarnation: 0, epoch: Some(0) });
    lab.store.insert(block(WEB), &of_other("net/other", true));
    lab.store.insert(block("4-0a010015-32"), &of_other("net/web", false));
    let by = Identity { node: name("n1"), uid: Token(1), incarnation: 0 };
    lab.store.notes.insert(block(WEB), ConflictNote { by, leases: 1 });
    let leases = |all: &[&str]| Event::Leases {
        network: name("net"),
        leases: all.iter().map(|ip| ip.parse().unwrap()).collect(),
    };
    lab.give(leases(&["10.1.0.20"]));
    lab.give(Event::Time);
    lab.pass(Duration::from_secs(30));
    assert_eq!(lab.states(), [State::Conflict], "an attachment has it");
    lab.give(leases(&[]));
    lab.pass(Duration::from_secs(60));
    assert!(lab.states().is_empty(), "{:?}", lab.states());
    assert!(lab.store.notes.is_empty());
}
