//! `prevResult` is decoded in the family of the configuration's version, and passed on by plugins
//! that add nothing.

use serde_json::Value;

use super::{VERSIONS, assert_silent_success, has_user_namespaces, in_own_namespace, static_conf};
use crate::support::call::{Call, Outcome, Peer};
use crate::support::peers::peers;

peers! {
    previous_result_of_another_family_is_refused,
    previous_result_of_the_same_family_is_converted,
    previous_result_that_is_no_object_is_refused,
    null_among_the_entries_is_refused_with_its_place,
    del_ignores_an_unreadable_previous_result,
    check_wants_a_previous_result,
}

fn loopback(peer: &Peer, version: &str, previous: &str) -> Outcome {
    let conf = format!(r#"{{"cniVersion":"{version}","name":"net-1","prevResult":{previous}}}"#);
    in_own_namespace(Call::new(peer, "loopback", "ADD", conf)).run()
}

/// A previous result, with or without its version.
fn previous(family: &str, version: Option<&str>) -> String {
    let version = version.map_or(String::new(), |version| format!(r#""cniVersion":"{version}","#));
    let address = match family {
        "0.2.0" => r#""ip4":{"ip":"10.1.2.3/24"}"#,
        "0.4.0" => r#""ips":[{"version":"4","address":"10.1.2.3/24"}]"#,
        _ => r#""ips":[{"version":"4","address":"10.1.2.3/24"}]"#,
    };
    format!("{{{version}{address}}}")
}

fn family(version: &str) -> &'static str {
    match version {
        "" | "0.1.0" | "0.2.0" => "0.2.0",
        "0.3.0" | "0.3.1" | "0.4.0" => "0.4.0",
        _ => "1.1.0",
    }
}

fn the_address(result: &Value) -> &Value {
    if result["ip4"].is_object() { &result["ip4"]["ip"] } else { &result["ips"][0]["address"] }
}

/// As in the reference: its meaning is unknown.
fn previous_result_of_another_family_is_refused(peer: &Peer) {
    if !has_user_namespaces() {
        return;
    }
    for version in VERSIONS {
        let supports = match family(version) {
            "0.2.0" => "[ 0.1.0 0.2.0]",
            "0.4.0" => "[0.3.0 0.3.1 0.4.0]",
            _ => "[1.0.0 1.1.0]",
        };
        for other in VERSIONS
            .into_iter()
            .chain(["5678.456", "1.2.0"])
            .filter(|other| family(other) != family(version) || !VERSIONS.contains(other))
        {
            let outcome = loopback(peer, version, &previous(family(other), Some(other)));
            let error = outcome.err();
            assert_eq!(outcome.status, 1);
            if *peer == Peer::Ours {
                // Ours has a code for an undecodable configuration, and says where.
                outcome.fails(6, "prevResult");
                assert!(error.text().contains(other), "{outcome:?}");
            } else {
                let msg = format!(
                    r#"failed to parse prevResult: could not parse prevResult: result type supports {supports} but unmarshalled CNIVersion is "{other}""#
                );
                assert_eq!((error.code, error.msg), (999, msg));
            }
        }
    }
}

fn previous_result_of_the_same_family_is_converted(peer: &Peer) {
    if !has_user_namespaces() {
        return;
    }
    for version in VERSIONS {
        // Without a version it has the one of the configuration.
        let of_family = VERSIONS.into_iter().filter(|other| family(other) == family(version));
        for other in of_family.map(Some).chain([None]) {
            let result = loopback(peer, version, &previous(family(version), other)).ok();
            assert_eq!(result["cniVersion"], version);
            assert_eq!(the_address(&result), "10.1.2.3/24");
        }
    }
}

fn previous_result_that_is_no_object_is_refused(peer: &Peer) {
    if !has_user_namespaces() {
        return;
    }
    for previous in ["5", "[]", r#""text""#, "true"] {
        let outcome = loopback(peer, "1.1.0", previous);
        assert_eq!((outcome.status, outcome.err().msg.is_empty()), (1, false), "{outcome:?}");
        if *peer == Peer::Ours {
            outcome.fails(6, "prevResult");
        }
    }
}

/// DEL uses a previous result and never fails because of one. The reference's `static` and
/// `loopback` ignore it.
fn del_ignores_an_unreadable_previous_result(peer: &Peer) {
    if !has_user_namespaces() {
        return;
    }
    let plugins: &[&str] = if *peer == Peer::Ours {
        &["static", "loopback", "bridge", "ptp"]
    } else {
        &["static", "loopback"]
    };
    let no_list = r#"{"cniVersion":"0.4.0","ips":5}"#;
    for previous in [no_list, r#"{"cniVersion":"0.2.0"}"#, r#"{"ips":[{"address":"x"}]}"#] {
        let conf = format!(
            r#"{{"cniVersion":"1.1.0","name":"net-1","prevResult":{previous},"ipam":{{"type":"static"}}}}"#
        );
        for plugin in plugins {
            let del = in_own_namespace(Call::new(peer, plugin, "DEL", &conf)).without("CNI_NETNS");
            assert_silent_success(&del.run());
        }
    }
}

fn check_wants_a_previous_result(peer: &Peer) {
    let outcome = Call::new(peer, "static", "CHECK", static_conf("1.1.0")).run();
    assert_eq!(outcome.status, 1);
    match peer {
        Peer::Ours => outcome.fails(7, "prevResult"),
        Peer::Reference(_) => {
            let error = outcome.fails(999, "");
            assert_eq!(error.msg, "Required prevResult missing");
            error
        }
    };
}

/// The reference crashes, or takes it for an entry without keys.
fn null_among_the_entries_is_refused_with_its_place(peer: &Peer) {
    if *peer != Peer::Ours || !has_user_namespaces() {
        return;
    }
    for (version, previous, place) in [
        ("1.1.0", r#"{"interfaces":[null]}"#, "interfaces[0]"),
        ("1.1.0", r#"{"ips":[{"address":"10.1.2.3/24"},null]}"#, "ips[1]"),
        ("1.1.0", r#"{"routes":[null]}"#, "routes[0]"),
        ("0.4.0", r#"{"interfaces":[null]}"#, "interfaces[0]"),
        ("0.4.0", r#"{"ips":[null]}"#, "ips[0]"),
        ("0.4.0", r#"{"routes":[null]}"#, "routes[0]"),
        ("0.2.0", r#"{"ip4":{"ip":"10.1.2.3/24","routes":[null]}}"#, "ip4.routes[0]"),
    ] {
        let error = loopback(peer, version, previous).err();
        let text = error.text();
        assert_eq!(error.code, 6, "{version} {previous}: {text}");
        assert!(text.contains(place) && text.contains("null"), "{version} {previous}: {text}");
    }
}
