//! What is known of each attachment from ADD to DEL, in libcni's files: other programs (libcni itself, ocicni, podman,
//! Multus) read, list and edit them.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::libc;

use super::parameters::Parameters;
use super::{go_json, list};
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::json::Value;
use crate::cni::result::Document;
use crate::error::{Code, Error, Result};

/// Where libcni keeps its cache.
pub const DEFAULT_DIR: &str = "/var/lib/cni";

/// What tells such a file from the bare result that libcni 0.7 wrote under the same name.
const KIND: &str = "cniCacheV1";

/// The longest a file's name may be.
const NAME_MAX: usize = 255;

/// A directory of results.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

/// A file of the cache.
#[derive(Clone, Debug)]
pub struct Found {
    /// Where it is.
    pub file: PathBuf,
    /// When it was written last: at ADD, unless somebody has edited it since.
    pub written: Option<SystemTime>,
    /// What is in it, or why that cannot be told.
    pub record: Result<Record>,
}

/// What a file of the cache tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The attachment, with what ADD was given. None in a file of libcni 0.7: of the attachment it has only the name, and
    /// that may be read in more than one way.
    pub at: Option<Parameters>,
    /// The network's document as it was at ADD, without what its directory had besides; empty where it was not kept.
    pub document: Vec<u8>,
    /// What ADD returned, in the version of then.
    pub result: Result<Option<Document>>,
    /// The interfaces that are in a namespace, with its path, as the result has them.
    sandboxes: Vec<(String, String)>,
}

impl Cache {
    /// The cache in `<dir>/results`; it need not be there yet.
    pub fn new(dir: impl Into<PathBuf>) -> Cache {
        Cache { dir: dir.into() }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    fn results(&self) -> PathBuf {
        self.dir.join("results")
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.results().join(file_name(key))
    }

    /// Writes what ADD was given and what it returned; an older file of the attachment is replaced at once or not at
    /// all.
    pub fn write(&self, at: &Parameters, document: &[u8], result: &Document) -> Result<()> {
        let text = go_json::text(&to_value(at, document, result)?);
        let file = self.file(&at.key);
        let written = create_dir(&self.results()).and_then(|()| replace(&file, &self.temporary(), text.as_bytes()));
        written.map_err(|e| Error::io(format_args!("write {}", file.display()), &e))
    }

    /// Where a file is written before it has its name: not among the results, whose readers list whatever is there.
    fn temporary(&self) -> PathBuf {
        self.dir.join(format!(".result.{}", std::process::id()))
    }

    /// An attachment whose file could have no name, or has one that is another's, could not be kept; better to know
    /// before it is made.
    pub(super) fn require_name(&self, key: &Key) -> Result<()> {
        let name = file_name(key);
        if self.is_another_s(key) {
            let msg = format!("the result of another attachment is kept under the same name, {name}");
            return Err(Error::new(Code::INVALID_CONFIG, msg).with_details("expected another container id or network"));
        }
        if name.len() <= NAME_MAX {
            return Ok(());
        }
        let msg = format!("the names of network, container and interface make {} bytes together", name.len());
        Err(Error::new(Code::INVALID_CONFIG, msg).with_details(format_args!("expected at most {NAME_MAX}: {name}")))
    }

    /// Whether there is anything for the attachment.
    pub fn contains(&self, key: &Key) -> bool {
        self.file(key).exists() && !self.is_another_s(key)
    }

    /// Whether the attachment's file is of another whose names come to the same: `a-b` and `c`, `a` and `b-c`.
    fn is_another_s(&self, key: &Key) -> bool {
        read(&self.file(key)).is_ok_and(|text| names_another(&text, key))
    }

    /// What the attachment's ADD returned, in this version; None where there is nothing that can be read.
    pub fn result(&self, key: &Key, version: &str) -> Result<Option<Document>> {
        let Ok(text) = read(&self.file(key)) else { return Ok(None) };
        if names_another(&text, key) {
            return Ok(None);
        }
        let Some(result) = result_of(&text)? else { return Ok(None) };
        let failed =
            |e| Error::new(Code::DECODE, format!("failed to convert cached result to config version {version:?}: {e}"));
        result.convert(version).map(Some).map_err(failed)
    }

    /// Forgets the attachment.
    pub fn delete(&self, key: &Key) -> Result<()> {
        if self.is_another_s(key) {
            return Ok(());
        }
        let file = self.file(key);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Error::io(format_args!("remove {}", file.display()), &error))
            }
            _ => Ok(()),
        }
    }

    /// What is known of one attachment; None where there is nothing. Runtimes that may have lost a network's
    /// configuration detach by this.
    pub fn record(&self, key: &Key) -> Result<Option<Record>> {
        match read(&self.file(key)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Ok(text) if names_another(&text, key) => Ok(None),
            read => record_of(&self.file(key), read).map(Some),
        }
    }

    /// Every file of the cache, in the order of their names; none where there is no cache. What cannot be read is among
    /// them, since it may be of a container that lives.
    pub fn all(&self) -> Result<Vec<Found>> {
        let dir = self.results();
        let names = list::names(&dir, |_| true).map_err(|e| Error::io(format_args!("open {}", dir.display()), &e))?;
        let found = |file: PathBuf| {
            let written = fs::metadata(&file).and_then(|metadata| metadata.modified()).ok();
            let record = record_of(&file, read(&file));
            Found { file, written, record }
        };
        Ok(names.into_iter().map(|name| dir.join(name)).map(found).collect())
    }

    /// Every attachment to the network. Files that do not tell theirs are passed over.
    pub fn attachments(&self, network: &NetworkName) -> Result<Vec<Parameters>> {
        let attachments = self.all()?.into_iter().filter_map(|found| found.attachment(network));
        Ok(attachments.filter(|at| at.key.network == *network).collect())
    }
}

impl Found {
    /// The attachment that the file is of. A bare result's is one to `network`, if its name can be read so, and if the
    /// result tells the namespace of such an interface. Where a `-` belongs is certain for the ids of libcni 0.7's time
    /// only: a file that is taken for another network's would be lost to that.
    pub fn attachment(&self, network: &NetworkName) -> Option<Parameters> {
        let record = self.record.as_ref().ok()?;
        let is_certain = |id: &str| !id.strip_prefix("cnitool-").unwrap_or(id).contains('-');
        let read = || {
            let keys = self.readings(network).into_iter().filter(|key| is_certain(key.container_id.as_str()));
            let mut told = keys.filter_map(|key| Some((record.sandbox(&key)?, key)));
            told.next().map(|(netns, key)| Parameters {
                key,
                netns,
                args: vec![],
                capability_args: Value::Object(vec![]),
            })
        };
        record.at.clone().or_else(read)
    }

    /// Every attachment to the network that the file's name may stand for.
    pub(super) fn readings(&self, network: &NetworkName) -> Vec<Key> {
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        let Some(rest) = name.strip_prefix(network.as_str()).and_then(|rest| rest.strip_prefix('-')) else {
            return vec![];
        };
        let read = |(at, _)| Key::parse(network.as_str(), &rest[..at], &rest[at + 1..]).ok();
        rest.match_indices('-').filter_map(read).collect()
    }
}

impl Record {
    /// The namespace of the attachment's interface, as the result has it.
    fn sandbox(&self, key: &Key) -> Option<String> {
        let own = self.sandboxes.iter().find(|(link, _)| link == key.ifname.as_str());
        own.map(|(_, sandbox)| sandbox.clone())
    }
}

fn file_name(key: &Key) -> String {
    format!("{}-{}-{}", key.network, key.container_id, key.ifname)
}

pub(super) fn create_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// Reads a file, also where a link leads to it. Nobody waits for who writes to a FIFO.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(file)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = vec![];
    file.read_to_end(&mut text)?;
    Ok(text)
}

/// Whether the file tells whose it is, and that it is not this attachment's.
fn names_another(text: &[u8], key: &Key) -> bool {
    let Some(value) = Value::parse(text).ok().filter(is_ours) else { return false };
    let own = [
        ("networkName", key.network.as_str()),
        ("containerId", key.container_id.as_str()),
        ("ifName", key.ifname.as_str()),
    ];
    own.iter().any(|(member, name)| value.get(member).and_then(Value::as_str).is_some_and(|told| told != *name))
}

/// Writes `temporary` and gives it the name `file`.
fn replace(file: &Path, temporary: &Path, text: &[u8]) -> io::Result<()> {
    let _ = fs::remove_file(temporary); // of a process that was killed and had the same id
    let mut open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    open.write_all(text).and_then(|()| fs::rename(temporary, file)).inspect_err(|_| {
        let _ = fs::remove_file(temporary); // the error is why it cannot stay
    })
}

/// In the order of libcni's struct; what is empty is left out there.
fn to_value(at: &Parameters, document: &[u8], result: &Document) -> Result<Value> {
    let text = |text: &str| Value::String(text.to_owned());
    let pair = |(key, value): &(String, String)| Value::Array(vec![text(key), text(value)]);
    let is_set = |(_, value): &(&str, Value)| match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(pairs) => !pairs.is_empty(),
        _ => false,
    };
    let members = [
        ("kind", text(KIND)),
        ("containerId", text(at.key.container_id.as_str())),
        ("config", Value::String(STANDARD.encode(document))),
        ("ifName", text(at.key.ifname.as_str())),
        ("networkName", text(at.key.network.as_str())),
        ("netns", text(&at.netns)),
        ("cniArgs", Value::Array(at.args.iter().map(pair).collect())),
        ("capabilityArgs", go_json::normal(at.capability_args.clone())),
        ("result", go_json::normal(Value::parse(result.to_compact_text().as_bytes())?)),
    ];
    Ok(Value::Object(members.into_iter().filter(is_set).map(|(key, value)| (key.to_owned(), value)).collect()))
}

/// The result in a file's text: a member of ours, or the whole of what libcni 0.7 wrote.
fn result_of(text: &[u8]) -> Result<Option<Document>> {
    let invalid =
        |problem: String| Error::new(Code::DECODE, format!("decoding version from network config: {problem}"));
    let value = Value::parse(text).map_err(|e| invalid(e.to_string()))?;
    let result = if is_ours(&value) { value.get("result") } else { Some(&value) };
    match result {
        None => Ok(None),
        Some(result @ Value::Object(_)) => {
            Document::parse(result, "").map(Some).map_err(|e| Error::new(Code::DECODE, e.to_string()))
        }
        Some(other) => Err(invalid(format!("expected an object, found {}", other.kind()))),
    }
}

fn is_ours(value: &Value) -> bool {
    value.get("kind").and_then(Value::as_str) == Some(KIND)
}

/// What was read from a file, or could not be. The messages are libcni's, with the file for the network.
fn record_of(file: &Path, read: io::Result<Vec<u8>>) -> Result<Record> {
    let text = read.map_err(|e| Error::io(format_args!("read {}", file.display()), &e))?;
    let record = Value::parse(&text).and_then(|value| match value.get("kind") {
        None => Ok(Record { at: None, document: vec![], result: Ok(result_of(&text)?), sandboxes: sandboxes(&value) }),
        Some(_) if is_ours(&value) => of_value(&value, result_of(&text)),
        Some(other) => Err(Error::new(Code::DECODE, format!("wrong kind {}", other.to_text()))),
    });
    record.map_err(|error| error.context(format_args!("read {}", file.display())))
}

/// A file that does not tell the namespace is of an older libcni; the result tells it.
fn of_value(value: &Value, result: Result<Option<Document>>) -> Result<Record> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let key = Key::parse(text("networkName"), text("containerId"), text("ifName"))?;
    let args = match value.get("cniArgs") {
        Some(Value::Array(pairs)) => pairs.iter().filter_map(pair).collect(),
        _ => vec![],
    };
    let capability_args = value.get("capabilityArgs").cloned().unwrap_or(Value::Object(vec![]));
    let document = STANDARD.decode(text("config")).map_err(|_| Error::new(Code::DECODE, "config is no base64"))?;
    let sandboxes = value.get("result").map(sandboxes).unwrap_or_default();
    let mut record = Record { at: None, document, result, sandboxes };
    let netns = match text("netns") {
        "" => record.sandbox(&key).unwrap_or_default(),
        path => path.to_owned(),
    };
    record.at = Some(Parameters { key, netns, args, capability_args });
    Ok(record)
}

fn sandboxes(result: &Value) -> Vec<(String, String)> {
    let Some(Value::Array(links)) = result.get("interfaces") else { return vec![] };
    let text = |link: &Value, key: &str| link.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let links = links.iter().map(|link| (text(link, "name"), text(link, "sandbox")));
    links.filter(|(_, sandbox)| !sandbox.is_empty()).collect()
}

fn pair(value: &Value) -> Option<(String, String)> {
    let Value::Array(pair) = value else { return None };
    let [Value::String(key), Value::String(value)] = pair.as_slice() else { return None };
    Some((key.clone(), value.clone()))
}

#[cfg(test)]
mod tests;
