//! Deliberate differences of every call from the reference.

use serde_json::{Value, json};

use super::{FAILED, OK, differs};
use crate::plugins::main::bridge::failed_add;
use crate::plugins::main::ptp::failing;
use crate::support::attachment::with;
use crate::support::failed_add::{Case, fail};
use crate::support::networks::bridge::{self, static_ipam};
use crate::support::networks::ptp;
use crate::support::networks::stacked::MACVLAN;
use crate::support::snapshot::Watch;

/// After a failed ADD the reference leaves links, addresses and rules until DEL; ours leaves
/// nothing.
#[test]
fn failed_adds_leave_nothing() {
    let leaves =
        |cases: Vec<Case>| cases.into_iter().filter(|case| case.reference_leaves_something);
    for case in leaves(failed_add::cases()) {
        differs("bridge", true, false, |lab| fail(lab, &bridge::conf(), &case).0.is_empty());
    }
    for case in leaves(failing()) {
        differs("ptp", true, false, |lab| fail(lab, &ptp::conf(), &case).0.is_empty());
    }
}

/// The result cannot be expressed in the configuration's version: the reference notices after all
/// changes, and leaves them.
#[test]
fn result_without_addresses_fails_old_versions_and_is_undone() {
    differs("bridge", true, false, |lab| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let outcome = lab
            .attach(
                &container,
                &with(&bridge::conf(), json!({"cniVersion": "0.2.0", "ipam": null})),
            )
            .try_add();
        assert_eq!(outcome.status, FAILED);
        before.changes().is_empty()
    });
}

/// CNI_NETNS is the plugin's own namespace: the reference notices after ADD, prints a result and an
/// error, and leaves all changes.
#[test]
fn the_host_s_own_namespace_is_refused_before_anything_is_done() {
    differs("bridge", (true, true), (false, false), |lab| {
        let before = Watch::start(lab, &[]);
        let conf = with(&bridge::conf(), json!({"cniVersion": "1.0.0", "ipam": null}));
        let outcome =
            lab.attach(&lab.container(), &conf).netns(Some("/proc/self/ns/net")).try_add();
        assert_eq!(outcome.status, FAILED);
        let one_document =
            serde_json::from_str::<Value>(&outcome.stdout).is_ok_and(|error| error["code"] == 8);
        (one_document, before.changes().is_empty())
    });
}

#[test]
fn a_late_del_leaves_the_container_that_has_the_path_now() {
    differs("loopback", "UNKNOWN".to_owned(), "DOWN".to_owned(), |lab| {
        let (one, other) = (lab.container(), lab.container());
        let conf = json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"});
        let first = lab.attach(&one, &conf).ifname("lo");
        first.add();
        one.go_stale();
        lab.host.sh(&format!("mount --bind {} {}", other.netns, one.netns));
        lab.attach(&other, &conf).ifname("lo").netns(Some(&one.netns)).add();
        first.del();
        other.link("lo").unwrap()["operstate"].as_str().unwrap().to_owned()
    });
}

#[test]
fn del_removes_the_interface_that_add_made() {
    differs("macvlan", [false, true], [true, false], |lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &MACVLAN.address("10.10.0.7/24"));
        attachment.add();
        container.sh("ip link set eth0 down; ip link set eth0 name other");
        container
            .sh("ip link add link lo name eth0 type macvlan 2>/dev/null || ip link add eth0 type veth peer name end");
        attachment.del();
        ["other", "eth0"].map(|name| container.link(name).is_some())
    });
}

/// The reference answers a null in vlanTrunk with a Go panic.
#[test]
fn a_null_in_a_list_is_no_crash() {
    differs("bridge", true, false, |lab| {
        let outcome = lab
            .attach(&lab.container(), &with(&bridge::conf(), json!({"vlanTrunk": [null]})))
            .try_add();
        // On a kernel with VLAN filtering the null may also be accepted as an empty entry.
        serde_json::from_str::<Value>(&outcome.stdout).is_ok()
    });
}

/// Every error of the reference has code 999: a runtime cannot tell a full subnet from a typo.
#[test]
fn error_codes_tell_what_kind_of_error_it_is() {
    differs("bridge", (101, 7), (999, 999), |lab| {
        let conf = with(&bridge::conf(), json!({"ipam": {"subnet": "10.10.0.0/30"}}));
        lab.attach(&lab.container(), &conf).add();
        let full = lab.attach(&lab.container(), &conf).try_add().err().code;
        let mistake =
            lab.attach(&lab.container(), &with(&conf, json!({"vlan": 5000}))).try_add().err().code;
        (full, mistake)
    });
}

/// A namespace that cannot be opened is an error in CNI_NETNS, found before an address is
/// allocated. The reference answers 999, and ptp takes an address first.
#[test]
fn a_namespace_that_is_not_there_is_an_error_of_the_environment() {
    for plugin in ["bridge", "ptp", "loopback"] {
        differs(plugin, 4, 999, |lab| {
            let conf = with(&bridge::conf(), json!({"type": plugin}));
            lab.attach(&lab.container(), &conf)
                .netns(Some("/run/netns/nowhere"))
                .try_add()
                .err()
                .code
        });
    }
}

/// The specification's error object has its cniVersion.
#[test]
fn an_error_object_has_the_version_of_the_configuration() {
    differs("bridge", Some(json!("1.0.0")), None, |lab| {
        let outcome =
            lab.attach(&lab.container(), &with(&bridge::conf(), json!({"vlan": 5000}))).try_add();
        outcome.json().get("cniVersion").cloned()
    });
}

/// JSON without an equivalent string or number: a lone UTF-16 surrogate, a number beyond a double.
/// The reference substitutes a replacement character or never decodes the value.
#[test]
fn half_a_character_and_a_number_beyond_a_double_are_refused() {
    for unknown in [r#""\ud800""#, "1e999"] {
        differs("static", FAILED, OK, |lab| {
            let conf =
                static_ipam(&bridge::conf(), json!([{"address": "10.10.0.7/24"}]), json!([]));
            let mut call = lab
                .attach(&lab.container(), &with(&conf, json!({"type": "static"})))
                .call("ADD", None);
            let text = String::from_utf8(call.stdin).unwrap();
            call.stdin = text.replacen('{', &format!(r#"{{"unknown":{unknown},"#), 1).into_bytes();
            call.run().status
        });
    }
}

/// The reference's DEL refuses unknown CNI_ARGS as ADD does, so a runtime with other arguments
/// cannot delete the attachment.
#[test]
fn del_takes_any_cni_args() {
    differs("bridge", (OK, false), (FAILED, true), |lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &bridge::conf());
        attachment.add();
        let status = attachment.args("COLOUR=red").try_del().status;
        (status, container.link("eth0").is_some())
    });
}

/// No plugin of the reference implements GC.
#[test]
fn gc_removes_what_no_runtime_knows_any_more() {
    let conf = with(
        &bridge::conf(),
        json!({"cniVersion": "1.1.0", "ipMasq": true, "ipMasqBackend": "nftables"}),
    );
    differs("bridge", (false, false), (true, true), |lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &conf);
        attachment.add();
        container.vanish();
        attachment.gc(&[]).ok();
        (
            lab.path("/var/lib/cni/networks/net1/10.10.0.2").exists(),
            lab.host.sh("nft list ruleset").contains("10.10.0.2"),
        )
    });
}

/// The reference notices an unknown backend after all other changes.
#[test]
fn an_unknown_masquerade_backend_is_refused_before_any_change() {
    let conf = with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "ebtables"}));
    differs("bridge", false, true, |lab| {
        lab.attach(&lab.container(), &conf).try_add().err();
        lab.host.link("br0").is_some()
    });
}
