//! The configuration that one plugin of a network gets on stdin (specification, section 3,
//! "Deriving request configuration from plugin configuration").
//!
//! `capabilities` is removed, as the specification demands: it is for the runtime and not for the
//! plugin, and only libcni leaves it in. Every other key that is not set here is kept.

use super::list::{NetworkList, PluginConfig};
use crate::cni::conf::ValidAttachment;
use crate::cni::json::Value;
use crate::cni::result::Document;

/// The configuration for ADD, CHECK and DEL: with the previous result, and with those of
/// `capability_args` that the plugin declared to support.
pub fn for_attachment(
    list: &NetworkList,
    plugin: &PluginConfig,
    prev_result: Option<&Document>,
    capability_args: &Value,
) -> Vec<u8> {
    let mut config = named(list, plugin);
    if let Some(result) = prev_result {
        config.set("prevResult", result.to_value());
    }
    if let Value::Object(args) = capability_args {
        let declared = args.iter().filter(|(name, _)| plugin.capabilities.contains(name));
        let args: Vec<_> =
            declared.map(|(name, value)| (name.clone(), value.clone().sorted())).collect();
        if !args.is_empty() {
            config.set("runtimeConfig", Value::Object(args));
        }
    }
    config.to_text().into_bytes()
}

/// The configuration for STATUS. Of a plugin with capabilities it has `runtimeConfig` without any
/// argument: what is missing may come with ADD.
pub fn for_status(list: &NetworkList, plugin: &PluginConfig) -> Vec<u8> {
    let mut config = named(list, plugin);
    if !plugin.capabilities.is_empty() {
        config.set("runtimeConfig", Value::Object(vec![]));
    }
    config.to_text().into_bytes()
}

/// The configuration for GC. `valid` goes under the specification's key and under the key of its
/// first text; if it is unknown both keys are absent, and plugins remove nothing.
pub fn for_gc(
    list: &NetworkList,
    plugin: &PluginConfig,
    valid: Option<&[ValidAttachment]>,
) -> Vec<u8> {
    let mut config = named(list, plugin);
    if let Some(valid) = valid {
        // Built, not read back: a text that cannot be read would count as an empty list.
        let entry = |it: &ValidAttachment| {
            let [id, ifname] = [&it.container_id, &it.ifname].map(Value::text);
            Value::object([("containerID", id), ("ifname", ifname)])
        };
        let entries = Value::Array(valid.iter().map(entry).collect());
        config.set("cni.dev/valid-attachments", entries.clone());
        config.set("cni.dev/attachments", entries);
    }
    config.to_text().into_bytes()
}

/// The plugin's object with the name and the version of the list.
fn named(list: &NetworkList, plugin: &PluginConfig) -> Value {
    let mut config = plugin.value.clone();
    config.remove("capabilities");
    config.set("name", Value::text(&list.name));
    config.set("cniVersion", Value::text(&list.version));
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(plugin: &str) -> NetworkList {
        NetworkList::parse(
            format!(r#"{{"name":"net","cniVersion":"0.4.0","plugins":[{plugin}]}}"#).into_bytes(),
        )
        .unwrap()
    }

    fn derive(plugin: &str, prev_result: Option<&Document>, capability_args: &str) -> String {
        let list = list(plugin);
        let args = Value::parse(capability_args.as_bytes()).unwrap();
        String::from_utf8(for_attachment(&list, &list.plugins[0], prev_result, &args)).unwrap()
    }

    #[test]
    fn name_and_version_are_the_list_s_and_other_keys_stay() {
        let config = derive(
            r#"{"Name":"own","CNIVersion":"9","type":"x","n":9007199254740993,"Capabilities":{"mac":true},"prevResult":{}}"#,
            None,
            "{}",
        );
        assert_eq!(
            config,
            r#"{"n":9007199254740993,"prevResult":{},"type":"x","name":"net","cniVersion":"0.4.0"}"#
        );
    }

    #[test]
    fn the_previous_result_is_written_in_its_own_shape() {
        let value = Value::parse(
            br#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.2.3/24"}]}"#,
        )
        .unwrap();
        let config = derive(
            r#"{"type":"x","prevResult":{"a":1}}"#,
            Some(&Document::parse(&value, "").unwrap()),
            "{}",
        );
        assert!(
            config.ends_with(
                r#""prevResult":{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.1.2.3/24"}],"dns":{}}}"#
            ),
            "{config}"
        );
    }

    #[test]
    fn capabilities_that_are_declared_and_supplied_are_passed() {
        let plugin = r#"{"type":"x","capabilities":{"mac":true,"ips":false,"portMappings":true},"runtimeConfig":{"mac":"user"}}"#;
        let runtime_config = |args: &str| {
            Value::parse(derive(plugin, None, args).as_bytes())
                .unwrap()
                .get("runtimeConfig")
                .unwrap()
                .to_text()
        };
        assert_eq!(
            runtime_config(r#"{"ips":["10.0.0.1"],"portMappings":[{"hostPort":80}],"x":1}"#),
            r#"{"portMappings":[{"hostPort":80}]}"#
        );
        assert_eq!(
            runtime_config(r#"{"ips":["10.0.0.1"]}"#),
            r#"{"mac":"user"}"#,
            "nothing to pass leaves what was there"
        );
        assert!(
            !derive(r#"{"type":"x","capabilities":{"mac":true}}"#, None, "null")
                .contains("runtimeConfig")
        );
    }

    #[test]
    fn status_has_an_empty_runtime_config_and_gc_has_none() {
        let list = list(r#"{"type":"x","capabilities":{"ipRanges":true}}"#);
        let text = |config: Vec<u8>| String::from_utf8(config).unwrap();
        assert_eq!(
            text(for_status(&list, &list.plugins[0])),
            r#"{"type":"x","name":"net","cniVersion":"0.4.0","runtimeConfig":{}}"#
        );
        assert_eq!(
            text(for_gc(&list, &list.plugins[0], None)),
            r#"{"type":"x","name":"net","cniVersion":"0.4.0"}"#
        );
    }

    #[test]
    fn gc_tells_the_valid_attachments_under_both_keys_or_not_at_all() {
        let list = list(r#"{"type":"x"}"#);
        let derive = |valid: Option<&[ValidAttachment]>| {
            String::from_utf8(for_gc(&list, &list.plugins[0], valid)).unwrap()
        };
        let valid = [ValidAttachment { container_id: "a".into(), ifname: "eth0".into() }];
        let head = r#"{"type":"x","name":"net","cniVersion":"0.4.0""#;
        let entries = r#"[{"containerID":"a","ifname":"eth0"}]"#;
        assert_eq!(
            derive(Some(&valid)),
            format!(
                r#"{head},"cni.dev/valid-attachments":{entries},"cni.dev/attachments":{entries}}}"#
            )
        );
        assert_eq!(
            derive(Some(&[])),
            format!(r#"{head},"cni.dev/valid-attachments":[],"cni.dev/attachments":[]}}"#)
        );
        assert_eq!(derive(None), format!("{head}}}"));
        assert_eq!(
            String::from_utf8(for_status(&list, &list.plugins[0])).unwrap(),
            format!("{head}}}")
        );
    }
}
