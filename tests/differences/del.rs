//! Chapter "DEL and GC" of docs/differences.md.

use serde_json::json;

use super::{FAILED, OK, differs};
use crate::plugins::main::bridge;
use crate::support::attachment::with;
use crate::support::netns::Lab;

/// With the namespace gone the reference's DEL stops before the rules of masquerade and
/// macspoofchk.
#[test]
fn del_with_a_vanished_namespace_leaves_no_rule() {
    for backend in ["nftables", "iptables"] {
        let observe = |lab: &Lab| {
            let status =
                bridge::del::lose_and_delete(lab, "vanished", &bridge::del::everything(backend));
            let rules = lab.host.sh("nft list ruleset 2>/dev/null");
            (status, rules.contains("macspoofchk-container"), rules.contains("10.10.0.2"))
        };
        differs("bridge", observe, (OK, false, false), (OK, true, true));
    }
    let conf =
        with(&bridge::conf(), json!({"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables"}));
    let observe = |lab: &Lab| {
        bridge::del::lose_and_delete(lab, "vanished", &conf);
        lab.host.sh("nft list ruleset 2>/dev/null").contains("10.10.0.2")
    };
    differs("ptp", observe, false, true);
}

/// A runtime may call DEL without CNI_NETNS while the namespace still lives; the reference leaves
/// the link there.
#[test]
fn del_without_netns_takes_the_link_of_a_living_namespace() {
    for plugin in ["bridge", "ptp"] {
        let conf = with(&bridge::conf(), json!({"type": plugin}));
        let observe = |lab: &Lab| {
            let container = lab.container();
            let attachment = lab.attach(&container, &conf);
            attachment.add();
            attachment.netns(None).del();
            container.link("eth0").is_some()
        };
        differs(plugin, observe, false, true);
    }
}

/// A file that was the namespace's mount point is left, and DEL fails for ever.
#[test]
fn del_with_a_stale_netns_file_succeeds() {
    for plugin in ["bridge", "ptp"] {
        let conf = with(&bridge::conf(), json!({"type": plugin}));
        differs(plugin, |lab| bridge::del::lose_and_delete(lab, "stale file", &conf), OK, FAILED);
    }
}

/// What was attached must go, also when its configuration has become one that cannot be read.
#[test]
fn del_takes_a_configuration_that_does_not_decode() {
    let observe = |lab: &Lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &bridge::conf());
        attachment.add();
        let status = attachment.clone().conf(json!({"mtu": "large", "vlan": -1})).try_del().status;
        (status, container.link("eth0").is_some())
    };
    differs("bridge", observe, (OK, false), (FAILED, true));
}

/// A DEL that comes late, when the namespace has another attachment's interface of that name
/// already.
#[test]
fn del_spares_the_interface_of_another_attachment() {
    for plugin in ["bridge", "ptp"] {
        let conf = with(&bridge::conf(), json!({"type": plugin}));
        let observe = |lab: &Lab| {
            let container = lab.container();
            lab.attach(&container, &conf).add();
            lab.attach(&container, &conf).id("somebody-else").try_del();
            container.link("eth0").is_some()
        };
        differs(plugin, observe, true, false);
    }
}
