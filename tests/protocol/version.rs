//! The VERSION command, and which commands a configuration's version allows.

use super::{PLUGINS, VERSIONS, assert_error, assert_silent_success, conf, host_local_conf};
use crate::support::call::{Call, Peer};
use crate::support::peers::peers;
use crate::support::scratch::Scratch;

peers! {
    version_names_every_supported_version,
    version_ignores_everything_but_the_command,
    absent_version_is_0_1_0,
    unlisted_version_is_incompatible,
    commands_are_refused_below_their_version,
    commands_are_allowed_from_their_version,
    version_above_all_listed_ones_is_refused,
    unparsable_version_is_a_decoding_error_where_it_is_compared,
}

const VERSION_LINE: &str = concat!(
    r#"{"cniVersion":"1.1.0","supportedVersions":"#,
    r#"["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}"#,
    "\n"
);

const SUPPORTS: &str =
    r#"plugin supports ["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]"#;

/// The commands added after the first version. The reference lacks GET.
fn late_commands(peer: &Peer) -> Vec<(&'static str, &'static str)> {
    let mut commands = vec![("CHECK", "0.4.0"), ("GC", "1.1.0"), ("STATUS", "1.1.0")];
    if *peer == Peer::Ours {
        commands.push(("GET", "0.4.0"));
    }
    commands
}

fn version_names_every_supported_version(peer: &Peer) {
    for plugin in PLUGINS {
        let outcome = Call::new(peer, plugin, "VERSION", r#"{"cniVersion":"1.0.0"}"#).run();
        outcome.assert_is(0, VERSION_LINE, "");
    }
}

fn version_ignores_everything_but_the_command(peer: &Peer) {
    for stdin in ["", "not JSON", r#"{"cniVersion":"9.9.9"}"#, r#"{"name":"te%%st"}"#] {
        let mut call = Call::new(peer, "bridge", "VERSION", stdin);
        call.env.retain(|name, _| name == "CNI_COMMAND");
        let outcome = call.env("CNI_ARGS", "nonsense").env("CNI_NETNS", "/proc/self/ns/net").run();
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, VERSION_LINE), "{outcome:?}");
    }
}

fn absent_version_is_0_1_0(peer: &Peer) {
    let ipam = r#""ipam":{"type":"static","addresses":[{"address":"10.1.2.3/24"}]}"#;
    for version in ["", r#""cniVersion":"","#, r#""cniVersion":null,"#] {
        let conf = format!(r#"{{{version}"name":"net-1",{ipam}}}"#);
        let result = Call::new(peer, "static", "ADD", &conf).run().ok();
        assert_eq!(result["cniVersion"], "0.1.0");
        assert_eq!(result["ip4"]["ip"], "10.1.2.3/24");

        let check = Call::new(peer, "static", "CHECK", &conf).run();
        assert_error(peer, &check, "0.1.0", 1, "config version does not allow CHECK", "");
    }
}

fn unlisted_version_is_incompatible(peer: &Peer) {
    for plugin in PLUGINS {
        for version in
            ["0.4", "1", "1.0.1", "9.9.9", "1.1.0 ", "v1.1.0", "adsfsadf", "1.2.3.4.5", "0.4.0-dev"]
        {
            for command in ["ADD", "DEL"] {
                assert_incompatible(peer, plugin, command, version);
            }
        }
    }
    for (command, version) in
        [("CHECK", "0.4"), ("CHECK", "0.5.0"), ("CHECK", "1.0.5"), ("GC", "1.1"), ("STATUS", "1.1")]
    {
        assert_incompatible(peer, "bridge", command, version);
    }
}

#[track_caller]
fn assert_incompatible(peer: &Peer, plugin: &str, command: &str, version: &str) {
    let outcome = Call::new(peer, plugin, command, conf(version)).run();
    let details = format!(r#"config is "{version}", {SUPPORTS}"#);
    assert_error(peer, &outcome, version, 1, "incompatible CNI versions", &details);
}

fn commands_are_refused_below_their_version(peer: &Peer) {
    for plugin in PLUGINS {
        for (command, first) in late_commands(peer) {
            for version in VERSIONS.into_iter().filter(|version| *version < first) {
                let outcome = Call::new(peer, plugin, command, conf(version)).run();
                let msg = format!("config version does not allow {command}");
                assert_error(peer, &outcome, version, 1, &msg, "");
            }
        }
    }
    // Missing components count as zero.
    let outcome = Call::new(peer, "static", "CHECK", conf("0.3")).run();
    assert_error(peer, &outcome, "0.3", 1, "config version does not allow CHECK", "");
}

fn commands_are_allowed_from_their_version(peer: &Peer) {
    let data = Scratch::new();
    for version in ["0.4.0", "1.0.0", "1.1.0"] {
        let call =
            |command| Call::new(peer, "host-local", command, host_local_conf(version, &data)).run();
        call("ADD").ok();
        assert_silent_success(&call("CHECK"));
        call("DEL").ok();
    }
    for plugin in ["loopback", "host-local", "static"] {
        let status = Call::new(peer, plugin, "STATUS", host_local_conf("1.1.0", &data)).run();
        assert_silent_success(&status);
    }
    for list in ["", r#","cni.dev/valid-attachments":[]"#, r#","cni.dev/valid-attachments":null"#] {
        let conf = host_local_conf("1.1.0", &data);
        let conf = format!("{}{list}}}", conf.strip_suffix('}').unwrap());
        assert_silent_success(&Call::new(peer, "host-local", "GC", conf).run());
    }
}

fn version_above_all_listed_ones_is_refused(peer: &Peer) {
    for command in ["CHECK", "GC", "STATUS"] {
        for version in ["1.1.1", "1.2.0", "9.9.9"] {
            let outcome = Call::new(peer, "bridge", command, conf(version)).run();
            let msg = format!("plugin version does not allow {command}");
            assert_error(peer, &outcome, version, 1, &msg, "");
        }
    }
}

fn unparsable_version_is_a_decoding_error_where_it_is_compared(peer: &Peer) {
    for command in ["CHECK", "GC", "STATUS"] {
        let words = ["adsfsadf", "asdf.", ".asdfas", "asdf.adsf.", "0.", ".."];
        let numbers = ["1.2.3.4.5", "1.2.3.4", "v1.1.0", "1.1.0 "];
        for version in words.into_iter().chain(numbers) {
            let outcome = Call::new(peer, "bridge", command, conf(version)).run();
            let error = outcome.err();
            assert_eq!((outcome.status, error.code), (1, 6), "{version:?}: {outcome:?}");
            let is_long = r#"invalid version "1.2.3.4.5": too many parts"#;
            assert!(version != "1.2.3.4.5" || error.msg.contains(is_long), "{outcome:?}");
        }
    }
}
