//! Deliberate differences of bandwidth from the reference.

use std::fmt::Debug;

use serde_json::json;

use super::bridge::addresses;
use super::{FAILED, OK, differs_where};
use crate::plugins::meta::bandwidth::host_end;
use crate::support::attachment::with;
use crate::support::netns::Lab;
use crate::support::networks::bandwidth::{self, bandwidth, can_limit};
use crate::support::networks::bridge::static_ipam;
use crate::support::peers::tests;
use crate::support::snapshot::Watch;
use crate::support::traffic::assert_pings;

/// As `differs`, where the kernel can limit rates.
fn limits_differ<T: PartialEq + Debug>(ours: T, reference: T, observe: impl Fn(&Lab) -> T) {
    differs_where("bandwidth", can_limit, ours, reference, observe);
}

/// Runtimes send about 2^31-1 if no burst is configured; the reference's bucket starts with that
/// much, and the limit has no effect until it is empty.
#[test]
fn a_default_burst_does_not_suspend_the_limit() {
    let limits = json!({"ingressRate": bandwidth::RATE, "ingressBurst": 2_147_483_647_u64});
    limits_differ(false, true, |lab| {
        let chain = lab.chain(
            &bandwidth::network(),
            &bandwidth(json!({"runtimeConfig": {"bandwidth": limits}})),
        );
        chain.add();
        let seconds =
            crate::support::flow::measure(&lab.host, &chain.container, &chain.ips()[0], 1);
        seconds[0] > 3 * bandwidth::RATE
    });
}

tests! {
    /// The kernel drops packets that are larger than the bucket.
    a_burst_that_is_shorter_than_a_packet_lets_packets_pass = limits_differ(true, false, |lab| {
        let limits = json!({"ingressRate": 8_000_000, "ingressBurst": 80});
        let chain = lab.chain(&bandwidth::network(), &bandwidth(limits));
        assert_pings(&lab.host, &chain.ips()[0]);
        chain.add();
        lab.host.try_sh(&format!("ping -n -q -c3 -i0.2 -W1 {}", chain.ips()[0])).status.success()
    });

    /// The reference names the ifb by network and container, so two interfaces collide.
    two_interfaces_of_a_container_can_be_limited = limits_differ(OK, FAILED, |lab| {
        let chain = lab.chain(&bandwidth::network(), &bandwidth::both());
        chain.add();
        let address = json!([{"address": "10.77.0.2/24", "gateway": "10.77.0.1"}]);
        let network = static_ipam(&bandwidth::network(), address, json!([]));
        let second = lab.attach(&chain.container, &network).ifname("eth1");
        let prev_result = second.add();
        chain.clone().ifname("eth1").conf(json!({"prevResult": prev_result})).try_add().status
    });

    /// An existing ingress qdisc makes the last step of ADD fail. The reference leaves the queues and
    /// the ifb.
    an_add_of_limits_that_fails_leaves_nothing = limits_differ(true, false, |lab| {
        let chain = lab.chain(&bandwidth::network(), &bandwidth::both());
        lab.host.sh(&format!("tc qdisc add dev {} ingress", host_end(&chain)));
        let before = Watch::start(lab, &[]);
        assert_eq!(chain.try_add().status, FAILED);
        before.changes_now().is_empty()
    });

    /// The reference leaves the qdiscs on the host's end until that link is deleted.
    del_takes_the_limits_off_the_host_s_end = limits_differ(true, false, |lab| {
        let chain = lab.chain(&bandwidth::network(), &bandwidth::both());
        let before = Watch::start(lab, &[]);
        chain.add();
        chain.del();
        before.changes().is_empty()
    });

    /// Without limits and prevResult the reference dereferences a nil pointer: Go's exit status 2.
    no_prev_result_is_no_crash_of_bandwidth = limits_differ(FAILED, 2, |lab| {
        let chain = lab.chain(&bandwidth::network(), &bandwidth(json!({})));
        chain.clone().conf(json!({"prevResult": null})).try_add().status
    });

    /// The ifb only hands frames on. In the reference the kernel gives it a link-local address.
    the_ifb_has_no_address = limits_differ(0, 1, |lab| {
        let result = lab.chain(&bandwidth::network(), &bandwidth::both()).add();
        let interfaces = result["interfaces"].as_array().unwrap();
        addresses(lab, interfaces.last().unwrap()["name"].as_str().unwrap())
    });

    /// The kernel knows the host's end, whatever prevResult says. The reference refuses such a result.
    limits_need_no_interfaces_in_prev_result = limits_differ((OK, OK), (FAILED, FAILED), |lab| {
        let old = lab.chain(
            &with(&bandwidth::network(), json!({"cniVersion": "0.2.0"})),
            &bandwidth::both(),
        );
        let new = lab.chain(&bandwidth::network(), &bandwidth::both());
        (
            old.try_add().status,
            new.clone().conf(json!({"prevResult": {"interfaces": null}})).try_add().status,
        )
    });

    /// Releases 1.5 of the reference had the keys; 1.9.1 limits all traffic instead.
    some_subnets_alone_can_be_limited = limits_differ(false, true, |lab| {
        let chain = lab.chain(
            &bandwidth::network(),
            &with(&bandwidth::both(), json!({"shapedSubnets": ["10.99.0.0/16"]})),
        );
        if !bandwidth::is_able(lab, "htb") {
            crate::support::attachment::skip("htb");
            return lab.peer != crate::support::call::Peer::Ours;
        }
        chain.add();
        let seconds =
            crate::support::flow::measure(&lab.host, &chain.container, &chain.ips()[0], 2);
        seconds[1] < 3 * bandwidth::RATE
    });
}
