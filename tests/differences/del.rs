//! Deliberate differences of DEL and GC from the reference.

use serde_json::json;

use super::{FAILED, OK, differs};
use crate::plugins::main::bridge::del;
use crate::support::attachment::with;
use crate::support::netns::Container;
use crate::support::networks::bridge;

/// Without the namespace the reference's DEL stops before it removes the rules of masquerading and
/// macspoofchk.
#[test]
fn del_with_a_vanished_namespace_leaves_no_rule() {
    for backend in ["nftables", "iptables"] {
        differs("bridge", (OK, false, false), (OK, true, true), |lab| {
            let status = del::lose_and_delete(lab, Container::vanish, &del::everything(backend));
            let rules = lab.host.sh("nft list ruleset 2>/dev/null");
            (status, rules.contains("macspoofchk-container"), rules.contains("10.10.0.2"))
        });
    }
    let conf =
        with(&bridge::conf(), json!({"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables"}));
    differs("ptp", false, true, |lab| {
        del::lose_and_delete(lab, Container::vanish, &conf);
        lab.host.sh("nft list ruleset 2>/dev/null").contains("10.10.0.2")
    });
}

/// A runtime may call DEL without CNI_NETNS while the namespace still exists; the reference leaves
/// the link in it.
#[test]
fn del_without_netns_takes_the_link_of_a_living_namespace() {
    for plugin in ["bridge", "ptp"] {
        let conf = with(&bridge::conf(), json!({"type": plugin}));
        differs(plugin, false, true, |lab| {
            let container = lab.container();
            let attachment = lab.attach(&container, &conf);
            attachment.add();
            attachment.netns(None).del();
            container.link("eth0").is_some()
        });
    }
}

/// The namespace is gone and its mount point is left as a plain file: the reference's DEL fails for
/// ever.
#[test]
fn del_with_a_stale_netns_file_succeeds() {
    for plugin in ["bridge", "ptp"] {
        let conf = with(&bridge::conf(), json!({"type": plugin}));
        differs(plugin, OK, FAILED, |lab| del::lose_and_delete(lab, Container::go_stale, &conf));
    }
}

/// DEL must remove the attachment even if the configuration cannot be decoded any more.
#[test]
fn del_takes_a_configuration_that_does_not_decode() {
    differs("bridge", (OK, false), (FAILED, true), |lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &bridge::conf());
        attachment.add();
        let status = attachment.clone().conf(json!({"mtu": "large", "vlan": -1})).try_del().status;
        (status, container.link("eth0").is_some())
    });
}

/// A late DEL: the namespace already has an interface of that name from another attachment. The
/// reference removes it.
#[test]
fn del_spares_the_interface_of_another_attachment() {
    for plugin in ["bridge", "ptp"] {
        let conf = with(&bridge::conf(), json!({"type": plugin}));
        differs(plugin, true, false, |lab| {
            let container = lab.container();
            lab.attach(&container, &conf).add();
            lab.attach(&container, &conf).id("somebody-else").try_del();
            container.link("eth0").is_some()
        });
    }
}
