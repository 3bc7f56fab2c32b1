//! Deliberate differences of firewall from the reference.

use super::{FAILED, OK, differs};
use crate::support::networks::firewall;

/// The reference takes any unknown backend for autodetection.
#[test]
fn an_unknown_firewall_backend_is_refused() {
    differs("firewall", FAILED, OK, |lab| {
        lab.chain(&firewall::network(), &firewall::firewall(Some("ipfw"))).try_add().status
    });
}

#[test]
fn tables_of_iptables_go_with_the_last_container() {
    differs("firewall", false, true, |lab| {
        firewall::admit(lab, &firewall::firewall(None)).del_all();
        lab.host.sh("nft list tables").contains("table ip filter")
    });
}

/// The reference's DEL goes by the address alone, even if it has a new owner.
#[test]
fn a_late_del_does_not_cut_off_the_address_s_new_owner() {
    differs("firewall", true, false, |lab| {
        lab.host.sh(firewall::DROPPING);
        let first = firewall::admit(lab, &firewall::firewall(None));
        // The same result: it has the addresses now.
        let second = lab.attach(&lab.container(), &first.conf);
        second.add();
        first.del();
        lab.host.sh("iptables -S").contains(&format!("-s {}/32", first.ips()[0]))
    });
}

#[test]
fn firewall_check_changes_nothing() {
    differs("firewall", false, true, |lab| {
        lab.host.sh(firewall::DROPPING);
        let chain = firewall::admit(lab, &firewall::firewall(None));
        lab.host.sh("iptables -F; iptables -X");
        assert_eq!(chain.check(&chain.result).status, FAILED);
        lab.host.sh("iptables -S").contains("-N CNI-FORWARD")
    });
}
