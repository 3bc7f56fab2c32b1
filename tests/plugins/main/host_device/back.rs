//! host-device DEL and GC return the device, whatever happened to the rest.

use serde_json::{Value, json};

use super::found::fake_sysfs;
use super::{MAC, assert_is_back, assert_is_inside};
use crate::support::attachment::{for_each_peer, for_ours, not_compared, reference_with, with};
use crate::support::call::Peer;
use crate::support::netns::Lab;
use crate::support::networks::host_device::{conf, device, is_up, layer_two, leased, named_device};
use crate::support::snapshot::Watch;
use crate::support::tracer::{Then, trace};
use crate::support::traffic::assert_pings;

/// RTM_SETLINK is the move, the first message of DEL that changes anything.
const SETLINK: u16 = 19;

/// The mode and the owner of each record: the state of the device is kept in one file per
/// attachment, which only its owner can read or write.
pub fn records(lab: &Lab) -> Vec<String> {
    let found = lab
        .host
        .sh("mkdir -p /run/cni/host-device && find /run/cni/host-device -type f ! -name lock -printf '%m %U\\n'");
    found.lines().map(str::to_owned).collect()
}

/// The reference returns it down and without addresses: see tests/differences.
#[test]
fn del_leaves_the_device_as_it_was_before_add() {
    let addresses = "ip addr add 10.40.0.9/24 brd + dev dev0 && ip addr add 10.40.0.10/24 brd + dev dev0 && \
        ip addr add 192.0.2.9/32 dev dev0 && ip addr add 2001:db8:40::9/64 dev dev0";
    let up = "ip link set dev0 up mtu 1400";
    for_ours("host-device", |lab| {
        for (state, names) in [
            (up, addresses),
            ("ip link set dev0 mtu 9000", "true"),
            ("true", addresses),
            (up, "true"),
        ] {
            lab.host.try_sh("ip link del dev0");
            lab.host.sh(&format!(
                "ip link add dev0 address {MAC} type veth peer name peer0 netns outside"
            ));
            lab.host.sh(&format!("ip -n outside link set peer0 up && {state} && {names}"));
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            for base in [conf(), leased(), layer_two()] {
                let attachment = lab.attach(&container, &base);
                attachment.add();
                assert_eq!(records(lab), ["600 0"]);
                container.sh(
                    "ip link set eth0 down; ip link set eth0 mtu 1300 address 02:00:00:00:dd:77",
                );
                container.sh("ip link set eth0 txqueuelen 77 promisc on allmulticast on");
                attachment.del();
                assert_eq!(records(lab), [""; 0]);
                before.assert_unchanged(&format!("ADD of a device with `{state}`, `{names}`"));
                attachment.del();
                before.assert_unchanged("the first DEL");
            }
        }
    });
}

/// Attributes of each address are restored: noprefixroute, the label and the peer.
#[test]
fn addresses_come_back_with_their_attributes() {
    for_ours("host-device", |lab| {
        device(lab);
        lab.host.sh("ip addr add 10.42.0.9/24 brd + noprefixroute dev dev0 && \
            ip addr add 10.43.0.9/24 dev dev0 label dev0:1 && \
            ip addr add 10.44.0.9 peer 10.44.0.1 dev dev0 && \
            ip addr add 2001:db8:42::9/64 dev dev0 nodad noprefixroute");
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let attachment = lab.attach(&container, &conf());
        attachment.add();
        attachment.del();
        before.assert_unchanged("ADD");
    });
}

/// A DEL was killed after it moved the device to the host and before it restored the device's
/// state.
#[test]
fn a_del_killed_after_the_move_is_finished_by_the_next_call() {
    for_ours("host-device", |lab| {
        device(lab);
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let attachment = lab.attach(&container, &with(&conf(), json!({"cniVersion": "1.1.0"})));
        for (by_gc, by_add) in [(false, false), (true, false), (false, true)] {
            attachment.add();
            let mut moved = false;
            let traced = trace(&attachment.call("DEL", None), |stop| {
                moved |= stop.result.is_some()
                    && stop.call == libc::SYS_sendto
                    && stop.netlink_type() == SETLINK;
                if moved { Then::Kill } else { Then::Go }
            });
            assert!(traced.killed && lab.host.link("dev0").is_some() && !is_up(&lab.host, "dev0"));
            if by_add {
                attachment.add();
            }
            if by_gc {
                assert_eq!(attachment.gc(&[]).ok(), Value::Null);
            } else {
                attachment.del();
            }
            before.assert_unchanged(&format!("a killed DEL (GC: {by_gc}, ADD: {by_add})"));
        }
    });
}

/// The host can use the device at once.
#[test]
fn the_host_talks_through_the_device_again() {
    for_ours("host-device", |lab| {
        device(lab);
        assert_pings(&lab.host, "10.40.0.1");
        let attachment = lab.attach(&lab.container(), &conf());
        attachment.add();
        assert!(!lab.host.try_sh("ping -c1 -W1 10.40.0.1").status.success());
        attachment.del();
        assert_pings(&lab.host, "10.40.0.1");
        assert_pings(&lab.host, "2001:db8:40::1");
    });
}

/// A link with an alias for another purpose is not a device of the host.
#[test]
fn del_spares_a_link_with_an_alias_that_is_no_name() {
    for_ours("host-device", |lab| {
        let container = lab.container();
        container.sh("ip link add eth0 type veth peer name other && ip link set eth0 alias 'uplink of rack 7'");
        let before = Watch::start(lab, &[&container]);
        lab.attach(&container, &layer_two()).try_del();
        before.assert_unchanged("DEL");
    });
}

/// A veth is deleted with its namespace, and DEL removes the rest.
#[test]
fn del_does_not_need_the_namespace() {
    for_ours("host-device", |lab| {
        let mut before = None;
        for how in ["vanished", "of a process", "stale", "none", "empty"] {
            // The kernel deletes the links of a destroyed namespace with a delay.
            lab.outside.try_sh("ip link del peer0");
            before.get_or_insert_with(|| Watch::start(lab, &[]));
            device(lab);
            let container =
                if how == "of a process" { lab.container_of_process() } else { lab.container() };
            let attachment = lab.attach(&container, &leased());
            attachment.add();
            if how == "stale" {
                container.go_stale()
            } else {
                container.vanish()
            }
            let attachment = match how {
                "none" => attachment.netns(None),
                "empty" => attachment.netns(Some("")),
                _ => attachment,
            };
            attachment.del();
            assert_eq!(records(lab), [""; 0], "{how}");
            before.as_ref().unwrap().assert_unchanged(&format!("ADD ({how})"));
            attachment.del();
        }
    });
}

/// A device plugin may remove the device, or its driver may be unloaded, while a container has it.
/// The reference's DEL fails: see tests/differences.
#[test]
fn del_needs_neither_sysfs_nor_the_configuration_of_add() {
    let changes = [
        json!({}),
        json!({"pciBusID": null}),
        json!({"pciBusID": "0000:ff:00.0"}),
        json!({"pciBusID": null, "runtimeConfig": {"deviceID": "0000:00:1f.6"}}),
        json!({"pciBusID": "../..", "device": "x", "hwaddr": 7}),
    ];
    for_ours("host-device", |lab| {
        for changes in changes.clone() {
            device(lab);
            fake_sysfs(lab, "e1000e", "mkdir -p net/dev0");
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            let conf = with(&leased(), json!({"device": null, "pciBusID": "0000:00:1f.6"}));
            let attachment = lab.attach(&container, &conf);
            attachment.add();
            lab.host.sh("rm -r /sys/bus /sys/devices");
            attachment.conf(changes).del();
            before.assert_unchanged("ADD");
            lab.host.sh("umount /sys && ip link del dev0");
        }
    });
}

/// The host has a new link with the old name: DEL fails, and the container keeps a working device.
#[test]
fn del_waits_until_the_device_s_name_is_free_on_the_host() {
    for_each_peer("host-device", |lab| {
        for base in [conf(), layer_two()] {
            device(lab);
            let container = lab.container();
            let attachment = lab.attach(&container, &base);
            let result = attachment.add();
            lab.host.sh("ip link add dev0 type veth peer name dev0-peer");
            let error = attachment.try_del().err();
            if lab.peer == Peer::Ours {
                assert_eq!(error.code, 102, "{error:?}");
                assert!(error.text().contains("dev0"), "{error:?}");
                assert_eq!(records(lab), ["600 0"]);
            }
            let link = container.link("eth0").unwrap();
            assert_eq!((&link["address"], &link["ifalias"]), (&json!(MAC), &json!("dev0")));
            assert!(is_up(&container, "eth0"));
            if lab.peer == Peer::Ours && base.get("ipam").is_some() {
                assert_eq!(container.addresses("eth0"), ["10.40.0.2/24", "2001:db8:40::2/64"]);
                attachment.check(&result).ok();
                assert_pings(&container, "10.40.0.1");
            }
            lab.host.sh("ip link del dev0");
            attachment.del();
            assert_is_back(lab, &container);
            lab.host.sh("ip link del dev0");
        }
    });
}

/// The device, an end of a veth pair, is gone with its namespace.
#[test]
fn gc_removes_the_record_and_the_lease_of_a_gone_namespace() {
    for_ours("host-device", |lab| {
        device(lab);
        let container = lab.container();
        let attachment = lab.attach(&container, &with(&leased(), json!({"cniVersion": "1.1.0"})));
        attachment.add();
        container.vanish();
        assert_eq!(records(lab), ["600 0"]);
        assert_eq!(attachment.gc(&[]).ok(), Value::Null);
        assert_eq!(records(lab), [""; 0]);
        assert!(!lab.path("/var/lib/cni/networks/net1/10.40.0.2").exists());
    });
}

/// A node is upgraded or rolled back while a container has the device: both plugins find the
/// device's name in its alias.
#[test]
fn a_device_comes_back_from_any_namespace() {
    let Some(reference) = reference_with("host-device") else {
        return not_compared("specification 1.1.0");
    };
    for_ours("host-device", |lab| {
        for (from, to) in [(&reference, &Peer::Ours), (&Peer::Ours, &reference)] {
            for base in [
                with(
                    &conf(),
                    json!({"ipam": {"addresses": [{"address": "10.40.0.2/24"}], "routes": null}}),
                ),
                leased(),
                layer_two(),
            ] {
                device(lab);
                let container = lab.container();
                let result = lab.attach(&container, &base).by(from).add();
                assert_is_inside(lab, &container, "dev0");
                let attachment = lab.attach(&container, &base).by(to);
                attachment.check(&result).ok();
                attachment.del();
                assert_is_back(lab, &container);
                assert!(!lab.path("/var/lib/cni/networks/net1/10.40.0.2").exists());
                // A rollback leaves a record, which must not affect the next owner of the device.
                lab.attach(&container, &base).del();
                assert_eq!(records(lab), [""; 0]);
                lab.host.sh("ip link del dev0");
            }
        }
    });
}

/// After a rollback and a new upgrade, the record of an attachment that the reference ended does
/// not apply to the next attachment.
#[test]
fn a_record_that_a_rollback_left_is_not_believed() {
    let Some(reference) = reference_with("host-device") else {
        return not_compared("specification 1.1.0");
    };
    for_ours("host-device", |lab| {
        device(lab);
        let container = lab.container();
        let attachment = lab.attach(&container, &layer_two());
        attachment.add();
        attachment.clone().by(&reference).del();
        // The operator has reconfigured the device since.
        lab.host.sh(&format!(
            "ip link set dev0 address {MAC} mtu 1350 && ip addr add 10.49.0.9/24 brd + dev dev0 && ip link set dev0 up"
        ));
        let before = Watch::start(lab, &[&container]);
        attachment.add();
        attachment.del();
        let changes = before.changes();
        let changes: Vec<&str> =
            changes.lines().filter(|line| !line.contains("/run/cni/host-device/")).collect();
        assert_eq!(changes, [""; 0]);
        assert_eq!(records(lab), [""; 0]);
    });
}

/// The record is of before a rollback to the reference, which has taken `dev0` back and attached
/// another device.
#[test]
fn del_returns_what_the_reference_lent_after_a_rollback() {
    for_ours("host-device", |lab| {
        [0, 1].into_iter().for_each(|number| named_device(lab, number));
        let container = lab.container();
        let attachment = lab.attach(&container, &layer_two());
        attachment.add();
        let host = lab.pid();
        container.sh(&format!(
            "ip link set eth0 down; ip link set eth0 name dev0 alias ''; ip link set dev0 netns {host}"
        ));
        lab.host.sh(&format!("ip link set dev1 netns {}", container.netns));
        container.sh("ip link set dev1 name eth0 alias dev1");
        attachment.del();
        assert!(container.link("eth0").is_none());
        assert!(["dev0", "dev1"].iter().all(|device| lab.host.link(device).is_some()));
        assert_eq!(records(lab), [""; 0]);
    });
}
