//! bandwidth CHECK: the kernel has exactly what ADD made.

use super::*;

/// The damage to the limits, where `$v` is the host end and `$i` the ifb; the words that the error
/// must contain; and whether both detect it.
const BREAKS: &str = r#"
no queue towards the container | tc qdisc del dev $v root | expected tbf
another rate | tc qdisc change dev $v root tbf rate 30mbit burst 250000 limit 312500 | rate 3750000 | both
another burst | tc qdisc change dev $v root tbf rate 20mbit burst 290000 limit 312500 | burst | both
another limit | tc qdisc change dev $v root tbf rate 20mbit burst 250000 limit 99000 | limit 99000 | both
another queue | tc qdisc replace dev $v root handle 2: htb | htb
another rate from the container | tc qdisc change dev $i root tbf rate 30mbit burst 250000 limit 312500 | 3750000 | both
no queue from the container | tc qdisc del dev $i root | expected tbf
the ifb is gone | ip link del $i | not found | both
the ifb is down | ip link set $i down | is down
nothing is redirected | tc qdisc del dev $v ingress | 1 of 1 are missing
it is redirected to another link | ip link add other type ifb; tc filter replace dev $v parent ffff: protocol all pref 1 handle 800::800 u32 match u32 0 0 flowid 1:1 action mirred egress redirect dev other | 1 of 1 are missing, and 1 others
something passes before | tc filter add dev $v parent ffff: protocol ip pref 7 u32 match u32 0 0 flowid 1:1 | 1 others
"#;

/// The reference compares neither the filters nor the ifb's state, and finds no missing queue.
#[test]
fn check_finds_what_has_changed() {
    for [what, script, names, who] in cells(BREAKS) {
        for_each_able_peer(|lab| {
            let chain = lab.chain(&network(), &both());
            let result = chain.add();
            chain.check(&result).ok();
            lab.host.sh(&format!("v={}; i={}; {script}", host_end(&chain), interface(&result, 2)));
            let outcome = chain.check(&result);
            if lab.peer == Peer::Ours {
                eprintln!("{what}:"); // shown when the case fails
                outcome.fails(103, names);
            } else {
                assert_eq!(outcome.status != 0, who == "both", "{what}: {outcome:?}");
            }
            chain.del_all();
        });
    }
}

/// Limits in the configuration that differ from those of ADD. A minimal bucket fits one packet of the MTU at ADD: after
/// the MTU grows, no packet fits.
#[test]
fn check_compares_with_the_configuration_and_the_mtu() {
    for_able_ours(|lab| {
        let chain = lab.chain(&network(), &bandwidth(limits(RATE, 80)));
        let result = chain.add();
        for (key, value) in
            [("ingressRate", 10_000_000), ("egressBurst", 600_000), ("egressRate", 10_000_000)]
        {
            chain.clone().conf(json!({key: value})).check(&result).fails(103, "");
        }
        let unlimited = json!({"egressRate": null, "egressBurst": null});
        chain.clone().conf(unlimited).check(&result).ok();
        let link = host_end(&chain);
        lab.host.sh(&format!("ip link set {link} mtu 1400"));
        chain.check(&result).ok();
        lab.host.sh(&format!("ip link set {link} mtu 9000"));
        chain.check(&result).fails(103, "");
    });
}
