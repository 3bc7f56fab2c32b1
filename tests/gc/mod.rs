//! GC of every plugin removes what docs/status-and-gc.md lists for it and nothing else.

mod chain;
mod delegate;
mod leave;
mod list;
pub mod subjects;
mod unrecorded;

use std::sync::atomic::{AtomicBool, Ordering};

use cni_multi::cni::attachment::Key;
use serde_json::{Value, json};

use self::subjects::{SUBJECTS, Subject};
use crate::docs::plugins;
use crate::support::attachment::{for_ours, reference_with};
use crate::support::call::Peer;
use crate::support::list::List;
use crate::support::netns::{Container, Lab};
use crate::support::peers::tests;
use crate::support::snapshot::Watch;

/// Attachments of one container by the plugins of a chain, as a runtime makes them.
pub struct Member<'a> {
    pub container: Container,
    list: List<'a>,
    result: Value,
}

impl<'a> Member<'a> {
    /// Starts without any attachment.
    pub fn of(lab: &'a Lab, chain: &[Value]) -> Member<'a> {
        Member::by(lab, chain, &Peer::Ours)
    }

    fn by(lab: &'a Lab, chain: &[Value], peer: &Peer) -> Member<'a> {
        let container = lab.container();
        let list = List(chain.iter().map(|conf| lab.attach(&container, conf).by(peer)).collect());
        Member { container, list, result: Value::Null }
    }

    pub fn add(&mut self) {
        self.result = self.list.add();
    }

    fn added(mut self) -> Member<'a> {
        self.add();
        self
    }

    pub fn assert_whole(&self) {
        self.list.check(&self.result);
    }

    pub fn del(&self) {
        self.list.del(&self.result);
    }

    pub fn as_valid(&self) -> (&str, &str) {
        (&self.container.id, "eth0")
    }
}

/// Runs GC of each plugin in the chain, in order, each with the configuration libcni passes.
pub fn gc(lab: &Lab, chain: &[Value], valid: &[(&str, &str)]) {
    let container = lab.container();
    for conf in chain {
        let plugin = lab.attach(&container, conf).conf(json!({"runtimeConfig": null}));
        plugin.gc(valid).assert_is(0, "", "");
    }
}

/// Plants decoys: foreign links, rules, chains and files with the same names and comments as ours.
/// `stale` is the key of an attachment to `net1` that is not in the valid list.
fn plant(lab: &Lab, stale: &Key) {
    let comment = stale.comment();
    let other = Key::parse("net2", "stale", "eth0").unwrap().comment();
    lab.host.sh(&format!(
        r#"set -e
        ip link add vethffffffff type veth peer name vethfffffffe
        ip link set vethffffffff alias 'cni {other}'
        ip link set vethfffffffe alias '{comment}'
        nft 'add table inet other'
        nft 'add set inet other attachments {{ type ipv4_addr; comment "{comment}"; }}'
        nft 'add element inet other attachments {{ 10.10.0.2 comment "{comment}" }}'
        nft 'add chain inet other CNI-ffffffffffffffffffffffff'
        nft 'add rule inet other CNI-ffffffffffffffffffffffff ip saddr 10.10.0.2 accept comment "{comment}"'
        for chain in CNI-ffffffffffffffffffffffff CNI-DN-fffffffffffffffffffff; do iptables -t nat -N $chain; done
        iptables -t nat -N CNI-HOSTPORT-DNAT || true
        iptables -t nat -A POSTROUTING -s 10.10.0.2 -j RETURN -m comment --comment 'net1 stale'
        iptables -t nat -A POSTROUTING -s 10.30.0.2 -j CNI-ffffffffffffffffffffffff -m comment --comment 'name: "net10" id: "stale"'
        iptables -t nat -A CNI-HOSTPORT-DNAT -p tcp --dport 9999 -j CNI-DN-fffffffffffffffffffff -m comment --comment 'dnat name: "net10" id: "stale"'
        mkdir -p /var/lib/cni/networks/net1 /run/cni/tuning /run/cni/sbr /run/cni/vrf /run/cni/host-device
        echo notes >/var/lib/cni/networks/net1/notes.txt
        printf 'not a\nlease\n' >/var/lib/cni/networks/net1/10.10.0.250
        for plugin in sbr vrf host-device; do
            echo notes >/run/cni/$plugin/notes.txt
            echo '{{"network":"net1"' >/run/cni/$plugin/{identity}.json
        done
        echo '{{"mtu":1500}}' >/run/cni/tuning/stale_eth0.json"#,
        identity = Key::parse("net2", "stale", "eth0").unwrap().identity()
    ));
    // The ifb module may be missing.
    lab.host.try_sh("ip link add bwpffffffffffff type ifb");
}

/// Makes four attachments to each of two networks: in the first, two are stale, one of them in a
/// namespace that lives on; in the second, two are stale. Then runs GC of the first network with
/// its valid attachments, again with extra attachments that never existed, and with an empty list.
fn assert_removes_what_is_stale_and_nothing_else(subject: &Subject) {
    for_ours(subject.plugin, |lab| {
        let Some(_kept) = subject.prepare(lab) else { return };
        let chain = |network, nth| subject.chain(network, nth);
        let first = chain(1, 0);
        for network in [1, 2] {
            // Creates the state that stays after DEL by contract, so that the snapshots include it.
            Member::of(lab, &chain(network, 0)).added().del();
        }
        plant(lab, &Key::parse("net1", "stale", "eth0").unwrap());
        let by = reference_with(subject.plugin)
            .filter(|_| subject.reference_too())
            .unwrap_or(Peer::Ours);
        let by_last = if subject.of_any_network() { &Peer::Ours } else { &by };
        let others = [(1, &Peer::Ours), (2, &by), (3, &Peer::Ours), (4, by_last)];
        let [live, live_too, stale, stale_too] =
            others.map(|(nth, by)| Member::by(lab, &chain(2, nth), by).added());
        if subject.vanishes() {
            [stale, stale_too].iter().for_each(|stale| stale.container.vanish());
        }
        let without = Watch::start(lab, &[&live.container, &live_too.container]);

        let wanted = [1, 2].map(|nth| Member::of(lab, &chain(1, nth)).added());
        let before =
            Watch::start(lab, &[&live.container, &wanted[0].container, &wanted[1].container]);
        let gone = Member::of(lab, &chain(1, 3)).added();
        if subject.vanishes() {
            gone.container.vanish();
        }
        let unwanted = Member::of(lab, &chain(1, 4)).added();
        assert_is_there(subject, &before.changes_now());
        let valid = wanted.each_ref().map(Member::as_valid);

        gc(lab, &first, &valid);
        before.assert_unchanged("those that nobody wants");
        if subject.plugin == "tuning" {
            // GC restores nothing: the namespace may be that of another container by now.
            assert_eq!(unwanted.container.link("eth0").unwrap()["mtu"], 1400);
        }
        gc(lab, &first, &[valid[0], ("never", "eth0"), valid[1], ("stale", "eth1")]);
        before.assert_unchanged("GC again, with more that are wanted");
        wanted.iter().for_each(Member::assert_whole);
        gc(lab, &first, &[]);
        without.assert_unchanged("all of the network");
        drop(unwanted);
    });
}

/// Without this check GC could pass with nothing to remove.
fn assert_is_there(subject: &Subject, changes: &str) {
    for (kind, parts) in &subject.removes {
        let shows = |line: &str| parts.iter().all(|part| line.contains(part));
        assert!(changes.lines().any(shows), "{}: no {kind} in\n{changes}", subject.plugin);
    }
    // What the plugin is chained after leaves something of its own.
    if subject.removes.is_empty() && subject.chain(1, 0).len() == 1 {
        assert_eq!(changes, "", "{}: something is left", subject.plugin);
    }
}

/// A runtime lists attachments as valid while their ADD still runs.
fn assert_spares_who_is_being_attached(subject: &Subject) {
    for_ours(subject.plugin, |lab| {
        let Some(_kept) = subject.prepare(lab) else { return };
        let chain = |nth| subject.chain(1, nth);
        Member::of(lab, &chain(0)).added().del();
        let before = Watch::start(lab, &[]);
        let mut members: Vec<Member<'_>> = (1..6).map(|nth| Member::of(lab, &chain(nth))).collect();
        let ids: Vec<String> = members.iter().map(|member| member.container.id.clone()).collect();
        let valid: Vec<(&str, &str)> = ids.iter().map(|id| (id.as_str(), "eth0")).collect();
        let (is_done, first) = (AtomicBool::new(false), chain(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    gc(lab, &first, &valid);
                }
            });
            let added = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                members.iter_mut().for_each(Member::add)
            }));
            is_done.store(true, Ordering::Relaxed);
            added.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        members.iter().for_each(Member::assert_whole);
        members.iter().for_each(Member::del);
        before.assert_unchanged("ADD, GC at the same time, and DEL");
    });
}

fn assert_gc(plugin: &str) {
    let mut subjects = SUBJECTS.iter().filter(|subject| subject.plugin == plugin).peekable();
    assert!(subjects.peek().is_some(), "no subject is {plugin}");
    for subject in subjects {
        assert_removes_what_is_stale_and_nothing_else(subject);
        assert_spares_who_is_being_attached(subject);
    }
}

tests! {
    gc_of_bridge_removes_what_is_stale_and_nothing_else = assert_gc("bridge");
    gc_of_host_device_removes_what_is_stale_and_nothing_else = assert_gc("host-device");
    gc_of_ipvlan_removes_what_is_stale_and_nothing_else = assert_gc("ipvlan");
    gc_of_flannel_removes_what_is_stale_and_nothing_else = assert_gc("flannel");
    gc_of_bond_removes_what_is_stale_and_nothing_else = assert_gc("bond");
    gc_of_ovs_removes_what_is_stale_and_nothing_else = assert_gc("ovs");
    gc_of_loopback_removes_what_is_stale_and_nothing_else = assert_gc("loopback");
    gc_of_macvlan_removes_what_is_stale_and_nothing_else = assert_gc("macvlan");
    gc_of_ptp_removes_what_is_stale_and_nothing_else = assert_gc("ptp");
    gc_of_vlan_removes_what_is_stale_and_nothing_else = assert_gc("vlan");
    gc_of_dummy_removes_what_is_stale_and_nothing_else = assert_gc("dummy");
    gc_of_tap_removes_what_is_stale_and_nothing_else = assert_gc("tap");
    gc_of_host_local_removes_what_is_stale_and_nothing_else = assert_gc("host-local");
    gc_of_static_removes_what_is_stale_and_nothing_else = assert_gc("static");
    gc_of_cluster_local_removes_what_is_stale_and_nothing_else = assert_gc("cluster-local");
    gc_of_whereabouts_removes_what_is_stale_and_nothing_else = assert_gc("whereabouts");
    gc_of_dhcp_removes_what_is_stale_and_nothing_else = assert_gc("dhcp");
    gc_of_tuning_removes_what_is_stale_and_nothing_else = assert_gc("tuning");
    gc_of_portmap_removes_what_is_stale_and_nothing_else = assert_gc("portmap");
    gc_of_firewall_removes_what_is_stale_and_nothing_else = assert_gc("firewall");
    gc_of_bandwidth_removes_what_is_stale_and_nothing_else = assert_gc("bandwidth");
    gc_of_route_override_removes_what_is_stale_and_nothing_else = assert_gc("route-override");
    gc_of_sbr_removes_what_is_stale_and_nothing_else = assert_gc("sbr");
    gc_of_vrf_removes_what_is_stale_and_nothing_else = assert_gc("vrf");
}

#[test]
fn no_plugin_is_left_out() {
    for [plugin, ..] in plugins() {
        assert!(SUBJECTS.iter().any(|subject| subject.plugin == plugin), "{plugin}");
        let test =
            format!("gc_of_{}_removes_what_is_stale_and_nothing_else = ", plugin.replace('-', "_"));
        assert!(include_str!("mod.rs").contains(&test), "{plugin}");
    }
}
