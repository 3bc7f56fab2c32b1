//! Deliberate differences of bridge from the reference.

use serde_json::json;

use super::{FAILED, OK, check_after_add, differs};
use crate::support::attachment::{for_ours, interface, with};
use crate::support::netns::Lab;
use crate::support::networks::bridge;
use crate::support::traffic::assert_pings;

/// A port hands its frames to the bridge, and nobody can reach an address that it has. In the
/// reference the kernel gives it a link-local one.
#[test]
fn the_host_s_end_has_no_address() {
    differs("bridge", 0, 1, |lab| {
        let attachment = lab.attach(&lab.container(), &bridge::dual_stack());
        let port = interface(&attachment.add(), 1);
        addresses(lab, &port)
    });
}

/// IPv6 needs an MTU of 1280, so such a link refuses settings of IPv6.
#[test]
fn a_port_without_ipv6_is_made_like_any_other() {
    for_ours("bridge", |lab| {
        let container = lab.container();
        let attachment = lab.attach(&container, &with(&bridge::conf(), json!({"mtu": 1000})));
        let port = interface(&attachment.add(), 1);
        assert_eq!(addresses(lab, &port), 0);
        assert_pings(&container, "10.10.0.1");
        attachment.del();
    });
}

/// How many addresses a link of the host has.
pub fn addresses(lab: &Lab, link: &str) -> usize {
    let listed = lab.host.json(&format!("ip -j addr show dev {link}"));
    listed[0]["addr_info"].as_array().unwrap().len()
}

/// Without IPAM the reference's CHECK calls an IPAM plugin without a name, and fails.
#[test]
fn check_of_a_layer_two_bridge_succeeds() {
    differs("bridge", OK, FAILED, |lab| {
        check_after_add(lab, &with(&bridge::conf(), json!({"ipam": null})))
    });
}

/// The reference compares the promiscuity counter, which a packet capture raises.
#[test]
fn check_does_not_mind_a_capture_on_the_bridge() {
    differs("bridge", OK, FAILED, |lab| {
        let attachment = lab.attach(&lab.container(), &bridge::conf());
        let result = attachment.add();
        lab.host.sh("ip link set br0 promisc on"); // as a capture does
        attachment.check(&result).status
    });
}

/// IPAM's default route has no gateway, so the reference adds a second one for isDefaultGateway:
/// "file exists".
#[test]
fn default_gateway_and_a_default_route_of_ipam_go_together() {
    let conf = with(
        &bridge::dual_stack(),
        json!({"isDefaultGateway": true, "ipam": {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}),
    );
    differs("bridge", OK, FAILED, |lab| {
        let container = lab.container();
        let outcome = lab.attach(&container, &conf).try_add();
        if outcome.status == OK {
            assert_pings(&container, crate::support::netns::UPLINK[0]);
            assert_pings(&container, crate::support::netns::UPLINK[1]);
            assert_eq!(container.json("ip -j route show default").as_array().unwrap().len(), 1);
            assert_eq!(container.json("ip -j -6 route show default").as_array().unwrap().len(), 1);
        }
        outcome.status
    });
}

/// A bridge without ports has an all-zero MAC. The reference reads it before it adds its port, and
/// then sets it.
#[test]
fn a_bridge_without_ports_can_be_used() {
    differs("bridge", OK, FAILED, |lab| {
        lab.host
            .sh("ip link add br0 type bridge; ip link add port type veth peer name peer; ip link set port master br0; ip link del port");
        let container = lab.container();
        let outcome = lab.attach(&container, &bridge::conf()).try_add();
        if outcome.status == OK {
            assert_pings(&container, "10.10.0.1");
        }
        outcome.status
    });
}

/// The reference creates a bridge with the part of the name before the NUL, and never finds it by
/// the whole name.
#[test]
fn a_name_with_a_nul_is_refused() {
    let conf = with(&bridge::conf(), json!({"bridge": "br\u{0}0"}));
    differs("bridge", (FAILED, false), (OK, true), |lab| {
        let outcome = lab.attach(&lab.container(), &conf).try_add();
        (outcome.status, lab.host.link("br").is_some())
    });
}

/// The reference refuses the second gateway, or replaces the first by it with forceAddress.
#[test]
fn gateways_of_two_subnets_are_on_the_bridge_together() {
    let ranges = json!([[{"subnet": "10.10.0.0/24"}], [{"subnet": "10.20.0.0/24"}]]);
    for (force, of_reference) in [(false, "10.10.0.1/24"), (true, "10.20.0.1/24")] {
        let conf = with(
            &bridge::conf(),
            json!({"forceAddress": force, "ipam": {"subnet": null, "ranges": ranges}}),
        );
        differs("bridge", "10.10.0.1/24 10.20.0.1/24".to_owned(), of_reference.to_owned(), |lab| {
            lab.attach(&lab.container(), &conf).try_add();
            lab.host.addresses("br0").join(" ")
        });
    }
}

/// The reference runs the nft program for macspoofchk.
#[test]
fn macspoofchk_needs_no_nft_program() {
    differs("bridge", OK, FAILED, |lab| {
        let mut call = lab
            .attach(&lab.container(), &with(&bridge::conf(), json!({"macspoofchk": true})))
            .call("ADD", None);
        call.wrapper.extend(["env", "PATH=/nonexistent"].map(str::to_owned));
        call.run().status
    });
}
