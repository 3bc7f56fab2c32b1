//! bridge DEL succeeds in any state and leaves nothing.

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, for_ours, interface, with};
use crate::support::networks::bridge::{conf, dual_stack, warm_up};
use crate::support::snapshot::Watch;

/// A configuration with everything an ADD can leave on the host.
pub fn everything(backend: &str) -> Value {
    let keys = json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": backend, "macspoofchk": true});
    with(&dual_stack(), keys)
}

/// At ADD another link has the preferred name of the host's end; at DEL that name is free.
#[test]
fn del_finds_the_pair_by_its_second_name_when_the_first_is_free() {
    let ptp = json!({"type": "ptp", "bridge": null, "isGateway": null});
    for (at, conf) in [(1, conf()), (0, with(&conf(), ptp))] {
        for_ours("bridge", |lab| {
            let (container, attachment, result) = lab.added(&conf);
            let first = interface(&result, at);
            attachment.del();
            let before = Watch::start(lab, &[&container]);
            lab.host.sh(&format!("ip link add {first} type bridge"));
            assert_ne!(interface(&attachment.add(), at), first);
            lab.host.sh(&format!("ip link del {first}"));
            attachment.del();
            before.assert_unchanged("DEL");
        });
    }
}

/// The kernel destroys a namespace in the background, and its veth pair remains for a while.
#[test]
fn del_of_an_attachment_with_a_recreated_netns_leaves_nothing() {
    for_ours("bridge", |lab| {
        let at = lab.container().netns;
        for round in 0..5 {
            let container = lab.container();
            let attachment = lab.attach(&container, &conf()).id("again").netns(Some(&at));
            attachment.add();
            lab.host.sh(&format!("umount {at}; touch {at}; unshare --net={at} true"));
            let other = json!({"type": "static", "addresses": [{"address": "10.9.0.9/24"}], "ranges": null});
            attachment.clone().conf(json!({"isGateway": null, "ipam": other})).add();
            attachment.del();
            let links = lab.host.sh(&format!("nsenter --net={at} ip -brief link show type veth"));
            assert_eq!(links, "", "round {round}");
        }
    });
}

#[test]
fn del_removes_the_link_even_if_the_namespace_has_others() {
    for_each_peer("bridge", |lab| {
        let (container, first, _) = lab.added(&conf());
        first.clone().ifname("net1").add();
        first.del();
        assert!(container.link("eth0").is_none());
        assert_eq!(container.addresses("net1"), ["10.10.0.3/24"]);
        let leases = lab.host.sh("ls /var/lib/cni/networks/net1");
        assert!(!leases.contains("10.10.0.2") && leases.contains("10.10.0.3"), "{leases}");
    });
}

/// Neither the specification nor the kernel limits the length of an ID: these are longer than the
/// name of a chain or a page.
#[test]
fn del_finds_a_container_of_any_id_and_interface() {
    for_ours("bridge", |lab| {
        let conf = with(&conf(), json!({"ipMasq": true, "macspoofchk": true}));
        warm_up(lab, &conf);
        for (length, ifname) in [(120, "eth0"), (300, "eth0"), (5000, "e"), (1, "e\u{1}")] {
            let (_, attachment, before) = lab.watched(&conf);
            let attachment = attachment.id(&"i".repeat(length)).ifname(ifname);
            attachment.add();
            attachment.del();
            before.assert_unchanged(&format!("ADD of {length} bytes, interface {ifname:?}"));
        }
    });
}
