//! A failing ADD is stopped at each system call of its undo while another ADD to the same bridge
//! runs; the other container keeps its bridge and its gateway.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::{Value, json};

use super::failed_add::MASQUERADE_REFUSED;
use crate::plugins::main::stacked::sysctl;
use crate::support::attachment::{Attachment, for_ours, interface, with};
use crate::support::beside::run_beside;
use crate::support::netns::Lab;
use crate::support::networks::bridge::{conf, static_ipam};
use crate::support::patience;
use crate::support::tracer::{Stop, Then, is_waited_for, trace};
use crate::support::traffic::assert_pings;

/// The subsystem in the type of a message: NFNL_SUBSYS_NFTABLES, or that of the messages that begin
/// a batch.
const NFTABLES: [u16; 2] = [10, 0];

fn network(name: &str, address: &str) -> Value {
    let addresses = json!([{"address": address, "gateway": "10.10.0.1"}]);
    with(&static_ipam(&conf(), addresses, json!([])), json!({"name": name}))
}

/// An ADD that fails after the bridge has its port and its address.
fn failing(lab: &Lab) -> Attachment<'_> {
    lab.place(&with(&network("failing", "10.10.0.66/24"), json!({"ipMasq": true}))).1
}

/// The numbers of the refused system call, after which the undo begins, and of the last one.
fn undo(failing: &Attachment<'_>) -> [usize; 2] {
    let (mut refused, mut last) = (0, 0);
    let traced = trace(&failing.call("ADD", None), |stop| {
        last = stop.number;
        if is_of_nftables(stop) {
            refused = stop.number;
        }
        Then::Go
    });
    traced.outcome.fails(100, "masquerade");
    assert!(refused > 0);
    [refused, last]
}

fn is_of_nftables(stop: &Stop) -> bool {
    let is_sent = [libc::SYS_sendto, libc::SYS_sendmsg].contains(&stop.call) && stop.is_netlink();
    is_sent && stop.netlink_type() >= 0x100 && NFTABLES.contains(&(stop.netlink_type() >> 8))
}

/// Stops the failing ADD at each call; the script prepares the host each time.
fn assert_undo_disturbs_no_other_add(prepare: &str) {
    for_ours("bridge", |lab| {
        lab.host.sh(MASQUERADE_REFUSED);
        let failing = failing(lab);
        let (container, other) = lab.place(&network("other", "10.10.0.77/24"));
        let prepare = || lab.host.sh(&format!("ip link del br0 2>/dev/null; {prepare}"));
        // A run on a busy machine makes more calls, above all the first one.
        let begun = [(), (), ()].map(|()| {
            prepare();
            undo(&failing)
        });
        let [first, last] =
            [0, 1].map(|at| begun.map(|numbers| numbers[at]).into_iter().min().unwrap());
        let lock = lab.path("/run/cni/bridge/lock");
        let mut waited = 0;
        for number in first..=last {
            prepare();
            let has_waited = AtomicBool::new(false);
            let is_held = || is_waited_for(&lock) && !has_waited.swap(true, Relaxed);
            let outcomes = run_beside(
                &failing.call("ADD", None),
                number,
                &other.call("ADD", None),
                is_held,
                patience(5),
            );
            assert_eq!(outcomes[0].err().code, 100);
            waited += usize::from(has_waited.into_inner());
            let port = interface(&outcomes[1].ok(), 1);
            assert_eq!(lab.host.link(&port).unwrap()["master"], "br0", "stopped at {number}");
            assert_eq!(lab.host.addresses("br0"), ["10.10.0.1/24"], "stopped at {number}");
            assert_eq!(sysctl(&lab.host, "ipv6/conf/br0/accept_ra"), "0", "stopped at {number}");
            assert_pings(&container, "10.10.0.1");
            lab.host.sh(&format!("ip link del {port}"));
        }
        let stops = last - first + 1;
        eprintln!("{stops} stops, the other ADD had to wait at {waited}");
        assert!(
            waited > 5 && stops > waited + 5,
            "the lock is held for a part of the undo: {waited} of {stops}"
        );
    });
}

/// In the reference the bridge always stays.
#[test]
fn undo_takes_no_bridge_from_an_add_that_joined() {
    assert_undo_disturbs_no_other_add("true");
}

#[test]
fn undo_takes_no_address_from_an_add_that_joined() {
    assert_undo_disturbs_no_other_add(
        "ip link add br0 type bridge; echo 2 >/proc/sys/net/ipv6/conf/br0/accept_ra",
    );
}
