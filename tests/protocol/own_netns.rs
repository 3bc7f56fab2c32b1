//! CNI_NETNS must not be the namespace in which the plugin itself runs.
//!
//! The reference checks after the work, so its stdout holds a result and an error, and the changes
//! stay. Ours checks first.

use super::{
    PLUGINS, assert_silent_success, conf, error_text, has_user_namespaces, host_local_conf,
};
use crate::support::call::{Call, Outcome, Peer};
use crate::support::peers::peers;
use crate::support::scratch::Scratch;

peers! {
    add_into_own_namespace_is_refused,
    del_in_own_namespace_is_refused,
    override_allows_it,
    other_values_of_the_override_do_not,
    check_has_no_guard,
    namespace_that_cannot_be_opened_is_another_one,
}

const MSG: &str = "plugin's netns and netns from CNI_NETNS should not be the same";

fn host_local(peer: &Peer, command: &str, data: &Scratch) -> Call {
    Call::new(peer, "host-local", command, host_local_conf("1.1.0", data))
        .env("CNI_NETNS", "/proc/self/ns/net")
}

/// Asserts that stdout is one error object and nothing else.
#[track_caller]
fn assert_refused(outcome: &Outcome) {
    let error = outcome.err();
    assert_eq!((outcome.status, error.code, error.msg.as_str()), (1, 8, MSG), "{outcome:?}");
}

fn add_into_own_namespace_is_refused(peer: &Peer) {
    let data = Scratch::new();
    let outcome = host_local(peer, "ADD", &data).run();
    assert_eq!(outcome.status, 1);
    if *peer == Peer::Ours {
        assert_refused(&outcome);
        assert!(!data.join("net-1/10.1.2.2").exists(), "an address was taken before the refusal");
    } else {
        let error = error_text(peer, "1.1.0", 8, MSG, "");
        assert!(
            outcome.stdout.starts_with("{\n    \"cniVersion\"") && outcome.stdout.ends_with(&error),
            "{outcome:?}"
        );
        assert!(data.join("net-1/10.1.2.2").exists());
    }
}

fn del_in_own_namespace_is_refused(peer: &Peer) {
    let data = Scratch::new();
    host_local(peer, "ADD", &data).env("CNI_NETNS", "/run/netns/nowhere").run().ok();
    assert_refused(&host_local(peer, "DEL", &data).run());
    assert_eq!(
        data.join("net-1/10.1.2.2").exists(),
        *peer == Peer::Ours,
        "ours refuses before it releases"
    );
}

#[test]
fn no_plugin_of_ours_acts_in_its_own_namespace() {
    if !has_user_namespaces() {
        return;
    }
    for plugin in PLUGINS {
        for command in ["ADD", "DEL"] {
            let call = Call::new(&Peer::Ours, plugin, command, conf("1.0.0"))
                .env("CNI_NETNS", "/proc/self/ns/net");
            let outcome = call.wrapped(&["unshare".to_owned(), "-Urn".to_owned()]).run();
            assert_refused(&outcome);
        }
    }
}

fn override_allows_it(peer: &Peer) {
    for value in ["1", "TRUE", "true", "tRuE"] {
        let data = Scratch::new();
        host_local(peer, "ADD", &data).env("CNI_NETNS_OVERRIDE", value).run().ok();
        assert_silent_success(
            &host_local(peer, "DEL", &data).env("CNI_NETNS_OVERRIDE", value).run(),
        );
    }
}

fn other_values_of_the_override_do_not(peer: &Peer) {
    for value in ["", "0", "2", "yes", "false", " 1", "11"] {
        let outcome =
            host_local(peer, "DEL", &Scratch::new()).env("CNI_NETNS_OVERRIDE", value).run();
        assert_refused(&outcome);
    }
}

fn check_has_no_guard(peer: &Peer) {
    let data = Scratch::new();
    host_local(peer, "ADD", &data).env("CNI_NETNS_OVERRIDE", "1").run().ok();
    assert_silent_success(&host_local(peer, "CHECK", &data).run());
    assert_silent_success(&host_local(peer, "STATUS", &data).run());
}

fn namespace_that_cannot_be_opened_is_another_one(peer: &Peer) {
    let data = Scratch::new();
    let unmounted = data.join("netns"); // what an unmounted namespace leaves
    std::fs::write(&unmounted, "").unwrap();
    for netns in
        ["/run/netns/nowhere", "dummy", "/proc/self/ns/nothing", unmounted.to_str().unwrap()]
    {
        let data = Scratch::new();
        host_local(peer, "ADD", &data).env("CNI_NETNS", netns).run().ok();
        assert_silent_success(&host_local(peer, "DEL", &data).env("CNI_NETNS", netns).run());
    }
    let data = Scratch::new();
    host_local(peer, "ADD", &data).env("CNI_NETNS", "/run/netns/nowhere").run().ok();
    assert_silent_success(&host_local(peer, "DEL", &data).env("CNI_NETNS", "").run());
    assert!(!data.join("net-1/10.1.2.2").exists());
}
