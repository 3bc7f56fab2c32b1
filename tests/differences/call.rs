//! Deliberate differences of every call from the reference.

use serde_json::{Value, json};

use super::{FAILED, differ, differs, network};
use crate::plugins::main::bridge::failed_add;
use crate::plugins::main::ptp::failing;
use crate::support::attachment::with;
use crate::support::failed_add::{Case, fail};
use crate::support::networks::bridge;
use crate::support::networks::ptp;
use crate::support::networks::stacked::MACVLAN;
use crate::support::snapshot::Watch;

/// A late DEL comes when the namespace already has an interface of that name from another attachment.
const ROWS: &str = r#"
answers a null in a list with a Go panic | {"vlanTrunk": [null]} | run ADD; head -c1 /run/ADD | {
has code 999 for a full subnet | {"ipam": {"subnet": "10.10.0.0/30"}} | add; id=second ifname=eth1; code ADD | 101 | 999
has code 999 for a mistake of the configuration | {"vlan": 5000} | code ADD | 7 | 999
has code 999 for a namespace that cannot be opened | {} | netns=/run/netns/nowhere; code ADD | 4 | 999
takes an address for a namespace that cannot be opened | {"type": "ptp"} | netns=/run/netns/nowhere; code ADD | 4 | 999
has code 999 for a namespace that cannot be opened | {"type": "loopback"} | netns=/run/netns/nowhere; code ADD | 4 | 999
leaves cniVersion out of the error object | {"vlan": 5000} | run ADD; grep -o '"cniVersion": "1.0.0"' /run/ADD | "cniVersion": "1.0.0"
takes half a character for a replacement character | {"type": "static", "ipam": {"type": "static", "subnet": null, "addresses": [{"address": "10.10.0.7/24"}]}} | with '"unknown":"\ud800"'; try ADD | 1 | 0
does not decode a number beyond a double | {"type": "static", "ipam": {"type": "static", "subnet": null, "addresses": [{"address": "10.10.0.7/24"}]}} | with '"unknown":1e999'; try ADD | 1 | 0
refuses DEL with unknown CNI_ARGS | {} | add; args=COLOUR=red; try DEL; has eth0 | 0 none | 1 eth0
has no GC | {"cniVersion": "1.1.0", "ipMasq": true, "ipMasqBackend": "nftables"} | add; vanish; with '"cni.dev/valid-attachments":[]'; try GC; [ ! -e $store/10.10.0.2 ] || echo lease; ! nft list ruleset|grep -q 10.10.0.2 || echo rule | 0 | 0 lease rule
notices an unknown masquerade backend after all other changes | {"ipMasq": true, "ipMasqBackend": "ebtables"} | try ADD; here br0 | 1 none | 1 br0
prints the 1.0.0 form of a loopback's result under an old version | {"type": "loopback", "cniVersion": "0.2.0"} | ifname=lo; add; grep -c '"ip4"' /run/ADD | 1 | 0
prints the 1.0.0 form of a loopback's result under 0.4.0 | {"type": "loopback", "cniVersion": "0.4.0"} | ifname=lo; add; grep -c '"version": "4"' /run/ADD | 1 | 0
leaves the rules in DEL when the namespace is gone | {"isDefaultGateway": true, "ipMasq": true, "macspoofchk": true, "ipMasqBackend": "nftables", "ipam": {DUAL}} | add; vanish; try DEL; nft list ruleset|grep -o -e macspoofchk-container -e '10\.10\.0\.2'|sort -u | 0 | 0 10.10.0.2 macspoofchk-container
leaves the rules in DEL when the namespace is gone | {"isDefaultGateway": true, "ipMasq": true, "macspoofchk": true, "ipMasqBackend": "iptables", "ipam": {DUAL}} | add; vanish; try DEL; nft list ruleset|grep -o -e macspoofchk-container -e '10\.10\.0\.2'|sort -u | 0 | 0 10.10.0.2 macspoofchk-container
leaves the rules in DEL when the namespace is gone | {"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables"} | add; vanish; run DEL; nft list ruleset|grep -o '10\.10\.0\.2'|sort -u |  | 10.10.0.2
leaves the link to a DEL without CNI_NETNS | {} | add; netns=; del; has eth0 | none | eth0
leaves the link to a DEL without CNI_NETNS | {"type": "ptp"} | add; netns=; del; has eth0 | none | eth0
fails DEL for ever where a plain file is left of the namespace | {} | add; umount --lazy $netns; try DEL | 0 | 1
fails DEL for ever where a plain file is left of the namespace | {"type": "ptp"} | add; umount --lazy $netns; try DEL | 0 | 1
fails DEL of a configuration that does not decode any more | {} | add; with '"mtu":"large","vlan":-1'; try DEL; has eth0 | 0 none | 1 eth0
removes another attachment's interface in a late DEL | {} | add; id=another; run DEL; has eth0 | eth0 | none
removes another attachment's interface in a late DEL | {"type": "ptp"} | add; id=another; run DEL; has eth0 | eth0 | none
"#;

#[test]
fn calls_differ_where_the_table_says_so() {
    differ("bridge", ROWS, network);
}

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
