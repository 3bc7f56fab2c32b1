//! macvlan: links with hardware addresses of their own on a master; the cases shared with ipvlan
//! and vlan are in `stacked`.

use serde_json::{Value, json};

use super::stacked::{self, eth0, mac};
use crate::support::attachment::{ips, skip, with};
use crate::support::call::Peer;
use crate::support::contract::{assert_mac_is_that_of_the_most_specific_source, assert_shown};
use crate::support::failed_add::{Case, assert_fails_at};
use crate::support::netns::{Container, Lab};
use crate::support::networks::stacked::{MACVLAN, PEER, hasty_container};
use crate::support::peers::each_case;
use crate::support::snapshot::Watch;
use crate::support::traffic::{assert_carry_frames, assert_no_ping, assert_pings};

fn of_mode(mode: &str) -> Value {
    with(&MACVLAN.conf(), json!({"mode": mode}))
}

/// The peer outside becomes a switch that sends frames back through the port they came from.
#[test]
fn vepa_containers_reach_each_other_by_a_hairpin_switch_and_private_ones_never() {
    let reflect = format!(
        "ip link add reflector up type bridge; ip link set uplink master reflector; bridge link set dev uplink hairpin on; \
         ip addr del {0}/24 dev uplink; ip addr add {0}/24 dev reflector",
        PEER[0]
    );
    for mode in ["private", "vepa"] {
        MACVLAN.for_each_peer(|lab| {
            let [(a, ..), (b, _, result)] = [(), ()].map(|()| lab.added(&of_mode(mode)));
            [&a, &b].iter().for_each(|container| assert_pings(container, PEER[0]));
            assert_eq!(eth0(&a)["linkinfo"]["info_data"]["mode"], mode);
            let other = &ips(&result)[0];
            assert_no_ping(&a, other);
            lab.outside.sh(&reflect);
            assert_pings(&a, PEER[0]);
            let answers = if mode == "vepa" { assert_pings } else { assert_no_ping };
            answers(&a, other);
        });
    }
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

fn passthru_mode_takes_the_master_s_mac_and_excludes_others(lab: &Lab) {
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
    let (_, second, with_first) = lab.watched(&of_mode("passthru"));
    second.try_add().err();
    if lab.peer == Peer::Ours {
        with_first.assert_unchanged("the second ADD, which failed");
    }
    attachment.del();
    second.del();
    before.assert_unchanged("ADD");
}

fn the_hardware_address_comes_from_the_most_specific_source(lab: &Lab) {
    assert_mac_is_that_of_the_most_specific_source(lab, &MACVLAN.conf(), Some(PEER[0]))
}

fn the_queue_of_broadcasts_is_as_long_as_asked_for(lab: &Lab) {
    let length = |changes: Value| {
        let (container, attachment, _) = lab.added(&with(&MACVLAN.conf(), changes));
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
}

/// The reference does not compare `bcqueuelen`.
#[test]
fn check_finds_another_length_of_the_queue() {
    MACVLAN.for_ours(|lab| {
        let (container, attachment, result) =
            lab.added(&with(&MACVLAN.conf(), json!({"bcqueuelen": 5000})));
        if eth0(&container)["linkinfo"]["info_data"]["bcqueuelen"].is_null() {
            attachment.check(&result).fails(103, "this kernel has no bcqueuelen, expected 5000");
            return;
        }
        attachment.check(&result).ok();
        container.sh("ip link set eth0 type macvlan mode bridge bcqueuelen 7");
        let expected = "container macvlan bcqueuelen 7 does not match expected value: 5000";
        attachment.check(&result).fails(103, expected);
    });
}

#[test]
fn layer_two_networks_carry_frames_without_ipam() {
    for ipam in [Value::Null, json!({"type": "", "subnet": null, "routes": null})] {
        let conf = with(&MACVLAN.conf(), json!({"ipam": ipam}));
        MACVLAN.for_each_peer(|lab| {
            for version in ["0.3.0", "0.4.0", "1.0.0", "1.1.0"] {
                let conf = with(&conf, json!({"cniVersion": version}));
                let (a, first, before) = lab.watched(&conf);
                let result = first.add();
                let own = json!({"name": "eth0", "mac": mac(&a, "eth0"), "sandbox": a.netns});
                let mut expected = json!({"cniVersion": version, "interfaces": [own]});
                if version < "1.0.0" {
                    expected["dns"] = json!({});
                }
                assert_eq!(result, expected);
                assert_eq!(a.addresses("eth0"), [""; 0]);
                let (b, second, _) = lab.added(&conf);
                assert_carry_frames(&a, &b);
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

fn cni_args_that_are_unknown_or_wrong_are_refused(lab: &Lab) {
    for (args, code) in [("COLOUR=red", 4), ("MAC=nonsense", 7), ("MAC", 4)] {
        let (container, attachment) = lab.place(&MACVLAN.conf());
        let case = Case::new(args, json!({}), code, "CNI_ARGS").reference_leaves_nothing();
        assert_fails_at(lab, &container, &attachment.args(args), &case);
    }
}

/// The record is of before a rollback to the reference, which has attached the container again.
#[test]
fn del_deletes_the_link_of_the_reference_after_a_rollback() {
    MACVLAN.for_ours(|lab| {
        let by_reference = |container: &Container| {
            lab.host.sh(&format!(
                "ip link add link uplink name theirs type macvlan; ip link set theirs netns {} name eth0",
                container.netns
            ));
        };
        let (container, attachment, _) = lab.added(&MACVLAN.conf());
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
    two_containers_of_one_master_talk
}

each_case! { |case| MACVLAN.for_each_peer(case);
    passthru_mode_takes_the_master_s_mac_and_excludes_others
    the_hardware_address_comes_from_the_most_specific_source
    the_queue_of_broadcasts_is_as_long_as_asked_for
    cni_args_that_are_unknown_or_wrong_are_refused
}
