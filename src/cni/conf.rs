//! The plugin configuration on stdin: the common keys of every plugin, and what CHECK, DEL and GC
//! add to them.

use std::rc::Rc;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::attachment::NetworkName;
use super::decode::{self, Observer};
use super::json::Value;
use super::result::{AddResult, Document, Source};
pub use super::valid::{ValidAttachment, ValidAttachments};
use super::version;
use crate::error::{Code, Error, Result};

/// `args` of a plugin's configuration, which the network's user sets.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ConfArgs<C> {
    /// Keys of the plugin.
    pub cni: C,
}

/// A plugin configuration whose common keys have been checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The bytes as received: delegated plugins get exactly these.
    pub text: Vec<u8>,
    /// The document.
    pub value: Value,
    /// `name`.
    pub name: NetworkName,
    /// `cniVersion` as written; `0.1.0` if absent.
    pub version: String,
    /// Receives what is read of the configuration, if requested.
    pub observer: Option<Rc<Observer>>,
}

impl Config {
    /// Reads a configuration. Code 6 if it does not decode, 7 if `name` is missing or contains
    /// invalid characters.
    pub fn parse(text: Vec<u8>) -> Result<Config> {
        let value = document(&text)?;
        Config::of(text, value)
    }

    /// As [`Config::parse`], for a [`document`] that has been read already.
    pub fn of(text: Vec<u8>, value: Value) -> Result<Config> {
        let name: String = decode::member(&value, "name")?;
        let name = NetworkName::parse(&name)?;
        let version = version_of(&value)?;
        Ok(Config { text, value, name, version, observer: None })
    }

    /// Decodes the keys that a plugin reads.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T> {
        decode::observed(&self.value, self.observer.as_deref())
    }

    /// Whether the mistake is the absence of a value that the runtime supplies with ADD, by a
    /// capability that the configuration declares.
    pub fn is_supplied_later(&self, mistake: &Error) -> bool {
        match mistake.mistake.as_ref().map_or("", |mistake| mistake.capability) {
            "" => false,
            // libcni leaves `capabilities` in. A runtime that removes it, as the specification
            // demands, inserts `runtimeConfig` where there was any.
            capability => match self.value.get("capabilities") {
                Some(all) => matches!(all.get(capability), Some(Value::Bool(true))),
                None => self.value.get("runtimeConfig").is_some(),
            },
        }
    }

    /// `ipam.type`; empty means that there is no IPAM.
    pub fn ipam_type(&self) -> Result<String> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Ipam {
            r#type: String,
        }
        if let Some(observer) = &self.observer {
            observer.tell("", &["ipam"]);
        }
        Ok(decode::member::<Ipam>(&self.value, "ipam")?.r#type)
    }

    /// `prevResult`, if there is one. It is an error if its version is of another shape than the
    /// configuration's.
    pub fn prev_result(&self) -> Result<Option<AddResult>> {
        let Some(value) = self.value.get("prevResult") else { return Ok(None) };
        let document =
            Document::parse_as_shape_of(value, &self.version).and_then(Document::into_add_result);
        document.map(Some).map_err(|problem| {
            let problem = problem.to_string();
            let problem = problem.strip_prefix("could not parse prevResult: ").unwrap_or(&problem);
            Error::config("prevResult", problem).with_code(Code::DECODE)
        })
    }

    /// The attachments that GC must keep; see [`ValidAttachments::of_config`].
    pub fn valid_attachments(&self) -> Result<Option<ValidAttachments>> {
        ValidAttachments::of_config(&self.value)
    }
}

/// Parses a configuration's text; `null` is a document without members. Code 6.
pub fn document(text: &[u8]) -> Result<Value> {
    let object = Value::parse(text)
        .and_then(|value| value.into_object().map_err(|problem| Error::new(Code::DECODE, problem)));
    object.map_err(|e| e.context("decode the network configuration"))
}

/// `cniVersion` of a document: code 6 if it is not a string, `0.1.0` if it is absent or empty.
pub fn version_of(value: &Value) -> Result<String> {
    let version: String =
        decode::member(value, "cniVersion").map_err(|e| e.context("decode the version"))?;
    Ok(if version.is_empty() { version::ABSENT.to_owned() } else { version })
}

/// A result is decoded as leniently as a configuration.
impl Source for Value {
    fn decode<T: DeserializeOwned>(&self) -> Result<T, String> {
        decode::from_value(self).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(text.as_bytes().to_vec())
    }

    #[test]
    fn the_name_is_checked_and_the_version_may_be_absent() {
        assert_eq!(parse(r#"{"name":"n"}"#).unwrap().version, "0.1.0");
        assert_eq!(parse(r#"{"name":"n","CNIVERSION":"1.0.0"}"#).unwrap().version, "1.0.0");
        for (text, code) in [
            ("", 6),
            ("null", 7),
            ("[]", 6),
            ("{}", 7),
            (r#"{"name":7}"#, 6),
            (r#"{"name":"../x"}"#, 7),
            (r#"{"name":"n","cniVersion":1}"#, 6),
        ] {
            assert_eq!(parse(text).map_err(|e| e.code.0).err(), Some(code), "{text}");
        }
    }

    #[test]
    fn ipam_may_be_absent_and_its_type_must_be_a_string() {
        assert_eq!(parse(r#"{"name":"n","ipam":null}"#).unwrap().ipam_type().unwrap(), "");
        assert_eq!(parse(r#"{"name":"n","IPAM":{"TYPE":"x"}}"#).unwrap().ipam_type().unwrap(), "x");
        assert_eq!(
            parse(r#"{"name":"n","ipam":{"type":1}}"#).unwrap().ipam_type().unwrap_err().msg,
            "ipam.type: expected a string, found integer 1"
        );
    }
}
