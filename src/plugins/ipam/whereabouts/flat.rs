//! Flat files: keys that the configuration of a network lacks.
//!
//! The path comes from the configuration, which may be another person's than the machine's. So the
//! file must be a regular one of root, of limited size; nothing is written to it, and no error
//! quotes it.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::cni::conf::Config;
use crate::cni::json::Value;
use crate::error::{Error, Result};
use crate::plain_file;

/// Where a file is looked for after `configuration_path`. The first one that exists counts.
const USUAL: [&str; 2] = [
    "/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
    "/etc/cni/net.d/whereabouts.d/whereabouts.conf",
];
/// The longest file.
const LIMIT: usize = 1 << 20;
/// The keys that only the configuration of the network can have: DEL reads no flat file.
const OWN: [&str; 3] = ["type", "configuration_path", "dataDir"];

/// The configuration of a network with what the first file that exists adds, and that file.
pub fn merged(config: &Config) -> Result<(Config, Option<PathBuf>)> {
    let own = config.value.get("ipam").cloned().unwrap_or(Value::Object(vec![]));
    let first = own.get("configuration_path").and_then(Value::as_str).unwrap_or_default();
    if !first.is_empty() && !first.starts_with('/') {
        let problem = format_args!("{first:?} is not absolute");
        return Err(Error::config("ipam.configuration_path", problem)
            .expecting("a path that begins with /"));
    }
    for path in [first].into_iter().filter(|path| !path.is_empty()).chain(USUAL) {
        let unread = |why: String| {
            let problem = format_args!("{path:?} cannot be read: {why}");
            Error::config("ipam.configuration_path", problem)
                .expecting("a JSON object in a regular file of root, of at most 1 MiB")
                .with_details(
                    "correct the file or remove it; it may also be one of the usual places",
                )
        };
        let path = Path::new(path);
        let text = match content(path) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                continue;
            }
            text => text.map_err(|e| unread(e.to_string()))?,
        };
        let flat = Value::parse(&text).map_err(|_| unread("it is not JSON".to_owned()))?;
        let flat = flat.into_object().map_err(unread)?;
        let mut value = config.value.clone();
        value.set("ipam", merge(own.clone(), &flat));
        return Ok((Config { text: vec![], value, ..config.clone() }, Some(path.to_owned())));
    }
    Ok((config.clone(), None))
}

/// The bytes of a regular file of root. Its kind is looked at before it is opened: to open a device
/// may have an effect.
fn content(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = std::fs::symlink_metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if metadata.uid() != 0 {
        return Err(io::Error::other(format!("it belongs to uid {}", metadata.uid())));
    }
    plain_file::read_of_others(path, LIMIT)
}

/// The object with the members of another one that it lacks. As in the original, an empty value
/// counts as lacking; other than there, a boolean that is written counts.
fn merge(mut own: Value, flat: &Value) -> Value {
    let Value::Object(members) = flat else { return own };
    let is_own = |key: &str| OWN.iter().any(|own| own.eq_ignore_ascii_case(key));
    for (key, value) in members.iter().filter(|(key, _)| !is_own(key)) {
        match own.get(key).filter(|value| is_given(value)).cloned() {
            None => own.set(key, value.clone()),
            Some(inner @ Value::Object(_)) => own.set(key, merge(inner, value)),
            Some(_) => (),
        }
    }
    own
}

fn is_given(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(_) => true,
        Value::Number(_) => value.as_u64() != Some(0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}
