//! A failing ADD is stopped at each system call of its undo while another ADD to the same bridge
//! runs; the other container keeps its bridge and its gateway.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::sysctl;
use crate::support::attachment::{Attachment, for_ours, interface, with};
use crate::support::call::Outcome;
use crate::support::netns::Lab;
use crate::support::networks::bridge::{conf, static_ipam};
use crate::support::patience;
use crate::support::tracer::{Stop, Then, is_waited_for, trace};
use crate::support::traffic::assert_pings;

/// nf_tables refuses the elements: a foreign table has our name.
const REFUSAL: &str =
    "nft add table inet cni_multi_masquerade; nft add chain inet cni_multi_masquerade postrouting";

/// The subsystem in the type of a message: NFNL_SUBSYS_NFTABLES, or that of the messages that begin
/// a batch.
const NFTABLES: [u16; 2] = [10, 0];

fn network(name: &str, address: &str) -> Value {
    let addresses = json!([{"address": address, "gateway": "10.10.0.1"}]);
    with(&static_ipam(&conf(), addresses, json!([])), json!({"name": name}))
}

/// An ADD that fails after the bridge has its port and its address.
fn failing(lab: &Lab) -> Attachment<'_> {
    lab.attach(
        &lab.container(),
        &with(&network("failing", "10.10.0.66/24"), json!({"ipMasq": true})),
    )
}

/// The number of the refused system call, after which the undo begins.
fn undo(failing: &Attachment<'_>) -> usize {
    let mut refused = 0;
    let traced = trace(&failing.call("ADD", None), |stop| {
        if is_of_nftables(stop) {
            refused = stop.number;
        }
        Then::Go
    });
    let error = traced.outcome.err();
    assert!(error.code == 100 && error.msg.contains("masquerade"), "{error:?}");
    assert!(refused > 0, "{error:?}");
    refused
}

fn is_of_nftables(stop: &Stop) -> bool {
    let is_sent = [libc::SYS_sendto, libc::SYS_sendmsg].contains(&stop.call) && stop.is_netlink();
    is_sent && stop.netlink_type() >= 0x100 && NFTABLES.contains(&(stop.netlink_type() >> 8))
}

/// Runs the other ADD while the failing one is stopped before this call. Returns its outcome and
/// whether it had to wait; `None` if the failing ADD makes fewer calls.
fn add_at(
    lab: &Lab,
    failing: &Attachment<'_>,
    number: usize,
    other: &Attachment<'_>,
) -> Option<(Outcome, bool)> {
    std::thread::scope(|scope| {
        let (mut running, mut waited, lock) = (None, false, lab.path("/run/cni/bridge/lock"));
        let traced = trace(&failing.call("ADD", None), |stop| {
            if stop.number == number && stop.result.is_none() {
                let adding = scope.spawn(|| other.try_add());
                let deadline = Instant::now() + patience(5);
                while !adding.is_finished() && !waited && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(2));
                    waited = is_waited_for(&lock);
                }
                running = Some(adding);
            }
            Then::Go
        });
        assert_eq!(traced.outcome.err().code, 100);
        running.map(|adding| (adding.join().unwrap(), waited))
    })
}

/// Stops the failing ADD at each call; the script prepares the host each time.
fn assert_undo_disturbs_no_other_add(prepare: &str) {
    for_ours("bridge", |lab| {
        lab.host.sh(REFUSAL);
        let failing = failing(lab);
        let container = lab.container();
        let other = lab.attach(&container, &network("other", "10.10.0.77/24"));
        let prepare = || lab.host.sh(&format!("ip link del br0 2>/dev/null; {prepare}"));
        // A run on a busy machine makes more calls, above all the first one.
        let begin = || {
            prepare();
            undo(&failing)
        };
        let first = begin().min(begin()).min(begin());
        let mut stops = 0;
        let mut waited = 0;
        for number in first.. {
            prepare();
            let Some((outcome, has_waited)) = add_at(lab, &failing, number, &other) else { break };
            stops += 1;
            waited += usize::from(has_waited);
            let port = interface(&outcome.ok(), 1);
            assert_eq!(lab.host.link(&port).unwrap()["master"], "br0", "stopped at {number}");
            assert_eq!(lab.host.addresses("br0"), ["10.10.0.1/24"], "stopped at {number}");
            assert_eq!(sysctl(&lab.host, "ipv6/conf/br0/accept_ra"), "0", "stopped at {number}");
            assert_pings(&container, "10.10.0.1");
            lab.host.sh(&format!("ip link del {port}"));
        }
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
