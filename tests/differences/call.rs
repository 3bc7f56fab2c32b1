//! Chapter "The call" of docs/differences.md.

use serde_json::{Value, json};

use super::{FAILED, OK, differs};
use crate::plugins::main::bridge::{self, static_ipam};
use crate::plugins::main::ptp;
use crate::plugins::main::stacked::MACVLAN;
use crate::support::attachment::with;
use crate::support::netns::Lab;
use crate::support::snapshot::Watch;

/// What failed ADDs leave: ours nothing; the reference links, addresses and rules, until DEL.
#[test]
fn failed_adds_leave_nothing() {
    let leaves = |cases: Vec<bridge::failed_add::Case>| {
        cases.into_iter().filter(|case| case.reference_leaves_something)
    };
    for case in leaves(bridge::failed_add::cases()) {
        differs(
            "bridge",
            |lab| bridge::failed_add::fail(lab, &bridge::conf(), &case).0.is_empty(),
            true,
            false,
        );
    }
    for case in leaves(ptp::failing()) {
        differs(
            "ptp",
            |lab| bridge::failed_add::fail(lab, &ptp::conf(), &case).0.is_empty(),
            true,
            false,
        );
    }
}

/// A result that has no form in the configuration's version: the reference notices when everything
/// is done, and leaves it.
#[test]
fn a_result_without_addresses_is_refused_for_old_versions_and_nothing_is_left() {
    let observe = |lab: &Lab| {
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
    };
    differs("bridge", observe, true, false);
}

/// The plugin's own namespace as the container: the reference notices after ADD, prints a result
/// and an error, and leaves everything.
#[test]
fn the_host_s_own_namespace_is_refused_before_anything_is_done() {
    let observe = |lab: &Lab| {
        let before = Watch::start(lab, &[]);
        let conf = with(&bridge::conf(), json!({"cniVersion": "1.0.0", "ipam": null}));
        let outcome =
            lab.attach(&lab.container(), &conf).netns(Some("/proc/self/ns/net")).try_add();
        assert_eq!(outcome.status, FAILED);
        let one_document =
            serde_json::from_str::<Value>(&outcome.stdout).is_ok_and(|error| error["code"] == 8);
        (one_document, before.changes().is_empty())
    };
    differs("bridge", observe, (true, true), (false, false));
}

#[test]
fn a_late_del_leaves_the_container_that_has_the_path_now() {
    let observe = |lab: &Lab| {
        let (one, other) = (lab.container(), lab.container());
        let conf = json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"});
        let first = lab.attach(&one, &conf).ifname("lo");
        first.add();
        one.go_stale();
        lab.host.sh(&format!("mount --bind {} {}", other.netns, one.netns));
        lab.attach(&other, &conf).ifname("lo").netns(Some(&one.netns)).add();
        first.del();
        other.link("lo").unwrap()["operstate"].as_str().unwrap().to_owned()
    };
    differs("loopback", observe, "UNKNOWN".to_owned(), "DOWN".to_owned());
}

#[test]
fn del_removes_the_interface_that_add_made() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &MACVLAN.address("10.10.0.7/24"));
        attachment.add();
        container.sh("ip link set eth0 down; ip link set eth0 name other");
        container
            .sh("ip link add link lo name eth0 type macvlan 2>/dev/null || ip link add eth0 type veth peer name end");
        attachment.del();
        ["other", "eth0"].map(|name| container.link(name).is_some())
    };
    differs("macvlan", observe, [false, true], [true, false]);
}

/// A null in vlanTrunk ends the reference with a Go panic instead of an answer.
#[test]
fn a_null_in_a_list_is_no_crash() {
    let observe = |lab: &Lab| {
        let outcome = lab
            .attach(&lab.container(), &with(&bridge::conf(), json!({"vlanTrunk": [null]})))
            .try_add();
        // On a kernel whose bridge filters VLANs the null may also count as an entry that asks for
        // nothing.
        serde_json::from_str::<Value>(&outcome.stdout).is_ok()
    };
    differs("bridge", observe, true, false);
}

/// Every error of the reference is 999, so a runtime cannot tell a full subnet from a typing error.
#[test]
fn error_codes_tell_what_kind_of_error_it_is() {
    let observe = |lab: &Lab| {
        let conf = with(&bridge::conf(), json!({"ipam": {"subnet": "10.10.0.0/30"}}));
        lab.attach(&lab.container(), &conf).add();
        let full = lab.attach(&lab.container(), &conf).try_add().err().code;
        let mistake =
            lab.attach(&lab.container(), &with(&conf, json!({"vlan": 5000}))).try_add().err().code;
        (full, mistake)
    };
    differs("bridge", observe, (101, 7), (999, 999));
}

/// A namespace that cannot be opened is a mistake in CNI_NETNS, and is noticed before an address is
/// taken.
#[test]
fn a_namespace_that_is_not_there_is_an_error_of_the_environment() {
    for plugin in ["bridge", "ptp", "loopback"] {
        let observe = |lab: &Lab| {
            let conf = with(&bridge::conf(), json!({"type": plugin}));
            lab.attach(&lab.container(), &conf)
                .netns(Some("/run/netns/nowhere"))
                .try_add()
                .err()
                .code
        };
        differs(plugin, observe, 4, 999);
    }
}

/// The specification's error object says in which version it is.
#[test]
fn an_error_object_has_the_version_of_the_configuration() {
    let observe = |lab: &Lab| {
        let outcome =
            lab.attach(&lab.container(), &with(&bridge::conf(), json!({"vlan": 5000}))).try_add();
        outcome.json().get("cniVersion").cloned()
    };
    differs("bridge", observe, Some(json!("1.0.0")), None);
}

/// JSON that has no text or no number of ours: half a character of UTF-16, a number beyond a
/// double. The reference puts a replacement in its place, or never looks.
#[test]
fn half_a_character_and_a_number_beyond_a_double_are_refused() {
    for unknown in [r#""\ud800""#, "1e999"] {
        let observe = |lab: &Lab| {
            let conf =
                static_ipam(&bridge::conf(), json!([{"address": "10.10.0.7/24"}]), json!([]));
            let mut call = lab
                .attach(&lab.container(), &with(&conf, json!({"type": "static"})))
                .call("ADD", None);
            let text = String::from_utf8(call.stdin).unwrap();
            call.stdin = text.replacen('{', &format!(r#"{{"unknown":{unknown},"#), 1).into_bytes();
            call.run().status
        };
        differs("static", observe, FAILED, OK);
    }
}

/// ADD refuses CNI_ARGS it does not know; DEL does too, so what an older or newer runtime added
/// cannot be deleted.
#[test]
fn del_takes_any_cni_args() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &bridge::conf());
        attachment.add();
        let status = attachment.args("COLOUR=red").try_del().status;
        (status, container.link("eth0").is_some())
    };
    differs("bridge", observe, (OK, false), (FAILED, true));
}

/// No plugin of the reference has GC.
#[test]
fn gc_removes_what_no_runtime_knows_any_more() {
    let conf = with(
        &bridge::conf(),
        json!({"cniVersion": "1.1.0", "ipMasq": true, "ipMasqBackend": "nftables"}),
    );
    let observe = |lab: &Lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &conf);
        attachment.add();
        container.vanish();
        attachment.gc(&[]).ok();
        (
            lab.path("/var/lib/cni/networks/net1/10.10.0.2").exists(),
            lab.host.sh("nft list ruleset").contains("10.10.0.2"),
        )
    };
    differs("bridge", observe, (false, false), (true, true));
}

/// A backend that does not exist is noticed by the reference when everything else is done.
#[test]
fn an_unknown_masquerade_backend_is_refused_before_anything_is_done() {
    let conf = with(&bridge::conf(), json!({"ipMasq": true, "ipMasqBackend": "ebtables"}));
    let observe = |lab: &Lab| {
        lab.attach(&lab.container(), &conf).try_add().err();
        lab.host.link("br0").is_some()
    };
    differs("bridge", observe, false, true);
}
