//! GET, of the 0.4.0-dev draft, prints the result of an attachment again, from its state and not
//! from its sandbox.

use super::{PLUGINS, VERSIONS, assert_error, assert_silent_success, host_local_conf, static_conf};
use crate::support::call::{Call, Outcome, Peer};
use crate::support::scratch::Scratch;

/// The configuration with the result of ADD in it, as a runtime sends it.
fn with_previous(conf: &str, result: &str) -> String {
    format!(r#"{},"prevResult":{result}}}"#, conf.strip_suffix('}').unwrap())
}

fn call(plugin: &str, command: &str, conf: &str) -> Outcome {
    Call::new(&Peer::Ours, plugin, command, conf).run()
}

#[test]
fn get_prints_the_result_of_a_known_attachment_again() {
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let data = Scratch::new();
        let conf = host_local_conf(version, &data);
        let added = call("host-local", "ADD", &conf);
        added.ok();
        for plugin in ["host-local", "bridge", "ptp"] {
            let got = call(plugin, "GET", &with_previous(&conf, &added.stdout));
            assert_eq!((got.status, &got.stdout), (0, &added.stdout), "{plugin}: {got:?}");
        }
    }
}

/// Before ADD and after DEL, of another interface, and without the result of ADD: a runtime that
/// knows of an ADD sends it (000, GET).
#[test]
fn get_of_an_unknown_attachment_is_error_3() {
    let data = Scratch::new();
    let conf = host_local_conf("1.1.0", &data);
    let result = r#"{"cniVersion":"1.1.0","ips":[{"address":"10.1.2.2/24"}]}"#;
    let known = with_previous(&conf, result);
    let assert_unknown = |plugin: &str, got: Outcome| {
        assert_eq!((got.status, got.err().code), (1, 3), "{plugin}: {got:?}");
        assert_eq!(got.json()["cniVersion"], "1.1.0");
    };
    let get_known = || {
        ["host-local", "bridge", "ptp"]
            .iter()
            .for_each(|plugin| assert_unknown(plugin, call(plugin, "GET", &known)))
    };
    get_known();
    call("host-local", "ADD", &conf).ok();
    assert_eq!(call("host-local", "GET", &known).status, 0);
    PLUGINS.iter().for_each(|plugin| assert_unknown(plugin, call(plugin, "GET", &conf)));
    let other = Call::new(&Peer::Ours, "host-local", "GET", &known).env("CNI_IFNAME", "eth1");
    assert_unknown("another interface", other.run());
    assert_silent_success(&call("host-local", "DEL", &known));
    get_known();
}

/// GET does not inspect the sandbox (000), and these plugins have no other state.
#[test]
fn get_of_a_plugin_without_state_prints_the_previous_result() {
    let result =
        r#"{"interfaces":[{"name":"eth0"}],"ips":[{"address":"10.1.2.3/24","interface":0}]}"#;
    let conf = with_previous(&static_conf("1.0.0"), result);
    for plugin in ["loopback", "static"] {
        let got = call(plugin, "GET", &conf).ok();
        assert_eq!(got["cniVersion"], "1.0.0", "{plugin}");
        assert_eq!(got["ips"][0]["address"], "10.1.2.3/24", "{plugin}");
    }
}

#[test]
fn get_is_refused_below_0_4_0() {
    for version in VERSIONS.into_iter().filter(|version| *version < "0.4.0") {
        let got = call("host-local", "GET", &host_local_conf(version, &Scratch::new()));
        assert_error(&Peer::Ours, &got, version, 1, "config version does not allow GET", "");
    }
}

#[test]
fn get_changes_nothing() {
    let data = Scratch::new();
    let conf = host_local_conf("1.1.0", &data);
    let result = call("host-local", "ADD", &conf).stdout;
    let files = || {
        let entries =
            std::fs::read_dir(data.join("net-1")).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> =
            entries.map(|path| (path.clone(), std::fs::read(path).unwrap_or_default())).collect();
        files.sort();
        files
    };
    let before = files();
    call("bridge", "GET", &with_previous(&conf, &result)).ok();
    assert_eq!(files(), before);
}
