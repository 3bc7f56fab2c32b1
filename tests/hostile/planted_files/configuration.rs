//! Planted files at paths that an administrator names or writes, where links are legitimate and
//! mistakes possible.

use serde_json::json;

use super::{PLANTS, on_a_field};
use crate::plugins::meta::tuning::allowlist;
use crate::support::networks::{host_local, tuning};
use crate::support::table::cells;

/// Links are normal here: resolv.conf is one on most hosts.
#[test]
fn a_planted_resolv_conf_is_not_waited_for_and_read_bounded() {
    on_a_field("host-local", |lab, field| {
        let ipam = json!({"type": "host-local", "subnet": "10.10.0.0/24", "resolvConf": "/run/etc/resolv.conf"});
        let conf =
            json!({"cniVersion": "1.1.0", "name": "net1", "type": "host-local", "ipam": ipam});
        let container = lab.container();
        for plant in cells(PLANTS) {
            let Some(cell) = field.plant("/run/etc/resolv.conf", plant) else { continue };
            let outcome = cell.call("ADD", lab.attach(&container, &conf).call("ADD", None));
            let files = ["link to a file", "hard link", "noise", "empty", "of another"];
            let is_file = files.contains(&plant[0]);
            cell.expect(is_file == (outcome.status == 0), "ADD", &outcome);
            lab.attach(&container, &conf).del();
            cell.restore();
        }
        assert_eq!(host_local::leases(lab), [""; 0]);
    });
}

/// An unreadable list permits no sysctl.
#[test]
fn an_allowlist_that_is_none_allows_nothing() {
    on_a_field("tuning", |lab, field| {
        let chain = tuning::chain(lab, json!({"sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}}));
        allowlist::write(lab, "net\\.ipv4\\.conf\\.eth0\\.arp_filter\n");
        chain.add();
        chain.del();
        // An administrator may link the list to a file elsewhere; a dangling link counts as no
        // list.
        let are_lists = ["link to a file", "hard link", "dangling link"];
        for plant in cells(PLANTS).into_iter().filter(|plant| !are_lists.contains(&plant[0])) {
            let path = "/run/etc/cni/tuning/allowlist.conf";
            let Some(cell) = field.plant(path, plant) else { continue };
            let outcome = cell.call("ADD", chain.call("ADD", None));
            cell.expect(outcome.status == 1, "ADD", &outcome);
            let value = tuning::sysctl(&chain.container, "ipv4/conf/eth0/arp_filter");
            cell.expect(value == "0", "the sysctl", &outcome);
            cell.call("DEL", chain.call("DEL", None));
            cell.restore();
        }
    });
}
