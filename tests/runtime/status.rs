//! STATUS of a whole network.

use std::fs;

use super::{Host, assert_failed, assert_silent};

#[test]
fn status_stops_at_the_first_plugin_that_is_not_ready() {
    let host = Host::new("1.1.0");
    fs::write(host.0.join("STATUS-a.stderr"), "words for people\n").unwrap();
    host.net("status net").assert_is(0, "", "words for people\n");
    assert_eq!(host.calls(), "STATUS a, STATUS b, STATUS c");
    fs::remove_file(host.0.join("STATUS-a.stderr")).unwrap();
    host.answer("STATUS", "b", r#"{"code":50,"msg":"not ready"}"#, true);
    let reporter = "reported by plugin type=\"b\" name=\"own\"";
    assert_failed(&host.net("status net"), "not ready", reporter);
    assert_eq!(host.calls(), "STATUS a, STATUS b");
    let env = "CNI_ARGS=\nCNI_COMMAND=STATUS\nCNI_CONTAINERID=\nCNI_IFNAME=\nCNI_NETNS=\n";
    assert!(host.env("STATUS-a").starts_with(env));

    let older = Host::new("1.0.0");
    assert_silent(&older.net("status net"));
    assert_eq!(older.calls(), "", "there is no such question");
}

#[test]
fn status_of_a_plugin_that_is_missing_is_an_error() {
    let host = Host::new("1.1.0");
    fs::remove_file(host.0.join("bin/b")).unwrap();
    let missing = format!("failed to find plugin \"b\" in path [{}]", host.0.join("bin").display());
    let details = "reported by plugin type=\"b\" name=\"own\"; there are a, bandwidth, bond, bridge, c, cluster-local, dhcp, dummy, \
                   firewall, flannel and 16 more";
    assert_failed(&host.net("status net"), &missing, details);
    assert_eq!(host.calls(), "STATUS a");
    assert_eq!(
        host.config("STATUS-a"),
        serde_json::json!({"type": "a", "name": "net", "cniVersion": "1.1.0", "runtimeConfig": {}})
    );
}
