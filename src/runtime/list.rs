//! Networks in a directory of configuration files, found and read as libcni does, mistakes told in its words.
//!
//! Keys of a list are matched with case and those of a plugin without, since libcni decodes one by hand and the other
//! with Go's reader.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, FileType};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::go_json;
use crate::cni::attachment::NetworkName;
use crate::cni::conf::ValidAttachment;
use crate::cni::decode;
use crate::cni::json::Value;
use crate::cni::result::Dns;
use crate::cni::version;
use crate::error::{Code, Error, Result};

/// A network: a list of plugins under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkList {
    /// `name`, not checked yet: a file nobody asked for may have any.
    pub name: String,
    /// The version that was chosen from `cniVersion` and `cniVersions`; may be empty, which is 0.1.0.
    pub version: String,
    /// `disableCheck`: CHECK succeeds and nothing is run.
    pub disable_check: bool,
    /// `disableGC`: GC succeeds and nothing is run.
    pub disable_gc: bool,
    /// `loadOnlyInlinedPlugins`: what lies in the network's directory does not belong to it.
    only_inlined: bool,
    /// The plugins, in the order of ADD.
    pub plugins: Vec<PluginConfig>,
    /// The document as it was read; what the result cache keeps of it.
    pub document: Vec<u8>,
}

/// One plugin of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginConfig {
    /// The object, with every key that is in it.
    pub value: Value,
    /// `type`: the name of the program.
    pub kind: String,
    /// The object's own `name`, which only messages have: plugins get the list's.
    pub name: String,
    /// `cniVersion`, which counts only where the object is the whole document.
    version: String,
    /// What it declared in `capabilities` to understand.
    pub capabilities: Vec<String>,
}

/// The network of this name in the directory. A `.conflist` goes before a single plugin's file of the same name; the
/// first file that cannot be read ends the search, whether it was the one or not.
pub fn find(dir: &Path, name: &str) -> Result<NetworkList> {
    let files = files(dir)?;
    if files.is_empty() {
        return Err(Error::new(Code::INVALID_CONFIG, format!("no net configurations found in {}", dir.display())));
    }
    for file in files {
        let list = load(&file)?;
        if list.name == name {
            return Ok(list);
        }
    }
    Err(Error::new(Code::INVALID_CONFIG, format!("no net configuration with name \"{name}\" in {}", dir.display())))
}

/// The files of the directory that are configurations, in the order in which they are searched.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = files_ending(dir, &[".conflist"])?;
    files.extend(files_ending(dir, &[".conf", ".json"])?);
    Ok(files)
}

/// Reads one file: a list if it is a `.conflist`, with the plugins of the directory that is named like the network,
/// else a single plugin.
pub fn load(file: &Path) -> Result<NetworkList> {
    let text =
        fs::read(file).map_err(|e| Error::io(format_args!("error reading {0}: open {0}", file.display()), &e))?;
    let dir = file.parent().unwrap_or(Path::new("."));
    let list =
        if ends_with(file.as_os_str(), ".conflist") { of_document(text, dir) } else { NetworkList::of_single(text) };
    list.map_err(|error| error.with_details(format_args!("the file is {}", file.display())))
}

/// The network of a document that is not in a file, such as the one that the cache has of ADD, with the plugins of the
/// directory in `dir` that is named like it: documents do not have those, so that DEL by the document alone forgets them.
pub fn of_document(text: Vec<u8>, dir: &Path) -> Result<NetworkList> {
    let mut list = NetworkList::parse(text)?;
    if !list.only_inlined {
        list.plugins.extend(plugins_of_directory(dir, &list.name)?);
    }
    if list.plugins.is_empty() {
        return Err(Error::new(Code::INVALID_CONFIG, "no plugin configs found"));
    }
    Ok(list)
}

/// The plugins that packages drop into `<dir>/<network>/`.
fn plugins_of_directory(dir: &Path, network: &str) -> Result<Vec<PluginConfig>> {
    // A name that is not plain is no network's, and as a path it could lead anywhere.
    let Ok(name) = NetworkName::parse(network) else { return Ok(vec![]) };
    let dir = dir.join(name.as_str());
    let failed = |error: Error| error.context(format_args!("failed to read plugin config files in {}", dir.display()));
    files_ending(&dir, &[".conf"]).map_err(failed)?.iter().map(|file| load_plugin(file)).collect()
}

fn load_plugin(file: &Path) -> Result<PluginConfig> {
    let text =
        fs::read(file).map_err(|e| Error::io(format_args!("error reading {0}: open {0}", file.display()), &e))?;
    let plugin = PluginConfig::parse(&text);
    plugin.map_err(|error| error.with_details(format_args!("the file is {}", file.display())))
}

/// What is in the directory and ends so, sorted, except directories. A directory that is not there has nothing in it.
fn files_ending(dir: &Path, endings: &[&str]) -> Result<Vec<PathBuf>> {
    let names = file_names(dir).map_err(|e| Error::io(format_args!("open {}", dir.display()), &e))?;
    let ends_so = |name: &OsString| endings.iter().any(|ending| ends_with(name, ending));
    Ok(names.into_iter().filter(ends_so).map(|name| dir.join(name)).collect())
}

/// Go's idea of an extension: a file that is named `.conflist` has one.
fn ends_with(name: &OsStr, ending: &str) -> bool {
    name.as_encoded_bytes().ends_with(ending.as_bytes())
}

/// The names of what is in the directory, sorted, except directories; none where there is no directory.
pub fn file_names(dir: &Path) -> io::Result<Vec<OsString>> {
    names(dir, |kind| !kind.is_dir())
}

/// The names of what is in the directory and of such a kind, sorted.
pub(super) fn names(dir: &Path, is_wanted: fn(FileType) -> bool) -> io::Result<Vec<OsString>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        entries => entries?,
    };
    let mut names = vec![];
    for entry in entries {
        let entry = entry?;
        if is_wanted(entry.file_type()?) {
            names.push(entry.file_name());
        }
    }
    names.sort_unstable(); // a cache may have ten thousand
    Ok(names)
}

impl NetworkList {
    /// Reads a list as it stands in a `.conflist`, without the plugins of its directory.
    pub fn parse(document: Vec<u8>) -> Result<NetworkList> {
        let list =
            NetworkList::parse_value(&document).map_err(|error| error.context("error parsing configuration list"))?;
        Ok(NetworkList { document, ..list })
    }

    /// Reads a single plugin's configuration as the list of it alone.
    pub fn of_single(text: Vec<u8>) -> Result<NetworkList> {
        let plugin = PluginConfig::parse(&text)?;
        let document = object([
            ("cniVersion", Value::String(plugin.version)),
            ("name", Value::String(plugin.name)),
            ("plugins", Value::Array(vec![plugin.value])),
        ]);
        NetworkList::parse(go_json::text(&document).into_bytes())
    }

    fn parse_value(document: &[u8]) -> Result<NetworkList> {
        let list = parse_object(document)?;
        let name = match member(&list, "name") {
            Some(Value::String(name)) => name.clone(),
            Some(other) => return invalid(format!("invalid name type {}", go_type(other))),
            None => return invalid("no name".into()),
        };
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
    }
}

impl PluginConfig {
    /// Reads a plugin's object.
    pub fn parse(text: &[u8]) -> Result<PluginConfig> {
        let value = parse_object(text).map_err(|error| error.context("error parsing configuration"))?;
        let plugin = PluginConfig::of_value(value)?;
        Ok(PluginConfig { value: go_json::normal(plugin.value), ..plugin })
    }

    fn of_value(value: Value) -> Result<PluginConfig> {
        let head: Head = decode::from_value(&value).map_err(|error| error.context("error parsing configuration"))?;
        if head.kind.is_empty() {
            return invalid("error parsing configuration: missing 'type'".into());
        }
        let declared = head.capabilities.into_iter().filter(|(_, declared)| *declared == Some(true));
        let capabilities = declared.map(|(capability, _)| capability).collect();
        Ok(PluginConfig { value, kind: head.kind, name: head.name, version: head.cni_version, capabilities })
    }
}

/// The keys of a plugin that have a type. Most are only looked at for that: a mistake shows when the network is loaded.
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

/// The newest of `cniVersions` and `cniVersion` that is spoken here; `cniVersion` as it is where none is.
pub fn choose_version(list: &Value) -> Result<String> {
    let single = match member(list, "cniVersion") {
        None => String::new(),
        Some(Value::String(version)) => version.clone(),
        Some(other) => return invalid(format!("invalid cniVersion type {}", go_type(other))),
    };
    let mut spoken = vec![];
    match member(list, "cniVersions") {
        None => return Ok(single),
        Some(Value::Array(versions)) => {
            for (index, version) in versions.iter().enumerate() {
                let Value::String(version) = version else {
                    return invalid(format!("invalid type for cniVersions index {index}: {}", go_type(version)));
                };
                spoken
                    .extend(if_spoken(version).map_err(|e| {
                        e.context(format_args!("invalid cniVersions entry {version} at index {index}"))
                    })?);
            }
        }
        Some(other) => return invalid(format!("invalid type for cniVersions: {}", go_type(other))),
    }
    if !single.is_empty() {
        spoken.extend(if_spoken(&single).map_err(|e| e.context(format_args!("invalid cniVersion {single}")))?);
    }
    Ok(spoken.into_iter().max_by_key(|(number, _)| *number).map_or(single, |(_, version)| version))
}

/// The version, unless it is newer than what is spoken here.
fn if_spoken(version: &str) -> Result<Option<(version::Number, String)>> {
    let number = version::Number::parse(version)?;
    Ok((number <= version::Number::parse(version::CURRENT)?).then(|| (number, version.to_owned())))
}

/// A boolean, which in 0.4.0 was a string.
fn flag(list: &Value, key: &str) -> Result<bool> {
    match member(list, key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(Value::String(text)) => match text.to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            other => invalid(format!("invalid value {other:?} for {key}")),
        },
        Some(other) => invalid(format!("invalid type {} for {key}", go_type(other))),
    }
}

fn inlined_plugins(list: &Value, only_inlined: bool) -> Result<Vec<PluginConfig>> {
    let plugins = match member(list, "plugins") {
        None if only_inlined => return invalid("`loadOnlyInlinedPlugins` is true, and no 'plugins' key".into()),
        None => return Ok(vec![]),
        Some(Value::Array(plugins)) if plugins.is_empty() => return invalid("no plugins in list".into()),
        Some(Value::Array(plugins)) => plugins,
        Some(other) => return invalid(format!("invalid 'plugins' type {}", go_type(other))),
    };
    let parse = |(index, plugin): (usize, &Value)| {
        // Written once more by libcni before it is read: of `type` and `Type` the one that is behind in order counts.
        PluginConfig::of_value(go_json::normal(plugin.clone()))
            .map_err(|error| error.context(format_args!("failed to parse plugin config {index}")))
    };
    plugins.iter().enumerate().map(parse).collect()
}

/// One JSON object; `null` is one without members.
pub(super) fn parse_object(text: &[u8]) -> Result<Value> {
    match Value::parse(text)? {
        Value::Null => Ok(Value::Object(vec![])),
        value @ Value::Object(_) => Ok(value),
        other => Err(Error::new(Code::DECODE, format!("expected an object, found {}", other.kind()))),
    }
}

/// An object of these members.
pub(super) fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// The member of exactly this key, the last of several; `null` counts as given.
fn member<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    let Value::Object(pairs) = object else { return None };
    pairs.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value)
}

/// The kind of value as libcni's messages name it.
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

fn invalid<T>(problem: String) -> Result<T> {
    Err(Error::new(Code::INVALID_CONFIG, problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

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
            (r#"{"name":"n","disableCheck":"Banana"}"#, "invalid value \"banana\" for disableCheck"),
            (r#"{"name":"n","disableGC":null}"#, "invalid type <nil> for disableGC"),
            (r#"{"name":"n","loadOnlyInlinedPlugins":"x"}"#, "invalid value \"x\" for loadOnlyInlinedPlugins"),
            (r#"{"name":"n","loadOnlyInlinedPlugins":true}"#, "`loadOnlyInlinedPlugins` is true, and no 'plugins' key"),
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
            assert_eq!(problem(text), format!("error parsing configuration list: {expected}"), "{text}");
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
            let error = PluginConfig::parse(format!(r#"{{"type":"x",{key}}}"#).as_bytes()).unwrap_err();
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
            assert_eq!(parse(&format!(r#"{{"name":"n",{keys}}}"#)).unwrap().version, version, "{keys}");
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

    /// libcni reads a plugin in a list after it has written it once more, in order, and one in a file of its own as it is.
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
        // As libcni keeps it: in order, with Go's escapes and whole numbers.
        let plugin = r#"{"capabilities":{"mac":true},"cniVersion":"0.3.1","disableCheck":true,"mtu":1000,"name":"n","type":"bridge","x":"\u003c"}"#;
        assert_eq!(
            String::from_utf8(list.document.clone()).unwrap(),
            format!(r#"{{"cniVersion":"0.3.1","name":"n","plugins":[{plugin}]}}"#)
        );
        assert_eq!((list.name.as_str(), list.version.as_str(), list.disable_check), ("n", "0.3.1", false));
        assert_eq!(NetworkList::parse(list.document.clone()).unwrap(), list);
        let error = NetworkList::of_single(b"{".to_vec()).unwrap_err();
        assert!(error.msg.starts_with("error parsing configuration: EOF while parsing"), "{error}");
    }

    const SINGLE: &str = r#"{"name":"some-net","type":"single"}"#;
    const LIST: &str = r#"{"name":"some-net","plugins":[{"type":"first"}]}"#;

    #[test]
    fn a_list_goes_before_a_single_configuration_of_its_name() {
        for ending in ["conf", "json"] {
            let dir = Scratch::new();
            let single = format!("00-a.{ending}");
            dir.write(&single, SINGLE);
            assert_eq!(kinds(&find(dir.path(), "some-net").unwrap()), ["single"]);
            dir.write("99-z.conflist", LIST);
            assert_eq!(kinds(&find(dir.path(), "some-net").unwrap()), ["first"]);
            dir.write("99-z.conflist", &LIST.replace("some-net", "other"));
            assert_eq!(kinds(&find(dir.path(), "some-net").unwrap()), ["single"], "no list of that name");
        }
    }

    #[test]
    fn only_files_of_the_directory_with_the_three_endings_are_looked_at() {
        let dir = Scratch::new();
        for name in ["a.CONFLIST", "a.conflist.bak", "a.txt", "sub/a.conflist", "dir.conflist/x"] {
            dir.write(name, "not even JSON");
        }
        let at = dir.path().display();
        assert_eq!(find(dir.path(), "n").unwrap_err().to_string(), format!("no net configurations found in {at}"));
        assert_eq!(
            find(&dir.path().join("none"), "n").unwrap_err().to_string(),
            format!("no net configurations found in {at}/none")
        );
        dir.write("b.conflist", LIST);
        assert_eq!(
            find(dir.path(), "n").unwrap_err().to_string(),
            format!("no net configuration with name \"n\" in {at}")
        );
        dir.write(".conflist", &LIST.replace("some-net", "hidden"));
        assert!(find(dir.path(), "hidden").is_ok());
    }

    #[test]
    fn a_broken_file_before_the_match_ends_the_search() {
        let dir = Scratch::new();
        dir.write("50.conflist", LIST);
        dir.write("99.conflist", "");
        assert!(find(dir.path(), "some-net").is_ok(), "what comes after the match is not read");
        dir.write("00.conflist", "");
        let error = find(dir.path(), "some-net").unwrap_err();
        assert_eq!(error.msg, "error parsing configuration list: EOF while parsing a value at line 1 column 0");
        assert_eq!(error.details, format!("the file is {}/00.conflist", dir.path().display()));
        std::os::unix::fs::symlink("/nonexistent", dir.path().join("-.conflist")).unwrap();
        let file = dir.path().join("-.conflist");
        let error = find(dir.path(), "some-net").unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("error reading {0}: open {0}: no such file or directory", file.display())
        );
    }

    #[test]
    fn a_list_in_a_conf_file_is_no_plugin() {
        let dir = Scratch::new();
        dir.write("00.conf", LIST);
        assert_eq!(find(dir.path(), "some-net").unwrap_err().msg, "error parsing configuration: missing 'type'");
    }

    #[test]
    fn plugins_of_the_network_s_directory_come_after_the_inlined_ones() {
        let dir = Scratch::new();
        let load = |keys: &str| {
            dir.write("n.conflist", &format!(r#"{{"name":"some-net"{keys}}}"#));
            find(dir.path(), "some-net").map(|list| kinds(&list).join(" ")).map_err(|error| error.msg.clone())
        };
        let inlined = r#","plugins":[{"type":"first"}]"#;
        assert_eq!(load(""), Err("no plugin configs found".into()));
        assert_eq!(load(inlined), Ok("first".into()), "the directory may be missing");
        dir.write("some-net/20.conf", r#"{"type":"third"}"#);
        dir.write("some-net/10.conf", r#"{"type":"second"}"#);
        dir.write("some-net/30.json", "{");
        assert_eq!(load(""), Ok("second third".into()));
        assert_eq!(load(inlined), Ok("first second third".into()));
        assert_eq!(load(&format!(r#"{inlined},"loadOnlyInlinedPlugins":"TRUE""#)), Ok("first".into()));
        dir.write("some-net/40.conf", "{}");
        assert_eq!(load(inlined), Err("error parsing configuration: missing 'type'".into()));
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_told() {
        let dir = Scratch::new();
        dir.write("n.conflist", LIST);
        dir.write("some-net", "a file where the directory should be");
        let expected = format!(
            "failed to read plugin config files in {0}/some-net: open {0}/some-net: not a directory",
            dir.path().display()
        );
        assert_eq!(find(dir.path(), "some-net").unwrap_err().msg, expected);
        let only_inlined = LIST.replacen('{', r#"{"loadOnlyInlinedPlugins":true,"#, 1);
        dir.write("n.conflist", &only_inlined);
        assert!(find(dir.path(), "some-net").is_ok());
    }

    #[test]
    fn a_single_configuration_has_no_directory() {
        let dir = Scratch::new();
        dir.write("n.conf", SINGLE);
        dir.write("some-net/10.conf", r#"{"type":"second"}"#);
        assert_eq!(kinds(&find(dir.path(), "some-net").unwrap()), ["single"]);
    }

    #[test]
    fn a_name_that_is_a_path_leads_nowhere() {
        let dir = Scratch::new();
        dir.write("plugins/00.conf", r#"{"type":"outside"}"#);
        dir.write("net.d/n.conflist", r#"{"name":"../plugins","plugins":[{"type":"first"}]}"#);
        assert_eq!(kinds(&load(&dir.path().join("net.d/n.conflist")).unwrap()), ["first"]);
    }
}
