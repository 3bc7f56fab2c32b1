//! Who this node is: its record in the data directory, under the lock that only one daemon can
//! have; the hash of the machine; and the confirmation, by which plugins know that it is the record
//! of this boot.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::de;
use serde_json::Value as Json;
use sha2::{Digest as _, Sha256};

use super::super::confirmed::{self, Confirmation, RECORD, Stamp};
use super::super::machine::{Allocation, NodeFile};
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
    let path = data_dir.join(RECORD);
    let text = plain_file::read_if_any(&path, LIMIT).map_err(Error::at_path("read", &path))?;
    let Some(text) = text else { return Ok(None) };
    let version = <NodeFile as journal::Record>::VERSION;
    let parsed =
        serde_json::from_slice(&text).and_then(|file: Json| match file["version"] == version {
            true => serde_json::from_value(file),
            false => Err(de::Error::custom(format_args!("it is not of version {version}"))),
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
    pub confirmation: Confirmation,
    /// Whether another record was confirmed in this boot, or the node was withdrawn in it.
    pub is_replaced: bool,
}

/// What a confirmation of this boot, node and machine says, without the record.
pub fn confirmation(node: Name) -> Result<Confirmation> {
    let (boot, machine) = (id_of_boot()?, of_this_machine()?);
    Ok(Confirmation { boot, node, machine, record: None, withdrawn: false })
}

impl Identity {
    /// The record of a data directory, and what the confirmation at this path says of it.
    pub fn new(
        journal: Journal,
        data_dir: &Path,
        path: PathBuf,
        confirmation: Confirmation,
    ) -> Result<Identity> {
        let found = Confirmation::read(&path)?.filter(|found| found.boot == confirmation.boot);
        let is_withdrawn = found.as_ref().is_some_and(|found| found.withdrawn);
        let found = found.filter(|found| found.record.is_some()); // else it was void already
        let fits = found.as_ref().is_some_and(|found| found.fits(&confirmation.boot, data_dir));
        let is_replaced = is_withdrawn || found.is_some() && !fits;
        let own = found.clone().filter(|found| {
            let is_own = Confirmation { record: found.record, ..confirmation.clone() };
            fits && *found == is_own
        });
        let confirmation = own.unwrap_or(confirmation);
        let data_dir = data_dir.to_owned();
        let mut identity = Identity { journal, data_dir, path, confirmation, is_replaced };
        if fits && !identity.is_confirmed() {
            identity.refuse()?; // the node had another name, or the machine other hardware
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

    /// Writes the confirmation, or that there is none: a missing file would be a boot in which the daemon has
    /// not looked yet.
    pub fn confirm(&mut self, allocation: Allocation) -> Result<()> {
        self.confirmation.withdrawn = allocation == Allocation::Withdrawn;
        if allocation == Allocation::Confirmed { self.put_stamp() } else { self.refuse() }
    }

    fn refuse(&mut self) -> Result<()> {
        self.put(None)?;
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
mod tests;
