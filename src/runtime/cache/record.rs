//! What a file of the cache tells, by its text and by its name.

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

/// What tells such a file from the bare result that libcni 0.7 wrote under the same name.
const KIND: &str = "cniCacheV1";

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
    /// The attachment, with what ADD was given. None in a file of libcni 0.7: of the attachment it
    /// has only the name, and that may be read in more than one way.
    pub at: Option<Parameters>,
    /// The network's document as it was at ADD, without what its directory had besides; empty
    /// where it was not kept.
    pub document: Vec<u8>,
    /// What ADD returned, in the version of then.
    pub result: Result<Option<Document>>,
    /// The interfaces that are in a namespace, with its path, as the result has them.
    sandboxes: Vec<(String, String)>,
}

impl Found {
    /// The attachment that the file is of. A bare result's is one to `network`, if its name can be
    /// read so, and if the result tells the namespace of such an interface. Where a `-` belongs
    /// is certain for the ids of libcni 0.7's time only: a file that is taken for another
    /// network's would be lost to that.
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
    /// The namespace of the attachment's interface, as the result has it.
    fn sandbox(&self, key: &Key) -> Option<String> {
        let own = self.sandboxes.iter().find(|(link, _)| link == key.ifname.as_str());
        own.map(|(_, sandbox)| sandbox.clone())
    }
}

/// Whether the file tells whose it is, and that it is not this attachment's.
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

/// A file as it is written, in the order of libcni's struct; what is empty is left out there.
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

/// The result in a file's text: a member of ours, or the whole of what libcni 0.7 wrote.
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

/// What was read from a file, or could not be. The messages are libcni's, with the file for the
/// network.
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
        // What the file has instead is not told: it may be anybody's.
        Some(_) => Err(Error::new(Code::DECODE, format!("wrong kind, expected {KIND:?}"))),
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
