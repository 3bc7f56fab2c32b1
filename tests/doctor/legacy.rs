//! The counters of iptables-legacy by which doctor finds the rule that drops a packet.

use cni_multi::family::Family;
use cni_multi::net::netns::Netns;
use cni_multi::net::xtables_legacy::{Ending, endings};

use crate::support::attachment::skip;
use crate::support::call::Peer;
use crate::support::netns::{Lab, OUTSIDE, is_root};

#[test]
fn rules_that_drop_have_counted_the_packets() {
    let lab = Lab::new(Peer::Ours);
    let tables = "iptables-legacy -S && ip6tables-legacy -S && cat /proc/net/ip_tables_names";
    if !is_root() || !lab.host.try_sh(tables).status.success() {
        return skip("iptables-legacy");
    }
    let host = Netns::open(&lab.host.path()).unwrap();
    for (family, to) in Family::ALL.into_iter().zip(OUTSIDE) {
        let program = format!("{}tables-legacy", family.word());
        let ending = |table: &str, chain: &str, rule, packets| {
            let (table, chain) = (table.to_owned(), chain.to_owned());
            Ending { table, chain, rule, packets }
        };
        let counted = || {
            lab.host.sh(&format!("ping -n -c2 -i0.2 -W1 {to} >/dev/null || true"));
            let mut found = host.enter(|| endings(family)).unwrap();
            found.sort_by(|a, b| (&a.table, &a.chain).cmp(&(&b.table, &b.chain)));
            found
        };
        lab.host.sh(&format!(
            "{program} -N own; {program} -A own -m comment --comment it -j DROP
             {program} -A OUTPUT -d {to} -j ACCEPT; {program} -P FORWARD DROP
             {program} -t mangle -A OUTPUT -j MARK --set-mark 1"
        ));
        let [forward, own] = [("FORWARD", None), ("own", Some(1))]
            .map(|(chain, rule)| ending("filter", chain, rule, 0));
        assert_eq!(counted(), [forward.clone(), own.clone()], "{program}");
        lab.host.sh(&format!("{program} -I OUTPUT -d {to} -j own"));
        let own = Ending { packets: 2, ..own };
        assert_eq!(counted(), [forward.clone(), own.clone()], "{program}");
        lab.host.sh(&format!("{program} -t mangle -P OUTPUT DROP"));
        let [rest @ .., policy] = &counted()[..] else { panic!("{program}: no policy") };
        assert_eq!(rest, [forward, own], "{program}");
        let packets = policy.packets; // the kernel itself sends some by IPv6
        assert!(packets >= 2, "{program}: {packets}");
        assert_eq!(*policy, ending("mangle", "OUTPUT", None, packets), "{program}");
    }
}
