//! `net gc --leave`: after a return to the reference plugins, our tables lose the elements of
//! attachments that are gone.

use super::unrecorded::{add, as_done, configure};
use crate::support::attachment::{for_ours, reference_with};
use crate::support::call::{Peer, binary};
use crate::support::netns::{Container, Lab};
use crate::support::snapshot::Watch;

const TABLES: &str = "nft list tables | grep cni_multi_ | sort";

fn leave(lab: &Lab, more: &str) -> String {
    lab.host.sh(&format!("{} net gc --leave {more}", binary().display()))
}

/// The reference's DEL, with one retry: with some versions of iptables the first attempt fails.
fn del_by_reference(lab: &Lab, container: &Container) {
    let (binary, path) = (binary(), std::env::var("CNI_REFERENCE").unwrap());
    let of = format!("net1 {} --container-id {}", container.netns, container.id);
    let dirs = format!("--conf-dir /run/net.d --plugin-path {path}");
    let line = format!("{} net del {of} {dirs}", binary.display());
    lab.host.sh(&format!("{line} 2>/dev/null || {line}"));
}

#[test]
fn net_gc_leave_removes_what_the_reference_s_del_leaves() {
    let Some(reference) = reference_with("portmap") else { return };
    for_ours("portmap", |lab| {
        configure(lab, 215);
        let ours = Peer::Ours;
        let living = lab.container();
        add(lab, 1, &living, "/var/lib/cni", &ours);
        let before = Watch::start(lab, &[&living]);
        let gone = lab.container();
        add(lab, 1, &gone, "/var/lib/cni", &ours);
        assert_eq!(lab.host.sh(TABLES).lines().count(), 4);
        let all_live = leave(lab, "");
        assert!(all_live.ends_with("\nremoved 0, spared 8\n"), "{all_live}");

        del_by_reference(lab, &gone);
        let left = before.changes_now();
        assert!(left.contains(&gone.id), "the reference does not know our elements: {left}");
        // The next container gets the same address and must not inherit the ports published for the
        // previous container.
        lab.host.sh("rm -f /var/lib/cni/networks/net1/last_reserved_ip.0");
        let next = lab.container();
        add(lab, 1, &next, "/run/elsewhere", &reference);
        let leases = lab.host.sh("ls /var/lib/cni/networks/net1 | head -n 2");
        assert_eq!(leases, "10.215.1.2\n10.215.1.3\n");

        // `--leave` needs neither our records nor our configurations.
        lab.host.sh("rm -r /var/lib/cni/results");
        let dry = leave(lab, "--dry-run");
        let told = leave(lab, "");
        assert_eq!(as_done(&dry), told);
        for table in ["inet masquerade", "inet portmap", "inet firewall", "bridge spoofcheck"] {
            let table = table.replace(' ', " cni_multi_");
            let line = format!("removed {} eth0: elements of table {table}\n", gone.id);
            assert!(told.contains(&line), "{line}{told}");
        }
        let ruleset = lab.host.sh("nft list ruleset | sed -n '/cni_multi/,$p'");
        let is_there = |it: &Container| ruleset.contains(&format!("{}\"", it.id));
        assert_eq!([&gone, &living].map(is_there), [false, true], "{ruleset}");

        del_by_reference(lab, &living);
        let told = leave(lab, "");
        assert!(told.ends_with("\nremoved 4, spared 0\n"), "{told}");
        assert_eq!(lab.host.sh(&format!("{TABLES} | cat")), "", "{told}");
        assert!(lab.host.sh("nft list ruleset").contains(&next.id), "the reference's rules stay");
    });
}

/// An element is spared if a living namespace has its address, with a lease (first run) and without
/// one (second run). The alias of our veth is not needed.
#[test]
fn net_gc_leave_spares_what_has_a_lease_and_no_veth_of_ours() {
    for_ours("portmap", |lab| {
        configure(lab, 216);
        let container = lab.container();
        add(lab, 1, &container, "/run/elsewhere", &Peer::Ours);
        let link = lab.host.sh("ip -br link | grep -o '^veth[0-9a-f]*'");
        // The reference sets no alias on its veth.
        lab.host.sh(&format!("ip link set {} alias ''", link.trim()));
        let told = leave(lab, "");
        let id = &container.id;
        let line = format!("spared {id} eth0: elements of table inet cni_multi_portmap; ");
        assert!(told.contains(&line), "{told}");
        lab.host.sh("rm /var/lib/cni/networks/net1/10.*");
        let told = leave(lab, "");
        let lives = "table inet cni_multi_portmap; its container lives"; // its namespace has the address
        assert!(told.contains(lives), "{told}");
    });
}
