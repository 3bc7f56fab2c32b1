//! `cni-multi schema`: its output is valid JSON Schema, has the keys that the plugins describe, and
//! accepts the examples of the pages. The validator is an independent one,
//! `python3-jsonschema`.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use cni_multi::registry::PLUGINS;
use serde_json::{Value, json};

use crate::docs::{Page, plugins};
use crate::support::attachment::{skip, with};
use crate::support::call::{binary, farm};
use crate::support::scratch::Scratch;
use crate::support::table::cells;

/// Reads `[[schema, document], …]` and prints the first error of each document, null for a valid
/// one. To check a schema takes longer than to check a document.
const VALIDATOR: &str = "
import json, sys
from jsonschema import Draft202012Validator as Validator
validators = {}
def validator_of(schema):
    text = json.dumps(schema)
    if text not in validators:
        Validator.check_schema(schema)
        validators[text] = Validator(schema)
    return validators[text]
def problem(schema, document):
    error = next(validator_of(schema).iter_errors(document), None)
    return error and '/'.join(map(str, error.absolute_path)) + ': ' + error.message
print(json.dumps([problem(*pair) for pair in json.load(sys.stdin)]))
";

fn schema(args: &[&str]) -> Value {
    let output = Command::new(binary()).arg("schema").args(args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The first error of each document against its schema; None, after a skip, without a validator.
fn problems(pairs: &[(Value, Value)]) -> Option<Vec<Option<String>>> {
    let is_there = Command::new("python3")
        .args(["-c", "import jsonschema"])
        .output()
        .is_ok_and(|o| o.status.success());
    if !is_there {
        skip("python3-jsonschema");
        return None;
    }
    let mut child = Command::new("python3")
        .args(["-c", VALIDATOR])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(json!(pairs).to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// The network configurations of all pages, each with its page and line.
fn examples() -> Vec<(String, Value)> {
    let of_page = |page: Page| {
        let blocks = page.blocks().into_iter().filter(|block| block.is_network());
        blocks
            .map(|block| {
                (
                    format!("{}:{}", page.path, block.line),
                    serde_json::from_str(&block.text).unwrap(),
                )
            })
            .collect()
    };
    Page::all().into_iter().flat_map::<Vec<_>, _>(of_page).collect()
}

/// By the schemas, and by `cni-multi validate`.
#[test]
fn the_examples_of_the_pages_are_taken() {
    let list = schema(&[]);
    let dir = Scratch::new();
    let file = dir.join("example.conflist");
    let mut pairs = vec![];
    let mut places = vec![];
    for (place, network) in examples() {
        pairs.push((list.clone(), network.clone()));
        places.push(place.clone());
        fs::write(&file, network.to_string()).unwrap();
        let mut validate = Command::new(binary());
        validate.args(["validate", "--strict", "--plugin-path", farm().to_str().unwrap()]);
        let output = validate.arg(&file).output().unwrap();
        assert!(output.status.success(), "{place}\n{}", String::from_utf8_lossy(&output.stdout));
        for plugin in network["plugins"].as_array().unwrap() {
            pairs.push((schema(&[plugin["type"].as_str().unwrap()]), plugin.clone()));
            places.push(format!("{place} {plugin}"));
        }
    }
    assert!(pairs.len() > 20, "there are examples");
    let Some(problems) = problems(&pairs) else { return };
    for (place, problem) in places.iter().zip(problems) {
        assert_eq!(problem, None, "{place}");
    }
}

/// A change of a plugin bridge, and the path of the mistake.
const MISTAKES: &str = r#"
{"mtu": "1500"} | mtu:
{"vlan": 4095} | vlan:
{"mtu": 65536} | mtu:
{"isGateway": 1} | isGateway:
{"ipMasqBackend": "ebtables"} | ipMasqBackend:
{"vlanTrunk": [{"id": 0}]} | vlanTrunk/0/id:
{"capabilities": {"mac": 1}} | capabilities/mac:
{"ipam": {"ranges": [[{"subnet": 5}]]}} | ipam/ranges/0/0/subnet:
{"ipam": {"routes": [{"gw": "10.1.0.1"}]}} | ipam/routes/0:
{"ipam": {"type": "static", "addresses": {}}} | ipam/addresses:
{"dns": {"search": "a"}} | dns/search:
{"type": null} | :
"#;

/// Each mistake is rejected with its path, by the schema of the list and by that of the plugin.
#[test]
fn mistakes_are_refused_with_their_place() {
    let whole = json!({"type": "bridge", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}});
    let bridge = |change: &str| with(&whole, serde_json::from_str(change).unwrap());
    let cases: Vec<(Value, &str)> =
        cells(MISTAKES).into_iter().map(|[change, path]| (bridge(change), path)).collect();
    let fine = bridge(
        r#"{"mtu": 0, "vlan": 4094, "unknown": {"key": 1}, "ipam": {"type": "calico-ipam", "ranges": 3}}"#,
    );
    let in_list = |plugin: &Value| json!({"cniVersion": "1.1.0", "name": "n", "plugins": [plugin]});
    let (plugin, list) = (schema(&["bridge"]), schema(&[]));
    let pairs: Vec<(Value, Value)> = cases
        .iter()
        .flat_map(|(case, _)| [(plugin.clone(), case.clone()), (list.clone(), in_list(case))])
        .chain([(plugin.clone(), fine.clone()), (list.clone(), in_list(&fine))])
        .collect();
    let Some(problems) = problems(&pairs) else { return };
    for ((case, path), found) in cases.iter().zip(problems.chunks(2)) {
        assert!(
            found[0].as_ref().is_some_and(|problem| problem.starts_with(path)),
            "{case}: {found:?}"
        );
        let in_list = format!("plugins/0{}{path}", if path.starts_with(':') { "" } else { "/" });
        assert!(
            found[1].as_ref().is_some_and(|problem| problem.starts_with(&in_list)),
            "{case}: {found:?}"
        );
    }
    assert_eq!(problems[problems.len() - 2..], [None, None], "{fine}");
}

/// A list without its version, and whether it is valid.
const LISTS: &str = r#"
{"name": null, "cniVersion": "1.1.0", "plugins": [{"type": "ptp"}]} | no
{"name": "../x", "plugins": [{"type": "ptp"}]} | no
{"plugins": []} | no
{"plugins": [{}]} | no
{"cniVersion": "1.1", "plugins": [{"type": "ptp"}]} | no
{"disableCheck": "yes", "plugins": [{"type": "ptp"}]} | no
{"disableCheck": "true", "cniVersions": ["2.0.0"], "plugins": [{"type": "loopback"}]} | yes
{"plugins": [{"type": "of-others", "mtu": "any"}], "own": 1} | yes
{} | yes
{"cniVersion": "", "plugins": [{"type": "loopback", "ipam": {}}]} | yes
{"plugins": [{"type": "ipvlan"}]} | yes
{"plugins": [{"type": "ptp"}]} | no
{"plugins": [{"type": "dummy", "ipam": {}}]} | no
{"plugins": [{"type": "vlan", "ipam": {"type": "x"}}]} | no
{"plugins": [{"type": "vlan", "master": "eth0", "ipam": {"type": "x"}}]} | yes
{"plugins": [{"type": "vrf"}]} | no
{"plugins": [{"type": "sbr", "table": 0}]} | no
{"plugins": [{"type": "sbr", "table": 4294967296}]} | no
{"plugins": [{"type": "sbr", "table": 253}]} | no
{"plugins": [{"type": "sbr", "table": 252}]} | yes
{"plugins": [{"type": "vrf", "vrfname": "red", "table": 255}]} | no
{"plugins": [{"type": "vrf", "vrfname": "red", "table": 256}]} | yes
{"plugins": [{"type": "vrf", "vrfname": "red", "table": 0}]} | yes
{"plugins": [{"type": "tuning", "mtu": 2147483648}]} | no
{"plugins": [{"type": "tuning", "mtu": 2147483647}]} | yes
{"plugins": [{"type": "macvlan", "mtu": 67}]} | no
{"plugins": [{"type": "macvlan", "mtu": 0}]} | yes
{"plugins": [{"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{}]]}}]} | no
{"plugins": [{"type": "bridge", "ipam": {"type": "static", "addresses": [{}]}}]} | no
{"plugins": [{"type": "portmap", "runtimeConfig": {"portMappings": [{"protocol": "TCP"}]}}]} | yes
"#;

#[test]
fn other_mistakes_of_lists_are_refused() {
    let list = schema(&[]);
    let named = |[keys, _]: &[&str; 2]| {
        (list.clone(), with(&json!({"name": "n"}), serde_json::from_str(keys).unwrap()))
    };
    let cases = cells(LISTS);
    let Some(problems) = problems(&cases.iter().map(named).collect::<Vec<_>>()) else { return };
    for ([keys, is_fine], problem) in cases.into_iter().zip(problems) {
        assert_eq!(problem.is_none(), is_fine == "yes", "{keys}: {problem:?}");
    }
}

/// A default is one that the key accepts, and each key refuses a value that fits no type.
#[test]
fn every_key_accepts_its_default_and_refuses_something() {
    let mut pairs = vec![];
    for [name, ..] in plugins() {
        let schema = schema(&[&name]);
        for (key, of_key) in schema["properties"].as_object().unwrap() {
            let default = of_key.get("default").map(|default| (of_key.clone(), default.clone()));
            let wrong = (schema.clone(), json!({"type": name, key.as_str(): -0.5}));
            pairs.extend(default.into_iter().chain((key != "type").then_some(wrong)));
        }
    }
    let Some(problems) = problems(&pairs) else { return };
    for ((_, document), problem) in pairs.iter().zip(problems) {
        assert_eq!(problem.is_some(), document["type"].is_string(), "{document}: {problem:?}");
    }
}

/// Collects every path of a schema, `a`, `a.b` and `a[].b`, with its type, as the rows have them.
fn paths(schema: &Value, path: &str, found: &mut BTreeMap<String, String>) {
    let (mut inner, mut within) = (schema, path.to_owned());
    while let Some(items) = inner.get("items") {
        (inner, within) = (items, within + "[]");
    }
    let (kind, items) = (&schema["type"], &schema["items"]);
    let kind = match kind.as_str() {
        Some("array") if items["type"] == "array" => "list of lists",
        Some("array") if items["type"] == "string" => "list of strings",
        Some("array") => "list",
        Some(kind) => kind,
        None if kind.is_array() => "integer or string",
        None if schema.get("enum").or(schema.get("anyOf")).is_some() => "string",
        None => "any",
    };
    found.insert(path.to_owned(), kind.to_owned());
    for (key, schema) in inner.get("properties").and_then(Value::as_object).into_iter().flatten() {
        paths(
            schema,
            &if within.is_empty() { key.clone() } else { format!("{within}.{key}") },
            found,
        );
    }
}

/// Whether there is a row for this path: its own, or one for a whole object above it.
fn is_documented(path: &str, rows: &BTreeMap<&str, &str>) -> bool {
    let steps = path.match_indices(['.', '[']).map(|(at, _)| &path[..at]);
    steps.chain([path]).any(|path| rows.contains_key(path))
}

/// The rows and the schema, which is what the types decode, have the same keys of the same types.
#[test]
fn a_schema_has_the_keys_of_the_rows_and_no_other() {
    for entry in PLUGINS {
        let mut schema = schema(&[entry.name]);
        // The keys that every object may have. Keys below `ipam` have the rows of the IPAM plugin.
        for common in ["cniVersion", "name", "type", "prevResult", "capabilities"] {
            assert!(
                schema["properties"].as_object_mut().unwrap().remove(common).is_some(),
                "{} {common}",
                entry.name
            );
        }
        let mut of_schema = BTreeMap::new();
        paths(&schema, "", &mut of_schema);
        let rows = entry.rows().filter(|row| !row.starts_with("CNI_ARGS"));
        let cells = |row: &'static str| {
            let (key, rest) = row.split_once(" | ").unwrap();
            (key, rest.split_once(" | ").unwrap().0)
        };
        let rows: BTreeMap<&str, &str> = rows.map(cells).collect();
        for (key, kind) in &rows {
            let kind = match *kind {
                "address" | "path" | "subnet" => "string",
                "list of addresses" => "list of strings",
                kind => kind,
            };
            let found = of_schema.get(*key).map(String::as_str);
            assert!(found == Some(kind) || found == Some("any"), "{} {key}: {found:?}", entry.name);
        }
        let is_leaf = |path: &&String| {
            !of_schema.keys().any(|other| {
                other.starts_with(&format!("{path}.")) || other.starts_with(&format!("{path}[]"))
            })
        };
        let missing: Vec<_> = of_schema
            .keys()
            .filter(is_leaf)
            .filter(|path| !path.is_empty() && !is_documented(path, &rows))
            .collect();
        assert!(missing.is_empty(), "{} has no row for {missing:?}", entry.name);
    }
}

#[test]
fn a_plugin_that_is_none_has_no_schema() {
    let output = Command::new(binary()).args(["schema", "brigde"]).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &b""[..]));
    assert!(String::from_utf8_lossy(&output.stderr).contains("\"brigde\""), "{output:?}");
}
