//! VERSION of a whole network, which ocicni and podman call when they load one; and the version of
//! a network.

use serde_json::json;

use super::Host;
use crate::support::attachment::with;

/// A plugin's answer to VERSION.
fn speaks(versions: &str) -> String {
    format!(r#"{{"cniVersion":"1.1.0","supportedVersions":[{versions}]}}"#)
}

/// The capabilities, or the error.
fn validate(host: &Host) -> Result<String, String> {
    let capabilities = host.with_runtime(|runtime, list| runtime.validate(list));
    capabilities.map(|names| names.join(" ")).map_err(|error| error.to_string())
}

fn with_versions(version: &str, answers: [&str; 3]) -> Host {
    let host = Host::new(version);
    for (plugin, versions) in ["a", "b", "c"].into_iter().zip(answers) {
        host.answer("VERSION", plugin, &speaks(versions), false);
    }
    host
}

#[test]
fn a_network_is_valid_when_every_plugin_lists_its_version() {
    let host = with_versions("1.0.0", [r#""0.4.0","1.0.0""#, r#""1.0.0""#, r#""1.0.0","1.1.0""#]);
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "a", "capabilities": {"mac": true, "ips": false}},
        {"type": "b", "capabilities": {"portMappings": true, "mac": true}},
        {"type": "c"},
    ]}));
    let declared = validate(&host);
    assert_eq!(declared, Ok("mac portMappings".into()), "of all plugins, each once");
    assert_eq!(host.calls(), "VERSION a, VERSION b, VERSION c");
    let expected = "CNI_ARGS=\nCNI_COMMAND=VERSION\nCNI_CONTAINERID=\nCNI_IFNAME=dummy\nCNI_NETNS=dummy\nCNI_PATH=dummy\n";
    assert_eq!(host.env("VERSION-a"), expected);
    assert_eq!(host.config("VERSION-a"), json!({"cniVersion": "1.1.0"}));
}

#[test]
fn every_plugin_that_cannot_take_part_is_reported() {
    let host = with_versions("1.0.0", [r#""0.4.0""#, r#""1.0.0""#, r#""0.3.1","1.1.0""#]);
    assert_eq!(
        validate(&host),
        Err("plugin a does not support config version \"1.0.0\"; it speaks 0.4.0; also: \
             plugin c does not support config version \"1.0.0\"; it speaks 0.3.1, 1.1.0"
            .into())
    );
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "nope"}, {"type": "b"}]}));
    let missing =
        format!("failed to find plugin \"nope\" in path [{}]", host.0.join("bin").display());
    assert_eq!(validate(&host), Err(missing));
    assert_eq!(host.calls(), "VERSION a, VERSION b, VERSION c, VERSION b");
}

#[test]
fn no_version_is_0_1_0_and_the_oldest_plugins_need_not_say_it() {
    let host = Host::new("");
    host.network(&json!({"name": "net", "plugins": [{"type": "a"}, {"type": "b"}]}));
    host.answer("VERSION", "a", r#"{"cniVersion":"0.2.0"}"#, false);
    host.answer("VERSION", "b", r#"{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}"#, true);
    assert_eq!(validate(&host), Ok(String::new()));
    host.answer("VERSION", "b", r#"{"code":42,"msg":"banana"}"#, true);
    assert_eq!(validate(&host), Err("banana".into()));
    host.answer("VERSION", "b", "", false);
    assert!(validate(&host).unwrap_err().starts_with("decoding version info: "));
}

#[test]
fn plugins_of_this_binary_are_asked_without_being_run() {
    let host = Host::new("");
    for (version, valid) in [("0.2.0", true), ("1.1.0", true), ("1.2.0", false)] {
        let plugins =
            json!([{"type": "bridge", "capabilities": {"mac": true}}, {"type": "portmap"}]);
        host.network(&json!({"cniVersion": version, "name": "net", "plugins": plugins}));
        assert_eq!(validate(&host).is_ok(), valid, "{version}: {:?}", validate(&host));
    }
}

/// A network without a version, with a plugin of 0.1.0 and with a current one.
#[test]
fn a_network_without_a_version_has_results_of_0_1_0() {
    let host = Host::new("");
    let plugin = json!({"type": "a"});
    for version in [json!(null), json!("0.1.0")] {
        let list = json!({"name": "net", "plugins": [plugin]});
        host.network(&with(&list, json!({"cniVersion": version})));
        for answer in [r#"{"ip4":{"ip":"10.0.0.1/24"}}"#, &super::result("10.0.0.1/24")] {
            host.answer("ADD", "a", answer, false);
            let result = host.net("add net /x").ok();
            assert_eq!(result["ip4"], json!({"ip": "10.0.0.1/24"}), "{answer}");
            assert_eq!(host.net("del net /x").status, 0);
        }
    }
    let said = "configuration version \"0.1.0\" does not support the CHECK command\n";
    assert_eq!(host.net("check net /x").stderr, said);
}

#[test]
fn the_version_that_was_chosen_is_the_one_that_plugins_get() {
    let host = Host::new("");
    host.network(&json!({"cniVersions": ["0.3.1", "1.0.0", "9.9.9"], "name": "net", "plugins": [{"type": "a"}]}));
    host.answer_adds();
    assert_eq!(host.net("add net /x").ok()["cniVersion"], "1.0.0");
    assert_eq!(host.config("ADD-a")["cniVersion"], "1.0.0");
    assert_eq!(host.config("ADD-a").get("cniVersions"), None, "a key of the list");
}

#[test]
fn invalid_versions_are_reported() {
    for version in ["garbage", "1.", "1.2.3.4"] {
        let host = Host::new(version);
        for command in ["check net /x", "del net /x"] {
            let outcome = host.net(command);
            assert_eq!((outcome.status, &*outcome.stdout), (1, ""), "{command}: {outcome:?}");
        }
        for command in ["status net", "gc net"] {
            assert_eq!(host.net(command).status, 0, "{command} is of 1.1.0 and later");
        }
        assert_eq!(host.calls(), "", "{version}");
    }
}
