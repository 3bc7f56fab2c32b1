//! bond makes one interface of several links, the host's or the container's, and puts them back.

mod refused;
mod returning;

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_ours, with};
use crate::support::contract::assert_del_leaves_nothing;
use crate::support::netns::{Container, Lab, Namespace};
use crate::support::networks::bond::{conf, for_ours_with_ports, has_bonds, inside, layer_two};
use crate::support::networks::stacked::hasty_container;
use crate::support::snapshot::Watch;
use crate::support::traffic::assert_pings;

/// What `ip -d link` says of the bond, by its keys.
pub fn settings(container: &Namespace) -> Value {
    container.link("eth0").expect("the bond")["linkinfo"]["info_data"].clone()
}

/// The hardware address of a link.
pub fn mac(namespace: &Namespace, link: &str) -> String {
    namespace.link(link).unwrap_or_else(|| panic!("no {link}"))["address"].as_str().unwrap().into()
}

/// Creates links in the container as earlier attachments would, all with one address.
pub fn dummies(container: &Namespace) {
    container.sh("ip -b - <<'END'
link add port0 address 02:00:00:00:dd:01 type dummy
link add port1 address 02:00:00:00:dd:01 type dummy
link set port0 up mtu 1400
link set port1 up
link set port1 down
END");
}

#[test]
fn links_of_the_host_stand_in_for_each_other() {
    for_ours_with_ports(|lab| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let attachment = lab.attach(&container, &conf());
        let result = attachment.add();
        let address = "02:00:00:00:b0:00";
        assert_eq!(
            result,
            json!({
                "cniVersion": "1.1.0",
                "interfaces": [{"name": "eth0", "mac": address, "sandbox": container.netns}],
                "ips": [{"address": "10.50.0.2/24", "gateway": "10.50.0.1", "interface": 0}],
                "routes": [{"dst": "10.99.0.0/16"}],
            })
        );
        assert_eq!(settings(&container)["mode"], "active-backup");
        assert_eq!(settings(&container)["miimon"], 100);
        for port in ["port0", "port1"] {
            let link = container.link(port).expect("it came along");
            assert_eq!((&link["master"], &link["address"]), (&json!("eth0"), &json!(address)));
            assert!(lab.host.link(port).is_none(), "{port} left the host");
        }
        assert_carries_on(lab, &container);
        attachment.check(&result).ok();
        container.sh("ip link set port1 nomaster");
        let error = attachment.check(&result).err();
        assert!(error.msg.contains("\"port1\" is not a port of \"eth0\""), "{error:?}");
        assert_eq!(error.code, 103);
        lab.outside.sh("ip link set far0 up");
        assert_del_leaves_nothing(&attachment, &before);
        assert_pings(&lab.host, "10.51.0.9");
    });
}

/// Sets the link down that the bond uses; the other one carries the traffic from then on.
fn assert_carries_on(lab: &Lab, container: &Container) {
    assert_pings(container, "10.50.0.1");
    assert_eq!(settings(container)["active_slave"], "port0");
    lab.outside.sh("ip link set far0 down");
    assert_pings(container, "10.50.0.1");
    assert_eq!(settings(container)["active_slave"], "port1");
}

/// A layer 2 attachment to the bridge `lan`, where the host has 10.50.0.1.
fn earlier<'a>(lab: &'a Lab, container: &Container, number: usize) -> Attachment<'a> {
    let conf = json!({"cniVersion": "1.1.0", "name": format!("lan{number}"), "type": "bridge", "bridge": "lan"});
    lab.attach(container, &conf).ifname(&format!("net{number}"))
}

#[test]
fn links_of_earlier_attachments_are_bonded_and_stay() {
    for_ours("bond", |lab| {
        if !has_bonds(lab) {
            return;
        }
        lab.host.sh("ip link add lan up type bridge && ip addr add 10.50.0.1/24 dev lan");
        let container = hasty_container(lab);
        let links = [1, 2].map(|number| earlier(lab, &container, number));
        let results = links.clone().map(|link| link.add());
        let before = Watch::start(lab, &[&container]);
        let conf = with(
            &conf(),
            json!({"linksInContainer": true, "links": [{"name": "net1"}, {"name": "net2"}],
                "failOverMac": 1, "primary": "net2", "miimon": null}),
        );
        let attachment = lab.attach(&container, &conf);
        let result = attachment.add();
        assert_pings(&container, "10.50.0.1");
        let found = settings(&container);
        assert_eq!((&found["active_slave"], &found["primary"]), (&json!("net2"), &json!("net2")));
        assert_eq!((&found["fail_over_mac"], &found["miimon"]), (&json!("active"), &json!(100)));
        container.sh("ip link set net2 down");
        assert_pings(&container, "10.50.0.1");
        assert_eq!(mac(&container, "eth0"), mac(&container, "net1"), "the active link's address");
        attachment.check(&result).ok(); // the address may change, the mode may not
        let error =
            attachment.clone().conf(json!({"mode": "broadcast", "primary": null})).check(&result);
        assert!(error.err().msg.contains("mode active-backup, expected broadcast"));
        assert_del_leaves_nothing(&attachment, &before);
        for (link, result) in links.iter().zip(&results) {
            link.check(result).ok();
            link.del();
        }
        assert!(container.link("net1").is_none() && container.link("net2").is_none());
    });
}

/// Every mode, with the settings that it takes.
fn modes() -> Vec<(Value, Value)> {
    let changes = |mode: &str, changes: Value| with(&json!({"mode": mode}), changes);
    let arp = json!({"miimon": 0, "arpInterval": 200, "arpIpTargets": ["10.50.0.1", "10.50.0.7"]});
    let lacp = json!({"lacpRate": "fast", "adSelect": "count", "minLinks": 2});
    vec![
        (
            changes("balance-rr", arp),
            json!({"arp_interval": 200, "arp_ip_target": ["10.50.0.1", "10.50.0.7"], "miimon": 0}),
        ),
        (
            changes("active-backup", json!({"failOverMac": 2, "allSlavesActive": 1})),
            json!({"fail_over_mac": "follow", "all_slaves_active": 1}),
        ),
        (
            changes("balance-xor", json!({"xmitHashPolicy": "encap3+4", "miimon": 50})),
            json!({"xmit_hash_policy": "encap3+4", "miimon": 50}),
        ),
        (changes("broadcast", json!({"mtu": 1300})), json!({})),
        (
            changes("802.3ad", lacp),
            json!({"ad_lacp_rate": "fast", "ad_select": "count", "min_links": 2}),
        ),
        (changes("balance-tlb", json!({"tlbDynamicLb": 0})), json!({"tlb_dynamic_lb": 0})),
        (changes("balance-alb", json!({})), json!({})),
    ]
}

/// Two links have one hardware address: the second gets another one, and its own back. The original
/// refuses a link whose MTU is below 1500 without `mtu`, and lacks the keys `primary`, `lacpRate`,
/// `adSelect`, `minLinks`, `arpInterval` and `arpIpTargets`.
#[test]
fn every_mode_bonds_links_of_the_same_address() {
    for_ours("bond", |lab| {
        if !has_bonds(lab) {
            return;
        }
        let container = hasty_container(lab);
        dummies(&container);
        let before = Watch::start(lab, &[&container]);
        for (changes, expected) in modes() {
            let attachment = lab.attach(&container, &inside(changes.clone()));
            let result = attachment.add();
            let found = settings(&container);
            assert_eq!(found["mode"], changes["mode"]);
            for (key, value) in expected.as_object().unwrap() {
                assert_eq!(found[key], *value, "{changes}: {key} in {found}");
            }
            assert_has_random_address(&container);
            let mtu = changes.get("mtu").unwrap_or(&json!(1400)).clone();
            assert_eq!(container.link("eth0").unwrap()["mtu"], mtu, "{changes}");
            attachment.check(&result).ok();
            attachment.del();
        }
        before.assert_unchanged("every mode");
    });
}

/// The address that the kernel gives back to the second port is one that we made.
fn assert_has_random_address(container: &Namespace) {
    let perm = |port: &str| {
        let link = container.link(port).unwrap();
        let text = link["linkinfo"]["info_slave_data"]["perm_hwaddr"].clone();
        text.as_str().unwrap().to_owned()
    };
    let [first, second] = ["port0", "port1"].map(perm);
    assert_eq!(first, "02:00:00:00:dd:01");
    let octet = u8::from_str_radix(&second[..2], 16).unwrap();
    assert_eq!(octet & 3, 2, "{second} is unicast and local");
    assert!(second != first && !second.starts_with("30:32:3a"), "{second}");
}

#[test]
fn status_says_whether_the_kernel_has_bonds() {
    for_ours("bond", |lab| {
        let status = lab.attach(&lab.container(), &layer_two()).status();
        if lab.host.try_sh("ip link add probe type bond && ip link del probe").status.success() {
            assert_eq!(status.ok(), Value::Null);
        } else {
            let error = status.err();
            assert_eq!((error.code, &*error.msg), (50, "the kernel has no links of type bond"));
            assert!(error.details.contains("modprobe bonding"), "{error:?}");
        }
    });
}
