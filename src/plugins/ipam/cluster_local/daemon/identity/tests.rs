use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::super::super::wire::DAEMON;
use super::*;
use crate::scratch::Scratch;

fn file(number: u64) -> NodeFile {
    NodeFile {
        node: "n1".parse().unwrap(),
        uid: Token(1),
        earlier: vec![],
        machine: Token(2),
        sessions: vec![Token(3)],
        number,
        store: None,
        registered: false,
        withdrawn: None,
    }
}

fn of_node(node: &str, boot: &str) -> Confirmation {
    let node = node.parse().unwrap();
    Confirmation { boot: boot.to_owned(), node, machine: Token(2), record: None, withdrawn: false }
}

/// The identity of a daemon that starts, with the confirmation beside its data directory.
fn start(dir: &Scratch, confirmation: Confirmation) -> Identity {
    let journal = Journal::open(&DAEMON, &directory(dir.path())).unwrap();
    Identity::new(journal, dir.path(), dir.path().join("confirmed"), confirmation).unwrap()
}

/// Whether the next start finds the record confirmed, and whether replaced.
fn found(dir: &Scratch, confirmation: Confirmation) -> (bool, bool) {
    let identity = start(dir, confirmation);
    (identity.is_confirmed(), identity.is_replaced)
}

fn fits(dir: &Scratch) -> bool {
    let read = Confirmation::read(&dir.path().join("confirmed")).unwrap();
    read.is_some_and(|read| read.fits("boot", dir.path()))
}

/// A data directory with a confirmed record.
fn confirmed() -> Scratch {
    let dir = Scratch::new();
    let mut identity = start(&dir, of_node("n1", "boot"));
    identity.write(&file(1)).unwrap();
    assert!(!identity.is_confirmed());
    identity.confirm(Allocation::Confirmed).unwrap();
    assert!(identity.is_confirmed());
    assert!(fits(&dir));
    dir
}

#[test]
fn the_record_is_read_as_it_was_written_by_one_daemon() {
    let dir = Scratch::new();
    assert_eq!(read(dir.path()).unwrap(), None);
    let mut identity = start(&dir, of_node("n1", "boot"));
    identity.write(&file(7)).unwrap();
    assert_eq!(read(dir.path()).unwrap(), Some(file(7)));
    let mode =
        |path: &str| fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(DIRECTORY), mode(RECORD)), (0o700, 0o600));
    identity.journal.started();
    let second = Journal::open(&DAEMON, &directory(dir.path())).map(drop).unwrap_err();
    assert_eq!(second.code, Code::CONFLICT);
    assert!(second.details().contains("give this one another --data-dir"), "{second:?}");
}

#[test]
fn a_record_that_is_not_understood_is_an_error_and_stays() {
    let dir = Scratch::new();
    start(&dir, of_node("n1", "boot")).write(&file(7)).unwrap();
    let good = fs::read_to_string(dir.path().join(RECORD)).unwrap();
    for (text, why) in [
        (String::new(), "EOF while parsing"),
        (good.replace("\"version\":2", "\"version\":1"), "it is not of version 2"),
        (good.replace("\"version\":2", "\"version\":3"), "it is not of version 2"),
        (good.replace("\"uid\"", "\"id\""), "missing field `uid`"),
    ] {
        dir.write(RECORD, &text);
        let error = read(dir.path()).unwrap_err();
        assert!(error.msg.contains(why), "{error}");
        assert!(error.details().contains("restore the file"), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join(RECORD)).unwrap(), text);
    }
}

#[test]
fn the_machine_is_its_id_and_its_hardware() {
    let of = |id: &str, hardware: &str| {
        let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        machine(part(id), part(hardware)).map(|token| token.to_string())
    };
    // The start of: printf 'a\nb' | sha256sum
    assert_eq!(of("a", "b").unwrap(), "7e18f737311b2dc3b2f269dd78396b03");
    let others = [("a", "c"), ("c", "b"), ("a", ""), ("", "b"), ("", "ab"), ("b", "a")];
    let all: std::collections::BTreeSet<String> =
        others.iter().map(|(id, hardware)| of(id, hardware).unwrap()).collect();
    assert_eq!((all.len(), all.contains(&of("a", "b").unwrap())), (others.len(), false));
    let neither = of("", "").unwrap_err();
    assert!(neither.details().contains("systemd-machine-id-setup"), "{neither}");
}

#[test]
fn ids_are_read_whatever_ends_them_and_none_is_empty() {
    let dir = Scratch::new();
    for (text, id) in [("", None), ("\n", None), ("0A-B\n", Some("0a-b")), ("7\0", Some("7"))] {
        dir.write("id", text);
        assert_eq!(text_of(&dir.path().join("id")).as_deref(), id);
    }
    assert_eq!(text_of(&dir.path().join("none")), None);
    assert_eq!(text_of(dir.path()), None, "a directory");
}

#[test]
fn the_lowest_permanent_address_of_a_device_counts() {
    let link = |kind: &str, mac: &[u8]| Link {
        kind: kind.to_owned(),
        permanent_mac: mac.to_vec(),
        ..Link::default()
    };
    let loopback = link("", &[0; 6]);
    let bridge = link("bridge", &[0, 1, 0, 0, 0, 0]);
    assert_eq!(lowest_mac(&[loopback.clone(), bridge.clone(), link("", &[])]), None);
    let devices =
        [link("", &[2, 0, 0, 0, 0, 9]), link("", &[2, 0, 0, 0, 0, 0x1a]), loopback, bridge];
    assert_eq!(lowest_mac(&devices).as_deref(), Some("020000000009"));
}

#[test]
fn a_record_that_the_daemon_writes_stays_confirmed() {
    let dir = confirmed();
    let mut identity = start(&dir, of_node("n1", "boot"));
    assert_eq!((identity.is_confirmed(), identity.is_replaced), (true, false));
    identity.write(&file(2)).unwrap();
    assert!(fits(&dir));
    identity.confirm(Allocation::Refused).unwrap();
    assert_eq!(Confirmation::read(&dir.path().join("confirmed")).unwrap().unwrap().record, None);
    identity.write(&file(3)).unwrap();
    drop(identity);
    assert_eq!(found(&dir, of_node("n1", "boot")), (false, false));
    let mut identity = start(&dir, of_node("n1", "boot"));
    identity.confirm(Allocation::Withdrawn).unwrap();
    drop(identity);
    fs::remove_file(dir.path().join(RECORD)).unwrap();
    assert_eq!(found(&dir, of_node("n1", "boot")), (false, true), "whatever record there is");
    assert_eq!(found(&dir, of_node("n1", "later")), (false, false));
}

#[test]
fn a_write_that_fails_leaves_the_record_and_its_confirmation() {
    let dir = confirmed();
    let mut identity = start(&dir, of_node("n1", "boot"));
    fs::create_dir(dir.path().join(DIRECTORY).join("node.draft")).unwrap();
    assert!(identity.write(&file(2)).is_err());
    assert!(fits(&dir));
    assert_eq!(read(dir.path()).unwrap(), Some(file(1)));
}

#[test]
fn a_confirmation_that_cannot_be_written_comes_with_the_next_record() {
    let dir = confirmed();
    let mut identity = start(&dir, of_node("n1", "boot"));
    let draft = dir.path().join("confirmed.draft");
    fs::create_dir(&draft).unwrap();
    identity.journal.write(&file(2)).unwrap();
    assert!(identity.put_stamp().is_err() && !fits(&dir));
    fs::remove_dir(draft).unwrap();
    identity.write(&file(3)).unwrap();
    assert!(fits(&dir));
}

/// With the confirmation out of the way as well, as a crash in between leaves it.
#[test]
fn a_confirmation_is_void_before_the_record_changes() {
    let dir = confirmed();
    let identity = start(&dir, of_node("n1", "boot"));
    identity.put(None).unwrap();
    identity.journal.write(&file(2)).unwrap();
    drop(identity);
    assert!(!fits(&dir));
    assert_eq!(found(&dir, of_node("n1", "boot")), (false, false), "not replaced");
}

#[test]
fn a_start_knows_a_replaced_directory_from_another_boot_and_name() {
    type Change = fn(&Scratch);
    let none: Change = |_| ();
    let copied: Change = |dir| {
        fs::copy(dir.path().join(RECORD), dir.path().join("copy")).unwrap();
        fs::rename(dir.path().join("copy"), dir.path().join(RECORD)).unwrap();
    };
    let removed: Change = |dir| fs::remove_file(dir.path().join(RECORD)).unwrap();
    let unconfirmed: Change = |dir| fs::remove_file(dir.path().join("confirmed")).unwrap();
    let torn: Change = |dir| dir.write("confirmed", "{");
    let own = of_node("n1", "boot");
    let other = Confirmation { machine: Token(9), ..own.clone() };
    let rows = [
        (none, own.clone(), (true, false), true),
        (copied, own.clone(), (false, true), false),
        (removed, own.clone(), (false, true), false),
        (unconfirmed, own.clone(), (false, false), false),
        (torn, own, (false, false), false),
        (copied, of_node("n1", "next"), (false, false), false),
        (none, of_node("n2", "boot"), (false, false), false),
        (none, other, (false, false), false),
    ];
    for (number, (change, confirmation, expected, then_fits)) in rows.into_iter().enumerate() {
        let dir = confirmed();
        change(&dir);
        for start in 1..3 {
            let found = found(&dir, confirmation.clone());
            assert_eq!(found, expected, "row {number}, start {start}");
        }
        assert_eq!(fits(&dir), then_fits, "row {number}");
    }
}

#[test]
fn a_directory_that_is_replaced_under_the_daemon_is_not_confirmed() {
    let dir = confirmed();
    let mut identity = start(&dir, of_node("n1", "boot"));
    dir.write("copy", "an older record");
    fs::rename(dir.path().join("copy"), dir.path().join(RECORD)).unwrap();
    let error = identity.write(&file(2)).unwrap_err();
    assert!(error.msg.contains("was replaced"), "{error}");
    drop(identity);
    assert_eq!(found(&dir, of_node("n1", "boot")), (false, true));
}
