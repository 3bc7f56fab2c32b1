//! Deliberate differences of tuning from the reference.

use serde_json::{Value, json};

use super::{FAILED, OK, differs};
use crate::plugins::meta::tuning::allowlist;
use crate::support::attachment::with;
use crate::support::chain::Chain;
use crate::support::netns::Lab;
use crate::support::networks::{bridge, tuning};
use crate::support::snapshot::Watch;
use crate::support::table::cells;

fn tuning_chain<'a>(lab: &'a Lab, changes: Value) -> Chain<'a> {
    lab.chain(&bridge::conf(), &tuning::tuning(changes))
}

const ARP_FILTER: &str = "ipv4/conf/eth0/arp_filter";

fn set_arp_filter() -> Value {
    json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}})
}

/// Only ADD sees a sysctl's old value, and the reference does not record it.
#[test]
fn tuning_gives_sysctls_back() {
    differs("tuning", "0".to_owned(), "1".to_owned(), |lab| {
        let chain = tuning_chain(lab, set_arp_filter());
        chain.add();
        chain.del();
        tuning::sysctl(&chain.container, ARP_FILTER)
    });
}

/// The reference is content with a partial match, and its CHECK ignores the allowlist.
#[test]
fn a_pattern_of_the_allowlist_is_for_the_whole_name() {
    differs("tuning", (FAILED, FAILED), (OK, OK), |lab| {
        let chain = tuning_chain(lab, set_arp_filter());
        let result = chain.add();
        allowlist::write(lab, "arp_filter\n");
        let add = chain.try_add().status;
        allowlist::write(lab, "nothing\n");
        (add, chain.check(&result).status)
    });
}

/// A pod that may choose the name of its interface must not reach the settings of all links. In the
/// reference it does.
#[test]
fn ifname_is_never_all_links() {
    differs("tuning", (FAILED, "0".to_owned()), (OK, "1".to_owned()), |lab| {
        let chain = tuning_chain(lab, set_arp_filter());
        let status = chain.clone().ifname("all").try_add().status;
        (status, tuning::sysctl(&chain.container, "ipv4/conf/all/arp_filter"))
    });
}

/// The reference leaves its changes.
#[test]
fn a_failed_tuning_leaves_nothing() {
    differs("tuning", true, false, |lab| {
        let chain = tuning_chain(lab, with(&set_arp_filter(), json!({"txQLen": 5, "mtu": 70_000})));
        let before = Watch::start(lab, &[&chain.container]);
        chain.try_add().err();
        before.changes_now().is_empty()
    });
}

#[test]
fn a_repeated_tuning_keeps_the_first_backup() {
    differs("tuning", json!(1500), json!(1400), |lab| {
        let chain = tuning_chain(lab, json!({"mtu": 1400}));
        chain.add();
        chain.add();
        chain.del();
        chain.container.link("eth0").unwrap()["mtu"].clone()
    });
}

/// A stale backup would be restored for the next container with that ID. In the reference the
/// backup stays for ever.
#[test]
fn the_backup_goes_with_the_namespace() {
    differs("tuning", [false, false], [true, true], |lab| {
        let (gone, linkless) =
            (tuning_chain(lab, json!({"mtu": 1400})), tuning_chain(lab, json!({"mtu": 1400})));
        gone.add();
        gone.container.vanish();
        gone.del();
        linkless.add();
        linkless.container.sh("ip link del eth0");
        linkless.del();
        [gone, linkless].map(|chain| tuning::has_backup(lab, &chain))
    });
}

/// The reference's file name does not include the network.
#[test]
fn del_of_another_network_does_not_restore() {
    differs("tuning", json!(1400), json!(1500), |lab| {
        let chain = tuning_chain(lab, json!({"mtu": 1400}));
        chain.add();
        chain.clone().conf(json!({"name": "other"})).del();
        chain.container.link("eth0").unwrap()["mtu"].clone()
    });
}

/// The reference ignores errors of DEL.
#[test]
fn del_reports_what_it_cannot_restore() {
    differs("tuning", (FAILED, false), (OK, true), |lab| {
        let chain = tuning_chain(lab, json!({"mtu": 1400}));
        chain.add();
        lab.host.sh(&format!("echo '{{\"mtu\": 70000}}' > {}", tuning::backup_of(&chain)));
        (chain.try_del().status, tuning::has_backup(lab, &chain))
    });
}

/// In the reference, ADD with false does nothing, and CHECK expects false even where nothing is
/// configured.
#[test]
fn promisc_false_is_off() {
    differs("tuning", (OK, OK), (FAILED, FAILED), |lab| {
        let chain = tuning_chain(lab, json!({"promisc": false, "mtu": 1400}));
        chain.container.sh("ip link set eth0 promisc on");
        let result = chain.add();
        let switched_off = chain.check(&result).status;
        chain.container.sh("ip link set eth0 promisc on");
        (switched_off, chain.clone().conf(json!({"promisc": null})).check(&result).status)
    });
}

/// The reference compares text.
#[test]
fn check_of_numbers_and_of_a_mac_in_capitals_succeeds() {
    let numbers = json!({"sysctl": {"net.ipv4.ip_local_port_range": "20000 30000"}});
    for changes in [numbers, json!({"mac": "02-00-00-00-00-AB"})] {
        differs("tuning", OK, FAILED, |lab| {
            let chain = tuning_chain(lab, changes.clone());
            let result = chain.add();
            chain.check(&result).status
        });
    }
}

/// What the reference does; the keys; the status of ADD, ours and the reference's. Entering a mount namespace changes
/// the directory to its root, so a relative `dataDir` is the lab's own.
const ADDS: &str = r#"
validates no pattern after one that matches | {"sysctl": {"net.core.somaxconn": "1"}} | 1 | 0
makes slashes of the dots in a link's name | {"sysctl": {"net/ipv4/conf/eth0.5/arp_filter": "1"}} | 0 | 1
writes to a nil map | {"args": {"cni": {"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}}} | 0 | 2
takes one of two spellings | {"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net/ipv4/conf/IFNAME/arp_filter": "0"}} | 1 | 0
has it below the runtime's directory, which may be another at DEL | {"mtu": 1400, "dataDir": "run/relative"} | 1 | 0
"#;

#[test]
fn adds_of_tuning_that_one_of_the_two_refuses() {
    for [what, keys, ours, reference] in cells(ADDS) {
        differs("tuning", ours, reference, |lab| {
            eprintln!("the reference {what}"); // shown when the case fails
            let chain = tuning_chain(lab, serde_json::from_str(keys).unwrap());
            chain.container.sh("ip link add eth0.5 type veth peer name other");
            if what.contains("pattern") {
                allowlist::write(lab, "net.core.somaxconn\n(\n");
            }
            ["0", "1", "2"][chain.try_add().status as usize]
        });
    }
}

/// The reference's result has the old one, on which the next plugin relies.
#[test]
fn the_result_of_tuning_tells_the_mtu() {
    let observe =
        |lab: &Lab| tuning_chain(lab, json!({"mtu": 1400})).add()["interfaces"][2]["mtu"].clone();
    differs("tuning", json!(1400), Value::Null, observe);
}

/// The reference gives the container's `mac` to it as well.
#[test]
fn the_host_s_interface_in_the_result_is_left_alone() {
    differs("tuning", json!("02:00:00:00:00:01"), json!(tuning::MAC), |lab| {
        let chain = tuning_chain(lab, json!({"mac": tuning::MAC}));
        let host = json!({"name": "eth0", "mac": "02:00:00:00:00:01"});
        let previous = json!({"cniVersion": "1.0.0", "interfaces": [host]});
        chain.clone().conf(json!({"prevResult": previous})).add()["interfaces"][0]["mac"].clone()
    });
}

/// A user with write access to the directory chooses where the reference writes as root.
#[test]
fn the_backup_is_never_written_through_a_link() {
    differs("tuning", ("700".to_owned(), true), ("600".to_owned(), false), |lab| {
        let chain = tuning_chain(lab, json!({"mtu": 1400, "dataDir": "/run/new/data"}));
        chain.add();
        let mode = lab.host.sh("stat -c %a /run/new/data").trim().to_owned();
        chain.del();
        let file = format!("/run/new/data/{}_eth0.json", chain.container_id);
        lab.host.sh(&format!("echo precious > /run/victim; ln -s /run/victim {file}"));
        chain.try_add();
        (mode, lab.host.sh("cat /run/victim") == "precious\n")
    });
}

/// A path in /proc may soon be that of another process. The reference restores in the namespace
/// that has the path now.
#[test]
fn tuning_is_restored_in_its_own_namespace_only() {
    differs("tuning", json!(1450), json!(1500), |lab| {
        let [old, new] = [(); 2].map(|()| tuning_chain(lab, json!({"mtu": 1400})));
        old.add();
        new.container.sh("ip link set eth0 mtu 1450");
        old.clone().netns(Some(&new.container.netns)).del();
        new.container.link("eth0").unwrap()["mtu"].clone()
    });
}

/// The backup of `a_b` with `c` has the same file name as that of `a` with `b_c`. The reference's
/// second ADD overwrites the file, so the first DEL restores the second link's values.
#[test]
fn a_backup_of_the_same_name_is_not_overwritten() {
    differs("tuning", (102, true, json!(1500)), (0, false, json!(1450)), |lab| {
        let [first, second] = [("a_b", "c", 1500), ("a", "b_c", 1450)].map(|(id, ifname, mtu)| {
            let container = lab.container();
            container.sh(&format!("ip link add {ifname} mtu {mtu} type veth peer name other"));
            let conf = json!({"name": "n", "cniVersion": "1.0.0", "mtu": 1400, "prevResult": {"cniVersion": "1.0.0"}});
            let attachment = lab.attach(&container, &tuning::tuning(conf)).id(id).ifname(ifname);
            (container, attachment)
        });
        first.1.add();
        let before = Watch::start(lab, &[&first.0, &second.0]);
        let outcome = second.1.try_add();
        let code = if outcome.status == 0 { 0 } else { outcome.err().code };
        let is_unchanged = before.changes_now().is_empty();
        first.1.del();
        (code, is_unchanged, first.0.link("c").unwrap()["mtu"].clone())
    });
}
