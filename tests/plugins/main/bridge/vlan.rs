//! bridge with `vlan` and `vlanTrunk`: the port's VLANs and who hears whom. Needs a kernel whose bridge filters VLANs.

use serde_json::{Value, json};

use super::conf;
use crate::support::attachment::{for_each_peer, for_ours, interface, ips, skip, with};
use crate::support::netns::Lab;
use crate::support::traffic::{assert_no_ping, assert_pings};

fn filters_vlans(lab: &Lab) -> bool {
    let made = lab.host.try_sh("ip link add probe type bridge vlan_filtering 1 && ip link del probe").status.success();
    if !made {
        skip("bridge vlan_filtering");
    }
    made
}

/// The VLANs of a port, as `[vid, flags…]`.
fn vlans(lab: &Lab, result: &Value) -> Value {
    let port = lab.host.json(&format!("bridge -j vlan show dev {}", interface(result, 1)));
    let entries = port[0]["vlans"].as_array().into_iter().flatten();
    let each = |entry: &Value| {
        let first = entry["vlan"].as_u64().unwrap();
        let last = entry["vlanEnd"].as_u64().unwrap_or(first); // iproute2 may join neighbours
        let flags: Vec<Value> = entry["flags"].as_array().cloned().unwrap_or_default();
        (first..=last)
            .map(move |vid| std::iter::once(json!(vid)).chain(flags.clone()).collect::<Value>())
            .collect::<Vec<_>>()
    };
    entries.flat_map(each).collect()
}

#[test]
fn ports_are_members_of_the_vlans_asked_for() {
    let cases = [
        (json!({"vlan": 100}), json!([[100, "PVID", "Egress Untagged"]])),
        (
            json!({"vlan": 100, "preserveDefaultVlan": true}),
            json!([[1, "Egress Untagged"], [100, "PVID", "Egress Untagged"]]),
        ),
        (
            json!({"vlanTrunk": [{"minID": 200, "maxID": 203}, {"id": 101}]}),
            json!([[1, "PVID", "Egress Untagged"], [101], [200], [201], [202], [203]]),
        ),
        (json!({"vlan": 100, "vlanTrunk": [{"id": 101}]}), json!([[100, "PVID", "Egress Untagged"], [101]])),
    ];
    for_each_peer("bridge", |lab| {
        if !filters_vlans(lab) {
            return;
        }
        for (changes, expected) in &cases {
            let layer_two = with(&with(&conf(), json!({"ipam": null})), changes.clone());
            let attachment = lab.attach(&lab.container(), &layer_two);
            let result = attachment.add();
            assert_eq!(vlans(lab, &result), *expected, "{changes}");
            assert_eq!(lab.host.link("br0").unwrap()["linkinfo"]["info_data"]["vlan_filtering"], 1);
            attachment.del();
        }
    });
}

#[test]
fn only_members_of_one_vlan_hear_each_other() {
    for_each_peer("bridge", |lab| {
        if !filters_vlans(lab) {
            return;
        }
        let member = |vlan: u16| {
            let container = lab.container();
            let result = lab.attach(&container, &with(&conf(), json!({"isGateway": false, "vlan": vlan}))).add();
            (container, ips(&result)[0].clone())
        };
        let ((a, _), (_b, b), (_c, c)) = (member(100), member(100), member(200));
        assert_pings(&a, &b);
        assert_no_ping(&a, &c);
    });
}

#[test]
fn a_trunk_carries_tagged_frames() {
    for_each_peer("bridge", |lab| {
        if !filters_vlans(lab) {
            return;
        }
        let layer_two = with(&conf(), json!({"ipam": null}));
        let (trunk, access) = (lab.container(), lab.container());
        lab.attach(&trunk, &with(&layer_two, json!({"vlanTrunk": [{"id": 100}]}))).add();
        lab.attach(&access, &with(&layer_two, json!({"vlan": 100}))).add();
        trunk
            .sh("ip link add link eth0 name eth0.100 type vlan id 100 && ip addr add 10.30.0.1/24 dev eth0.100 && ip link set eth0.100 up");
        access.sh("ip addr add 10.30.0.2/24 dev eth0");
        assert_pings(&trunk, "10.30.0.2");
    });
}

#[test]
fn the_gateway_of_a_vlan_has_an_interface_of_its_own() {
    for_each_peer("bridge", |lab| {
        if !filters_vlans(lab) {
            return;
        }
        let container = lab.container();
        let tagged = with(&conf(), json!({"vlan": 100}));
        let attachment = lab.attach(&container, &tagged);
        let result = attachment.add();
        assert_eq!(interface(&result, 3), "br0.100");
        assert_eq!(lab.host.addresses("br0.100"), ["10.10.0.1/24"]);
        assert_eq!(lab.host.addresses("br0"), [""; 0]);
        assert_pings(&container, "10.10.0.1");
        attachment.check(&result).ok();
        attachment.del();
        // It stays, as the bridge does, for the next container.
        lab.attach(&lab.container(), &tagged).add();
        assert_eq!(lab.host.addresses("br0.100"), ["10.10.0.1/24"]);
    });
}

#[test]
fn impossible_vlans_are_refused() {
    let cases = [
        (json!({"vlan": 4095}), "4095"),
        (json!({"vlan": -1}), "-1"),
        (json!({"vlanTrunk": [{"minID": 10}]}), "maxID"),
        (json!({"vlanTrunk": [{"maxID": 10}]}), "minID"),
        (json!({"vlanTrunk": [{"minID": 20, "maxID": 10}]}), "minID"),
        (json!({"vlanTrunk": [{"id": 4095}]}), "id"),
    ];
    for_each_peer("bridge", |lab| {
        for (changes, names) in &cases {
            let error = lab.attach(&lab.container(), &with(&conf(), changes.clone())).try_add().err();
            assert!(error.msg.contains(names), "{changes}: {error:?}");
            assert!(lab.host.link("br0").is_none(), "refused before anything is made");
        }
    });
}

/// An ADD that was killed between making the gateway's interface and connecting it left it half made; so does another that is at it.
#[test]
fn a_gateway_interface_that_is_half_made_is_completed() {
    for_ours("bridge", |lab| {
        if !filters_vlans(lab) {
            return;
        }
        let conf = with(&conf(), json!({"vlan": 100}));
        lab.attach(&lab.container(), &conf).add();
        lab.host.sh("ip link set br0.100 down; ip link set $(ip -o link show br0.100 | sed 's/.*@\\([^:]*\\):.*/\\1/') nomaster");
        let container = lab.container();
        lab.attach(&container, &conf).add();
        assert_pings(&container, "10.10.0.1");
    });
}
