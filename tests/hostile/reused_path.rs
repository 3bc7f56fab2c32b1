//! CNI_NETNS already leads to another container's namespace: `/run/netns/x` after a runtime has
//! bound the next one there, `/proc/PID/ns/net` after a process id is reused. Late calls for the
//! first container leave the second alone.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, has, with};
use crate::support::call::Peer;
use crate::support::extent::{is_emulated, is_long};
use crate::support::list::List;
use crate::support::netns::{Container, Lab, Namespace};
use crate::support::networks::stacked::hasty_container;
use crate::support::patience;
use crate::support::peers::tests;
use crate::support::snapshot::{Snapshot, last_of, lines};
use crate::support::subject::{Subject, all, in_a_lab};

/// The plugins of a network, attached to one container.
struct Member<'a> {
    list: List<'a>,
    result: Value,
}

impl<'a> Member<'a> {
    /// ADD of each plugin by `by`, with the namespace at `netns`. All later calls are by our
    /// plugins.
    fn add(
        lab: &'a Lab,
        subject: &Subject,
        container: &Container,
        netns: &str,
        by: &Peer,
    ) -> Member<'a> {
        let plugins = subject.attach(lab, container).into_iter();
        let list = List(plugins.map(|plugin| plugin.netns(Some(netns))).collect());
        let add = |result, plugin: &Attachment<'_>| add_when_free(&plugin.clone().by(by), &result);
        let result = list.0.iter().fold(Value::Null, add);
        Member { list, result }
    }

    fn check(&self) {
        self.list.check(&self.result);
    }

    fn del(&self) {
        self.list.del(&self.result);
    }

    /// GC of each plugin, with this as the only valid attachment.
    fn gc(&self) {
        for plugin in &self.list.0 {
            plugin.gc(&[(&plugin.container_id, &plugin.ifname)]).ok();
        }
    }
}

/// Until the kernel has deleted the links of the earlier namespace, one of them may hold what only
/// one link on the master can have.
fn add_when_free(plugin: &Attachment<'_>, previous: &Value) -> Value {
    let deadline = Instant::now() + patience(20);
    // The virtual machine needs its processors for what is waited for.
    let pause = Duration::from_millis(if is_emulated() { 1000 } else { 50 });
    loop {
        let outcome = plugin.call("ADD", Some(previous)).run();
        if outcome.status == 0 || Instant::now() > deadline {
            return outcome.ok();
        }
        std::thread::sleep(pause);
    }
}

/// Puts the namespace of `to` at the path of `from`. The namespace of `from` is gone, or kept at
/// another path.
fn reuse_path(lab: &Lab, from: &Container, to: &Container, is_kept: bool) {
    if is_kept {
        lab.host.sh(&format!("touch /run/netns/kept; mount --bind {} /run/netns/kept", from.netns));
    }
    from.go_stale();
    lab.host.sh(&format!("mount --bind {} {}", to.netns, from.netns));
}

/// Waits until the kernel has given each stacked link the state of its lower: up to a second after
/// the link is up.
fn wait_for_states(namespace: &Namespace) {
    let is_waiting = |link: &Value| {
        let kind = link["linkinfo"]["info_kind"].as_str().unwrap_or_default();
        let is_up =
            link["flags"].as_array().is_some_and(|flags| flags.contains(&Value::from("UP")));
        ["macvlan", "ipvlan", "vlan"].contains(&kind) && is_up && link["operstate"] == "UNKNOWN"
    };
    let deadline = Instant::now() + patience(3);
    while namespace.json("ip -j -d link").as_array().unwrap().iter().any(is_waiting)
        && Instant::now() < deadline
    {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The parts of a namespace that do not change on their own.
struct Inside<'a>(&'a Namespace, Snapshot);

impl<'a> Inside<'a> {
    fn of(namespace: &'a Namespace) -> Inside<'a> {
        std::thread::sleep(Duration::from_millis(100)); // the route of a new link's own address appears a little later
        wait_for_states(namespace);
        Inside(namespace, Snapshot::of(namespace))
    }

    #[track_caller]
    fn assert_unchanged(&self, since: &str) {
        let changes_now = || self.1.changes_to(&Snapshot::of(self.0));
        let changes = lines(&last_of(Duration::from_millis(50), changes_now));
        assert!(changes.is_empty(), "the second container is not as before {since}:\n{changes}");
    }
}

/// Every call that can arrive late for the first container; `second` has its path now.
fn assert_late_calls_spare(first: &Member<'_>, second: &Member<'_>, inside: &Namespace) {
    let before = Inside::of(inside);
    let ways = [("a late DEL", &first.result), ("a second DEL", &first.result)];
    for (what, told) in ways.into_iter().chain([("a DEL without prevResult", &Value::Null)]) {
        first.list.del(told);
        before.assert_unchanged(what);
        second.check();
    }
    second.gc();
    before.assert_unchanged("GC");
    second.check();
}

/// Ours, and the reference if it has every plugin of the subject.
fn peers_of(subject: &Subject) -> Vec<Peer> {
    let has_all =
        |peer: &Peer| subject.plugins.iter().all(|conf| has(peer, conf["type"].as_str().unwrap()));
    Peer::all().into_iter().filter(has_all).collect()
}

fn later_container_is_spared(lab: &Lab, subject: &Subject) {
    for by in peers_of(subject) {
        for is_kept in [false, true] {
            // A VLAN id or a hardware address on the master is taken while the first namespace
            // exists.
            if is_kept && ["vlan", "macvlan, tuning, sbr"].contains(&subject.name) {
                continue;
            }
            // The virtual machine is slow: there, ours is tried with the namespace kept and the
            // reference with it gone. The long form tries all.
            if is_emulated()
                && !is_long()
                && is_kept != (by == Peer::Ours)
                && subject.name != "vlan"
            {
                continue;
            }
            let (one, other) = (hasty_container(lab), hasty_container(lab));
            other.sh("ip link set lo up; ip link set lo down");
            let first = Member::add(lab, subject, &one, &one.netns, &by);
            reuse_path(lab, &one, &other, is_kept);
            let bare = Inside::of(&other);
            let second = Member::add(lab, subject, &other, &one.netns, &Peer::Ours);
            assert_late_calls_spare(&first, &second, &other);
            second.del();
            if subject.plugins.len() == 1 {
                bare.assert_unchanged("ADD and DEL of the second");
            }
            second.del();
            lab.host.sh("umount /run/netns/kept 2>/dev/null || true");
        }
    }
}

/// Attaches a container, and then another at the path of the first.
fn two_at_a_path<'a>(lab: &'a Lab, subject: &Subject) -> (Member<'a>, Member<'a>, Container) {
    let (one, other) = (hasty_container(lab), hasty_container(lab));
    let first = Member::add(lab, subject, &one, &one.netns, &Peer::Ours);
    reuse_path(lab, &one, &other, false);
    let second = Member::add(lab, subject, &other, &one.netns, &Peer::Ours);
    (first, second, other)
}

/// GC runs while the first container is stale and has had no DEL; DEL follows.
fn later_container_is_spared_by_gc(lab: &Lab, subject: &Subject) {
    let (first, second, other) = two_at_a_path(lab, subject);
    let before = Inside::of(&other);
    second.gc();
    before.assert_unchanged("GC");
    second.check();
    assert_late_calls_spare(&first, &second, &other);
    second.del();
}

/// The second container's own tools have removed our aliases.
fn later_container_without_aliases_is_spared(lab: &Lab, subject: &Subject) {
    let (first, second, other) = two_at_a_path(lab, subject);
    other.sh("for link in $(ip -o link | sed 's/^[0-9]*: \\([^:@]*\\).*/\\1/'); do ip link set $link alias ''; done");
    assert_late_calls_spare(&first, &second, &other);
    second.del();
}

macro_rules! test_plugins {
    ($($name:ident $subject:literal)*) => {
        $(
            mod $name {
                use super::*;

                tests! {
                    late_del_spares_the_next_container = in_a_lab($subject, later_container_is_spared);
                    gc_spares_the_next_container = in_a_lab($subject, later_container_is_spared_by_gc);
                    late_del_spares_links_without_alias = in_a_lab($subject, later_container_without_aliases_is_spared);
                }
            }
        )*

        #[test]
        fn every_plugin_that_works_in_a_container_is_tried() {
            const TRIED: &[&str] = &[$($subject),*];
            // These change nothing in a container. host-device and bond have their own tests.
            const OTHERS: [&str; 5] = ["host-local", "static", "cluster-local", "cluster-local, held", "whereabouts"];
            const ON_THE_HOST: [&str; 6] = ["portmap", "firewall", "bandwidth", "iptables", "host-device", "bond"];
            for subject in all() {
                let is_on_the_host = ON_THE_HOST.iter().any(|word| subject.name.contains(word));
                assert!(is_on_the_host || OTHERS.contains(&subject.name) || TRIED.contains(&subject.name), "{}", subject.name);
            }
        }
    };
}

test_plugins! {
    bridge "bridge"
    bridge_with_fast_path "bridge, fastPath"
    ptp "ptp"
    ptp_with_fast_path "ptp, fastPath"
    macvlan "macvlan"
    ipvlan "ipvlan"
    vlan "vlan"
    dummy "dummy"
    tap "tap"
    loopback "loopback"
    flannel "flannel"
    ovs "ovs"
    tuning "tuning"
    sbr "sbr"
    vrf "vrf"
    route_override "route-override"
    chain "macvlan, tuning, sbr"
}

/// An attachment by the reference has no record, so DEL goes by the path alone, as the reference's
/// does.
#[test]
fn del_of_what_the_reference_added_is_as_before() {
    in_a_lab("loopback", |lab, subject| {
        for by in Peer::all() {
            let container = lab.container();
            let member = Member::add(lab, subject, &container, &container.netns, &by);
            member.list.0[0].clone().by(&Peer::Ours).del();
            assert_eq!(container.link("lo").unwrap()["operstate"], "DOWN", "{by:?}");
        }
    });
}

/// The runtime has attached the second container to a network other than the first one's.
#[test]
fn late_del_of_another_interface_spares_the_next_container() {
    in_a_lab("macvlan", |lab, subject| {
        let (one, other) = (hasty_container(lab), hasty_container(lab));
        let first = Member::add(lab, subject, &one, &one.netns, &Peer::Ours);
        reuse_path(lab, &one, &other, false);
        let conf = with(&subject.plugins[0], json!({"name": "net2", "cniVersion": "1.1.0"}));
        let second = lab.attach(&other, &conf).netns(Some(&one.netns));
        let result = second.add();
        let before = Inside::of(&other);
        first.del();
        first.del();
        before.assert_unchanged("a late DEL of another network's attachment");
        second.check(&result).ok();
    });
}
