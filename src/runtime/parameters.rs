//! What a runtime knows of one attachment, and how cnitool derives it from its arguments and
//! environment.

use std::path::{Component, Path, PathBuf};

use sha2::{Digest as _, Sha512};

use super::list;
use crate::cni::attachment::{ContainerId, Key, hex};
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};

/// The parameters of an attachment, apart from its network.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// What identifies it. The names have been checked: as a file name they cannot leave the
    /// directory.
    pub key: Key,
    /// CNI_NETNS.
    pub netns: String,
    /// CNI_ARGS, as pairs.
    pub args: Vec<(String, String)>,
    /// The capability arguments: an object.
    pub capability_args: Value,
}

impl Parameters {
    /// CNI_ARGS as plugins get them.
    pub fn joined_args(&self) -> String {
        let pairs: Vec<String> =
            self.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(";")
    }

    /// The pod of the container, as `namespace/name`, if the runtime named it.
    pub fn pod(&self) -> Option<String> {
        let last = |key| self.args.iter().rev().find(|(known, _)| known == key);
        let (_, namespace) = last("K8S_POD_NAMESPACE")?;
        let (_, name) = last("K8S_POD_NAME")?;
        (!namespace.is_empty() && !name.is_empty()).then(|| format!("{namespace}/{name}"))
    }
}

/// Parses CNI_ARGS as cnitool does, which is stricter than plugins: no value may be empty.
pub fn parse_args(text: &str) -> Result<Vec<(String, String)>> {
    let mut pairs = vec![];
    for text in text.split(';').filter(|_| !text.is_empty()) {
        let mut parts = text.split('=');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(key), Some(value), None) if !key.is_empty() && !value.is_empty() => {
                pairs.push((key.to_owned(), value.to_owned()));
            }
            _ => return Err(invalid(format!("invalid CNI_ARGS pair {text:?}"))),
        }
    }
    Ok(pairs)
}

fn invalid(problem: String) -> Error {
    Error::new(Code::INVALID_ENVIRONMENT, problem)
}

/// Parses the capability arguments: a JSON object; an empty text means none.
pub fn parse_capability_args(text: &str) -> Result<Value> {
    if text.is_empty() {
        return Ok(Value::Object(vec![]));
    }
    let parsed = list::parse_object(text.as_bytes());
    parsed.map_err(|error| error.context("decode the capability arguments"))
}

/// The absolute path, cleaned lexically: symbolic links are not followed, and nothing need exist.
pub fn absolute(path: &Path) -> Result<String> {
    let path = std::path::absolute(path)
        .map_err(|e| Error::io(format_args!("make path {path:?} absolute"), &e))?;
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir => (),
            other => clean.push(other),
        }
    }
    let clean = clean.into_os_string().into_string();
    clean.map_err(|path| invalid(format!("path {path:?} is not UTF-8")))
}

/// The id that cnitool gives to a container of which only the namespace is known.
pub fn container_id(netns: &str) -> Result<ContainerId> {
    ContainerId::parse(&format!("cnitool-{}", hex(&Sha512::digest(netns.as_bytes())[..10])))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf %s PATH | sha512sum | cut -c 1-20`
    #[test]
    fn the_container_id_is_cnitool_s() {
        assert_eq!(
            container_id("/var/run/netns/testing").unwrap().as_str(),
            "cnitool-77383ca0a0715733ca6f"
        );
        assert_eq!(container_id("").unwrap().as_str(), "cnitool-cf83e1357eefb8bdf154");
    }
}
