//! Flat files: keys that the configuration of a network lacks.
//!
//! The path comes from the configuration, which may be another person's than the machine's. So the
//! file must be a regular one of root, of limited size; nothing is written to it, and no error
//! quotes it.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

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

/// A configuration with the keys of a flat file.
pub struct Merged {
    /// The configuration.
    pub config: Config,
    /// The flat file, if there is one.
    file: Option<PathBuf>,
}

impl Merged {
    /// The configuration of a network, and what its flat file adds.
    pub fn of(config: &Config) -> Result<Merged> {
        let found = read(&path(config)?)?;
        let mut value = config.value.clone();
        let file = found.map(|(file, flat)| {
            let own = value.get("ipam").cloned().unwrap_or(Value::Object(vec![]));
            value.set("ipam", merged(own, &flat));
            file
        });
        let config = Config {
            text: vec![],
            value,
            name: config.name.clone(),
            version: config.version.clone(),
            observer: config.observer.clone(),
        };
        Ok(Merged { config, file })
    }

    /// The error with the file that the wrong value may be in.
    pub fn explain(&self, error: Error) -> Error {
        match &self.file {
            Some(file) => error.with_details(format_args!(
                "keys that the configuration lacks are those of {}",
                file.display()
            )),
            None => error,
        }
    }
}

/// `ipam.configuration_path`; empty if it is not given.
fn path(config: &Config) -> Result<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Document {
        ipam: Ipam,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Ipam {
        /// A file with keys that `ipam` lacks.
        configuration_path: String,
    }
    Ok(config.decode::<Document>()?.ipam.configuration_path)
}

/// The first file that exists, with its object.
fn read(first: &str) -> Result<Option<(PathBuf, Value)>> {
    if !first.is_empty() && !first.starts_with('/') {
        let problem = format_args!("{first:?} is not absolute");
        return Err(Error::config("ipam.configuration_path", problem)
            .expecting("a path that begins with /"));
    }
    let paths = [first].into_iter().filter(|path| !path.is_empty()).chain(USUAL);
    for path in paths.map(Path::new) {
        match content(path) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => (),
            Err(e) => return Err(unread(path, &e.to_string())),
            Ok(text) => return object(path, &text).map(|value| Some((path.to_owned(), value))),
        }
    }
    Ok(None)
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

fn object(path: &Path, text: &[u8]) -> Result<Value> {
    let value = Value::parse(text).map_err(|_| unread(path, "it is not JSON"))?;
    value.into_object().map_err(|problem| unread(path, &problem))
}

fn unread(path: &Path, why: &str) -> Error {
    let problem = format_args!("{:?} cannot be read: {why}", path.display().to_string());
    Error::config("ipam.configuration_path", problem)
        .expecting("a JSON object in a regular file of root, of at most 1 MiB")
        .with_details("correct the file or remove it; it may also be one of the usual places")
}

/// The object with the members of another one that it lacks. As in the original, an empty value
/// counts as lacking; other than there, a boolean that is written counts.
fn merged(mut own: Value, flat: &Value) -> Value {
    let Value::Object(members) = flat else { return own };
    for (key, value) in members.iter().filter(|(key, _)| !is_own(key)) {
        match own.get(key).filter(|value| is_given(value)).cloned() {
            None => own.set(key, value.clone()),
            Some(inner @ Value::Object(_)) => own.set(key, merged(inner, value)),
            Some(_) => (),
        }
    }
    own
}

fn is_own(key: &str) -> bool {
    OWN.iter().any(|own| own.eq_ignore_ascii_case(key))
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
