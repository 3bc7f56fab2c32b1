//! What a file of the cache says, by its content and by its name.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use crate::cni::attachment::{Key, NetworkName};
use crate::cni::decode;
use crate::cni::json::{self, Value};
use crate::cni::result::Document;
use crate::error::{Code, Error, Result};
use crate::net::netns::{Netns, NetnsId};
use crate::runtime::parameters::Parameters;

/// Distinguishes such a file from the bare result that libcni 0.7 wrote under the same name.
const KIND: &str = "cniCacheV1";

/// A file of the cache.
#[derive(Clone, Debug)]
pub struct Found {
    /// Where it is.
    pub file: PathBuf,
    /// When it was written last: at ADD, unless it was edited since.
    pub written: Option<SystemTime>,
    /// Its content, or why that cannot be read.
    pub record: Result<Record>,
}

/// The content of a file of the cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The attachment, with the parameters of its ADD. None in a file of libcni 0.7: only the
    /// file's name identifies the attachment then, and the name may be ambiguous.
    pub at: Option<Parameters>,
    /// The network's document as it was at ADD, without the plugins of its directory; empty if it
    /// was not kept.
    pub document: Vec<u8>,
    /// The result of ADD, in the version of that ADD.
    pub result: Result<Option<Document>>,
    /// The result's interfaces.
    links: Vec<Link>,
}

impl Found {
    /// The attachment that the file belongs to. For a bare result it is one to `network`, if the
    /// file's name can be read so, and if the result names the namespace of such an interface. The
    /// positions of `-` are certain only for the ids of libcni 0.7's time: a network whose file is
    /// taken for another network's would lose it.
    pub fn attachment(&self, network: &NetworkName) -> Option<Parameters> {
        let record = self.record.as_ref().ok()?;
        if record.at.is_some() {
            return record.at.clone();
        }
        // In the ids of libcni 0.7's time a `-` does not occur.
        let is_certain = |key: &Key| {
            let id = key.container_id.as_str();
            !id.strip_prefix("cnitool-").unwrap_or(id).contains('-')
        };
        let mut keys = self.readings(network).into_iter().filter(is_certain);
        let (netns, key) = keys.find_map(|key| Some((record.sandbox(&key)?, key)))?;
        Some(Parameters { key, netns, args: vec![], capability_args: Value::Object(vec![]) })
    }

    /// Every attachment to the network that the file's name may stand for.
    pub fn readings(&self, network: &NetworkName) -> Vec<Key> {
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        let Some(rest) =
            name.strip_prefix(network.as_str()).and_then(|rest| rest.strip_prefix('-'))
        else {
            return vec![];
        };
        let read = |(at, _)| Key::parse(network.as_str(), &rest[..at], &rest[at + 1..]).ok();
        rest.match_indices('-').filter_map(read).collect()
    }
}

impl Record {
    fn of(content: Content) -> Result<Record> {
        let entry = match content {
            Content::Entry(entry) => entry,
            Content::Bare(result) => {
                let (document, links) = (document_of(Some(&result))?, links_of(&result));
                return Ok(Record { at: None, document: vec![], result: Ok(document), links });
            }
            // The kind that was found is not printed: the file may belong to any program.
            Content::Foreign(_) => {
                return Err(Error::new(Code::DECODE, format!("wrong kind, expected {KIND:?}")));
            }
        };
        let key = entry.key()?;
        let document = STANDARD
            .decode(&entry.config)
            .map_err(|_| Error::new(Code::DECODE, "config is not base64"))?;
        let result = entry.result.as_ref();
        let links = result.map(links_of).unwrap_or_default();
        let mut record = Record { at: None, document, result: document_of(result), links };
        let netns = match entry.netns {
            // The file is from an older libcni; its result names the namespace.
            none if none.is_empty() => record.sandbox(&key).unwrap_or_default(),
            path => checked(path, entry.netns_id),
        };
        let capability_args = entry.capability_args.unwrap_or(Value::Object(vec![]));
        record.at = Some(Parameters { key, netns, args: entry.cni_args, capability_args });
        Ok(record)
    }

    /// The namespace of the attachment's interface, according to the result.
    fn sandbox(&self, key: &Key) -> Option<String> {
        let own = |link: &&Link| link.name == key.ifname.as_str() && !link.sandbox.is_empty();
        self.links.iter().find(own).map(|link| link.sandbox.clone())
    }
}

/// The content of a file, as its member `kind` decides.
enum Content {
    /// A file of libcni or of ours.
    Entry(Box<Entry>),
    /// The bare result that libcni 0.7 wrote.
    Bare(Value),
    /// A file of any other kind.
    Foreign(Value),
}

impl Content {
    fn parse(text: &[u8]) -> Result<Content> {
        let value = Value::parse(text)?;
        match value.get("kind") {
            None => Ok(Content::Bare(value)),
            Some(kind) if kind.as_str() == Some(KIND) => {
                decode::from_value(&value).map(Content::Entry)
            }
            Some(_) => Ok(Content::Foreign(value)),
        }
    }
}

/// A file of libcni, in the order of libcni's struct; libcni omits empty members. A member that is
/// read as another type counts as absent: whatever else the file says, DEL needs.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entry {
    kind: String,
    #[serde(deserialize_with = "decode::or_default")]
    container_id: Option<String>,
    /// The network's document, in base64.
    #[serde(deserialize_with = "decode::or_default", skip_serializing_if = "String::is_empty")]
    config: String,
    #[serde(deserialize_with = "decode::or_default")]
    if_name: Option<String>,
    #[serde(deserialize_with = "decode::or_default")]
    network_name: Option<String>,
    #[serde(deserialize_with = "decode::or_default", skip_serializing_if = "String::is_empty")]
    netns: String,
    /// The namespace, if its path is below /proc. libcni ignores it.
    #[serde(deserialize_with = "decode::or_default", skip_serializing_if = "Option::is_none")]
    netns_id: Option<NetnsId>,
    #[serde(deserialize_with = "decode::readable_items", skip_serializing_if = "Vec::is_empty")]
    cni_args: Vec<(String, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capability_args: Option<Value>,
    result: Option<Value>,
}

impl Entry {
    fn key(&self) -> Result<Key> {
        let names = [&self.network_name, &self.container_id, &self.if_name];
        let [network, id, ifname] = names.map(|name| name.as_deref().unwrap_or_default());
        Key::parse(network, id, ifname)
    }

    /// Whether the file names an attachment other than this one.
    fn names_another(&self, key: &Key) -> bool {
        let names = [
            (&self.network_name, key.network.as_str()),
            (&self.container_id, key.container_id.as_str()),
            (&self.if_name, key.ifname.as_str()),
        ];
        names.iter().any(|(told, own)| told.as_ref().is_some_and(|told| told != own))
    }
}

/// Where a result's interfaces are, as far as that can be read.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Links {
    #[serde(deserialize_with = "decode::readable_items")]
    interfaces: Vec<Link>,
}

/// An interface of a result.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Link {
    #[serde(deserialize_with = "decode::or_default")]
    name: String,
    /// The path of its namespace; empty for the host's.
    #[serde(deserialize_with = "decode::or_default")]
    sandbox: String,
}

fn links_of(result: &Value) -> Vec<Link> {
    decode::from_value(result).map(|links: Links| links.interfaces).unwrap_or_default()
}

/// The text of an attachment's file.
pub(super) fn text_of(at: &Parameters, document: &[u8], result: &Document) -> String {
    let Parameters { key, netns, args, capability_args } = at.clone();
    json::text(&Entry {
        kind: KIND.to_owned(),
        container_id: Some(key.container_id.to_string()),
        config: STANDARD.encode(document),
        if_name: Some(key.ifname.to_string()),
        network_name: Some(key.network.to_string()),
        netns_id: id_at(&netns),
        netns,
        cni_args: args,
        capability_args: Some(capability_args.sorted())
            .filter(|args| matches!(args, Value::Object(members) if !members.is_empty())),
        result: Some(result.to_value().sorted()),
    })
}

/// Whether the file names an attachment other than this one.
pub(super) fn names_another(text: &[u8], key: &Key) -> bool {
    matches!(Content::parse(text), Ok(Content::Entry(entry)) if entry.names_another(key))
}

/// The result in a file's content: a member in our files, or the whole file that libcni 0.7 wrote.
pub(super) fn result_of(text: &[u8]) -> Result<Option<Document>> {
    match Content::parse(text).map_err(|e| no_version(e.to_string()))? {
        Content::Entry(entry) => document_of(entry.result.as_ref()),
        Content::Bare(result) | Content::Foreign(result) => document_of(Some(&result)),
    }
}

fn document_of(result: Option<&Value>) -> Result<Option<Document>> {
    match result {
        None => Ok(None),
        Some(result @ Value::Object(_)) => Document::parse(result, "")
            .map(Some)
            .map_err(|e| Error::new(Code::DECODE, e.to_string())),
        Some(other) => Err(no_version(format!("expected an object, found {}", other.kind()))),
    }
}

/// libcni's error for what is no result.
fn no_version(problem: String) -> Error {
    Error::new(Code::DECODE, format!("decoding version from network config: {problem}"))
}

/// Parses a file that was read, or passes on the read error. The messages are libcni's, with the
/// file in place of the network.
pub(super) fn record_of(file: &Path, read: io::Result<Vec<u8>>) -> Result<Record> {
    let text = read.map_err(Error::at_path("read", file))?;
    Content::parse(&text)
        .and_then(Record::of)
        .map_err(|error| error.context(format_args!("read {}", file.display())))
}

/// Paths whose target changes with processes, such as `/proc/4711/ns/net`: they lead to another
/// namespace when the process is gone and its number is another's, so the record has the
/// namespace's id as well.
const PROC: &str = "/proc/";
/// What follows a path that does not lead to the recorded namespace any more, as the kernel marks
/// files in /proc. No file has such a name there.
const GONE: &str = " (gone)";

/// The id of the namespace at a path below /proc; None for other paths, and if there is none.
fn id_at(path: &str) -> Option<NetnsId> {
    if !path.starts_with(PROC) {
        return None;
    }
    Netns::open_if_there(path).ok()??.id().ok()
}

/// The path of a record, marked if it leads to a namespace other than the recorded one.
fn checked(path: String, recorded: Option<NetnsId>) -> String {
    let Some(recorded) = recorded else { return path }; // of libcni, or of a path elsewhere
    match id_at(&path) {
        Some(found) if recorded != found => path + GONE,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_empty_is_left_out() {
        let key = Key::parse("n", "id", "eth0").unwrap();
        let at = Parameters {
            key,
            netns: String::new(),
            args: vec![],
            capability_args: Value::Object(vec![]),
        };
        let result =
            Document::parse(&Value::parse(br#"{"cniVersion":"1.0.0"}"#).unwrap(), "").unwrap();
        let text = text_of(&at, b"", &result);
        assert!(
            !["netns", "cniArgs", "capabilityArgs", "config"]
                .iter()
                .any(|key| text.contains(&format!("{key:?}:"))),
            "{text}"
        );
    }

    #[test]
    fn record_without_namespace_takes_it_from_its_result() {
        let text = r#"{"kind":"cniCacheV1","containerId":"id","ifName":"eth0","networkName":"n","result":
            {"cniVersion":"1.0.0","interfaces":[{"name":"eth0"},{"name":"eth0","sandbox":"/run/netns/x"}]}}"#;
        let record = record_of(Path::new("f"), Ok(text.into())).unwrap();
        assert_eq!(record.at.unwrap().netns, "/run/netns/x");
    }

    /// A runtime that edits a file, or a libcni of another version, costs no attachment its DEL.
    #[test]
    fn members_that_cannot_be_read_count_as_absent() {
        let names = r#""kind":"cniCacheV1","containerId":"id","IFNAME":"eth0","NetworkName":"n""#;
        let read = |members: &str| {
            let text = format!("{{{names},{members}}}");
            record_of(Path::new("f"), Ok(text.into())).map(|record| record.at.unwrap())
        };
        let bare = read(r#""later":1"#).unwrap();
        assert_eq!((bare.netns.as_str(), bare.args.len()), ("", 0));
        assert_eq!(bare.capability_args, Value::Object(vec![]));
        for members in [
            r#""netns":7,"config":{},"cniArgs":"a","capabilityArgs":null"#,
            r#""cniArgs":["a",["b"],[1,"c"]],"result":null"#,
            r#""result":{"interfaces":[5,{"name":1},{"name":"eth0","sandbox":{}}]}"#,
            r#""result":{"interfaces":{}},"netns":null"#,
        ] {
            assert_eq!(read(members).unwrap(), bare, "{members}");
        }
        let last = read(r#""netns":"a","Netns":"b","cniArgs":[["c","d"],7]"#).unwrap();
        assert_eq!((last.netns.as_str(), last.args), ("b", vec![("c".into(), "d".into())]));
        assert!(read(r#""containerid":7"#).is_err(), "the last spelling counts, and is no id");
    }

    #[test]
    fn a_path_of_a_process_is_bound_to_its_namespace() {
        let path = "/proc/self/ns/net".to_owned();
        let own = id_at(&path);
        assert!(own.is_some());
        assert_eq!(checked(path.clone(), own), path);
        assert_eq!(checked(path.clone(), None), path, "a record of libcni");
        let text = serde_json::to_string(&own).unwrap();
        let inode = text.rsplit(':').next().unwrap().trim_end_matches('}').to_owned();
        let other = serde_json::from_str(&text.replace(&inode, "7")).unwrap();
        assert_eq!(checked(path, other), "/proc/self/ns/net (gone)");
        assert_eq!(id_at("/run/netns/red"), None);
    }
}
