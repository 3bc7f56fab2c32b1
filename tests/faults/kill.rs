//! The kill sweep: SIGKILL between the system calls of ADD, DEL, GC and CHECK of everything that a network can have.
//!
//! After each kill the runtime goes on in one of the ways in which runtimes do, and then the host and the container are as before, and
//! a neighbour on the same network is as it was all the time. Of the two forms, the short one kills after each call that changes
//! something in the kernel or on the disk, and the ways take turns: between two such calls one kill is like the other. The long one
//! (`tests/faults/run kill`) takes all ways at each of those points, and kills before each single call as well.

mod dhcp;
mod life;
mod sweep;

use self::life::Runtime;
use super::subject;
use crate::support::attachment::for_ours;

/// A test for each subject, so that each can be skipped where the kernel lacks something, and they run side by side.
macro_rules! subjects {
    ($($test:ident $name:literal)*) => {
        const SWEPT: &[&str] = &[$($name),*];
        $(#[test]
        fn $test() {
            sweep_of($name);
        })*
    };
}

subjects! {
    kills_leave_nothing_of_bridge "bridge"
    kills_leave_nothing_of_bridge_with_iptables "bridge, iptables"
    kills_leave_nothing_of_ptp "ptp"
    kills_leave_nothing_of_macvlan "macvlan"
    kills_leave_nothing_of_ipvlan "ipvlan"
    kills_leave_nothing_of_vlan "vlan"
    kills_leave_nothing_of_host_device "host-device"
    kills_leave_nothing_of_dummy "dummy"
    kills_leave_nothing_of_tap "tap"
    kills_leave_nothing_of_loopback "loopback"
    kills_leave_nothing_of_host_local "host-local"
    kills_leave_nothing_of_static "static"
    kills_leave_nothing_of_portmap "portmap"
    kills_leave_nothing_of_portmap_with_iptables "portmap, iptables"
    kills_leave_nothing_of_firewall "firewall"
    kills_leave_nothing_of_firewall_with_iptables "firewall, iptables"
    kills_leave_nothing_of_tuning "tuning"
    kills_leave_nothing_of_bandwidth "bandwidth"
    kills_leave_nothing_of_sbr "sbr"
    kills_leave_nothing_of_vrf "vrf"
    kills_leave_nothing_of_a_chain_of_five "bridge, portmap, firewall, tuning, bandwidth"
    kills_leave_nothing_of_a_chain_of_five_with_iptables "the same by iptables"
    kills_leave_nothing_of_a_chain_on_macvlan "macvlan, tuning, sbr"
}

fn sweep_of(name: &str) {
    sweep_by(Runtime::EachAlone, name);
}

/// The whole list in one process, with the result in the cache.
#[test]
fn kills_of_net_leave_nothing_of_a_chain_of_five() {
    sweep_by(Runtime::Net, "bridge, portmap, firewall, tuning, bandwidth");
}

#[test]
fn kills_of_net_leave_nothing_of_a_chain_on_macvlan() {
    sweep_by(Runtime::Net, "macvlan, tuning, sbr");
}

fn sweep_by(runtime: Runtime, name: &str) {
    let (place, subject) = subject::all().into_iter().enumerate().find(|(_, subject)| subject.name == name).unwrap();
    for_ours(subject.plugins[0]["type"].as_str().unwrap(), |lab| {
        if (subject.prepare)(lab) {
            sweep::run(lab, place, &subject, runtime);
        }
    });
}

#[test]
fn every_subject_has_its_kill_sweep() {
    let all: Vec<_> = subject::all().iter().map(|subject| subject.name).collect();
    assert_eq!(SWEPT, all);
}
