//! The file that the original keeps for each attachment. Ours is the same, so that the original can
//! detach what was attached here; nothing here needs it, except to know ports of the original.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::conf::Conf;
use crate::cni::attachment::Key;
use crate::cni::conf::{Config, ValidAttachments};
use crate::cni::json::{self, Value};
use crate::cni::valid::{Holder, Stale};
use crate::error::{Error, ErrorList, Result};
use crate::plain_file;

/// The directory of the files.
const DIR: &str = "/var/lib/cni/ovs-cni/cache";
/// The longest file.
const LIMIT: usize = 1024 * 1024;

/// The file of an attachment.
pub struct Kept(PathBuf);

impl Kept {
    /// The file of this attachment.
    pub fn of(key: &Key) -> Kept {
        Kept::named(&format!("{}-{}", key.container_id, key.ifname))
    }

    fn named(name: &str) -> Kept {
        Kept(PathBuf::from(DIR).join(name))
    }

    /// The draft. Names may have points, and no container's id begins with one.
    fn draft(&self) -> PathBuf {
        let name = self.0.file_name().unwrap_or_default().to_string_lossy();
        self.0.with_file_name(format!(".{name}.draft"))
    }

    /// The text of the file, if it is there.
    pub fn text(&self) -> Result<Option<Vec<u8>>> {
        match plain_file::read(&self.0, LIMIT) {
            Ok(text) => Ok(Some(text)),
            Err(e) if is_nowhere(&e) => Ok(None),
            // no file that the original or this plugin has written
            Err(e) if plain_file::is_no_file(e.raw_os_error()) => Ok(None),
            Err(e) => Err(self.failed("read", &e)),
        }
    }

    /// The configuration of the ADD; None without a file, or if it was torn.
    pub fn configuration(&self) -> Result<Option<Value>> {
        let Some(text) = self.text()? else { return Ok(None) };
        Ok(Value::parse(&text).ok().and_then(|value| value.get("Netconf").cloned()))
    }

    /// Whether the file is of an attachment to the configuration's network.
    fn is_of(&self, config: &Config) -> Result<bool> {
        let netconf = self.configuration()?;
        let network = netconf.as_ref().and_then(|netconf| netconf.get("name")?.as_str());
        Ok(network == Some(config.name.as_str()))
    }

    /// Writes what [`text_of`] has made.
    pub fn write(&self, text: &[u8]) -> Result<()> {
        self.put(text).map_err(|e| self.failed("write", &e))
    }

    fn put(&self, text: &[u8]) -> io::Result<()> {
        plain_file::make_private_directory(DIR.as_ref())?;
        match self.write_and_rename(text) {
            // A GC removed the draft as one left by a crash.
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.write_and_rename(text),
            done => done,
        }
    }

    fn write_and_rename(&self, text: &[u8]) -> io::Result<()> {
        plain_file::create_anew(&self.draft(), text)?;
        fs::rename(self.draft(), &self.0)
    }

    /// Undoes [`Kept::write`]: `earlier` is [`Kept::text`] of before.
    pub fn restore(&self, earlier: Option<Vec<u8>>) -> Result<()> {
        match earlier {
            Some(text) => self.write(&text),
            None => self.remove(),
        }
    }

    /// Removes the file, and the draft of one.
    pub fn remove(&self) -> Result<()> {
        ErrorList::of([self.remove_draft(), self.remove_one(&self.0)])
    }

    fn remove_draft(&self) -> Result<()> {
        self.remove_one(&self.draft())
    }

    fn remove_one(&self, path: &Path) -> Result<()> {
        match plain_file::remove(path) {
            Err(e) if !is_nowhere(&e) => Err(self.failed("remove", &e)),
            _ => Ok(()),
        }
    }

    fn failed(&self, what: &str, error: &io::Error) -> Error {
        Error::io(format_args!("{what} {}", self.0.display()), error)
    }
}

/// The text of a file: the configuration with the bridge and the socket as they are used.
pub fn text_of(config: &Config, conf: &Conf) -> Result<Vec<u8>> {
    let mut netconf = config.value.clone();
    for key in ["prevResult", "runtimeConfig"] {
        netconf.remove(key);
    }
    netconf.set("bridge", Value::text(conf.bridge()?));
    netconf.set("socket_file", Value::text(&*conf.socket_file));
    let kept = Value::object([
        ("Netconf", netconf),
        ("OrigIfName", Value::text("")),
        ("UserspaceMode", Value::Bool(false)),
        ("VdpaType", Value::text("")),
    ]);
    Ok(json::text(&kept).into_bytes())
}

/// Removes the files of this network's attachments that are not valid, and drafts of such
/// attachments, which do not tell their network: an ADD makes its draft again.
pub fn collect_garbage(config: &Config, valid: &ValidAttachments) -> Result<()> {
    let mut errors = ErrorList::default();
    for listed in names()? {
        let draft = listed.strip_prefix('.').and_then(|name| name.strip_suffix(".draft"));
        let name = draft.unwrap_or(&listed);
        if is_valid(name, valid) {
            continue;
        }
        let kept = Kept::named(name);
        if draft.is_some() {
            let torn = || Stale { is_torn: true, ..stale(name) };
            errors.push(valid.remove(torn, || kept.remove_draft()));
        } else if errors.push(kept.is_of(config)) == Some(true) {
            errors.push(valid.remove(|| stale(name), || kept.remove()));
        }
    }
    errors.finish()
}

/// The names of the files; none without the directory.
fn names() -> Result<Vec<String>> {
    let listed = fs::read_dir(DIR).and_then(|all| {
        all.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    });
    match listed {
        Err(e) if is_nowhere(&e) => Ok(vec![]),
        listed => listed.map_err(|e| Error::io(format_args!("list {DIR}"), &e)),
    }
}

/// Whether a file may belong to a valid attachment. Both names may have the separator.
fn is_valid(name: &str, valid: &ValidAttachments) -> bool {
    let mut separators = name.match_indices('-');
    separators.any(|(at, _)| valid.contains(&name[..at], &name[at + 1..]))
}

fn stale(name: &str) -> Stale {
    let (container_id, ifname) = name.rsplit_once('-').unwrap_or((name, ""));
    let holder = Holder {
        container_id: container_id.to_owned(),
        ifname: ifname.to_owned(),
        ..Holder::default()
    };
    Stale { what: "kept configuration".to_owned(), holder, ..Stale::default() }
}

fn is_nowhere(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
