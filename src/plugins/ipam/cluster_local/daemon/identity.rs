//! Who this node is: its record in the data directory, under the lock that only one daemon can
//! have; the hash of the machine; and the confirmation, by which plugins know that it is the record
//! of this boot.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::super::confirmed::{self, Confirmation, RECORD, Stamp};
use super::super::machine::NodeFile;
use super::super::name::Name;
use super::super::store::Token;
use crate::error::{Code, Error, Result};
use crate::net::netlink::{Link, Netlink};
use crate::plain_file;
use crate::service::journal;
use crate::sys::clock::id_of_boot;

/// The daemon's journal, which has the node's record alone.
pub type Journal = journal::Journal<NodeFile>;

/// The directory of the record. No network's name begins with a dot.
const DIRECTORY: &str = ".node";
/// The longest record: some 40 bytes for each uid and session.
const LIMIT: usize = 1 << 20;

/// The id of the installed system.
const MACHINE_ID: &str = "/etc/machine-id";
/// The ids of hardware, of which the first that exists counts.
const HARDWARE: [&str; 2] = ["/sys/class/dmi/id/product_uuid", "/proc/device-tree/serial-number"];
/// The longest part of such a file that is read.
const LONGEST: u64 = 4096;

impl journal::Record for NodeFile {
    const VERSION: u64 = 2;
    const LIMIT: usize = LIMIT;
    const ENDS_WITH_BOOT: bool = false;
    /// Sessions and uids are on the disk before the store has them.
    const SURVIVES_POWER_LOSS: bool = true;

    fn name(&self) -> String {
        "node".to_owned()
    }
}

/// The directory of the record of a data directory.
pub fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join(DIRECTORY)
}

/// Reads the node's record; None if there is none. One that is not understood is an error: with
/// another identity the node would lose its blocks under its containers.
pub fn read(data_dir: &Path) -> Result<Option<NodeFile>> {
    #[derive(Deserialize)]
    struct Head {
        version: Option<u64>,
    }
    let path = data_dir.join(RECORD);
    let text = plain_file::read_if_any(&path, LIMIT).map_err(Error::at_path("read", &path))?;
    let Some(text) = text else { return Ok(None) };
    let version = <NodeFile as journal::Record>::VERSION;
    let parsed = serde_json::from_slice(&text).map_err(|e| e.to_string()).and_then(|head: Head| {
        match head.version == Some(version) {
            true => serde_json::from_slice(&text).map_err(|e| e.to_string()),
            false => Err(format!("it is not of version {version}")),
        }
    });
    parsed.map(Some).map_err(|why| {
        Error::new(Code::DECODE, format!("read {}: {why}", path.display())).with_details(
            "the daemon does not start with it: restore the file, or remove it and reboot this node",
        )
    })
}

/// The hash of this machine's identity: /etc/machine-id, and an id of its hardware. Clones often
/// share one of them, and seldom both.
pub fn of_this_machine() -> Result<Token> {
    let hardware = match HARDWARE.iter().find_map(|path| text_of(Path::new(path))) {
        None => lowest_mac(&Netlink::open()?.links()?),
        found => found,
    };
    machine(text_of(Path::new(MACHINE_ID)), hardware)
}

/// The first half of the SHA-256 of both parts: it is the same after each start, and in each version.
fn machine(id: Option<String>, hardware: Option<String>) -> Result<Token> {
    if id.is_none() && hardware.is_none() {
        let msg = format!("find the identity of this machine: no {MACHINE_ID}, no hardware id");
        return Err(Error::new(Code::IO, msg).with_details(
            "write the file with `systemd-machine-id-setup`, or mount that of the host",
        ));
    }
    let [id, hardware] = [id, hardware].map(Option::unwrap_or_default);
    let digest = Sha256::digest(format!("{id}\n{hardware}"));
    let half = digest.iter().take(16);
    Ok(Token(half.fold(0, |number, byte| number << 8 | u128::from(*byte))))
}

/// The id in a file, in lower case, as older kernels print it in capitals; None if there is none.
fn text_of(path: &Path) -> Option<String> {
    let mut text = vec![];
    File::open(path).ok()?.take(LONGEST).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text).to_ascii_lowercase();
    let id = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!id.is_empty()).then(|| id.to_owned())
}

/// The lowest hardware address that a device of the host was made with.
fn lowest_mac(links: &[Link]) -> Option<String> {
    let of_devices = links.iter().filter(|link| link.kind.is_empty());
    let made = of_devices.map(|link| &link.permanent_mac);
    let lowest = made.filter(|mac| mac.iter().any(|octet| *octet != 0)).min()?;
    Some(lowest.iter().map(|octet| format!("{octet:02x}")).collect())
}

/// The node's record and its confirmation, which are written together.
pub struct Identity {
    journal: Journal,
    data_dir: PathBuf,
    /// The path of the confirmation.
    path: PathBuf,
    /// What the confirmation says; of the record, what it said last.
    confirmation: Confirmation,
    /// Whether another record was confirmed in this boot.
    pub is_replaced: bool,
}

/// What a confirmation of this boot, node and machine says, without the record.
pub fn confirmation(node: Name) -> Result<Confirmation> {
    Ok(Confirmation { boot: id_of_boot()?, node, machine: of_this_machine()?, record: None })
}

impl Identity {
    /// The record of a data directory, and what the confirmation at this path says of it.
    pub fn new(
        journal: Journal,
        data_dir: &Path,
        path: PathBuf,
        confirmation: Confirmation,
    ) -> Result<Identity> {
        let found = Confirmation::read(&path).filter(|found| found.boot == confirmation.boot);
        let found = found.filter(|found| found.record.is_some()); // else it was void already
        let fits = found.as_ref().is_some_and(|found| found.fits(&confirmation.boot, data_dir));
        let is_replaced = found.is_some() && !fits;
        let own = found.clone().filter(|found| {
            let is_own = Confirmation { record: found.record, ..confirmation.clone() };
            fits && *found == is_own
        });
        let confirmation = own.unwrap_or(confirmation);
        let data_dir = data_dir.to_owned();
        let mut identity = Identity { journal, data_dir, path, confirmation, is_replaced };
        if fits && !identity.is_confirmed() {
            identity.withdraw()?; // the node had another name, or the machine other hardware
        }
        Ok(identity)
    }

    /// Whether there is a confirmation of the record.
    pub fn is_confirmed(&self) -> bool {
        self.confirmation.record.is_some()
    }

    /// Writes the record. While it is confirmed, the confirmation is void in between: after a crash
    /// there is none of another record, which would be taken for that of a replaced directory.
    pub fn write(&mut self, file: &NodeFile) -> Result<()> {
        if !self.is_confirmed() {
            return self.journal.write(file);
        }
        if self.stamp()? != self.confirmation.record {
            let msg = format!("the data directory {} was replaced", self.data_dir.display());
            return Err(Error::new(Code::CONFLICT, msg)); // a write would confirm the new one
        }
        self.put(None)?;
        let done = self.journal.write(file);
        done.and(self.put_stamp())
    }

    /// Writes the confirmation, or removes it.
    pub fn confirm(&mut self, is_confirmed: bool) -> Result<()> {
        if is_confirmed { self.put_stamp() } else { self.withdraw() }
    }

    fn withdraw(&mut self) -> Result<()> {
        plain_file::take(&self.path).map_err(Error::at_path("remove", &self.path))?;
        self.confirmation.record = None;
        Ok(())
    }

    fn stamp(&self) -> Result<Option<Stamp>> {
        confirmed::stamp(&self.data_dir)
            .map_err(Error::at_path("examine", &self.data_dir.join(RECORD)))
    }

    fn put_stamp(&mut self) -> Result<()> {
        let record = self.stamp()?;
        let put = self.put(record);
        // A record of ours stays ours if its confirmation is not on the disk yet: the next write tries again.
        if put.is_ok() || self.is_confirmed() {
            self.confirmation.record = record;
        }
        put
    }

    fn put(&self, record: Option<Stamp>) -> Result<()> {
        let confirmation = Confirmation { record, ..self.confirmation.clone() };
        let text = serde_json::to_vec(&confirmation)
            .map_err(|e| Error::new(Code::BUG, format!("write {}: {e}", self.path.display())))?;
        plain_file::put(&self.path, &text).map_err(Error::at_path("write", &self.path))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
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
        Confirmation { boot: boot.to_owned(), node, machine: Token(2), record: None }
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
        let read = Confirmation::read(&dir.path().join("confirmed"));
        read.is_some_and(|read| read.fits("boot", dir.path()))
    }

    /// A data directory with a confirmed record.
    fn confirmed() -> Scratch {
        let dir = Scratch::new();
        let mut identity = start(&dir, of_node("n1", "boot"));
        identity.write(&file(1)).unwrap();
        assert!(!identity.is_confirmed());
        identity.confirm(true).unwrap();
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
        identity.confirm(false).unwrap();
        assert!(!dir.path().join("confirmed").exists());
        identity.write(&file(3)).unwrap();
        drop(identity);
        assert_eq!(found(&dir, of_node("n1", "boot")), (false, false));
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
}
