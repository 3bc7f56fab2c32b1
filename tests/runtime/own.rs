//! Compiled-in plugins, and programs with their names.

use serde_json::json;

use super::{Host, assert_silent};

#[test]
fn a_lone_binary_is_its_own_plugins() {
    let host = Host::new("1.0.0");
    let static_ip = json!({"type": "static", "ipam": {"type": "static", "addresses": [{"address": "10.5.0.2/24"}]}});
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [static_ip]}));
    for call in
        [host.call("add net /nonexistent"), host.call("add net /nonexistent").without("CNI_PATH")]
    {
        assert_eq!(call.run().ok()["ips"][0]["address"], "10.5.0.2/24");
    }
    let wrong = json!({"type": "static", "ipam": {"type": "static", "addresses": [{"address": "10.5.0.2/240"}]}});
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [wrong]}));
    let outcome = host.net("add net /nonexistent -i other");
    assert!(
        outcome.status == 1 && outcome.stderr.starts_with("plugin type=\"static\" failed (add): "),
        "{outcome:?}"
    );
    assert!(outcome.stdout.is_empty() && outcome.stderr.contains("10.5.0.2/240"), "{outcome:?}");
}

#[test]
fn a_file_of_a_compiled_in_plugin_s_name_is_run_in_its_place() {
    let host = Host::new("1.1.0");
    host.plugin("bridge");
    host.network(&json!({"cniVersion": "1.1.0", "name": "net", "plugins": [{"type": "bridge"}]}));
    assert_silent(&host.net("status net"));
    assert_eq!(host.calls(), "STATUS bridge");
}
