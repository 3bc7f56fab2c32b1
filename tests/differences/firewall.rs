//! Chapter "firewall" of docs/differences.md.

use super::{FAILED, OK, differs};
use crate::plugins::meta::firewall;
use crate::support::netns::Lab;

/// Any other word than the two it knows means autodetection.
#[test]
fn an_unknown_firewall_backend_is_refused() {
    let observe = |lab: &Lab| {
        lab.chain(&firewall::network(), &firewall::firewall(Some("ipfw"))).try_add().status
    };
    differs("firewall", observe, FAILED, OK);
}

#[test]
fn a_host_without_iptables_gets_no_tables_of_it() {
    let observe = |lab: &Lab| {
        firewall::admit(lab, &firewall::firewall(None));
        lab.host.sh("nft list tables").contains("table ip filter")
    };
    differs("firewall", observe, false, true);
}

/// The reference knows an address only, and not whose it is now.
#[test]
fn a_late_del_does_not_cut_off_who_has_the_address_now() {
    let observe = |lab: &Lab| {
        lab.host.sh(firewall::DROPPING);
        let first = firewall::admit(lab, &firewall::firewall(None));
        let second = lab.attach(&lab.container(), &first.conf); // the same result: it has got the addresses
        second.add();
        first.del();
        lab.host.sh("iptables -S").contains(&format!("-s {}/32", first.ips()[0]))
    };
    differs("firewall", observe, true, false);
}

#[test]
fn firewall_check_changes_nothing() {
    let observe = |lab: &Lab| {
        lab.host.sh(firewall::DROPPING);
        let chain = firewall::admit(lab, &firewall::firewall(None));
        lab.host.sh("iptables -F; iptables -X");
        assert_eq!(chain.check(&chain.result).status, FAILED);
        lab.host.sh("iptables -S").contains("-N CNI-FORWARD")
    };
    differs("firewall", observe, false, true);
}
