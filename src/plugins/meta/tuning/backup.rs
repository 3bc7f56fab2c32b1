//! The backup of previous values: the reference's file `<dataDir>/<containerID>_<ifName>.json`.
//! Each implementation restores from the other's file. We add a member that the reference ignores,
//! with the owner of the file, the attributes that were set, and the sysctls.

use std::ffi::OsStr;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Component, Path, PathBuf};

use nix::unistd::{AccessFlags, access};
use serde::Serialize;

use super::attributes::Attributes;
use super::sysctls::same;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::{Config, ValidAttachments};
use crate::cni::decode;
use crate::cni::json::{self, Value};
use crate::cni::valid::{Holder, Stale};
use crate::error::{Code, Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::sysctl::Sysctl;
use crate::plain_file;

const DEFAULT_DIR: &str = "/run/cni/tuning";

/// The largest file that is read; none of ours is longer.
const LIMIT: usize = 256 * 1024;

/// The name of our member.
const OURS: &str = "cni-multi";

/// What an attachment has changed, and the previous values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backup {
    /// The owner; the reference does not record it.
    pub key: Option<Key>,
    /// The kernel's cookie of the namespace with the changes, if the file has it.
    pub netns: Option<u64>,
    /// The link's ifindex, if the file has it. It survives a rename.
    pub link: Option<u32>,
    /// The link's previous values.
    pub before: Attributes,
    /// The values that were set, as far as the file has them.
    pub after: Attributes,
    /// The sysctls, in the order in which they were set.
    pub sysctls: Vec<SavedSysctl>,
}

/// A sysctl that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedSysctl {
    /// The sysctl.
    pub sysctl: Sysctl,
    /// Its previous value.
    pub before: String,
    /// The value that was set.
    pub after: String,
}

impl Backup {
    /// Whether there is nothing to restore.
    pub fn is_empty(&self) -> bool {
        self.before.is_empty() && self.sysctls.is_empty()
    }

    /// Whether the backup may belong to this attachment.
    pub fn may_be_of(&self, key: &Key) -> bool {
        self.key.as_ref().is_none_or(|of| of == key)
    }

    /// Whether the backup may belong to this namespace. The path of a deleted namespace may lead to
    /// another container by now.
    pub fn may_be_in(&self, netns: Option<u64>) -> bool {
        self.netns.zip(netns).is_none_or(|(was, is)| was == is)
    }

    /// Merges this backup with an earlier one, which takes precedence for everything that still has
    /// the value set then. The rest of the earlier one is from a link or container that no longer
    /// exists. `now` has the link's values of the earlier one's attributes, `values` those of its
    /// sysctls.
    pub fn after_earlier(
        self,
        earlier: Backup,
        now: &Attributes,
        values: &[Option<String>],
    ) -> Backup {
        // The reference does not record what it set. Assume the values of this ADD: a repeated ADD
        // asks for what is there already.
        let set = earlier.after.or(self.after.clone());
        let before = earlier.before.where_equal(&set, now).or(self.before);
        let mut sysctls: Vec<SavedSysctl> = earlier
            .sysctls
            .into_iter()
            .zip(values)
            .filter(|(saved, value)| value.as_ref().is_some_and(|value| same(value, &saved.after)))
            .map(|(saved, _)| saved)
            .collect();
        for new in self.sysctls {
            match sysctls.iter_mut().find(|saved| saved.sysctl == new.sysctl) {
                Some(saved) => saved.after = new.after,
                None => sysctls.push(new),
            }
        }
        Backup {
            key: self.key,
            netns: self.netns,
            link: self.link,
            before,
            after: self.after.or(set),
            sysctls,
        }
    }

    /// Parses a file. One that cannot be parsed is ignored: it restores nothing and blocks nothing.
    pub fn understood(text: &[u8]) -> Option<Backup> {
        Backup::parse(text).ok()
    }

    fn parse(text: &[u8]) -> Result<Backup> {
        let value = Value::parse(text)?;
        let mut key = None;
        let mut netns = None;
        let mut link = None;
        let mut after = Attributes::default();
        let mut sysctls = vec![];
        if let Some(ours) = value.get(OURS) {
            let text = |name| decode::member::<String>(ours, name);
            key = Some(Key::parse(&text("network")?, &text("containerID")?, &text("ifname")?)?);
            netns = decode::member(ours, "netnsCookie")?;
            link = decode::member(ours, "ifindex")?;
            after = ours.get("set").map(attributes).transpose()?.unwrap_or_default();
            let saved: Vec<(String, String, String)> = decode::member(ours, "sysctl")?;
            let known = |(name, before, after): (String, String, String)| {
                Some(SavedSysctl { sysctl: Sysctl::from_text(&name)?, before, after })
            };
            sysctls = saved.into_iter().filter_map(known).collect();
        }
        Ok(Backup { key, netns, link, before: attributes(&value)?, after, sysctls })
    }

    /// Returns the content of the file.
    pub fn text(&self) -> Vec<u8> {
        let sysctl = self
            .sysctls
            .iter()
            .map(|saved| (saved.sysctl.to_string(), &*saved.before, &*saved.after))
            .collect();
        let ours = self.key.as_ref().map(|key| Ours {
            network: key.network.as_str(),
            container_id: key.container_id.as_str(),
            ifname: key.ifname.as_str(),
            netns: self.netns,
            ifindex: self.link,
            set: Members::of(&self.after),
            sysctl,
        });
        let document = Document { before: Members::of(&self.before), ours };
        // Indented by one space, as in the reference.
        json::indented_text(&document, " ").into_bytes()
    }
}

fn attributes(value: &Value) -> Result<Attributes> {
    let mac: String = decode::member(value, "mac")?;
    Ok(Attributes {
        mac: mac.parse::<MacAddr>().ok(),
        promisc: decode::member(value, "promisc")?,
        mtu: decode::member(value, "mtu")?,
        allmulti: decode::member(value, "allmulti")?,
        txqlen: decode::member(value, "txQLen")?,
    })
}

/// The format of the file.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    before: Members,
    #[serde(rename = "cni-multi", skip_serializing_if = "Option::is_none")]
    ours: Option<Ours<'a>>,
}

/// The reference's member names, in its order.
#[derive(Serialize)]
struct Members {
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    promisc: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allmulti: Option<bool>,
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    txqlen: Option<u32>,
}

impl Members {
    fn of(attributes: &Attributes) -> Members {
        let Attributes { mac, promisc, mtu, allmulti, txqlen } = attributes.clone();
        Members { mac: mac.map(|mac| mac.to_string()), promisc, mtu, allmulti, txqlen }
    }
}

#[derive(Serialize)]
struct Ours<'a> {
    network: &'a str,
    #[serde(rename = "containerID")]
    container_id: &'a str,
    ifname: &'a str,
    #[serde(rename = "netnsCookie", skip_serializing_if = "Option::is_none")]
    netns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ifindex: Option<u32>,
    set: Members,
    sysctl: Vec<(String, &'a str, &'a str)>,
}

/// The directory of the backups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backups(PathBuf);

impl Backups {
    /// Reads the directory from a configuration, even if the rest of it is invalid: DEL and GC must
    /// find the files.
    pub fn of(config: &Config) -> Result<Backups> {
        Backups::parse(&decode::member::<String>(&config.value, "dataDir")?)
    }

    /// Parses `dataDir`. `..` is resolved without a look at the disk, as Go's library does.
    pub fn parse(data_dir: &str) -> Result<Backups> {
        let data_dir = if data_dir.is_empty() { DEFAULT_DIR } else { data_dir };
        if !data_dir.starts_with('/') || data_dir.contains('\0') {
            return Err(Error::config("dataDir", format_args!("{data_dir:?} is not usable"))
                .expecting("an absolute path"));
        }
        let mut dir = PathBuf::from("/");
        for component in Path::new(data_dir).components() {
            match component {
                Component::ParentDir => drop(dir.pop()),
                Component::Normal(name) => dir.push(name),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => (),
            }
        }
        Ok(Backups(dir))
    }

    /// Returns the directory for DEL and GC. It is `None` if ADD would have refused it, so that
    /// none of our files can be there.
    pub fn if_usable(config: &Config) -> Option<Backups> {
        Backups::of(config).ok().filter(|backups| backups.require_no_symlink().is_ok())
    }

    /// Returns the content of the attachment's file, if there is one.
    pub fn text(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.require_no_symlink()?;
        let path = self.path(key);
        match plain_file::read(&path, LIMIT) {
            Ok(text) => Ok(Some(text)),
            Err(e) if is_nowhere(&e) => Ok(None),
            Err(e) => Err(Error::io(format_args!("read {}", path.display()), &e)),
        }
    }

    /// Whether another attachment has a backup of an interface with this name in this namespace. If
    /// so, a file without a namespace, which the reference wrote, belongs to a container that had
    /// the path before.
    pub fn has_another_in(&self, netns: Option<u64>, key: &Key) -> Result<bool> {
        let ending = format!("_{}.json", key.ifname);
        let is_other = |path: &Path| {
            *path != self.path(key)
                && path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(&ending))
        };
        let is_there = |backup: &Backup| {
            backup.netns.is_some()
                && backup.netns == netns
                && backup.key.as_ref().is_some_and(|of| of.ifname == key.ifname)
        };
        for entry in self.entries()? {
            let path = self.listed(entry)?;
            if is_other(&path) && read_if_any(&path)?.as_ref().is_some_and(is_there) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn entries(&self) -> Result<impl Iterator<Item = io::Result<DirEntry>>> {
        let entries = match fs::read_dir(&self.0) {
            Err(e) if is_nowhere(&e) => None,
            entries => Some(
                entries.map_err(|e| Error::io(format_args!("open {}", self.0.display()), &e))?,
            ),
        };
        Ok(entries.into_iter().flatten())
    }

    fn listed(&self, entry: io::Result<DirEntry>) -> Result<PathBuf> {
        let entry = entry.map_err(|e| Error::io(format_args!("list {}", self.0.display()), &e))?;
        Ok(entry.path())
    }

    /// Writes the backup, in place of an earlier one.
    pub fn write(&self, key: &Key, backup: &Backup) -> Result<()> {
        self.put(key, &backup.text())
    }

    /// Restores a file to its previous content; `None` removes it.
    pub fn put_back(&self, key: &Key, text: Option<&[u8]>) -> Result<()> {
        match text {
            Some(text) => self.put(key, text),
            None => self.remove(key),
        }
    }

    fn put(&self, key: &Key, text: &[u8]) -> Result<()> {
        self.require_no_symlink()?;
        let path = self.path(key);
        let put = || {
            plain_file::make_private_directory(&self.0)?; // the reference creates it without search permission
            plain_file::put(&path, text)
        };
        put().map_err(|e| Error::io(format_args!("write {}", path.display()), &e))
    }

    /// Whether a directory has the name of the attachment's file. It cannot be ours, and it cannot
    /// be removed as a file.
    pub fn is_in_the_way(&self, key: &Key) -> bool {
        fs::symlink_metadata(self.path(key)).is_ok_and(|found| found.is_dir())
    }

    /// Removes the attachment's file; a missing file is not an error.
    pub fn remove(&self, key: &Key) -> Result<()> {
        let path = self.path(key);
        plain_file::take(&path)
            .or_else(|e| if is_nowhere(&e) { Ok(()) } else { Err(e) })
            .map_err(|e| Error::io(format_args!("remove {}", path.display()), &e))
    }

    /// Removes the files of this network's stale attachments. The reference's files name no owner,
    /// and one for the same container and interface may be another network's, so they stay until
    /// DEL. Drafts are always ours.
    pub fn collect_garbage(&self, network: &NetworkName, valid: &ValidAttachments) -> Result<()> {
        let mut errors = ErrorList::default();
        let is_stale = |key: &Key| {
            key.network == *network
                && !valid.contains(key.container_id.as_str(), key.ifname.as_str())
        };
        for entry in self.entries()? {
            let Some(path) = errors.push(self.listed(entry)) else { continue };
            let is_draft = path.extension() == Some(OsStr::new(plain_file::DRAFT));
            let Some(backup) = errors.push(read_if_any(&path)) else { continue };
            match backup.and_then(|backup| backup.key) {
                Some(key) if self.path(&key) == path && is_stale(&key) => {
                    let stale = || Stale {
                        what: "backup".to_owned(),
                        holder: Holder::of(&key),
                        ..Stale::default()
                    };
                    errors.push(valid.remove(stale, || self.remove(&key)));
                }
                // Nothing is restored from a draft, so one without an owner need not stay.
                key if is_draft && key.as_ref().is_none_or(is_stale) => {
                    let holder = key.as_ref().map(Holder::of).unwrap_or_default();
                    let what = format!("torn backup {}", path.display());
                    let stale = || Stale { what, holder, is_torn: true, ..Stale::default() };
                    // Ignore the error: a directory of this name is not ours.
                    let _ = valid.remove(stale, || {
                        plain_file::remove(&path).map_err(|e| Error::io("remove", &e))
                    });
                }
                _ => (),
            }
        }
        errors.finish()
    }

    /// Whether files can be written, as far as that can be known without writing one.
    pub fn status(&self) -> Result<()> {
        self.require_no_symlink().map_err(|e| e.with_code(Code::NOT_AVAILABLE))?;
        let there = self.0.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
        let what = || format!("dataDir: {} cannot be written", self.0.display());
        if !there.is_dir() {
            return Err(Error::new(Code::NOT_AVAILABLE, what())
                .with_details(format_args!("{there:?} is not a directory")));
        }
        access(there, AccessFlags::W_OK | AccessFlags::X_OK)
            .map_err(|errno| Error::system(Code::NOT_AVAILABLE, what(), errno as i32))
    }

    /// A process that may write to the parent directory must not choose where ours is.
    fn require_no_symlink(&self) -> Result<()> {
        match fs::symlink_metadata(&self.0) {
            Ok(found) if found.is_symlink() => Err(Error::config(
                "dataDir",
                format_args!("{} is a symbolic link", self.0.display()),
            )
            .expecting("a directory")),
            _ => Ok(()), // later operations report any other problem
        }
    }

    /// The attachment's file.
    pub fn path(&self, key: &Key) -> PathBuf {
        self.0.join(format!("{}_{}.json", key.container_id, key.ifname))
    }
}

/// Reads a backup. Returns `None` if the file is gone or cannot be parsed.
fn read_if_any(path: &Path) -> Result<Option<Backup>> {
    match plain_file::read(path, LIMIT) {
        Ok(text) => Ok(Backup::understood(&text)),
        Err(e) if is_nowhere(&e) || plain_file::is_no_file(e.raw_os_error()) => Ok(None),
        Err(e) => Err(Error::io(format_args!("read {}", path.display()), &e)),
    }
}

/// Whether there is no such file, and perhaps cannot be one: a part of its path is a file, or its
/// name is too long.
fn is_nowhere(e: &io::Error) -> bool {
    use io::ErrorKind::{InvalidFilename, NotADirectory, NotFound};
    matches!(e.kind(), NotFound | NotADirectory | InvalidFilename)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn key(network: &str, id: &str) -> Key {
        Key::parse(network, id, "eth0").unwrap()
    }

    fn mtu(mtu: u32) -> Attributes {
        Attributes { mtu: Some(mtu), ..Attributes::default() }
    }

    fn saved(name: &str, before: &str, after: &str) -> SavedSysctl {
        SavedSysctl {
            sysctl: Sysctl::parse(name).unwrap(),
            before: before.into(),
            after: after.into(),
        }
    }

    #[test]
    fn the_file_is_the_reference_s_with_a_member_of_ours() {
        let before = Attributes {
            mac: Some("9e:00:00:00:00:01".parse().unwrap()),
            promisc: Some(false),
            mtu: Some(1500),
            allmulti: Some(false),
            txqlen: Some(1000),
        };
        let theirs = "{\n \"mac\": \"9e:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": false,\n \"txQLen\": 1000\n}";
        let backup = Backup { before, ..Backup::default() };
        assert_eq!(String::from_utf8(backup.text()).unwrap(), theirs);
        assert_eq!(Backup::parse(theirs.as_bytes()).unwrap(), backup);
        let sysctls = vec![
            saved("net/ipv4/conf/eth0.5/arp_filter", "0", "1"),
            saved("net.core.somaxconn", "", "a b"),
        ];
        let ours = Backup {
            key: Some(key("net", "c")),
            netns: Some(1 << 40),
            link: Some(7),
            after: mtu(1400),
            sysctls,
            ..backup
        };
        assert_eq!(Backup::parse(&ours.text()).unwrap(), ours);
    }

    #[test]
    fn a_file_that_names_something_outside_restores_nothing_there() {
        let text = br#"{"cni-multi":{"network":"n","containerID":"c","ifname":"e","sysctl":[["net/../kernel/hostname","x","y"]]}}"#;
        assert_eq!(Backup::parse(text).unwrap().sysctls, []);
    }

    #[test]
    fn the_first_backup_counts_while_it_is_as_it_was_set() {
        let earlier = Backup {
            before: mtu(1500),
            after: mtu(1400),
            sysctls: vec![saved("net.a", "0", "1"), saved("net.gone", "0", "1")],
            ..Backup::default()
        };
        let new = Backup {
            before: mtu(1400),
            after: mtu(1300),
            sysctls: vec![saved("net.b", "5", "6")],
            ..Backup::default()
        };
        let merged = new.clone().after_earlier(
            earlier.clone(),
            &mtu(1400),
            &[Some("1".into()), Some("7".into())],
        );
        assert_eq!((merged.before, merged.after), (mtu(1500), mtu(1300)));
        assert_eq!(merged.sysctls, [saved("net.a", "0", "1"), saved("net.b", "5", "6")]);
        let fresh = new.after_earlier(earlier, &mtu(1450), &[None, None]);
        assert_eq!((fresh.before, fresh.sysctls), (mtu(1400), vec![saved("net.b", "5", "6")]));
    }

    #[test]
    fn the_reference_s_backup_counts_when_add_is_repeated() {
        let reference = Backup { before: mtu(1500), ..Backup::default() };
        let again = Backup { before: mtu(1400), after: mtu(1400), ..Backup::default() };
        assert_eq!(
            again.clone().after_earlier(reference.clone(), &mtu(1400), &[]).before,
            mtu(1500)
        );
        assert_eq!(
            Backup { before: mtu(1600), ..again }.after_earlier(reference, &mtu(1600), &[]).before,
            mtu(1600)
        );
    }

    #[test]
    fn directories_are_absolute_and_without_dots() {
        let dir = |text: &str| {
            Backups::parse(text)
                .map(|backups| backups.0.display().to_string())
                .map_err(|e| e.msg.clone())
        };
        assert_eq!(dir("").unwrap(), DEFAULT_DIR);
        assert_eq!(dir("/run/../../a/./b/../c/").unwrap(), "/a/c");
        assert_eq!(
            dir("x/y").unwrap_err(),
            "dataDir: \"x/y\" is not usable, expected an absolute path"
        );
        assert!(dir("/a\0b").is_err());
    }

    #[test]
    fn nothing_is_written_through_symlinks() {
        let scratch = Scratch::new();
        let victims = scratch.path().join("victims");
        let of = key("net", "c");
        fs::create_dir(&victims).unwrap();
        std::os::unix::fs::symlink(&victims, scratch.path().join("link")).unwrap();
        let linked = Backups(scratch.path().join("link"));
        assert!(
            linked.write(&of, &Backup::default()).is_err()
                && linked.text(&of).is_err()
                && linked.status().is_err()
        );
        assert_eq!(fs::read_dir(&victims).unwrap().count(), 0);

        let backups = Backups(scratch.path().join("new/dir"));
        backups.write(&of, &Backup::default()).unwrap();
        fs::write(victims.join("file"), "precious").unwrap();
        backups.remove(&of).unwrap();
        std::os::unix::fs::symlink(victims.join("file"), backups.path(&of)).unwrap();
        assert!(backups.text(&of).is_err());
        backups.write(&of, &Backup::default()).unwrap();
        assert_eq!(fs::read_to_string(victims.join("file")).unwrap(), "precious");
        assert_eq!(fs::read_dir(&backups.0).unwrap().count(), 1, "no draft stays");
    }

    #[test]
    fn gc_removes_what_says_that_it_is_of_the_network_and_not_valid() {
        let scratch = Scratch::new();
        let backups = Backups(scratch.path().to_owned());
        for of in [key("net", "valid"), key("net", "stale"), key("other", "alien")] {
            backups.write(&of, &Backup { key: Some(of.clone()), ..Backup::default() }).unwrap();
        }
        backups
            .write(&key("net", "reference"), &Backup { before: mtu(1500), ..Backup::default() })
            .unwrap();
        backups.put(&key("net", "torn"), b"{").unwrap();
        let draft = |of: Key| backups.path(&of).with_extension("draft");
        fs::copy(backups.path(&key("net", "valid")), draft(key("net", "valid"))).unwrap();
        fs::copy(backups.path(&key("net", "stale")), draft(key("net", "killed"))).unwrap();
        fs::copy(backups.path(&key("other", "alien")), draft(key("other", "alien"))).unwrap();
        fs::write(draft(key("net", "torn")), "{").unwrap();
        let text = br#"{"name":"net","cni.dev/valid-attachments":[{"containerID":"valid","ifname":"eth0"}]}"#;
        let config = Config::parse(text.to_vec()).unwrap();
        backups
            .collect_garbage(&config.name, &config.valid_attachments().unwrap().unwrap())
            .unwrap();
        let mut left: Vec<_> = fs::read_dir(scratch.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "alien_eth0.draft",
                "alien_eth0.json",
                "reference_eth0.json",
                "torn_eth0.json",
                "valid_eth0.draft",
                "valid_eth0.json"
            ]
        );
    }
}
