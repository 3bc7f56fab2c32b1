//! What DEL has to know and cannot learn elsewhere: one file per attachment, in a directory below
//! /run/cni, which is gone after a restart of the host, as the attachments are.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cni::attachment::{Key, NetworkName, hex};
use crate::cni::conf::ValidAttachments;
use crate::cni::decode;
use crate::cni::json::{self, Value};
use crate::cni::valid::{Holder, Stale};
use crate::error::{Error, ErrorList, Result};
use crate::net::netns::{Netns, NetnsId};
use crate::plain_file;
use crate::plugin::{Attachment, Detachment};

/// The longest file of ours.
const LIMIT: usize = 64 * 1024;

/// The extension of records.
const RECORD: &str = "json";

/// An attachment in the namespace that it is looked for in.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    /// The attachment.
    pub key: &'a Key,
    /// The namespace.
    pub netns: &'a Netns,
}

impl<'a> Site<'a> {
    /// The site of an attachment that is removed.
    pub fn of(at: &'a Detachment, netns: &'a Netns) -> Site<'a> {
        Site { key: &at.key, netns }
    }
}

/// The files of one plugin.
#[derive(Clone, Debug)]
pub struct Records(PathBuf);

/// A file's content: the owner, in words that can be parsed, and what the plugin keeps.
#[derive(Serialize, Deserialize)]
struct Document<T> {
    network: String,
    container_id: String,
    ifname: String,
    /// CNI_NETNS of the ADD.
    netns: String,
    /// The namespace that CNI_NETNS led to.
    namespace: NetnsId,
    kept: T,
}

/// A record with the attachment that it names.
pub struct Found<T> {
    /// The attachment.
    pub key: Key,
    /// CNI_NETNS of its ADD.
    pub netns_path: String,
    /// What the plugin keeps.
    pub kept: T,
    namespace: NetnsId,
}

impl<T> Found<T> {
    /// Whether the attachment was made in this namespace.
    pub fn is_of(&self, netns: &Netns) -> Result<bool> {
        Ok(self.namespace == netns.id()?)
    }

    /// The namespace of the ADD, if its path still leads there. `/proc/PID/ns/net` may be the
    /// host's by now, and a path below /run/netns may be another container's.
    pub fn netns(&self) -> Result<Option<Netns>> {
        let Some(netns) = Netns::open_if_there(&self.netns_path)? else { return Ok(None) };
        Ok(self.is_of(&netns)?.then_some(netns))
    }

    /// Describes the record as something that GC removes.
    pub fn as_stale(&self) -> Stale {
        Stale {
            what: "record".to_owned(),
            holder: Holder::of(&self.key),
            netns_path: self.netns_path.clone(),
            ..Stale::default()
        }
    }
}

impl Records {
    /// The records of a plugin.
    pub fn of_plugin(name: &'static str) -> Records {
        Records(Path::new("/run/cni").join(name))
    }

    /// The records in a directory that the caller chooses.
    pub fn in_dir(dir: impl Into<PathBuf>) -> Records {
        Records(dir.into())
    }

    /// Keeps something for the attachment, in place of the attachment's earlier record.
    pub fn write<T: Serialize>(&self, at: &Attachment, kept: &T) -> Result<()> {
        let Key { network, container_id, ifname } = &at.key;
        let document = Document {
            network: network.to_string(),
            container_id: container_id.to_string(),
            ifname: ifname.to_string(),
            netns: at.netns_path.clone(),
            namespace: at.netns()?.id()?,
            kept,
        };
        let text = json::plain_text(&document);
        let path = self.path(&at.key);
        plain_file::make_directories(&self.0, 0o755)
            .and_then(|()| plain_file::require_directory(&self.0)) // not a link to foreign files
            .and_then(|()| plain_file::put(&path, text.as_bytes()))
            .map_err(Error::at_path("write", &path))
    }

    /// Keeps something for the attachment, unless it has a record.
    pub fn write_first<T: Serialize + DeserializeOwned>(
        &self,
        at: &Attachment,
        kept: &T,
    ) -> Result<()> {
        match self.find::<T>(&at.key)? {
            Some(_) => Ok(()),
            None => self.write(at, kept),
        }
    }

    /// What is kept for the attachment. A file that cannot be parsed counts as absent.
    pub fn read<T: DeserializeOwned>(&self, key: &Key) -> Result<Option<T>> {
        Ok(self.find(key)?.map(|found| found.kept))
    }

    /// The record of the attachment. A file that cannot be parsed counts as absent.
    pub fn find<T: DeserializeOwned>(&self, key: &Key) -> Result<Option<Found<T>>> {
        let path = self.path(key);
        let text = plain_file::read_if_any(&path, LIMIT).map_err(Error::at_path("read", &path))?;
        Ok(text.and_then(|text| understood(&text)))
    }

    /// The records of all attachments.
    pub fn all<T: DeserializeOwned>(&self) -> Result<Vec<Found<T>>> {
        self.paths("", RECORD)?.iter().filter_map(|path| found(path).transpose()).collect()
    }

    /// Removes the attachment's record.
    pub fn remove(&self, key: &Key) -> Result<()> {
        let path = self.path(key);
        plain_file::take(&path).map_err(Error::at_path("remove", &path))
    }

    /// The records of this network's attachments that are not valid.
    pub fn stale<T: DeserializeOwned>(
        &self,
        network: &NetworkName,
        valid: &ValidAttachments,
    ) -> Result<Vec<Found<T>>> {
        self.each_stale(network, valid)?.into_iter().collect()
    }

    /// The same records one by one: one that cannot be read now does not prevent removing the
    /// others.
    fn each_stale<T: DeserializeOwned>(
        &self,
        network: &NetworkName,
        valid: &ValidAttachments,
    ) -> Result<Vec<Result<Found<T>>>> {
        let is_stale = |found: &Found<T>| valid.is_stale(network, &found.key);
        let paths = self.paths(&prefix_of(network), RECORD)?;
        Ok(paths.iter().filter_map(|path| found_if(path, is_stale)).collect())
    }

    /// The records of other attachments in this namespace.
    pub fn others_in<T: DeserializeOwned>(&self, site: Site<'_>) -> Result<Vec<Found<T>>> {
        let own = self.path(site.key);
        let mut paths = self.paths("", RECORD)?;
        paths.retain(|path| *path != own);
        if paths.is_empty() {
            return Ok(vec![]);
        }
        let namespace = site.netns.id()?;
        let is_there = |other: &Found<T>| other.namespace == namespace;
        paths.iter().filter_map(|path| found_if(path, is_there)).collect()
    }

    /// When the record was written; None without a record.
    pub fn written(&self, key: &Key) -> Result<Option<SystemTime>> {
        let path = self.path(key);
        match fs::metadata(&path).and_then(|file| file.modified()) {
            Err(e) if plain_file::is_nowhere(&e) => Ok(None),
            time => time.map(Some).map_err(Error::at_path("look at", &path)),
        }
    }

    /// The files whose names have this prefix and extension.
    fn paths(&self, prefix: &str, ending: &str) -> Result<Vec<PathBuf>> {
        let mut paths = plain_file::entries(&self.0).map_err(Error::at_path("list", &self.0))?;
        paths.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(prefix) && path.extension().is_some_and(|of| of == ending)
        });
        Ok(paths)
    }

    /// Removes the records of this network's attachments that are not valid: for GC of a plugin
    /// whose recorded objects disappeared with the container.
    pub fn forget_stale<T: DeserializeOwned>(
        &self,
        network: &NetworkName,
        valid: &ValidAttachments,
    ) -> Result<()> {
        let mut errors = ErrorList::default();
        for found in self.each_stale::<T>(network, valid)? {
            errors.push(
                found.and_then(|found| {
                    valid.remove(|| found.as_stale(), || self.remove(&found.key))
                }),
            );
        }
        errors.push(self.forget_torn::<T>(network, valid));
        errors.finish()
    }

    /// Removes what a crash has left of this network's attachments that are not valid: drafts, and
    /// records without content. Their file names identify the owner.
    pub fn forget_torn<T: DeserializeOwned>(
        &self,
        network: &NetworkName,
        valid: &ValidAttachments,
    ) -> Result<()> {
        let mut errors = ErrorList::default();
        let prefix = prefix_of(network);
        let mut torn = self.paths(&prefix, RECORD)?;
        torn.retain(|path| errors.push(found::<T>(path)).is_some_and(|found| found.is_none()));
        torn.extend(self.paths(&prefix, plain_file::DRAFT)?);
        torn.retain(|path| !valid.contains_identity(&identity_in(path)));
        for path in torn {
            let what = format!("torn record {}", path.display());
            let holder = Holder::of_comment(&identity_in(&path));
            let stale = || Stale { what, holder, is_torn: true, ..Stale::default() };
            let remove = || plain_file::remove(&path).map_err(Error::at_path("remove", &path));
            errors.push(valid.remove(stale, remove));
        }
        errors.finish()
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.0.join(format!("{}.{RECORD}", key.identity()))
    }
}

/// The [`Key::identity`] in the name of a file.
fn identity_in(path: &Path) -> Cow<'_, str> {
    path.file_stem().unwrap_or_default().to_string_lossy()
}

/// The prefix of the names of a network's files.
fn prefix_of(network: &NetworkName) -> String {
    format!("{}-", hex(&Key::network_hash(network)))
}

/// The record in a file. A file that has disappeared meanwhile, is not a regular file or cannot be
/// parsed has none; an error means that the file may be readable later.
fn found<T: DeserializeOwned>(path: &Path) -> Result<Option<Found<T>>> {
    match plain_file::read_if_any(path, LIMIT) {
        Err(e) if plain_file::is_no_file(e.raw_os_error()) => Ok(None),
        text => {
            let text = text.map_err(Error::at_path("read", path))?;
            Ok(text.and_then(|text| understood(&text)))
        }
    }
}

/// The same, if the record is one of these.
fn found_if<T: DeserializeOwned>(
    path: &Path,
    is_one: impl Fn(&Found<T>) -> bool,
) -> Option<Result<Found<T>>> {
    found(path).map(|found| found.filter(is_one)).transpose()
}

fn understood<T: DeserializeOwned>(text: &[u8]) -> Option<Found<T>> {
    let document = document(text)?;
    Some(Found {
        key: Key::parse(&document.network, &document.container_id, &document.ifname).ok()?,
        kept: decode::from_value(&document.kept).ok()?,
        netns_path: document.netns,
        namespace: document.namespace,
    })
}

/// One function for all types of records: serde_json's reader is compiled once more for each type
/// that it reads.
fn document(text: &[u8]) -> Option<Document<Value>> {
    serde_json::from_slice(text).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::scratch::Scratch;

    fn key(network: &str, id: &str) -> Key {
        Key::parse(network, id, "eth0").unwrap()
    }

    /// An attachment in the namespace of this thread.
    fn attachment(key: &Key) -> Attachment {
        Attachment::new(key.clone(), "/proc/thread-self/ns/net".to_owned(), None)
    }

    #[test]
    fn what_is_kept_is_read_until_it_is_removed() {
        let scratch = Scratch::new();
        let records = Records::in_dir(scratch.path().join("new/records"));
        let one = key("net", "one");
        let other = key("net", "other");
        assert_eq!(records.read::<u32>(&one).unwrap(), None);
        records.write(&attachment(&one), &7).unwrap();
        records.write(&attachment(&one), &8).unwrap();
        assert_eq!(
            (records.read(&one).unwrap(), records.read::<u32>(&other).unwrap()),
            (Some(8), None)
        );
        assert_eq!(fs::metadata(records.path(&one)).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&records.0).unwrap().count(), 1, "no draft stays");
        records.remove(&one).unwrap();
        records.remove(&one).unwrap();
        assert_eq!(records.read::<u32>(&one).unwrap(), None);
    }

    #[test]
    fn record_of_another_namespace_does_not_match_the_one_at_path() {
        let scratch = Scratch::new();
        let records = Records::in_dir(scratch.path());
        let of = key("net", "one");
        records.write(&attachment(&of), &1).unwrap();
        let written = fs::read_to_string(records.path(&of)).unwrap();
        let rewritten = written.replacen("\"inode\":", "\"inode\":1", 1);
        assert_ne!(rewritten, written);
        fs::write(records.path(&of), rewritten).unwrap();
        assert!(records.find::<u32>(&of).unwrap().unwrap().netns().unwrap().is_none());
    }

    #[test]
    fn gc_removes_stale_records_of_its_network_and_skips_torn_files() {
        let scratch = Scratch::new();
        let records = Records::in_dir(scratch.path());
        for of in [key("net", "valid"), key("net", "stale"), key("other", "stale")] {
            records.write(&attachment(&of), &1).unwrap();
        }
        let torn = records.path(&key("net", "torn"));
        let others = records.path(&key("other", "torn"));
        let drafts = [key("net", "valid"), key("net", "left"), key("other", "left")]
            .map(|of| records.path(&of).with_extension("draft"));
        for path in [&torn, &others].into_iter().chain(&drafts) {
            fs::write(path, "{\"network\":").unwrap();
        }
        let valid = crate::cni::conf::Config::parse(
            br#"{"name":"net","cni.dev/valid-attachments":[{"containerID":"valid","ifname":"eth0"}]}"#.to_vec(),
        );
        let valid = valid.unwrap().valid_attachments().unwrap().unwrap();
        let found = records.stale::<u32>(&NetworkName::parse("net").unwrap(), &valid).unwrap();
        assert_eq!(
            found.iter().map(|stale| stale.key.container_id.as_str()).collect::<Vec<_>>(),
            ["stale"]
        );
        assert_eq!(found[0].netns_path, "/proc/thread-self/ns/net");
        assert!(
            found[0].is_of(&Netns::current().unwrap()).unwrap()
                && found[0].netns().unwrap().is_some()
        );
        let left = |of: Key| records.read::<u32>(&of).unwrap().is_some();
        records.forget_stale::<u32>(&NetworkName::parse("net").unwrap(), &valid).unwrap();
        assert_eq!(
            [key("net", "valid"), key("net", "stale"), key("other", "stale")].map(left),
            [true, false, true]
        );
        assert_eq!([torn, others].map(|path| path.exists()), [false, true]);
        assert_eq!(drafts.map(|path| path.exists()), [true, false, true]);
    }
}
