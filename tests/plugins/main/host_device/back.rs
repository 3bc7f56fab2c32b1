//! host-device DEL and GC return the device, whatever happened to the rest.

use serde_json::{Value, json};

use super::found::fake_sysfs;
use super::{MAC, assert_is_back, assert_is_inside};
use crate::support::attachment::{for_each_peer, for_ours, not_compared, reference_with, with};
use crate::support::call::Peer;
use crate::support::contract::assert_del_leaves_nothing;
use crate::support::netns::Lab;
use crate::support::networks::host_device::{conf, device, is_up, layer_two, leased, named_device};
use crate::support::peers::each_case;
use crate::support::snapshot::Watch;
use crate::support::tracer::{Then, trace};
use crate::support::traffic::assert_pings;

/// RTM_SETLINK is the move, the first message of DEL that changes anything.
const SETLINK: u16 = 19;

/// The records of devices, whose state is kept in one file per attachment that only its owner can read or write.
pub fn assert_records(lab: &Lab, number: usize) {
    let found = lab.host.sh(
        "mkdir -p /run/cni/host-device && find /run/cni/host-device -type f ! -name lock -printf '%m %U\n'",
    );
    assert_eq!(found, "600 0\n".repeat(number));
}

fn has_lease(lab: &Lab) -> bool {
    lab.path("/var/lib/cni/networks/net1/10.40.0.2").exists()
}

/// Addresses with attributes: noprefixroute, a label and a peer.
const ATTRIBUTES: &str = "ip addr add 10.42.0.9/24 brd + noprefixroute dev dev0 && \
    ip addr add 10.43.0.9/24 dev dev0 label dev0:1 && ip addr add 10.44.0.9 peer 10.44.0.1 dev dev0 && \
    ip addr add 2001:db8:42::9/64 dev dev0 nodad noprefixroute";

/// The reference returns it down and without addresses: see tests/differences.
#[test]
fn del_leaves_the_device_as_it_was_before_add() {
    let names = "ip addr add 10.40.0.9/24 brd + dev dev0 && ip addr add 10.40.0.10/24 brd + dev dev0 && \
        ip addr add 192.0.2.9/32 dev dev0 && ip addr add 2001:db8:40::9/64 dev dev0";
    let up = "ip link set dev0 up mtu 1400";
    let states = [
        format!("{up} && {names}"),
        format!("{up} && {ATTRIBUTES}"),
        "ip link set dev0 mtu 9000".to_owned(),
        names.to_owned(),
        up.to_owned(),
    ];
    for_ours("host-device", |lab| {
        for state in &states {
            lab.host.try_sh("ip link del dev0");
            lab.host.sh(&format!(
                "ip link add dev0 address {MAC} type veth peer name peer0 netns outside && \
                 ip -n outside link set peer0 up && {state}"
            ));
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            for base in [conf(), leased(), layer_two()] {
                let attachment = lab.attach(&container, &base);
                attachment.add();
                assert_records(lab, 1);
                container.sh("ip -b - <<'END'
link set eth0 down
link set eth0 mtu 1300 address 02:00:00:00:dd:77
link set eth0 txqueuelen 77 promisc on allmulticast on
END");
                assert_del_leaves_nothing(&attachment, &before);
                assert_records(lab, 0);
            }
        }
    });
}

/// A DEL was killed after it moved the device to the host and before it restored the device's
/// state.
fn a_del_killed_after_the_move_is_finished_by_the_next_call(lab: &Lab) {
    device(lab);
    let (_, attachment, before) = lab.watched(&with(&conf(), json!({"cniVersion": "1.1.0"})));
    for next in ["DEL", "GC", "ADD"] {
        attachment.add();
        let mut moved = false;
        let traced = trace(&attachment.call("DEL", None), |stop| {
            let is_sent = stop.result.is_some() && stop.call == libc::SYS_sendto;
            moved |= is_sent && stop.netlink_type() == SETLINK;
            if moved { Then::Kill } else { Then::Go }
        });
        assert!(traced.killed && lab.host.link("dev0").is_some() && !is_up(&lab.host, "dev0"));
        if next == "ADD" {
            attachment.add();
        }
        let ended = if next == "GC" { attachment.gc(&[]) } else { attachment.try_del() };
        assert_eq!(ended.ok(), Value::Null);
        before.assert_unchanged(&format!("a killed DEL, and {next}"));
    }
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
    let conf = with(&leased(), json!({"device": null, "pciBusID": "0000:00:1f.6"}));
    for_ours("host-device", |lab| {
        for changes in &changes {
            device(lab);
            fake_sysfs(lab, "e1000e", "mkdir -p net/dev0");
            let (_, attachment, before) = lab.watched(&conf);
            attachment.add();
            lab.host.sh("rm -r /sys/bus /sys/devices");
            attachment.conf(changes.clone()).del();
            before.assert_unchanged("ADD");
            lab.host.sh("umount /sys && ip link del dev0");
        }
    });
}

/// The host has a new link with the old name: DEL fails, and the container keeps a working device.
#[test]
fn del_waits_until_the_device_s_name_is_free_on_the_host() {
    for_each_peer("host-device", |lab| {
        let is_ours = lab.peer == Peer::Ours;
        for base in [conf(), layer_two()] {
            device(lab);
            let (container, attachment, result) = lab.added(&base);
            lab.host.sh("ip link add dev0 type veth peer name dev0-peer");
            let outcome = attachment.try_del();
            outcome.err();
            if is_ours {
                outcome.fails(102, "dev0");
                assert_records(lab, 1);
            }
            let link = container.link("eth0").unwrap();
            assert_eq!((&link["address"], &link["ifalias"]), (&json!(MAC), &json!("dev0")));
            assert!(is_up(&container, "eth0"));
            if is_ours && base.get("ipam").is_some() {
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
fn gc_removes_the_record_and_the_lease_of_a_gone_namespace(lab: &Lab) {
    device(lab);
    let (container, attachment, _) = lab.added(&with(&leased(), json!({"cniVersion": "1.1.0"})));
    container.vanish();
    assert_records(lab, 1);
    attachment.gc(&[]).ok();
    assert_records(lab, 0);
    assert!(!has_lease(lab));
}

/// A node is upgraded or rolled back while a container has the device: both plugins find the
/// device's name in its alias.
#[test]
fn a_device_comes_back_from_any_namespace() {
    let Some(reference) = reference_with("host-device") else {
        return not_compared("specification 1.1.0");
    };
    let v4 = json!({"ipam": {"addresses": [{"address": "10.40.0.2/24"}], "routes": null}});
    for_ours("host-device", |lab| {
        for (from, to) in [(&reference, &Peer::Ours), (&Peer::Ours, &reference)] {
            for base in [with(&conf(), v4.clone()), leased(), layer_two()] {
                device(lab);
                let (container, attachment) = lab.place(&base);
                let result = attachment.clone().by(from).add();
                assert_is_inside(lab, &container, "dev0");
                attachment.clone().by(to).check_and_del(&result);
                assert_is_back(lab, &container);
                assert!(!has_lease(lab));
                // A rollback leaves a record, which must not affect the next owner of the device.
                attachment.del();
                assert_records(lab, 0);
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
        let (container, attachment, _) = lab.added(&layer_two());
        attachment.clone().by(&reference).del();
        // The operator has reconfigured the device since.
        lab.host.sh(&format!(
            "ip link set dev0 address {MAC} mtu 1350 && ip addr add 10.49.0.9/24 brd + dev dev0 && ip link set dev0 up"
        ));
        let before = Watch::start(lab, &[&container]);
        attachment.add();
        attachment.del();
        assert_only_records_changed(&before);
        assert_records(lab, 0);
    });
}

/// Nothing but records of devices has changed.
#[track_caller]
pub fn assert_only_records_changed(before: &Watch<'_>) {
    let changes = before.changes();
    let is_other = |line: &&str| !line.contains("/run/cni/host-device/");
    assert_eq!(changes.lines().find(is_other), None);
}

/// The record is of before a rollback to the reference, which has taken `dev0` back and attached
/// another device.
fn del_returns_what_the_reference_lent_after_a_rollback(lab: &Lab) {
    [0, 1].into_iter().for_each(|number| named_device(lab, number));
    let (container, attachment, _) = lab.added(&layer_two());
    let host = lab.pid();
    container.sh(&format!(
        "ip link set eth0 down; ip link set eth0 name dev0 alias ''; ip link set dev0 netns {host}"
    ));
    lab.host.sh(&format!("ip link set dev1 netns {}", container.netns));
    container.sh("ip link set dev1 name eth0 alias dev1");
    attachment.del();
    assert!(container.link("eth0").is_none());
    assert!(["dev0", "dev1"].iter().all(|device| lab.host.link(device).is_some()));
    assert_records(lab, 0);
}

each_case! { |case| for_ours("host-device", case);
    a_del_killed_after_the_move_is_finished_by_the_next_call
    gc_removes_the_record_and_the_lease_of_a_gone_namespace
    del_returns_what_the_reference_lent_after_a_rollback
}
