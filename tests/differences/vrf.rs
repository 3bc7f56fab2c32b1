//! Deliberate differences of vrf from the reference.

use std::fmt::Debug;

use serde_json::{Value, json};

use super::{FAILED, OK, differs_where};
use crate::plugins::meta::vrf::table;
use crate::support::chain::Chained;
use crate::support::netns::{Container, Lab};
use crate::support::networks::vrf;
use crate::support::peers::tests;

/// As `differs`, where the kernel supports VRFs. The interface joins the VRF `blue`.
fn differs_in_vrf<T: PartialEq + Debug>(
    ours: T,
    reference: T,
    observe: impl Fn(&Container, &Chained<'_>) -> T,
) {
    let has_vrf = |lab: &Lab| vrf::has_vrf(&lab.container());
    differs_where("vrf", has_vrf, ours, reference, |lab| {
        let container = vrf::container(lab).unwrap();
        observe(&container, &vrf::in_blue(lab, &container))
    });
}

tests! {
    a_vrf_of_others_stays_after_del = differs_in_vrf(true, false, |container, member| {
        container.sh("ip link add blue up type vrf table 20");
        member.add();
        member.del();
        container.link("blue").is_some()
    });

    /// The reference reports an error, and the VRF stays.
    del_of_vrf_takes_an_interface_that_is_gone_as_done =
        differs_in_vrf((OK, false), (FAILED, true), |container, member| {
        member.add();
        container.sh("ip link del net1");
        (member.try_del().status, container.link("blue").is_some())
    });

    /// The reference removes the interface from any master.
    del_of_vrf_leaves_an_interface_of_another_vrf =
        differs_in_vrf(json!("red"), Value::Null, |container, member| {
        member.add();
        container.sh("ip link add red type vrf table 20; ip link set net1 master red");
        member.del();
        vrf::master(container, "net1")
    });

    /// The reference takes a table without a VRF for free, whatever rules lead to it.
    a_table_that_a_rule_leads_to_is_no_vrf_s = differs_in_vrf(2, 1, |container, member| {
        container.sh("ip rule add from 192.0.2.1 lookup 1");
        member.add();
        table(container, "blue")
    });

    /// The reference restores only global addresses and routes of main.
    vrf_loses_no_address_and_no_route = differs_in_vrf([true; 3], [false; 3], |container, member| {
        container.sh(
            "ip addr add fe80::7/64 dev net1 nodad; ip route add 10.82.0.0/16 dev net1 table 77; \
            ip route add 10.80.0.0/16 dev net1 scope link metric 9",
        );
        member.add();
        let address = container.sh("ip -o addr show dev net1").contains("fe80::7/64");
        let routes = ["77", "all"]
            .map(|table| container.sh(&format!("ip route show table {table} dev net1 || true")));
        [address, routes[0].contains("10.82.0.0/16"), routes[1].contains("10.80.0.0/16")]
    });

    /// The reference compares only the interface's VRF.
    check_of_vrf_looks_at_routes = differs_in_vrf(FAILED, OK, |container, member| {
        member.add();
        container.sh("ip route del 10.77.0.0/16 vrf blue");
        member.check(&member.result).status
    });
}
