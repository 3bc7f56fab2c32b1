//! The DEL of a VRF's last interface, stopped at each system call that makes a change while another
//! interface joins the VRF.

use std::time::Duration;

use super::*;
use crate::support::beside::{run_beside, stops};

/// How long to wait for the ADD, which may itself wait for the stopped DEL.
const LIMIT: Duration = Duration::from_millis(500);

#[test]
fn last_del_takes_no_vrf_from_the_next_add() {
    for_ours("vrf", |lab| {
        let Some(container) = container(lab) else { return };
        // Without IPv6 no ADD waits for duplicate address detection.
        container.sh(
            "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6",
        );
        let join = |number: u8| {
            let addresses = json!([{"address": format!("10.20.{number}.2/24")}]);
            let main =
                with(&network(number, 2), json!({"ipam": {"addresses": addresses, "routes": []}}));
            attach(lab, &container, &main, &format!("net{number}"), "blue")
        };
        let [last, next] = [1, 2].map(join);
        last.add();
        for number in stops(&last.call("DEL", None)) {
            last.add();
            let [del, add] = [last.call("DEL", None), next.call("ADD", None)];
            let outcomes = run_beside(&del, number, &add, || false, LIMIT);
            outcomes.iter().for_each(|outcome| drop(outcome.ok()));
            let masters = ["net1", "net2"].map(|ifname| master(&container, ifname));
            assert_eq!(masters, [Value::Null, json!("blue")]);
            // CHECK is of no use here: the first DEL has removed the routes.
            let alias = container.link("blue").unwrap()["ifalias"].clone();
            assert_eq!(alias, "cni-multi: goes with its last interface");
            next.del();
            assert!(container.link("blue").is_none(), "stopped at {number}");
        }
    });
}
