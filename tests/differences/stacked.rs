//! Deliberate differences of macvlan, ipvlan and vlan from the reference.

use std::fmt::Debug;

use serde_json::json;

use super::{FAILED, OK, differs_where};
use crate::plugins::main::stacked::{self};
use crate::support::attachment::with;
use crate::support::failed_add::fail;
use crate::support::netns::Lab;
use crate::support::networks::stacked::{IPVLAN, MACVLAN, PEER, Stacked, VLAN};

/// As `differs`, where the kernel supports such links.
fn stacked_differs<T: PartialEq + Debug>(
    kind: &Stacked,
    ours: T,
    reference: T,
    observe: impl Fn(&Lab) -> T,
) {
    differs_where(kind.plugin, |lab| kind.prepare(lab), ours, reference, observe);
}

/// The reference leaves the link, because its rollback tests another variable than the one with the
/// error.
#[test]
fn failed_adds_of_stacked_links_leave_nothing() {
    let late = [(104, "no-such-ipam"), (100, "10.88.0.1")];
    for kind in [&MACVLAN, &IPVLAN, &VLAN] {
        for case in stacked::failing().iter().filter(|case| late.contains(&(case.code, case.names)))
        {
            stacked_differs(kind, true, false, |lab| fail(lab, &kind.conf(), case).0.is_empty());
        }
    }
}

/// The reference waits for duplicate address detection only if IPAM returns an IPv6 gateway.
#[test]
fn an_ipv6_address_that_another_machine_has_is_refused() {
    for kind in [&MACVLAN, &IPVLAN, &VLAN] {
        stacked_differs(kind, FAILED, OK, |lab| {
            let container = lab.container();
            // The kernel's default.
            container.sh("echo 1 > /proc/sys/net/ipv6/conf/default/accept_dad");
            lab.attach(&container, &kind.address(&format!("{}/64", PEER[1]))).try_add().status
        });
    }
}

#[test]
fn dns_of_ipam_is_in_the_result() {
    for kind in [&MACVLAN, &IPVLAN, &VLAN] {
        let conf = with(
            &kind.address("10.10.0.7/24"),
            json!({"ipam": {"dns": {"nameservers": ["192.0.2.53"]}}}),
        );
        stacked_differs(kind, Some(json!({"nameservers": ["192.0.2.53"]})), None, |lab| {
            lab.attach(&lab.container(), &conf).add().get("dns").cloned()
        });
    }
}

/// The reference sets neither arp_notify nor ndisc_notify for vlan, so neighbours go on using the
/// old hardware address of a reused address.
#[test]
fn vlan_tells_neighbours_of_a_new_container() {
    stacked_differs(&VLAN, "11".to_owned(), "00".to_owned(), |lab| {
        let container = lab.container();
        lab.attach(&container, &VLAN.conf()).add();
        ["ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/ndisc_notify"]
            .map(|key| stacked::sysctl(&container, key))
            .concat()
    });
}

#[test]
fn a_default_route_of_several_next_hops_tells_the_master() {
    for kind in [&MACVLAN, &IPVLAN] {
        stacked_differs(kind, OK, FAILED, |lab| {
            stacked::second_master(lab);
            lab.host.sh("ip addr add 192.0.2.1/24 dev second");
            lab.host.sh("ip route add default nexthop via 198.51.100.2 nexthop via 192.0.2.2");
            lab.attach(&lab.container(), &with(&kind.conf(), json!({"master": null})))
                .try_add()
                .status
        });
    }
}

/// The reference does not validate the `mtu` of an ipvlan, and the master carries no larger one.
#[test]
fn ipvlan_takes_no_mtu_that_its_master_has_not() {
    for mtu in [1501, -100] {
        let conf = with(&IPVLAN.conf(), json!({"mtu": mtu}));
        stacked_differs(&IPVLAN, FAILED, OK, |lab| {
            lab.attach(&lab.container(), &conf).try_add().status
        });
    }
}

#[test]
fn del_of_a_vlan_does_not_need_the_master() {
    stacked_differs(&VLAN, OK, FAILED, |lab| stacked::del_after_the_master(lab, &VLAN));
}

#[test]
fn del_of_an_ipvlan_does_not_need_a_default_route() {
    stacked_differs(&IPVLAN, OK, FAILED, |lab| {
        lab.host.sh("ip route add default via 198.51.100.2");
        let attachment =
            lab.attach(&lab.container(), &with(&IPVLAN.conf(), json!({"master": null})));
        attachment.add();
        lab.host.sh("ip route del default");
        attachment.try_del().status
    });
}

#[test]
fn del_spares_an_interface_of_another_kind() {
    for kind in [&MACVLAN, &IPVLAN, &VLAN] {
        stacked_differs(kind, true, false, |lab| {
            stacked::del_spares_an_interface_of_another_kind(lab, kind)
        });
    }
}

/// Without `master` the reference's CHECK of ipvlan fails, and that of macvlan does without a
/// default route. The link is still on its master.
#[test]
fn check_of_stacked_links_needs_no_master() {
    for kind in [&MACVLAN, &IPVLAN] {
        let observe = |lab: &Lab| {
            lab.host.sh("ip route add default via 198.51.100.2");
            let attachment =
                lab.attach(&lab.container(), &with(&kind.conf(), json!({"master": null})));
            let result = attachment.add();
            let at_once = attachment.check(&result).status;
            lab.host.sh("ip route del default");
            (at_once, attachment.check(&result).status)
        };
        let of_reference = if kind.plugin == "ipvlan" { FAILED } else { OK };
        stacked_differs(kind, (OK, OK), (of_reference, FAILED), observe);
    }
}

/// The reference does not look at the link's master.
#[test]
fn check_compares_the_master_of_stacked_links() {
    for kind in [&MACVLAN, &IPVLAN, &VLAN] {
        stacked_differs(kind, FAILED, OK, |lab| stacked::check_with_another_master(lab, kind));
    }
}

/// The reference succeeds. A runtime asks before it starts containers.
#[test]
fn status_of_stacked_links_asks_for_the_master() {
    for kind in [&MACVLAN, &IPVLAN, &VLAN] {
        let conf = with(&kind.conf(), json!({"cniVersion": "1.1.0", "master": "nonesuch"}));
        stacked_differs(kind, FAILED, OK, |lab| {
            lab.attach(&lab.container(), &conf).status().status
        });
    }
}
