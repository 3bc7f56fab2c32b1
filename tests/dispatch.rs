//! The name under which the binary is called selects a plugin, the operator's command line, or an
//! error.

use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Instant;

use serde_json::Value;

use crate::support::attachment::skip;
use crate::support::call::{Call, Outcome, Peer, binary};
use crate::support::patience;
use crate::support::peers::peers;
use crate::support::scratch::Scratch;
use crate::support::stdin::with_silent_stdin;

peers! { about_text_of_a_plugin, empty_command_is_no_command }

const PLUGINS: [&str; 5] = ["loopback", "bridge", "ptp", "host-local", "static"];

fn operator(args: &[&str]) -> Call {
    let mut call = Call::new(&Peer::Ours, "cni-multi", "", "");
    call.program = binary();
    call.args = args.iter().map(|arg| (*arg).to_owned()).collect();
    call.env.clear();
    call
}

#[track_caller]
fn assert_is_error_object(outcome: &Outcome) {
    assert_eq!(outcome.status, 1, "{outcome:?}");
    let object = outcome.json();
    assert!(object["code"].as_u64().is_some_and(|code| code > 0), "{outcome:?}");
    assert!(object["msg"].as_str().is_some_and(|msg| !msg.is_empty()), "{outcome:?}");
    assert_eq!(object["cniVersion"], "1.1.0");
}

/// A runtime, which sets CNI_COMMAND, gets an error object, and a person an answer in words.
#[track_caller]
fn assert_is_unknown(outcome: &Outcome, command: &str) {
    if !command.is_empty() {
        return assert_is_error_object(outcome);
    }
    assert_eq!((outcome.status, outcome.stdout.as_str()), (2, ""), "{outcome:?}");
    assert!(outcome.stderr.starts_with("no command or plugin is named "), "{outcome:?}");
}

/// The first two lines that a plugin prints without CNI_COMMAND. nerdctl and Nomad read them.
fn about_text_of_a_plugin(peer: &Peer) {
    for plugin in PLUGINS {
        let outcome = Call::new(peer, plugin, "ADD", "").without("CNI_COMMAND").run();
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""), "{outcome:?}");
        let mut lines = outcome.stderr.lines();
        let first = lines.next().unwrap();
        let version = first
            .strip_prefix(&format!("CNI {plugin} plugin "))
            .unwrap_or_else(|| panic!("{first:?}"));
        if *peer == Peer::Ours {
            let (core, build) =
                semver(version).unwrap_or_else(|| panic!("no semantic version: {version:?}"));
            assert!(core >= [1, 9, 1], "{version:?}");
            assert_eq!(build, concat!("cni-multi.", env!("CARGO_PKG_VERSION")));
        }
        let versions = "0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0";
        assert_eq!(lines.next(), Some(&*format!("CNI protocol versions supported: {versions}")));
        assert_eq!(lines.next(), None);
    }
}

/// The three numbers and the build metadata of a semantic version, with an optional leading `v`.
fn semver(text: &str) -> Option<([u64; 3], &str)> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let (core, build) = text.split_once('+').unwrap_or((text, ""));
    let is_identifier = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    if text.contains('+') && !build.split('.').all(is_identifier) {
        return None;
    }
    let is_number = |part: &&str| *part == "0" || !part.starts_with('0');
    let numbers: Option<Vec<u64>> =
        core.split('.').map(|part| Some(part).filter(is_number)?.parse().ok()).collect();
    Some((numbers?.try_into().ok()?, build))
}

fn empty_command_is_no_command(peer: &Peer) {
    let mut call = Call::new(peer, "host-local", "", "not JSON");
    let about = call.run();
    assert_eq!((about.status, about.stdout.as_str()), (0, ""), "{about:?}");
    assert!(about.stderr.starts_with("CNI host-local plugin "), "{about:?}");
    call.env.clear();
    assert_eq!(call.run().stderr, about.stderr);
}

#[test]
fn list_names_each_plugin_once_and_nothing_else() {
    let listed = operator(&["list"]).run();
    assert_eq!(listed.status, 0, "{listed:?}");
    let names: Vec<&str> = listed.stdout.lines().collect();
    assert!(PLUGINS.iter().all(|plugin| names.contains(plugin)), "{names:?}");
    for name in &names {
        let is_plain = name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        assert!(is_plain, "{name:?} is no file name of a plugin");
        assert_eq!(names.iter().filter(|other| *other == name).count(), 1, "{name:?}, twice");
        let spoken = Call::new(&Peer::Ours, name, "VERSION", "").run().ok();
        let spoken = spoken["supportedVersions"].as_array().unwrap();
        assert!(spoken.contains(&Value::from("1.1.0")), "{name}");
    }
}

#[test]
fn plugin_as_argument_is_the_plugin() {
    for plugin in PLUGINS {
        let by_name = Call::new(&Peer::Ours, plugin, "VERSION", "");
        let mut by_argument = by_name.clone();
        by_argument.program = binary();
        by_argument.args = vec![plugin.to_owned()];
        let (by_name, by_argument) = (by_name.run(), by_argument.run());
        assert_eq!(by_name.stdout, by_argument.stdout);
        assert_eq!((by_name.status, by_argument.status), (0, 0));
    }
    let conf =
        r#"{"cniVersion":"1.0.0","name":"net-1","ipam":{"addresses":[{"address":"10.1.2.3/24"}]}}"#;
    let mut add = Call::new(&Peer::Ours, "static", "ADD", conf);
    let expected = add.run();
    add.program = binary();
    add.args = vec!["static".to_owned()];
    assert_eq!((add.run().stdout, expected.status), (expected.stdout, 0));
}

#[test]
fn plugin_ignores_its_arguments() {
    let mut call = Call::new(&Peer::Ours, "bridge", "VERSION", "");
    let expected = call.run();
    for args in [["--help", "x"], ["list", ""], ["static", "--version"]] {
        call.args = args.map(str::to_owned).to_vec();
        assert_eq!(call.run().stdout, expected.stdout);
    }
}

#[test]
fn name_is_matched_exactly_and_only_the_last_path_element() {
    let dir = Scratch::new();
    std::fs::create_dir(dir.join("bridge")).unwrap();
    for name in
        ["xbridge", "bridge2", "Bridge", "bridge.exe", "bridg", "host_local", "bridge/nothing"]
    {
        let link = dir.join(name);
        symlink(binary(), &link).unwrap();
        for command in ["ADD", "DEL", "VERSION", "NOPE", ""] {
            let conf = r#"{"cniVersion":"1.0.0","name":"net-1"}"#;
            let mut call = Call::new(&Peer::Ours, "bridge", command, conf);
            call.program = link.clone();
            assert_is_unknown(&call.run(), command);
        }
    }
}

#[test]
fn link_in_any_directory_and_of_any_kind_is_the_plugin() {
    let dir = Scratch::new();
    symlink(binary(), dir.join("first")).unwrap();
    symlink("first", dir.join("static")).unwrap();
    // Copied by a child process: a concurrent test could inherit a descriptor of this one, and a
    // file that is open for writing cannot be executed.
    assert!(Command::new("cp").arg(binary()).arg(dir.join("loopback")).status().unwrap().success());
    for name in ["static", "loopback"] {
        let mut call = Call::new(&Peer::Ours, name, "VERSION", "");
        call.program = dir.join(name);
        assert_eq!(call.run().ok()["cniVersion"], "1.1.0");
    }
}

#[test]
fn unknown_plugin_as_argument_is_an_error() {
    for name in ["nothing", "xbridge", "Bridge", ""] {
        for command in ["", "ADD", "VERSION"] {
            let call = operator(&[name]).env("CNI_COMMAND", command);
            assert_is_unknown(&call.run(), command);
        }
    }
}

#[test]
fn version_option_prints_a_semantic_version() {
    let outcome = operator(&["--version"]).run();
    assert_eq!(outcome.status, 0, "{outcome:?}");
    assert!(outcome.stdout.split_whitespace().any(|word| semver(word).is_some()), "{outcome:?}");
    assert!(outcome.stdout.contains(env!("CARGO_PKG_VERSION")), "{outcome:?}");
}

/// Nomad executes every file of the plugin directory, waits three seconds and takes the first word
/// that is a version.
#[test]
fn binary_without_arguments_prints_help_at_once() {
    let start = Instant::now();
    let outcome = with_silent_stdin(&operator(&[]));
    assert!(start.elapsed() < patience(3));
    assert_eq!(outcome.status, 0, "{outcome:?}");
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    assert!(text.to_lowercase().contains("usage"), "{text}");
    assert!(
        text.split_whitespace().any(|word| semver(word).is_some()),
        "no semantic version in {text:?}"
    );
}

/// A minimal container image has nothing but the binary. A development build needs its loader.
#[test]
fn the_static_binary_runs_in_an_empty_root() {
    let linked = Command::new("ldd").arg(binary()).output().unwrap();
    if String::from_utf8_lossy(&linked.stdout).contains("=>") {
        return skip("a static binary in CNI_MULTI");
    }
    let root = Scratch::new();
    // Copied by a child process: a program started meanwhile would inherit a descriptor open for
    // writing.
    let copied = Command::new("cp").arg(binary()).arg(root.join("host-local")).status().unwrap();
    assert!(copied.success());
    let conf = r#"{"cniVersion":"1.0.0","name":"net-1","ipam":{"subnet":"10.1.2.0/24","dataDir":"/leases"}}"#;
    let mut add = Call::new(&Peer::Ours, "host-local", "ADD", conf);
    add.program = "/host-local".into();
    let add = add.wrapped(&["unshare", "-r", "chroot", root.text()].map(str::to_owned)).run();
    assert_eq!(add.ok()["ips"][0]["address"], "10.1.2.2/24");
    assert!(root.join("leases/net-1/10.1.2.2").exists());
}
