//! bandwidth: limits for a part of the traffic. The reference had this in 1.5 and has removed it.

use super::*;
use crate::plugins::meta::bandwidth::queue::for_ours_with;

/// Two addresses of the host in each family: one can be limited and the other not.
const NEAR: [&str; 2] = ["198.51.100.1", "2001:db8:ffff::1"];
const FAR: [&str; 2] = ["192.0.2.1", "2001:db8:eeee::1"];
const ADD_FAR: &str =
    "ip addr add 192.0.2.1/32 dev lo; ip addr add 2001:db8:eeee::1/128 dev lo nodad";
/// Traffic limited to [`RATE`] never reaches this rate.
const UNLIMITED: u64 = 3 * RATE;

fn limited(subnets: Value) -> Value {
    with(&both(), subnets)
}

fn for_able_ours(case: impl Fn(&Lab)) {
    for_ours_with(&["ifb", "tbf", "u32", "htb"], |lab| {
        lab.host.sh(ADD_FAR);
        case(lab);
    });
}

/// The streams that are limited: to and from NEAR and FAR, over IPv4 and IPv6.
fn limited_streams(lab: &Lab, chain: &Chain<'_>) -> Vec<String> {
    let least = if is_emulated() { 1 } else { RATE / 2 };
    let own = chain.ips();
    let mut limited = vec![];
    for (family, length) in [(0, 32), (1, 128)] {
        for there in [NEAR[family], FAR[family]] {
            let out = measure(&chain.container, &lab.host, there, 3);
            // The route to the container makes the host send from this address.
            let (to, end) = (&own[family], host_end(chain));
            lab.host.sh(&format!("ip route replace {to}/{length} dev {end} src {there}"));
            let back = measure(&lab.host, &chain.container, to, 3);
            for (what, seconds) in [("to", out), ("from", back)] {
                eprintln!("{what} {there}: {seconds:?}");
                if seconds[1..].iter().all(|bits| *bits < UNLIMITED) {
                    let is_near = |bits: &u64| (least..RATE + RATE / 5).contains(bits);
                    assert!(seconds[1..].iter().all(is_near), "{seconds:?}");
                    limited.push(format!("{what} {there}"));
                }
            }
        }
    }
    limited
}

#[test]
fn traffic_is_limited_by_the_subnets_of_its_far_end() {
    let unshaped =
        json!({"unshapedSubnets": ["192.0.2.0/24", "2001:db8:eeee::/48", "10.99.0.0/16"]});
    let shaped = json!({"shapedSubnets": ["2001:db8:eeee::1/128", "192.0.2.7/24"]});
    for (subnets, there) in [(unshaped, NEAR), (shaped, FAR)] {
        for_able_ours(|lab| {
            let chain = lab.chain(&network(), &limited(subnets.clone()));
            let result = chain.add();
            let expected = there.map(|there| ["to", "from"].map(|what| format!("{what} {there}")));
            assert_eq!(limited_streams(lab, &chain), expected.concat());
            chain.check(&result).ok();
        });
    }
}

/// TCP sends 64 KB at once, which is more than this queue holds.
#[test]
fn a_small_burst_does_not_slow_the_limited_traffic_down() {
    for_able_ours(|lab| {
        let rate = 8_000_000;
        let subnets = json!({"unshapedSubnets": ["192.0.2.0/24"]});
        let chain = lab.chain(&network(), &with(&bandwidth(limits(rate, 80_000)), subnets));
        let result = chain.add();
        for own in chain.ips() {
            assert_rate(&lab.host, &chain.container, &own, rate);
        }
        chain.check(&result).ok();
        assert!(measure(&chain.container, &lab.host, FAR[0], 2)[1] > UNLIMITED);
    });
}

/// The operator configures the subnets, the runtime the limits.
#[test]
fn subnets_of_the_network_are_for_the_limits_of_the_runtime_too() {
    for_able_ours(|lab| {
        let limits = json!({"ingressRate": RATE, "ingressBurst": BURST});
        let of_network =
            json!({"shapedSubnets": ["10.0.0.0/8"], "runtimeConfig": {"bandwidth": limits}});
        let of_runtime =
            json!({"runtimeConfig": {"bandwidth": {"ShapedSubnets": ["192.168.0.0/16"]}}});
        for (changes, expected) in [
            (json!({}), "match 0a000000/ff000000 at 12"),
            (of_runtime, "match c0a80000/ffff0000 at 12"),
            (limits.clone(), "match 0a000000/ff000000 at 12"),
        ] {
            let chain = lab.chain(&network(), &bandwidth(with(&of_network, changes)));
            let result = chain.add();
            chain.check(&result).ok();
            let filters = lab.host.sh(&format!("tc filter show dev {}", host_end(&chain)));
            let matches: Vec<&str> =
                filters.lines().filter(|line| line.contains("match")).collect();
            assert!(matches.len() == 1 && matches[0].trim() == expected, "{matches:?}");
            chain.del_all();
        }
    });
}

#[test]
fn del_and_check_know_limits_with_subnets() {
    for_able_ours(|lab| {
        let breaks = r#"
tc filter del dev $v parent 1: pref 1 | filters
tc filter del dev $v parent ffff: pref 1 | filters
tc class change dev $v classid 1:30 htb rate 30mbit burst 250000 | classes
tc qdisc change dev $v parent 1:30 handle 30: tbf rate 30mbit burst 250000 limit 312500 | rate 3750000
tc class add dev $v parent 1: classid 1:40 htb rate 30mbit | classes
tc qdisc del dev $v parent 1:30; tc qdisc add dev $v parent 1:30 handle 30: bfifo limit 9999 | expected tbf
tc qdisc del dev $v root | expected htb
"#;
        let unshaped = json!({"unshapedSubnets": ["10.0.0.0/8", "fd00::/8"]});
        for [script, names] in cells(breaks) {
            let chain = lab.chain(&network(), &limited(unshaped.clone()));
            let before = Watch::start(lab, &[&chain.container]);
            let result = chain.add();
            chain.check(&result).ok();
            eprintln!("{script}:"); // shown when the case fails
            lab.host.sh(&format!("v={}; {script}", host_end(&chain)));
            chain.check(&result).fails(103, names);
            chain.bare().del();
            before.assert_unchanged("ADD");
            chain.main.del();
        }
    });
}

/// As many subnets as a large cluster has nodes.
#[test]
fn hundreds_of_subnets_are_taken() {
    for_able_ours(|lab| {
        let subnets: Vec<String> =
            (0..600).map(|n| format!("10.{}.{}.0/24", 100 + n / 256, n % 256)).collect();
        let chain = lab.chain(&network(), &limited(json!({"unshapedSubnets": subnets})));
        let result = chain.add();
        chain.check(&result).ok();
        chain.ips().iter().for_each(|ip| assert_pings(&lab.host, ip));
        chain.del_all();
    });
}
