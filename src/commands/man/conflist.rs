//! cni.conflist(5): the keys of a configuration list and of each plugin, from the schemas that
//! `cni-multi schema` derives from the plugins' types.

use super::page::{Roff, bold, escaped};
use crate::cni::json::Value;
use crate::commands::schema::{self, type_of};
use crate::registry::PLUGINS;

/// A list that `cni-multi validate` accepts.
const EXAMPLE: &str = r#"{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    { "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
      "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.88.0.0/16" }]],
                "routes": [{ "dst": "0.0.0.0/0" }] } },
    { "type": "portmap", "capabilities": { "portMappings": true } }
  ]
}"#;

/// The keys that every plugin's schema has; they are described once.
const COMMON: [&str; 6] = ["type", "name", "cniVersion", "prevResult", "capabilities", "ipam"];

/// The page.
pub fn page() -> String {
    let list = schema::document(None);
    let mut page = Roff::page("cni.conflist", 5);
    page.section("NAME");
    page.text("cni.conflist - configuration list of a container network");
    page.section("DESCRIPTION");
    page.text(
        "A container runtime takes the first file of /etc/cni/net.d by name. A file that ends in \
         .conflist has a list of plugins, which are called in order; one that ends in .conf or \
         .json has a single plugin.",
    );
    page.paragraph("A key in bold is followed by its type. Required keys are marked.");
    page.section("EXAMPLES");
    page.command(EXAMPLE);
    page.section("KEYS OF A LIST");
    properties(&mut page, &list, &[]);
    page.section("KEYS OF EVERY PLUGIN");
    let keys = [
        ("type", "string, required", "The name of the plugin: a file of the plugin directory."),
        ("capabilities", "object of booleans", "What the runtime passes in runtimeConfig."),
        (
            "ipam",
            "object",
            "In plugins of the group main: the IPAM plugin, by its type, and its keys.",
        ),
    ];
    for (key, kind, text) in keys {
        page.item(&format!("{} ({kind})", bold(key)), text);
    }
    page.section("KEYS OF EACH PLUGIN");
    page.text("Those of an IPAM plugin are keys of ipam.");
    for entry in PLUGINS {
        page.part(&format!("{} ({})", entry.name, entry.kind.as_str()));
        page.text(&[entry.about, "."].concat());
        if let Some(schema) = list.get("$defs").and_then(|all| all.get(entry.name)) {
            properties(&mut page, schema, &COMMON);
        }
    }
    page.section("FILES");
    page.item(&bold("/etc/cni/net.d"), "The usual directory of configurations.");
    page.section("SEE ALSO");
    page.text("cni-multi-validate(1), cni-multi-schema(1), cni-multi-net(1)");
    page.paragraph("The specification: https://www.cni.dev/docs/spec/");
    page.into_text()
}

/// The keys of an object's schema, with those below them.
fn properties(page: &mut Roff, schema: &Value, without: &[&str]) {
    let Some(Value::Object(keys)) = schema.get("properties") else { return };
    let required: Vec<&str> = schema
        .get("required")
        .map_or(&[][..], Value::items)
        .iter()
        .filter_map(Value::as_str)
        .collect();
    for (key, value) in keys.iter().filter(|(key, _)| !without.contains(&key.as_str())) {
        let mark = if required.contains(&key.as_str()) { ", required" } else { "" };
        let purpose = value.get("description").and_then(Value::as_str).unwrap_or_default();
        let text = format!("{purpose}\n{}", limits(value));
        let term = format!("{} ({}{mark})", bold(key), escaped(&type_of(value)));
        page.item(&term, text.trim());
        below(page, value);
    }
}

/// The keys of an object, or of the objects in a list.
fn below(page: &mut Roff, schema: &Value) {
    match (schema.get("properties"), schema.get("items"), schema.get("additionalProperties")) {
        (Some(_), ..) => {
            page.indent();
            properties(page, schema, &[]);
            page.outdent();
        }
        (None, Some(inner), _) | (None, None, Some(inner)) => below(page, inner),
        (None, None, None) => (),
    }
}

/// The words or numbers that are accepted.
fn limits(schema: &Value) -> String {
    let words = schema.get("enum").map_or(&[][..], Value::items);
    if !words.is_empty() {
        let words: Vec<String> = words.iter().map(Value::to_text).collect();
        return words.join(", ");
    }
    let ranges: Vec<&Value> = match schema.get("anyOf") {
        Some(choices) => choices.items().iter().collect(),
        None => vec![schema],
    };
    let ranges = ranges.into_iter().filter_map(|schema| {
        let bound = |key| schema.get(key)?.as_u64();
        let (least, greatest) = (bound("minimum")?, bound("maximum")?);
        Some(if least == greatest { least.to_string() } else { format!("{least} to {greatest}") })
    });
    ranges.collect::<Vec<_>>().join(", ")
}
