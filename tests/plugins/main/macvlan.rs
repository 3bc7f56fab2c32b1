//! macvlan: links with hardware addresses of their own on a master; the cases shared with ipvlan
//! and vlan are in `stacked`.

use serde_json::{Value, json};

use super::stacked::{self, eth0, mac};
use crate::support::attachment::{for_ours, ips, skip, with};
use crate::support::call::Peer;
use crate::support::contract::{assert_mac_is_that_of_the_most_specific_source, assert_shown};
use crate::support::netns::{Container, Lab};
use crate::support::networks::stacked::{MACVLAN, PEER, hasty_container};
use crate::support::snapshot::Watch;
use crate::support::traffic::{assert_no_ping, assert_pings};

fn of_mode(mode: &str) -> Value {
    with(&MACVLAN.conf(), json!({"mode": mode}))
}

/// Two containers of a network, and the address of the second.
fn pair(lab: &Lab, conf: &Value) -> (Container, Container, String) {
    let (a, b) = (lab.container(), lab.container());
    lab.attach(&a, conf).add();
    let address = ips(&lab.attach(&b, conf).add())[0].clone();
    assert_pings(&a, PEER[0]);
    assert_pings(&b, PEER[0]);
    (a, b, address)
}

/// Turns the outside peer into a switch that sends frames back through the port they came from.
fn reflect(lab: &Lab) {
    lab.outside.sh(&format!(
        "ip link add reflector up type bridge; ip link set uplink master reflector; bridge link set dev uplink hairpin on; \
         ip addr del {0}/24 dev uplink; ip addr add {0}/24 dev reflector",
        PEER[0]
    ));
}

#[test]
fn containers_of_private_mode_do_not_hear_each_other() {
    MACVLAN.for_each_peer(|lab| {
        let (a, _b, b_s_address) = pair(lab, &of_mode("private"));
        assert_eq!(eth0(&a)["linkinfo"]["info_data"]["mode"], "private");
        assert_no_ping(&a, &b_s_address);
        reflect(lab);
        assert_pings(&a, PEER[0]);
        assert_no_ping(&a, &b_s_address);
    });
}

#[test]
fn vepa_containers_reach_each_other_through_a_hairpin_switch() {
    MACVLAN.for_each_peer(|lab| {
        let (a, _b, b_s_address) = pair(lab, &of_mode("vepa"));
        assert_eq!(eth0(&a)["linkinfo"]["info_data"]["mode"], "vepa");
        assert_no_ping(&a, &b_s_address);
        reflect(lab);
        assert_pings(&a, &b_s_address);
    });
}

#[test]
fn bridge_mode_is_the_default() {
    let modes = r#"
{} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/mode | "bridge"
{"mode": "bridge"} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/mode | "bridge"
{"mode": ""} | in: ip -j -d link show eth0 | /0/linkinfo/info_data/mode | "bridge"
"#;
    MACVLAN.for_each_peer(|lab| assert_shown(lab, &MACVLAN.conf(), modes));
}

#[test]
fn passthru_mode_takes_the_master_s_mac_and_excludes_others() {
    MACVLAN.for_each_peer(|lab| {
        let container = hasty_container(lab);
        let before = Watch::start(lab, &[&container]);
        let attachment = lab.attach(&container, &of_mode("passthru"));
        let result = attachment.add();
        let link = eth0(&container);
        assert_eq!(link["linkinfo"]["info_data"]["mode"], "passthru");
        assert_eq!(link["address"], mac(&lab.host, "uplink").as_str());
        assert_eq!(result["interfaces"][0]["mac"], link["address"]);
        assert_pings(&container, PEER[0]);
        attachment.check(&result).ok();
        let second = lab.container();
        let with_first = Watch::start(lab, &[&container, &second]);
        lab.attach(&second, &of_mode("passthru")).try_add().err();
        if lab.peer == Peer::Ours {
            with_first.assert_unchanged("the second ADD, which failed");
        }
        attachment.del();
        lab.attach(&second, &of_mode("passthru")).del();
        before.assert_unchanged("ADD");
    });
}

#[test]
fn the_hardware_address_comes_from_the_most_specific_source() {
    MACVLAN.for_each_peer(|lab| {
        assert_mac_is_that_of_the_most_specific_source(lab, &MACVLAN.conf(), Some(PEER[0]))
    });
}

#[test]
fn the_queue_of_broadcasts_is_as_long_as_asked_for() {
    MACVLAN.for_each_peer(|lab| {
        let length = |changes: Value| {
            let container = lab.container();
            let attachment = lab.attach(&container, &with(&MACVLAN.conf(), changes));
            attachment.add();
            let length = eth0(&container)["linkinfo"]["info_data"]["bcqueuelen"].clone();
            attachment.del();
            length
        };
        let of_kernel = length(json!({}));
        if of_kernel.is_null() {
            return skip("macvlan's bcqueuelen (Linux 5.11)");
        }
        assert_eq!(length(json!({"bcqueuelen": 5000})), 5000);
        assert_eq!(length(json!({"bcqueuelen": 0})), of_kernel);
        assert_ne!(of_kernel, 5000);
    });
}

/// The reference does not compare `bcqueuelen`.
#[test]
fn check_finds_another_length_of_the_queue() {
    MACVLAN.for_ours(|lab| {
        let container = lab.container();
        let attachment =
            lab.attach(&container, &with(&MACVLAN.conf(), json!({"bcqueuelen": 5000})));
        let result = attachment.add();
        if eth0(&container)["linkinfo"]["info_data"]["bcqueuelen"].is_null() {
            let error = attachment.check(&result).err();
            assert!(
                error.msg.contains("this kernel has no bcqueuelen, expected 5000"),
                "{error:?}"
            );
            return;
        }
        attachment.check(&result).ok();
        container.sh("ip link set eth0 type macvlan mode bridge bcqueuelen 7");
        let error = attachment.check(&result).err();
        let expected = "container macvlan bcqueuelen 7 does not match expected value: 5000";
        assert!(error.msg.contains(expected), "{error:?}");
    });
}

#[test]
fn layer_two_networks_carry_frames_without_ipam() {
    for ipam in [Value::Null, json!({"type": "", "subnet": null, "routes": null})] {
        let conf = with(&MACVLAN.conf(), json!({"ipam": ipam}));
        MACVLAN.for_each_peer(|lab| {
            for version in ["0.3.0", "0.4.0", "1.0.0", "1.1.0"] {
                let conf = with(&conf, json!({"cniVersion": version}));
                let (a, b) = (lab.container(), lab.container());
                let before = Watch::start(lab, &[&a, &b]);
                let (first, second) = (lab.attach(&a, &conf), lab.attach(&b, &conf));
                let result = first.add();
                let interface = json!({"name": "eth0", "mac": mac(&a, "eth0"), "sandbox": a.netns});
                let mut expected =
                    json!({"cniVersion": version, "interfaces": [interface], "dns": {}});
                if version >= "1.0.0" {
                    expected.as_object_mut().unwrap().remove("dns");
                }
                assert_eq!(result, expected);
                assert_eq!(a.addresses("eth0"), [""; 0]);
                second.add();
                a.sh("ip addr add 10.30.0.1/24 dev eth0");
                b.sh("ip addr add 10.30.0.2/24 dev eth0");
                assert_pings(&a, "10.30.0.2");
                if version >= "0.4.0" {
                    first.check(&result).ok();
                    a.sh("ip link set eth0 address 02:00:00:00:00:01");
                    first.check(&result).err();
                }
                first.del();
                second.del();
                before.assert_unchanged("ADD");
            }
        });
    }
}

#[test]
fn cni_args_that_are_unknown_or_wrong_are_refused() {
    MACVLAN.for_each_peer(|lab| {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        for args in ["COLOUR=red", "MAC=nonsense", "MAC"] {
            let error = lab.attach(&container, &MACVLAN.conf()).args(args).try_add().err();
            if lab.peer == Peer::Ours {
                assert_eq!(error.code, if args == "MAC=nonsense" { 7 } else { 4 }, "{error:?}");
                assert!(error.text().contains("CNI_ARGS"), "{args}: {error:?}");
            }
            before.assert_unchanged("the refused ADD");
        }
    });
}

/// The record is of before a rollback to the reference, which has attached the container again.
#[test]
fn del_deletes_the_link_of_the_reference_after_a_rollback() {
    for_ours("macvlan", |lab| {
        if !MACVLAN.is_in(lab) {
            return;
        }
        let by_reference = |container: &Container| {
            lab.host.sh(&format!(
                "ip link add link uplink name theirs type macvlan; ip link set theirs netns {} name eth0",
                container.netns
            ));
        };
        let container = lab.container();
        let attachment = lab.attach(&container, &MACVLAN.conf());
        attachment.add();
        container.sh("ip link del eth0");
        by_reference(&container);
        attachment.del();
        assert!(container.link("eth0").is_none());

        attachment.add();
        let next = lab.container();
        by_reference(&next);
        attachment.clone().netns(Some(&next.netns)).del();
        assert!(next.link("eth0").is_some(), "it may be another container's");
    });
}

stacked::tests_of! { MACVLAN:
    the_master_is_the_link_of_the_default_route
    the_master_is_that_of_the_first_of_several_next_hops
    the_default_route_is_the_container_s_where_the_master_is
    two_containers_of_one_master_talk
}
