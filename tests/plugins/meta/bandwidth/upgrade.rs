//! bandwidth: each peer checks and removes the limits that the other one made.

use serde_json::{Value, json};

use super::directions;
use crate::support::attachment::{interface, not_compared, reference_with, with};
use crate::support::call::Peer;
use crate::support::chain::Chain;
use crate::support::flow::assert_rate;
use crate::support::netns::Lab;
use crate::support::networks::bandwidth::{BURST, RATE, bandwidth, can_limit, network};
use crate::support::snapshot::Watch;

/// Limits for which both peers make the same queues.
fn limits() -> [Value; 3] {
    let keys = |rate: u64, burst: u64| {
        bandwidth(
            json!({"ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst}),
        )
    };
    [keys(RATE, BURST), keys(3_333_333, 777_777), keys(100_000_000_000, 1_000_000_000)]
}

/// `from` runs the main plugin and sets the limits; the case decides what `to` does.
fn handed_over(from: &Peer, to: &Peer, case: impl Fn(&Lab, &Chain<'_>, &Value)) {
    let lab = Lab::new(from.clone()).without_dad();
    if !can_limit(&lab) {
        return;
    }
    for limits in limits() {
        let warm = lab.chain(&network(), &limits);
        warm.main.del();
        let before = Watch::start(&lab, &[]);
        let chain = lab.chain(&network(), &limits);
        let result = chain.add();
        let by_other = chain.clone().by(to);
        by_other.check(&result).ok();
        case(&lab, &chain, &result);
        by_other.del();
        assert!(lab.host.link(&interface(&result, 2)).is_none(), "the ifb is gone");
        by_other.del();
        chain.main.del();
        before.assert_unchanged("ADD by one and DEL by the other");
    }
}

fn with_reference(case: impl Fn(&Peer)) {
    match reference_with("bandwidth") {
        Some(reference) => case(&reference),
        None => not_compared("bandwidth"),
    }
}

#[test]
fn ours_checks_and_removes_what_the_reference_made() {
    with_reference(|reference| handed_over(reference, &Peer::Ours, |_, _, _| ()));
}

#[test]
fn our_del_without_netns_removes_limits_of_the_reference() {
    with_reference(|reference| {
        handed_over(reference, &Peer::Ours, |_, chain, _| chain.container.vanish())
    });
}

/// Ours leaves out the second action of the reference's filter, which no packet reaches.
#[test]
fn the_reference_checks_and_removes_what_ours_made() {
    with_reference(|reference| handed_over(&Peer::Ours, reference, |_, _, _| ()));
}

/// Default bursts that runtimes send: our CHECK accepts the reference's own numbers, so an upgrade
/// raises no false alarm.
#[test]
fn ours_checks_the_numbers_that_the_reference_made_of_no_burst() {
    with_reference(|reference| {
        let lab = Lab::new(reference.clone());
        if !can_limit(&lab) {
            return;
        }
        for burst in [80, 2_147_483_647_u64, 4_294_967_295, 34_359_738_352] {
            let keys = json!({"ingressRate": 1_000_000, "ingressBurst": burst, "egressRate": 8_000_000, "egressBurst": burst});
            let chain = lab.chain(&network(), &bandwidth(keys));
            let result = chain.add();
            let outcome = chain.clone().by(&Peer::Ours).check(&result);
            assert_eq!(outcome.ok(), Value::Null, "{burst}");
            chain.del_all();
        }
    });
}

/// A container that the reference limited before the upgrade.
fn limited_by_reference(case: impl Fn(&Lab, &Chain<'_>)) {
    with_reference(|reference| {
        let lab = Lab::new(reference.clone());
        if can_limit(&lab) {
            let chain = lab.chain(&network(), &limits()[0]);
            chain.add();
            case(&lab, &chain);
        }
    });
}

#[test]
fn limits_of_the_reference_hold_after_the_upgrade() {
    limited_by_reference(|lab, chain| {
        for (_, from, to, address) in directions(lab, chain).into_iter().take(2) {
            assert_rate(from, to, &address, RATE);
        }
        // A runtime that lost the result of the first ADD repeats it.
        (**chain).clone().by(&Peer::Ours).try_add().fails(102, "");
    });
}

/// The names of the host's ifbs.
fn ifbs(lab: &Lab) -> Vec<String> {
    let links = lab.host.json("ip -j link show type ifb");
    links
        .as_array()
        .unwrap()
        .iter()
        .map(|link| link["ifname"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn del_removes_the_reference_s_ifb_that_lost_its_filter() {
    limited_by_reference(|lab, chain| {
        lab.host.sh(&format!("tc qdisc del dev {} ingress", super::host_end(chain)));
        (**chain).clone().by(&Peer::Ours).del();
        assert!(ifbs(lab).is_empty(), "{:?}", ifbs(lab));
    });
}

/// The reference uses one ifb name for all interfaces of a container. DEL of the second interface,
/// which has no limits, must not remove the ifb of the first.
#[test]
fn del_of_another_interface_leaves_the_reference_s_ifb() {
    limited_by_reference(|lab, chain| {
        let before = ifbs(lab);
        lab.host.sh(&format!(
            "ip link add second type veth peer name eth1 netns {}",
            chain.container.netns
        ));
        (**chain).clone().ifname("eth1").by(&Peer::Ours).del();
        assert_eq!((before.len(), ifbs(lab)), (1, before));
    });
}

/// The reference has no GC. Nothing uses an ifb whose veth pair is gone.
#[test]
fn gc_removes_the_ifbs_that_the_reference_left() {
    with_reference(|reference| {
        let lab = Lab::new(reference.clone());
        if !can_limit(&lab) {
            return;
        }
        let latest = with(&network(), json!({"cniVersion": "1.1.0"}));
        let ipam = json!({"ranges": [[{"subnet": "10.20.0.0/24"}]], "routes": []});
        let alive = lab.chain(&with(&latest, json!({"name": "net2", "ipam": ipam})), &limits()[0]);
        alive.add();
        let of_alive = ifbs(&lab);
        let (gone, valid) = (lab.chain(&latest, &limits()[0]), lab.chain(&latest, &limits()[0]));
        for chain in [&gone, &valid] {
            chain.add();
            lab.host.sh(&format!("ip link del {}", super::host_end(chain)));
        }
        // The state in the middle of the reference's ADD: the ifb exists and is unused.
        lab.host.sh("ip link add bwp012345678901 type ifb");
        // One in 64 addresses that the kernel picks begins with the same bits as ours.
        lab.host.sh("ip link add bwp012345678902 address 02:00:00:00:00:01 type ifb");
        lab.host.sh("tc qdisc add dev bwp012345678902 root handle 1: tbf rate 1mbit burst 10kb latency 25ms");
        assert_eq!(ifbs(&lab).len(), 5);
        let ours = gone.clone().by(&Peer::Ours);
        assert_eq!(
            ours.gc(&[(&gone.container_id, "eth0"), (&valid.container_id, "eth0")]).ok(),
            Value::Null
        );
        assert_eq!(ifbs(&lab).len(), 4, "they are valid");
        assert_eq!(ours.gc(&[(&valid.container_id, "eth0")]).ok(), Value::Null);
        assert_eq!(ifbs(&lab).len(), 3);
        assert_eq!(ours.gc(&[]).ok(), Value::Null);
        let left = ifbs(&lab);
        assert!(
            left.len() == 2
                && left.contains(&of_alive[0])
                && left.contains(&"bwp012345678901".to_owned()),
            "{left:?}"
        );
    });
}
