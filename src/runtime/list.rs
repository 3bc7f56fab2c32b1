//! Parses the documents of networks as libcni does, and reports mistakes in its words.
//! [`super::directory`] finds the files.
//!
//! Keys of a list are case-sensitive and those of a plugin are not, since libcni decodes the one by
//! hand and the other with Go's decoder.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::cni::conf::ValidAttachment;
use crate::cni::decode;
use crate::cni::json::{self, Value};
use crate::cni::result::Dns;
use crate::cni::version;
use crate::error::{Code, Error, Result};
use crate::plugin::Entry;

/// A network: a list of plugins under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkList {
    /// `name`, not checked yet: a file that was not requested may have any.
    pub name: String,
    /// The version that was chosen from `cniVersion` and `cniVersions`; may be empty, which means
    /// 0.1.0.
    pub version: String,
    /// `disableCheck`: CHECK succeeds without running a plugin.
    pub disable_check: bool,
    /// `disableGC`: GC succeeds without running a plugin.
    pub disable_gc: bool,
    /// `loadOnlyInlinedPlugins`: the files in the network's directory do not belong to it.
    pub(super) only_inlined: bool,
    /// The plugins, in the order of ADD.
    pub plugins: Vec<PluginConfig>,
    /// The document as it was read, which the result cache keeps.
    pub document: Vec<u8>,
}

/// One plugin of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginConfig {
    /// The object, with every key that is in it.
    pub value: Value,
    /// `type`: the name of the program.
    pub kind: String,
    /// The object's own `name`, used in messages only: plugins get the list's name.
    pub name: String,
    /// `cniVersion`, which is used only if the object is the whole document.
    version: String,
    /// The keys that it declares in `capabilities`.
    pub capabilities: Vec<String>,
}

impl NetworkList {
    /// Parses a list as it is in a `.conflist`, without the plugins of its directory.
    pub fn parse(document: Vec<u8>) -> Result<NetworkList> {
        let parse = || {
            let list = parse_object(&document)?;
            let Some(name) = text(&list, "name")? else { return invalid("name", "no name".into()) };
            let only_inlined = flag(&list, "loadOnlyInlinedPlugins")?;
            Ok(NetworkList {
                name,
                version: choose_version(&list)?,
                disable_check: flag(&list, "disableCheck")?,
                disable_gc: flag(&list, "disableGC")?,
                only_inlined,
                plugins: inlined_plugins(&list, only_inlined)?,
                document: vec![],
            })
        };
        let list = parse().map_err(|error| error.context("error parsing configuration list"))?;
        Ok(NetworkList { document, ..list })
    }

    /// The same network, with the own name of each plugin of ours in the place of an alias.
    pub fn with_own_names(mut self, plugins: &'static [Entry], dirs: &[PathBuf]) -> NetworkList {
        for plugin in &mut self.plugins {
            set_own_names(&mut plugin.value, &|kind| Entry::named(plugins, kind, dirs));
            plugin.kind =
                plugin.value.get("type").and_then(Value::as_str).unwrap_or_default().into();
        }
        self
    }

    /// Parses a single plugin's configuration as a list of one plugin.
    pub fn of_single(text: Vec<u8>) -> Result<NetworkList> {
        let plugin = PluginConfig::parse(&text)?;
        let document = Value::object([
            ("cniVersion", Value::String(plugin.version)),
            ("name", Value::String(plugin.name)),
            ("plugins", Value::Array(vec![plugin.value])),
        ]);
        NetworkList::parse(json::text(&document).into_bytes())
    }
}

impl PluginConfig {
    /// Parses a plugin's object.
    pub fn parse(text: &[u8]) -> Result<PluginConfig> {
        let value =
            parse_object(text).map_err(|error| error.context("error parsing configuration"))?;
        let plugin = PluginConfig::of_value(value)?;
        Ok(PluginConfig { value: plugin.value.sorted(), ..plugin })
    }

    fn of_value(value: Value) -> Result<PluginConfig> {
        let head: Head = decode::from_value(&value)
            .map_err(|error| error.context("error parsing configuration"))?;
        if head.kind.is_empty() {
            return Err(Error::missing("type", "the name of a plugin")
                .phrased("error parsing configuration: missing 'type'"));
        }
        let Head { kind, name, cni_version: version, capabilities, .. } = head;
        let declared = capabilities.into_iter().filter(|(_, declared)| *declared == Some(true));
        let capabilities = declared.map(|(capability, _)| capability).collect();
        Ok(PluginConfig { value, kind, name, version, capabilities })
    }
}

/// Replaces the aliases in a plugin's object, in its `ipam` and its `delegate`: `own` finds a plugin.
pub fn set_own_names(plugin: &mut Value, own: &dyn Fn(&str) -> Option<&'static Entry>) {
    let kind = plugin.get("type").and_then(Value::as_str).unwrap_or_default();
    if let Some(entry) = own(kind).filter(|entry| entry.name != kind) {
        plugin.set("type", Value::text(entry.name));
    }
    for key in ["ipam", "delegate"] {
        let Some(found) = plugin.get(key).filter(|found| found.kind() == "object") else {
            continue;
        };
        let mut below = found.clone();
        set_own_names(&mut below, own);
        if below != *found {
            plugin.set(key, below);
        }
    }
}

/// The keys of a plugin that have a type. Most are decoded only for that: a mistake shows when the
/// network is loaded.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Head {
    cni_version: String,
    name: String,
    #[serde(rename = "type")]
    kind: String,
    capabilities: BTreeMap<String, Option<bool>>,
    #[serde(rename = "ipam")]
    _ipam: Ipam,
    #[serde(rename = "dns")]
    _dns: Dns,
    #[serde(rename = "prevResult")]
    _prev_result: BTreeMap<String, IgnoredAny>,
    #[serde(rename = "cni.dev/valid-attachments")]
    _valid_attachments: Vec<Option<ValidAttachment>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ipam {
    #[serde(rename = "type")]
    _kind: String,
}

/// The newest supported version of `cniVersions` and `cniVersion`; `cniVersion` unchanged if none
/// is supported.
pub fn choose_version(list: &Value) -> Result<String> {
    let single = text(list, "cniVersion")?.unwrap_or_default();
    let versions = match member(list, "cniVersions") {
        None => return Ok(single),
        Some(Value::Array(versions)) => versions,
        Some(other) => {
            let problem = format!("invalid type for cniVersions: {}", go_type(other));
            return invalid("cniVersions", problem);
        }
    };
    let mut spoken = vec![];
    for (index, version) in versions.iter().enumerate() {
        let path = format!("cniVersions[{index}]");
        let Value::String(version) = version else {
            let found = go_type(version);
            let problem = format!("invalid type for cniVersions index {index}: {found}");
            return invalid(&path, problem);
        };
        let entry = format!("invalid cniVersions entry {version} at index {index}");
        spoken.extend(if_spoken(version, &path, &entry)?);
    }
    if !single.is_empty() {
        let entry = format!("invalid cniVersion {single}");
        spoken.extend(if_spoken(&single, "cniVersion", &entry)?);
    }
    Ok(spoken.into_iter().max_by_key(|(number, _)| *number).map_or(single, |(_, version)| version))
}

/// A string; None if it is absent.
fn text(list: &Value, key: &str) -> Result<Option<String>> {
    match member(list, key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => invalid(key, format!("invalid {key} type {}", go_type(other))),
    }
}

/// The version with its text, unless it is newer than the newest supported one.
fn if_spoken(version: &str, path: &str, entry: &str) -> Result<Option<(version::Number, String)>> {
    let number = version::Number::parse(version).map_err(|error| {
        let error = error.context(entry);
        Error::config(path, &error.msg).with_code(error.code).phrased(&error.msg)
    })?;
    let newest = version::Number::parse(version::CURRENT)?;
    Ok((number <= newest).then(|| (number, version.to_owned())))
}

/// A boolean, which in 0.4.0 was a string.
fn flag(list: &Value, key: &str) -> Result<bool> {
    match member(list, key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(Value::String(text)) => match text.to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            other => invalid(key, format!("invalid value {other:?} for {key}")),
        },
        Some(other) => invalid(key, format!("invalid type {} for {key}", go_type(other))),
    }
}

fn inlined_plugins(list: &Value, only_inlined: bool) -> Result<Vec<PluginConfig>> {
    let plugins = match member(list, "plugins") {
        None if only_inlined => {
            let problem = "`loadOnlyInlinedPlugins` is true, and no 'plugins' key";
            return invalid("loadOnlyInlinedPlugins", problem.into());
        }
        None => return Ok(vec![]),
        Some(Value::Array(plugins)) if plugins.is_empty() => {
            return invalid("plugins", "no plugins in list".into());
        }
        Some(Value::Array(plugins)) => plugins,
        Some(other) => {
            return invalid("plugins", format!("invalid 'plugins' type {}", go_type(other)));
        }
    };
    // libcni encodes each again before it decodes it: of `type` and `Type` the one that sorts last
    // counts.
    let decode = |(index, plugin): (usize, &Value)| {
        PluginConfig::of_value(plugin.clone().sorted()).map_err(|error| {
            error
                .within(format_args!("plugins[{index}]"))
                .context(format_args!("failed to parse plugin config {index}"))
        })
    };
    plugins.iter().enumerate().map(decode).collect()
}

/// Parses one JSON object; `null` is an object without members.
pub(super) fn parse_object(text: &[u8]) -> Result<Value> {
    match Value::parse(text)? {
        Value::Null => Ok(Value::Object(vec![])),
        value @ Value::Object(_) => Ok(value),
        other => {
            Err(Error::new(Code::DECODE, format!("expected an object, found {}", other.kind())))
        }
    }
}

/// The member with exactly this key, the last of several; `null` counts as given.
fn member<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    let Value::Object(pairs) = object else { return None };
    pairs.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value)
}

/// The kind of value, as libcni's messages name it.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// A mistake in the value at `path`, in libcni's words.
fn invalid<T>(path: &str, problem: String) -> Result<T> {
    Err(Error::config(path, &problem).phrased(problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NetworkList> {
        NetworkList::parse(text.as_bytes().to_vec())
    }

    fn problem(text: &str) -> String {
        parse(text).map(|list| format!("{list:?}")).unwrap_or_else(|error| error.to_string())
    }

    fn kinds(list: &NetworkList) -> Vec<&str> {
        list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect()
    }

    #[test]
    fn a_list_has_a_name_a_version_and_plugins() {
        let text = r#"{"name":"n","cniVersion":"0.4.0","disableCheck":true,"disableGC":"True","x":1,
            "plugins":[{"Type":"bridge","capabilities":{"mac":true,"ips":false,"dns":null},"big":18446744073709551615},{"type":"tuning","name":"own"}]}"#;
        let list = parse(text).unwrap();
        assert_eq!(
            (list.name.as_str(), list.version.as_str(), list.disable_check, list.disable_gc),
            ("n", "0.4.0", true, true)
        );
        assert_eq!(kinds(&list), ["bridge", "tuning"]);
        assert_eq!(
            (list.plugins[0].capabilities.as_slice(), list.plugins[1].name.as_str()),
            (["mac".to_owned()].as_slice(), "own")
        );
        assert!(
            list.plugins[0].value.to_text().contains(r#""big":18446744073709551615"#),
            "other keys stay, integers exact"
        );
        assert_eq!(list.document, text.as_bytes());
    }

    #[test]
    fn mistakes_in_a_list_are_told_in_libcni_s_words() {
        let cases = [
            ("", "EOF while parsing a value at line 1 column 0"),
            ("[]", "expected an object, found array"),
            ("null", "no name"),
            (r#"{"Name":"n"}"#, "no name"),
            (r#"{"name":7}"#, "invalid name type float64"),
            (r#"{"name":null}"#, "invalid name type <nil>"),
            (r#"{"name":"n","cniVersion":{}}"#, "invalid cniVersion type map[string]interface {}"),
            (
                r#"{"name":"n","disableCheck":"Banana"}"#,
                "invalid value \"banana\" for disableCheck",
            ),
            (r#"{"name":"n","disableGC":null}"#, "invalid type <nil> for disableGC"),
            (
                r#"{"name":"n","loadOnlyInlinedPlugins":"x"}"#,
                "invalid value \"x\" for loadOnlyInlinedPlugins",
            ),
            (
                r#"{"name":"n","loadOnlyInlinedPlugins":true}"#,
                "`loadOnlyInlinedPlugins` is true, and no 'plugins' key",
            ),
            (r#"{"name":"n","plugins":{}}"#, "invalid 'plugins' type map[string]interface {}"),
            (r#"{"name":"n","plugins":null}"#, "invalid 'plugins' type <nil>"),
            (r#"{"name":"n","plugins":[]}"#, "no plugins in list"),
            (
                r#"{"name":"n","plugins":[{"type":"a"},{}]}"#,
                "failed to parse plugin config 1: error parsing configuration: missing 'type'",
            ),
            (
                r#"{"name":"n","plugins":[{"type":1}]}"#,
                "failed to parse plugin config 0: error parsing configuration: type: expected a string, found integer 1",
            ),
            (
                r#"{"name":"n","plugins":["x"]}"#,
                "failed to parse plugin config 0: error parsing configuration: expected an object, found string \"x\"",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(
                problem(text),
                format!("error parsing configuration list: {expected}"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_plugin_s_common_keys_must_have_their_types() {
        for key in [
            r#""capabilities":{"mac":"yes"}"#,
            r#""ipam":7"#,
            r#""ipam":{"type":7}"#,
            r#""dns":[]"#,
            r#""prevResult":"x""#,
            r#""cni.dev/valid-attachments":{}"#,
            r#""cni.dev/valid-attachments":[5]"#,
            r#""cni.dev/valid-attachments":[{"ifname":5}]"#,
        ] {
            let error =
                PluginConfig::parse(format!(r#"{{"type":"x",{key}}}"#).as_bytes()).unwrap_err();
            assert!(error.msg.starts_with("error parsing configuration: "), "{key}: {error}");
        }
        assert!(
            PluginConfig::parse(
                br#"{"type":"x","ipam":null,"dns":{"nameservers":["1.1.1.1"]},"prevResult":{"a":[1]},"capabilities":null}"#
            )
            .is_ok()
        );
    }

    #[test]
    fn the_newest_version_that_is_spoken_is_chosen() {
        let cases = [
            (r#""cniVersions":["1.1.0","0.4.0","1.0.0"]"#, "1.1.0"),
            (r#""cniVersions":["99.0.0","1.1.0","0.4.0"]"#, "1.1.0"),
            (r#""cniVersion":"1.0.0","cniVersions":["0.1.0","0.4.0"]"#, "1.0.0"),
            (r#""cniVersion":"1.2.3""#, "1.2.3"),
            (r#""cniVersion":"1.2.3","cniVersions":["9.9.9"]"#, "1.2.3"),
            (r#""cniVersion":"1.2.3","cniVersions":["0.3.1"]"#, "0.3.1"),
            (r#""cniVersions":[]"#, ""),
            (r#""x":0"#, ""),
        ];
        for (keys, version) in cases {
            assert_eq!(
                parse(&format!(r#"{{"name":"n",{keys}}}"#)).unwrap().version,
                version,
                "{keys}"
            );
        }
        let mistakes = [
            (r#""cniVersions":"1.0.0""#, "invalid type for cniVersions: string"),
            (r#""cniVersions":["1.0.0",1]"#, "invalid type for cniVersions index 1: float64"),
            (
                r#""cniVersions":["1.1.0","1.0.f"]"#,
                "invalid cniVersions entry 1.0.f at index 1: failed to convert micro version part \"f\": strconv.Atoi: parsing \"f\": invalid syntax",
            ),
            (
                r#""cniVersion":"1.1.1.1","cniVersions":["1.0.0"]"#,
                "invalid cniVersion 1.1.1.1: invalid version \"1.1.1.1\": too many parts",
            ),
        ];
        for (keys, expected) in mistakes {
            assert_eq!(
                problem(&format!(r#"{{"name":"n",{keys}}}"#)),
                format!("error parsing configuration list: {expected}"),
                "{keys}"
            );
        }
    }

    /// libcni reads a plugin in a list after it has encoded it again, in sorted order, and one in a
    /// file of its own as it is.
    #[test]
    fn of_two_spellings_of_type_the_last_in_order_counts_in_a_list() {
        let plugin = r#"{"type":"zz","Type":"fa"}"#;
        let list = parse(&format!(r#"{{"name":"n","plugins":[{plugin}]}}"#)).unwrap();
        assert_eq!(kinds(&list), ["zz"]);
        assert_eq!(PluginConfig::parse(plugin.as_bytes()).unwrap().kind, "fa");
    }

    #[test]
    fn a_single_configuration_becomes_the_list_of_it_alone() {
        let text = r#"{"type":"bridge","name":"n","cniVersion":"0.3.1","x":"<","capabilities":{"mac":true},"disableCheck":true,"mtu":1e3}"#;
        let list = NetworkList::of_single(text.into()).unwrap();
        // As libcni caches it: sorted, with Go's escapes and whole numbers.
        let plugin = r#"{"capabilities":{"mac":true},"cniVersion":"0.3.1","disableCheck":true,"mtu":1000,"name":"n","type":"bridge","x":"\u003c"}"#;
        assert_eq!(
            String::from_utf8(list.document.clone()).unwrap(),
            format!(r#"{{"cniVersion":"0.3.1","name":"n","plugins":[{plugin}]}}"#)
        );
        assert_eq!(
            (list.name.as_str(), list.version.as_str(), list.disable_check),
            ("n", "0.3.1", false)
        );
        assert_eq!(NetworkList::parse(list.document.clone()).unwrap(), list);
        let error = NetworkList::of_single(b"{".to_vec()).unwrap_err();
        assert!(error.msg.starts_with("error parsing configuration: EOF while parsing"), "{error}");
    }
}
