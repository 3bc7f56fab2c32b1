//! bandwidth: each peer checks and removes the limits that the other one made.

use super::*;

/// Limits for which both peers make the same queues.
fn same_limits() -> [Value; 3] {
    [(RATE, BURST), (3_333_333, 777_777), (100_000_000_000, 1_000_000_000)]
        .map(|(rate, burst)| bandwidth(limits(rate, burst)))
}

/// `from` runs the main plugin and sets the limits; `to` checks and removes them after what happens between.
fn handed_over(lab: &Lab, to: &Peer, between: impl Fn(&Chain<'_>)) {
    for limits in same_limits() {
        let warm = lab.chain(&network(), &limits);
        warm.main.del();
        let before = Watch::start(lab, &[]);
        let chain = lab.chain(&network(), &limits);
        let result = chain.add();
        let by_other = chain.clone().by(to);
        by_other.check(&result).ok();
        between(&chain);
        by_other.del();
        assert!(lab.host.link(&interface(&result, 2)).is_none(), "the ifb is gone");
        by_other.del();
        chain.main.del();
        before.assert_unchanged("ADD by one and DEL by the other");
    }
}

/// Runs a case in a lab of the reference, if it and the kernel can limit.
fn for_able_reference(case: impl Fn(&Lab)) {
    for_reference("bandwidth", |lab| {
        if can_limit(lab) {
            case(lab);
        }
    });
}

/// Ours leaves out the second action of the reference's filter, which no packet reaches.
#[test]
fn each_checks_and_removes_what_the_other_made() {
    for_able_reference(|lab| {
        handed_over(lab, &Peer::Ours, |_| ());
        handed_over(lab, &Peer::Ours, |chain| chain.container.vanish());
        handed_over(&Lab::new(Peer::Ours).without_dad(), &lab.peer, |_| ());
    });
}

/// Default bursts that runtimes send: our CHECK accepts the reference's own numbers, so an upgrade
/// raises no false alarm.
#[test]
fn ours_checks_the_numbers_that_the_reference_made_of_no_burst() {
    for_able_reference(|lab| {
        for burst in [80, 2_147_483_647_u64, 4_294_967_295, 34_359_738_352] {
            let keys = with(&limits(8_000_000, burst), json!({"ingressRate": 1_000_000}));
            let chain = lab.chain(&network(), &bandwidth(keys));
            let result = chain.add();
            let outcome = chain.clone().by(&Peer::Ours).check(&result);
            assert_eq!(outcome.ok(), Value::Null, "{burst}");
            chain.del_all();
        }
    });
}

/// The names of the host's ifbs, a line each.
fn ifbs(lab: &Lab) -> String {
    lab.host.sh("ip -o link show type ifb | cut -d: -f2")
}

/// A container that the reference limited before the upgrade. The reference uses one ifb name for all interfaces of a
/// container: DEL of the second interface, which has no limits, must not remove the ifb of the first.
#[test]
fn limits_of_the_reference_hold_after_the_upgrade() {
    for_able_reference(|lab| {
        let chain = lab.chain_added(&network(), &same_limits()[0]);
        for (_, from, to, address) in directions(lab, &chain).into_iter().take(2) {
            assert_rate(from, to, &address, RATE);
        }
        // A runtime that lost the result of the first ADD repeats it.
        let ours = chain.clone().by(&Peer::Ours);
        ours.try_add().fails(102, "");
        let before = ifbs(lab);
        let second =
            format!("ip link add second type veth peer name eth1 netns {}", chain.container.netns);
        lab.host.sh(&second);
        ours.clone().ifname("eth1").del();
        assert_eq!((before.lines().count(), ifbs(lab)), (1, before));
        // The ifb has lost its filter.
        lab.host.sh(&format!("tc qdisc del dev {} ingress", host_end(&chain)));
        ours.del();
        assert_eq!(ifbs(lab), "");
    });
}

/// The reference has no GC. Nothing uses an ifb whose veth pair is gone.
#[test]
fn gc_removes_the_ifbs_that_the_reference_left() {
    for_able_reference(|lab| {
        let latest = with(&network(), json!({"cniVersion": "1.1.0"}));
        let ipam = json!({"ranges": [[{"subnet": "10.20.0.0/24"}]], "routes": []});
        let limits = &same_limits()[0];
        let _alive = lab.chain_added(&with(&latest, json!({"name": "net2", "ipam": ipam})), limits);
        let of_alive = ifbs(lab);
        let [gone, valid] = [(); 2].map(|()| lab.chain(&latest, limits));
        for chain in [&gone, &valid] {
            chain.add();
            lab.host.sh(&format!("ip link del {}", host_end(chain)));
        }
        // The state in the middle of the reference's ADD: the ifb exists and is unused.
        lab.host.sh("ip link add bwp012345678901 type ifb");
        // One in 64 addresses that the kernel picks begins with the same bits as ours.
        lab.host.sh("ip link add bwp012345678902 address 02:00:00:00:00:01 type ifb");
        lab.host.sh("tc qdisc add dev bwp012345678902 root handle 1: tbf rate 1mbit burst 10kb latency 25ms");
        assert_eq!(ifbs(lab).lines().count(), 5);
        let ours = gone.clone().by(&Peer::Ours);
        let [gone, valid] = [&gone, &valid].map(|chain| (chain.container_id.as_str(), "eth0"));
        for (spared, left) in [(&[gone, valid][..], 4), (&[valid], 3), (&[], 2)] {
            assert_eq!(ours.gc(spared).ok(), Value::Null);
            assert_eq!(ifbs(lab).lines().count(), left, "{spared:?}: {}", ifbs(lab));
        }
        for kept in [of_alive.trim(), "bwp012345678901"] {
            assert!(ifbs(lab).contains(kept), "{}", ifbs(lab));
        }
    });
}
