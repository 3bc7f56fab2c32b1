//! bandwidth: streams that stay within their limits, and the kernel's queues and ifb behind them.
//! CHECK, DEL, subnets, upgrades and failures have modules of their own.

mod check;
mod del;
pub mod failed_add;
mod queue;
mod subnets;
mod upgrade;

use std::time::Duration;

use super::*;
use crate::support::attachment::interface;
use crate::support::extent::is_emulated;
use crate::support::flow::{Flow, assert_rate, measure};
use crate::support::networks::bandwidth::{
    BURST, RATE, bandwidth, both, can_limit, limits, network,
};
use crate::support::synced::{Synced, attach};

/// Runs a case for each peer, if the kernel can limit.
pub fn for_each_able_peer(case: impl Fn(&Lab)) {
    for_each_peer("bandwidth", |lab| {
        if can_limit(lab) {
            case(lab);
        }
    });
}

pub fn for_able_ours(case: impl Fn(&Lab)) {
    for_ours("bandwidth", |lab| {
        if can_limit(lab) {
            case(lab);
        }
    });
}

/// The host end of the container's veth pair.
pub fn host_end(chain: &Chain<'_>) -> String {
    interface(&chain.result, 0)
}

/// The root qdisc of a link, as tc(8) prints it.
pub fn queue(host: &Namespace, link: &str) -> String {
    host.sh(&format!("tc qdisc show dev {link} root | sed 's/root refcnt [0-9]* //'"))
        .trim()
        .to_owned()
}

/// Streams to and from the container, over IPv4 and IPv6, with their ends.
fn directions<'a>(
    lab: &'a Lab,
    chain: &'a Chain<'_>,
) -> Vec<(String, &'a Namespace, &'a Namespace, String)> {
    let (host, container): (&Namespace, &Namespace) = (&lab.host, &chain.container);
    let both = |(own, of_host): (String, &str)| {
        [
            (format!("to {own}"), host, container, own),
            (format!("to {of_host}"), container, host, of_host.to_owned()),
        ]
    };
    chain.ips().into_iter().zip(UPLINK).flat_map(both).collect()
}

#[test]
fn a_stream_keeps_to_its_limit_from_the_first_second_on() {
    for_each_able_peer(|lab| {
        let chain = lab.chain_added(&network(), &both());
        for (what, from, to, address) in directions(lab, &chain) {
            let seconds = assert_rate(from, to, &address, RATE);
            eprintln!("{what}: {seconds:?}");
            // The first second may add the contents of the bucket.
            assert!(seconds[0] <= RATE + RATE / 20 + BURST, "{what}: {seconds:?}");
        }
    });
}

/// While a stream fills the queue, every other packet waits for the whole queue: 25 milliseconds
/// plus the time that the burst takes.
#[test]
fn a_limit_delays_no_packet_longer_than_it_says() {
    for_each_able_peer(|lab| {
        let chain = lab.chain_added(&network(), &both());
        for (what, from, to, address) in directions(lab, &chain) {
            let [.., idle] = pings(from, &address);
            let flow = Flow::start(from, to, &address, 3);
            std::thread::sleep(std::time::Duration::from_millis(500));
            let [.., busy] = pings(from, &address);
            drop(flow);
            eprintln!("{what}: a ping takes {idle} ms, under load {busy} ms");
            let queue = 25.0 + 1000.0 * BURST as f64 / RATE as f64;
            assert!(busy > 5.0, "{what}: {busy} ms, so there was no load");
            let other_work = if is_emulated() { 3000.0 } else { 100.0 };
            assert!(busy < queue + other_work, "{what}: {busy} ms");
        }
    });
}

/// The times in milliseconds that pings take: the least, the mean and the most.
pub fn pings(from: &Namespace, to: &str) -> [f64; 3] {
    let printed = from.sh(&format!("ping -n -q -c10 -i0.1 -W2 {to}; true"));
    let times = printed.lines().find_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "));
    let mut times = times.unwrap_or_else(|| panic!("{printed}")).split('/');
    [(); 3].map(|()| times.next().unwrap().parse().unwrap())
}

#[test]
fn the_kernel_has_the_limits_and_the_result_names_the_ifb() {
    for_each_able_peer(|lab| {
        let chain = lab.chain(&network(), &both());
        let result = chain.add();
        let (veth, ifb) = (host_end(&chain), interface(&result, 2));
        let expected = "qdisc tbf 1: rate 20Mbit burst 250000b lat 25ms";
        for link in [&veth, &ifb] {
            assert_eq!(queue(&lab.host, link), expected, "{link}");
        }
        let link = lab.host.link(&ifb).unwrap();
        assert_eq!(result["interfaces"][2], json!({"name": ifb, "mac": link["address"]}));
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 3);
        assert_eq!(with(&result, json!({"interfaces": chain.result["interfaces"]})), chain.result);
        assert_eq!((&link["mtu"], &link["linkinfo"]["info_kind"]), (&json!(1500), &json!("ifb")));
        assert!(link["flags"].as_array().unwrap().contains(&json!("UP")), "{link}");
        let filters = lab.host.sh(&format!("tc filter show dev {veth} parent ffff:"));
        let redirected = format!("mirred (Egress Redirect to device {ifb}) stolen");
        for words in ["match 00000000/00000000 at 0", &redirected] {
            assert!(filters.contains(words), "{filters}");
        }
        chain.check(&result).ok();
    });
}

/// containerd writes the keys in such a case. The kernel has a separate attribute for rates above 32
/// bits of bytes per second.
#[test]
fn limits_of_the_runtime_in_any_case_and_beyond_32_bits_are_the_kernel_s() {
    let usual = json!({"IngressRate": RATE, "ingressburst": BURST, "EGRESSRATE": RATE, "EgressBurst": BURST});
    let usual = json!({"RuntimeConfig": {"Bandwidth": usual}});
    let huge = limits(100_000_000_000, 2_000_000_000);
    for_each_able_peer(|lab| {
        for (keys, shown) in
            [(&usual, "rate 20Mbit burst 250000b"), (&huge, "rate 100Gbit burst 250000000b")]
        {
            let chain = lab.chain(&network(), &bandwidth(keys.clone()));
            let result = chain.add();
            for link in [host_end(&chain), interface(&result, 2)] {
                assert_eq!(queue(&lab.host, &link), format!("qdisc tbf 1: {shown} lat 25ms"));
            }
            chain.ips().iter().for_each(|ip| assert_pings(&lab.host, ip));
            chain.check_and_del_all(&result);
        }
    });
}

/// The direction without a limit is left unchanged.
#[test]
fn one_direction_may_be_limited_alone_or_none() {
    let ingress = json!({"ingressRate": RATE, "ingressBurst": BURST});
    for_each_able_peer(|lab| {
        for (keys, expected) in [
            (ingress.clone(), [true, false]),
            (with(&limits(0, 0), json!({"egressRate": RATE, "egressBurst": BURST})), [false, true]),
            (json!({}), [false, false]),
            (limits(0, 0), [false, false]),
            (json!({"runtimeConfig": {"bandwidth": {}}}), [false, false]),
            (
                json!({"runtimeConfig": {"bandwidth": {"ingressRate": 0, "egressBurst": null}}}),
                [false, false],
            ),
            // Limits at the top level replace those of `runtimeConfig` as a whole.
            (json!({"egressRate": 0, "runtimeConfig": {"bandwidth": ingress}}), [false, false]),
        ] {
            let chain = lab.chain(&network(), &bandwidth(keys.clone()));
            let before = Watch::start(lab, &[&chain.container]);
            let result = chain.add();
            let has_ifb = result["interfaces"].as_array().unwrap().len() == 3;
            let is_limited = [queue(&lab.host, &host_end(&chain)).contains("tbf"), has_ifb];
            assert_eq!(is_limited, expected, "{keys}");
            if expected == [false; 2] {
                assert_eq!(result, chain.result, "{keys}");
                before.assert_unchanged(&format!("ADD with {keys}"));
            }
            chain.check_and_del_all(&result);
        }
    });
}

/// The reference passes no packet that does not fit in the bucket; see tests/differences.
#[test]
fn packets_pass_with_any_rate_and_burst() {
    let most = 34_359_738_359_u64;
    for_able_ours(|lab| {
        for (rate, burst) in [
            (8_000_000, 1),
            (40_000_000_000, 8),
            (u64::MAX, 1),
            (u64::MAX, most),
            (8_000_000, most),
        ] {
            let chain = lab.chain(&network(), &bandwidth(limits(rate, burst)));
            let result = chain.add();
            chain.ips().iter().for_each(|ip| assert_pings_with(&lab.host, ip, "-s 1400"));
            chain.check_and_del_all(&result);
        }
    });
}

/// The bucket holds one packet, and TCP sends segments of 64 KB, which the kernel splits. Each late
/// timer loses some tokens.
#[test]
fn a_stream_flows_with_a_burst_of_nothing() {
    for_able_ours(|lab| {
        let chain = lab.chain_added(&network(), &bandwidth(limits(RATE, 80)));
        let least = if is_emulated() { 1 } else { RATE / 2 };
        for (what, from, to, address) in directions(lab, &chain).into_iter().take(2) {
            let seconds = measure(from, to, &address, 3);
            let is_near = |bits: &u64| (least..=RATE + RATE / 20).contains(bits);
            assert!(seconds.iter().all(is_near), "{what}: {seconds:?}");
        }
    });
}

/// Runtimes have to send a burst but get none from the user, so they send a huge default. The
/// reference then lets the first hundreds of megabytes pass; see tests/differences.
#[test]
fn a_default_burst_does_not_suspend_the_limit() {
    for_able_ours(|lab| {
        for burst in [2_147_483_647_u64, 4_294_967_295, 34_359_738_359] {
            let keys = json!({"runtimeConfig": {"bandwidth": limits(RATE, burst)}});
            let chain = lab.chain(&network(), &bandwidth(keys));
            let result = chain.add();
            for (what, from, to, address) in directions(lab, &chain).into_iter().take(2) {
                let seconds = assert_rate(from, to, &address, RATE);
                assert!(seconds[0] < RATE + RATE / 5, "{what}, {burst}: {seconds:?}");
            }
            chain.check_and_del_all(&result);
        }
    });
}

/// A result that names the container's interface, and the host's end not: some plugins have only
/// what is in the container. ADD adds it, so that CHECK and DEL of either side find it.
#[test]
fn the_peer_is_found_where_the_result_leaves_it_out() {
    for_able_ours(|lab| {
        for conf in [network(), bridge::dual_stack()] {
            let chain = lab.chain(&conf, &both());
            let before = Watch::start(lab, &[&chain.container]);
            let all = chain.result["interfaces"].as_array().unwrap().clone();
            let is_end = |one: &Value| one["name"].as_str().unwrap().starts_with("veth");
            let (end, mut named): (Vec<Value>, Vec<Value>) = all.into_iter().partition(is_end);
            let with_interfaces =
                |named: &[Value]| chain.clone().conf(json!({"prevResult": {"interfaces": named}}));
            let without = with_interfaces(&named);
            let result = without.add();
            assert!(result["interfaces"].as_array().unwrap().contains(&end[0]), "{result}");
            assert_eq!(lab.host.sh("tc qdisc show").matches("tbf").count(), 2);
            without.check(&result).ok();
            without.conf(json!({"prevResult": result})).del();
            before.assert_unchanged("since before ADD");
            // A result with another veth of the host is not the container's.
            lab.host.sh("ip link add strange type veth peer name stranger");
            named.push(json!({"name": "strange"}));
            let error = with_interfaces(&named).try_add().err();
            assert!(error.text().contains("is not among them"), "{error:?}");
            lab.host.sh("ip link del strange");
            chain.main.del();
            lab.host.sh("ip link del br0 2>/dev/null || true");
        }
    });
}

/// The reference uses one ifb name for both interfaces, so its second ADD fails; see
/// tests/differences.
#[test]
fn two_interfaces_of_a_container_have_limits_of_their_own() {
    for_able_ours(|lab| {
        let first = lab.chain(&network(), &both());
        let before = Watch::start(lab, &[]);
        let limited = first.add();
        let once = Watch::start(lab, &[]);
        let unrouted = with(&network(), json!({"ipam": {"routes": []}}));
        let slower = bandwidth(limits(8_000_000, 800_000));
        let second = lab.chain_in(&first.container, "eth1", &unrouted, &slower);
        let result = second.add();
        let shown = [&limited, &result].map(|result| queue(&lab.host, &interface(result, 2)));
        assert!(shown[0].contains("20Mbit") && shown[1].contains("8Mbit"), "{shown:?}");
        first.check(&limited).ok();
        second.check(&result).ok();
        // Each DEL removes its own limits only.
        second.clone().netns(None).del();
        second.main.del();
        once.assert_unchanged("the second ADD");
        first.check(&limited).ok();
        first.del();
        before.assert_unchanged("the first ADD");
    });
}
