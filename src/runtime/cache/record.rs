//! What a file of the cache says, by its content and by its name.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::cni::attachment::{Key, NetworkName};
use crate::cni::json::{self, Value};
use crate::cni::result::Document;
use crate::error::{Code, Error, Result};
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
    /// The result's interfaces that are in a namespace, each with the namespace's path.
    sandboxes: Vec<(String, String)>,
}

impl Found {
    /// The attachment that the file belongs to. For a bare result it is one to `network`, if the
    /// file's name can be read so, and if the result names the namespace of such an interface. The
    /// positions of `-` are certain only for the ids of libcni 0.7's time: a network whose file is
    /// taken for another network's would lose it.
    pub fn attachment(&self, network: &NetworkName) -> Option<Parameters> {
        let record = self.record.as_ref().ok()?;
        let is_certain = |id: &str| !id.strip_prefix("cnitool-").unwrap_or(id).contains('-');
        let read = || {
            let keys = self
                .readings(network)
                .into_iter()
                .filter(|key| is_certain(key.container_id.as_str()));
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
    pub(in crate::runtime) fn readings(&self, network: &NetworkName) -> Vec<Key> {
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
    /// The namespace of the attachment's interface, according to the result.
    fn sandbox(&self, key: &Key) -> Option<String> {
        let own = self.sandboxes.iter().find(|(link, _)| link == key.ifname.as_str());
        own.map(|(_, sandbox)| sandbox.clone())
    }
}

/// Whether the file names an attachment other than this one.
pub(super) fn names_another(text: &[u8], key: &Key) -> bool {
    let Some(value) = Value::parse(text).ok().filter(is_ours) else { return false };
    let own = [
        ("networkName", key.network.as_str()),
        ("containerId", key.container_id.as_str()),
        ("ifName", key.ifname.as_str()),
    ];
    own.iter().any(|(member, name)| {
        value.get(member).and_then(Value::as_str).is_some_and(|told| told != *name)
    })
}

/// A file as it is written, in the order of libcni's struct; libcni omits empty members.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    kind: &'static str,
    container_id: &'a str,
    #[serde(skip_serializing_if = "String::is_empty")]
    config: String,
    if_name: &'a str,
    network_name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    netns: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cni_args: &'a [(String, String)],
    #[serde(skip_serializing_if = "is_empty")]
    capability_args: Value,
    result: Value,
}

fn is_empty(value: &Value) -> bool {
    !matches!(value, Value::Object(members) if !members.is_empty())
}

/// The text of an attachment's file.
pub(super) fn text_of(at: &Parameters, document: &[u8], result: &Document) -> String {
    json::text(&Entry {
        kind: KIND,
        container_id: at.key.container_id.as_str(),
        config: STANDARD.encode(document),
        if_name: at.key.ifname.as_str(),
        network_name: at.key.network.as_str(),
        netns: &at.netns,
        cni_args: &at.args,
        capability_args: at.capability_args.clone().sorted(),
        result: result.to_value().sorted(),
    })
}

/// The result in a file's content: a member in our files, or the whole file that libcni 0.7 wrote.
pub(super) fn result_of(text: &[u8]) -> Result<Option<Document>> {
    let invalid = |problem: String| {
        Error::new(Code::DECODE, format!("decoding version from network config: {problem}"))
    };
    let value = Value::parse(text).map_err(|e| invalid(e.to_string()))?;
    let result = if is_ours(&value) { value.get("result") } else { Some(&value) };
    match result {
        None => Ok(None),
        Some(result @ Value::Object(_)) => Document::parse(result, "")
            .map(Some)
            .map_err(|e| Error::new(Code::DECODE, e.to_string())),
        Some(other) => Err(invalid(format!("expected an object, found {}", other.kind()))),
    }
}

fn is_ours(value: &Value) -> bool {
    value.get("kind").and_then(Value::as_str) == Some(KIND)
}

/// Parses a file that was read, or passes on the read error. The messages are libcni's, with the
/// file in place of the network.
pub(super) fn record_of(file: &Path, read: io::Result<Vec<u8>>) -> Result<Record> {
    let text = read.map_err(|e| Error::io(format_args!("read {}", file.display()), &e))?;
    let record = Value::parse(&text).and_then(|value| match value.get("kind") {
        None => Ok(Record {
            at: None,
            document: vec![],
            result: Ok(result_of(&text)?),
            sandboxes: sandboxes(&value),
        }),
        Some(_) if is_ours(&value) => of_value(&value, result_of(&text)),
        // The kind that was found is not printed: the file may belong to any program.
        Some(_) => Err(Error::new(Code::DECODE, format!("wrong kind, expected {KIND:?}"))),
    });
    record.map_err(|error| error.context(format_args!("read {}", file.display())))
}

/// Parses a file of ours. A file without a namespace is from an older libcni; its result names the
/// namespace.
fn of_value(value: &Value, result: Result<Option<Document>>) -> Result<Record> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let key = Key::parse(text("networkName"), text("containerId"), text("ifName"))?;
    let args = match value.get("cniArgs") {
        Some(Value::Array(pairs)) => pairs.iter().filter_map(pair).collect(),
        _ => vec![],
    };
    let capability_args = value.get("capabilityArgs").cloned().unwrap_or(Value::Object(vec![]));
    let document = STANDARD
        .decode(text("config"))
        .map_err(|_| Error::new(Code::DECODE, "config is not base64"))?;
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
    let text = |link: &Value, key: &str| {
        link.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let links = links.iter().map(|link| (text(link, "name"), text(link, "sandbox")));
    links.filter(|(_, sandbox)| !sandbox.is_empty()).collect()
}

fn pair(value: &Value) -> Option<(String, String)> {
    let Value::Array(pair) = value else { return None };
    let [Value::String(key), Value::String(value)] = pair.as_slice() else { return None };
    Some((key.clone(), value.clone()))
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
    fn a_file_that_does_not_tell_the_namespace_has_a_result_that_does() {
        let text = r#"{"kind":"cniCacheV1","containerId":"id","ifName":"eth0","networkName":"n","result":
            {"cniVersion":"1.0.0","interfaces":[{"name":"eth0"},{"name":"eth0","sandbox":"/run/netns/x"}]}}"#;
        let record = record_of(Path::new("f"), Ok(text.into())).unwrap();
        assert_eq!(record.at.unwrap().netns, "/run/netns/x");
    }
}
