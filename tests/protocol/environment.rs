//! The variables of a call: which are required, which values are valid, and the order of the
//! checks.

use super::{PLUGINS, assert_error, assert_silent_success, conf, host_local_conf, static_conf};
use crate::support::call::{Call, Peer};
use crate::support::peers::peers;
use crate::support::scratch::Scratch;

peers! {
    each_required_variable_is_named_when_missing,
    all_missing_variables_are_named_in_order,
    optional_variables_may_be_missing,
    container_id_characters,
    interface_name_rules,
    invalid_value_is_reported_before_what_is_missing,
    values_are_not_judged_by_commands_that_do_not_need_them,
    unknown_command_is_refused_after_the_configuration_is_judged,
    environment_is_judged_before_stdin,
}

const REQUIRED: [(&str, &[&str]); 5] = [
    ("ADD", &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"]),
    ("CHECK", &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"]),
    ("DEL", &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"]),
    ("GC", &["CNI_PATH"]),
    ("STATUS", &["CNI_PATH"]),
];

/// The variables that each command requires of this peer. GET requires those of ADD; the reference
/// lacks GET.
fn required(peer: &Peer) -> Vec<(&'static str, &'static [&'static str])> {
    let mut required = REQUIRED.to_vec();
    if *peer == Peer::Ours {
        required.push(("GET", REQUIRED[0].1));
    }
    required
}

/// An empty variable counts as missing. The reference requires CNI_PATH as well, although only a
/// delegate needs it.
fn each_required_variable_is_named_when_missing(peer: &Peer) {
    for plugin in PLUGINS {
        for (command, variables) in required(peer) {
            for variable in variables {
                let call = Call::new(peer, plugin, command, conf("1.1.0"));
                let msg = format!("required env variables [{variable}] missing");
                for call in [call.clone().without(variable), call.env(variable, "")] {
                    assert_error(peer, &call.run(), "1.1.0", 4, &msg, "");
                }
            }
        }
    }
}

fn all_missing_variables_are_named_in_order(peer: &Peer) {
    for (command, variables) in required(peer) {
        let mut call = Call::new(peer, "bridge", command, conf("1.1.0"));
        for variable in variables {
            call = call.without(variable);
        }
        let msg = format!("required env variables [{}] missing", variables.join(","));
        assert_error(peer, &call.run(), "1.1.0", 4, &msg, "");
    }
    let three = Call::new(peer, "bridge", "ADD", conf("1.1.0"));
    let outcome = three.without("CNI_IFNAME").without("CNI_PATH").without("CNI_NETNS").run();
    let msg = "required env variables [CNI_NETNS,CNI_IFNAME,CNI_PATH] missing";
    assert_error(peer, &outcome, "1.1.0", 4, msg, "");
}

fn optional_variables_may_be_missing(peer: &Peer) {
    let data = Scratch::new();
    let only =
        |command: &str| Call::new(peer, "host-local", command, host_local_conf("1.1.0", &data));
    only("ADD").without("CNI_ARGS").run().ok();
    assert_silent_success(&only("DEL").without("CNI_NETNS").run());
    let nameless = |command| {
        only(command).without("CNI_CONTAINERID").without("CNI_NETNS").without("CNI_IFNAME")
    };
    assert_silent_success(&nameless("GC").run());
    assert_silent_success(&nameless("STATUS").run());
    nameless("VERSION").without("CNI_PATH").run().ok();
}

fn container_id_characters(peer: &Peer) {
    let call = |command: &str, id: &str| {
        let call = Call::new(peer, "static", command, static_conf("1.1.0"));
        call.env("CNI_CONTAINERID", id).run()
    };
    for id in ["a51debf7e1eb", "1", "A", "a_b.c-d", "a--", &"a".repeat(200)] {
        call("ADD", id).ok();
    }
    let percent = ["some-%%container-id", "1234%%%"];
    let others = ["-a", ".a", "_a", "..", "a b", "a/b", "a:b", "ä", "a\n", " a", "a<b>"];
    for id in percent.into_iter().chain(others) {
        for command in ["ADD", "CHECK", "DEL"] {
            let msg = "invalid characters in containerID";
            assert_error(peer, &call(command, id), "1.1.0", 4, msg, id);
        }
    }
}

fn interface_name_rules(peer: &Peer) {
    const TOO_LONG: (&str, &str) =
        ("interface name is too long", "interface name should be less than 16 characters");
    const DOTS: (&str, &str) = ("interface name is . or ..", "");
    const CHARACTERS: (&str, &str) =
        ("interface name contains / or : or whitespace characters", "");
    const SPACES: &str = "/: \t\n\u{b}\u{85}\u{a0}\u{1680}\u{2003}\u{2028}\u{202f}\u{3000}";

    let call = |command: &str, name: &str| {
        Call::new(peer, "static", command, static_conf("1.1.0")).env("CNI_IFNAME", name).run()
    };
    for name in
        ["eth0", "a", "fifteen-bytes-x", "...", "-", "a%b", "ééééééé", "a\u{200b}b", "a\u{1}b"]
    {
        call("ADD", name).ok();
    }
    let too_long = ["sixteen-bytes-xx", "éééééééé", "this/is too long for one"];
    let too_long = too_long.map(|name| (name.to_owned(), TOO_LONG));
    let others = [(".", DOTS), ("..", DOTS), (" ", CHARACTERS), ("a\n", CHARACTERS)];
    let others = others.map(|(name, error)| (name.to_owned(), error));
    let spaces = SPACES.chars().map(|space| (format!("a{space}b"), CHARACTERS));
    for (name, (msg, details)) in too_long.into_iter().chain(others).chain(spaces) {
        for command in ["ADD", "CHECK", "DEL"] {
            assert_error(peer, &call(command, &name), "1.1.0", 4, msg, details);
        }
    }
}

fn invalid_value_is_reported_before_what_is_missing(peer: &Peer) {
    let add = || Call::new(peer, "static", "ADD", static_conf("1.1.0"));

    let outcome = add().env("CNI_CONTAINERID", "%").without("CNI_PATH").run();
    assert_error(peer, &outcome, "1.1.0", 4, "invalid characters in containerID", "%");

    let outcome = add().without("CNI_CONTAINERID").env("CNI_IFNAME", "a/b").run();
    let msg = "interface name contains / or : or whitespace characters";
    assert_error(peer, &outcome, "1.1.0", 4, msg, "");

    let outcome = add().env("CNI_CONTAINERID", "%").env("CNI_IFNAME", "a/b").run();
    assert_error(peer, &outcome, "1.1.0", 4, "invalid characters in containerID", "%");
}

fn values_are_not_judged_by_commands_that_do_not_need_them(peer: &Peer) {
    let data = Scratch::new();
    let odd = |command| {
        let call = Call::new(peer, "host-local", command, host_local_conf("1.1.0", &data));
        call.env("CNI_CONTAINERID", "%").env("CNI_IFNAME", "a/b").run()
    };
    assert_silent_success(&odd("GC"));
    assert_silent_success(&odd("STATUS"));
    odd("VERSION").ok();
    assert_error(peer, &odd("NOPE"), "1.1.0", 4, "unknown CNI_COMMAND: NOPE", "");
}

fn unknown_command_is_refused_after_the_configuration_is_judged(peer: &Peer) {
    for plugin in PLUGINS {
        for command in ["NOPE", "add", "UPDATE", " ADD", "ADD ", "version", "<GET>"] {
            let msg = format!("unknown CNI_COMMAND: {command}");
            let only_command = Call::new(peer, plugin, command, conf("1.1.0"));
            let only_command =
                only_command.without("CNI_PATH").without("CNI_CONTAINERID").without("CNI_IFNAME");
            assert_error(peer, &only_command.run(), "1.1.0", 4, &msg, "");
        }
        let nameless = Call::new(peer, plugin, "NOPE", r#"{"cniVersion":"1.1.0"}"#).run();
        assert_error(peer, &nameless, "1.1.0", 7, "missing network name", "");
        assert_eq!(Call::new(peer, plugin, "NOPE", "{").run().err().code, 6);
        assert_eq!(Call::new(peer, plugin, "NOPE", "").run().err().code, 6);
    }
    if *peer != Peer::Ours {
        let get = Call::new(peer, "bridge", "GET", conf("1.1.0")).run();
        assert_error(peer, &get, "1.1.0", 4, "unknown CNI_COMMAND: GET", "");
    }
}

fn environment_is_judged_before_stdin(peer: &Peer) {
    let outcome = Call::new(peer, "static", "ADD", "not JSON").without("CNI_IFNAME").run();
    assert_error(peer, &outcome, "1.1.0", 4, "required env variables [CNI_IFNAME] missing", "");
}
