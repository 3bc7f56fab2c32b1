//! Any bytes as a network document and as JSON: a value is written as Go would and unchanged when
//! parsed again, and the derived plugin configurations have the network's name.

use cni_multi::cni::json::Value;
use cni_multi::runtime::derive;
use cni_multi::runtime::list::{NetworkList, PluginConfig};

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let Ok(value) = Value::parse(bytes) else { return };
    if !crate::has_fraction(&value) {
        for text in [value.to_text(), value.to_indented_text()] {
            assert_eq!(Value::parse(text.as_bytes()).as_ref(), Ok(&value));
        }
    }
    if let Ok(plugin) = PluginConfig::parse(bytes) {
        let again = PluginConfig::parse(plugin.value.to_text().as_bytes()).expect("what is written is read");
        assert!(again == plugin || crate::has_fraction(&value), "{again:?} is not {plugin:?}");
    }
    for list in [NetworkList::parse(bytes.to_vec()), NetworkList::of_single(bytes.to_vec())].into_iter().flatten() {
        require_derived(&list);
        assert!(crate::has_fraction(&value) || NetworkList::parse(list.document.clone()) == Ok(list));
    }
}

fn require_derived(list: &NetworkList) {
    let arguments = Value::object(vec![("portMappings", Value::Array(vec![])), ("ips", Value::Array(vec![]))]);
    for plugin in &list.plugins {
        let derived = [
            derive::for_attachment(list, plugin, None, &arguments),
            derive::for_status(list, plugin),
            derive::for_gc(list, plugin, Some(&[])),
        ];
        for text in derived {
            let config = Value::parse(&text).expect("what is derived is JSON");
            assert_eq!(config.get("name").and_then(Value::as_str).unwrap_or_default(), list.name);
            assert_eq!(config.get("type").and_then(Value::as_str), Some(plugin.kind.as_str()));
        }
    }
}
