//! Deliberate differences of tuning from the reference.

use serde_json::{Value, json};

use super::{FAILED, OK, differ, differs};
use crate::plugins::meta::tuning::allowlist;
use crate::support::attachment::{Attachment, with};
use crate::support::chain::Chain;
use crate::support::netns::{Container, Lab};
use crate::support::networks::{bridge, tuning};
use crate::support::snapshot::Watch;

fn tuning_chain<'a>(lab: &'a Lab, changes: Value) -> Chain<'a> {
    lab.chain(&bridge::conf(), &tuning::tuning(changes))
}

/// Only ADD sees a sysctl's old value. A pod that may choose the name of its interface must not reach the settings of all
/// links. A stale backup would be restored for the next container with that ID. A user with write access to the directory
/// of backups chooses where root writes. Entering a mount namespace changes the directory to its root, so a relative
/// `dataDir` is the lab's own.
const ROWS: &str = r#"
does not record a sysctl's old value | {"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}} | add; del; inside cat /proc/sys/net/ipv4/conf/eth0/arp_filter | 0 | 1
sets the sysctls of all links for an interface of that name | {"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}} | ifname=all; try ADD; inside cat /proc/sys/net/ipv4/conf/all/arp_filter | 1 0 | 0 1
overwrites the first backup | {"mtu": 1400} | add; add; del; mtu | mtu 1500 | mtu 1400
leaves the backup of a namespace that is gone | {"mtu": 1400} | add; vanish; del; backup |  | backup
leaves the backup of an interface that is gone | {"mtu": 1400} | add; inside ip link del eth0; del; backup |  | backup
restores in DEL of another network | {"mtu": 1400} | add; with '"name":"other"'; del; mtu | mtu 1400 | mtu 1500
ignores errors of DEL | {"mtu": 1400} | add; echo '{"mtu": 70000}' >/run/cni/tuning/${id}_eth0.json; try DEL; backup | 1 | 0 backup
does nothing for false in ADD, and expects it in CHECK where nothing is configured | {"promisc": false, "mtu": 1400} | inside ip link set eth0 promisc on; add; check; inside ip link set eth0 promisc on; conf=$(printf %s "$conf"|sed 's/"promisc":false,//'); check | 0 0 | 1 1
compares numbers as text in CHECK | {"sysctl": {"net.ipv4.ip_local_port_range": "20000 30000"}} | add; check | 0 | 1
compares hardware addresses as text in CHECK | {"mac": "02-00-00-00-00-AB"} | add; check | 0 | 1
makes slashes of the dots in a link's name | {"sysctl": {"net/ipv4/conf/eth0.5/arp_filter": "1"}} | inside ip link add eth0.5 type veth peer name other; try ADD | 0 | 1
writes to a nil map | {"args": {"cni": {"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}}} | try ADD | 0 | 2
takes one of two spellings | {"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net/ipv4/conf/IFNAME/arp_filter": "0"}} | try ADD | 1 | 0
has a relative dataDir below the runtime's directory, which may be another at DEL | {"mtu": 1400, "dataDir": "run/relative"} | try ADD | 1 | 0
tells the old MTU in the result | {"mtu": 1400} | add; grep -c '"mtu": 1400' /run/ADD | 1 | 0
gives the container's mac to the host's interface in the result | {"mac": "02:00:00:00:00:42"} | prev='{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01"}]}'; add; grep -o '02:[0-9:]*' /run/ADD | 02:00:00:00:00:01 | 02:00:00:00:00:42
writes a backup through a link | {"mtu": 1400, "dataDir": "/run/new/data"} | add; stat -c %a /run/new/data; del; echo precious >/run/victim; ln -s /run/victim /run/new/data/${id}_eth0.json; run ADD; grep -x precious /run/victim | 700 precious | 600
"#;

fn tuned(lab: &Lab, changes: Value) -> (Container, Attachment<'_>) {
    let chain = tuning_chain(lab, changes);
    let attachment = Attachment::clone(&chain);
    (chain.container, attachment)
}

#[test]
fn tuning_differs_where_the_table_says_so() {
    differ("tuning", ROWS, tuned);
}

fn set_arp_filter() -> Value {
    json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}})
}

/// The reference is content with a partial match, validates no pattern after one that matches, and its CHECK ignores the
/// allowlist.
#[test]
fn a_pattern_of_the_allowlist_is_for_the_whole_name() {
    differs("tuning", [FAILED; 3], [OK; 3], |lab| {
        let chain = tuning_chain(lab, set_arp_filter());
        let result = chain.add();
        let add_with = |list: &str| {
            allowlist::write(lab, list);
            chain.try_add().status
        };
        let adds = ["arp_filter\n", "net.ipv4.conf.IFNAME.arp_filter\n(\n"].map(add_with);
        allowlist::write(lab, "nothing\n");
        [adds[0], adds[1], chain.check(&result).status]
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
