//! Containers that end without a word: the daemon holds nothing of theirs, and forgets them.

use serde_json::json;

use super::conf;
use super::failed_add::journal;
use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::call::Peer;
use crate::support::dhcp::scripted::{RELEASE, REQUEST, Scripted};
use crate::support::dhcp::{Daemon, Kind, wait_until};
use crate::support::netns::{Container, Lab};

/// Leases that are looked at each second.
fn short(lab: &Lab) -> Scripted {
    lab.lan(Kind::Macvlan);
    Scripted::start(lab, json!({"lease": 8, "t1": 1, "t2": 6}))
}

/// A reference to the namespace by the daemon would keep it and its links alive; the host's end of
/// a veth pair goes with the other.
#[test]
fn the_namespace_of_a_container_ends_with_it() {
    for_ours("dhcp", |lab| {
        lab.lan(Kind::Bridge);
        let server = Scripted::start(lab, json!({"lease": 8, "t1": 1, "t2": 6}));
        let daemon = Daemon::start(lab);
        let container = lab.container();
        let attachment = lab.attach(&container, &Kind::Bridge.conf());
        attachment.add();
        server.wait_for(REQUEST, 2, 5);
        let ports = || lab.host.json("ip -j link show master br0").as_array().unwrap().len();
        assert_eq!(ports(), 2);
        container.vanish();
        wait_until("the port is gone", 3, || ports() == 1);
        wait_until("the lease is forgotten", 4, || journal(lab).is_empty());
        assert!(!daemon.log().contains("panic"), "{}", daemon.log());
        attachment.del();
    });
}

#[test]
fn del_of_a_container_that_is_gone_succeeds() {
    for_each_peer("dhcp", |lab| {
        let _server = short(lab);
        let _daemon = Daemon::start(lab);
        let ways = [Container::vanish, Container::go_stale];
        // The reference's macvlan fails where a plain file is at the path.
        for go in &ways[..if lab.peer == Peer::Ours { 2 } else { 1 }] {
            let container = lab.container();
            let attachment = lab.attach(&container, &conf());
            attachment.add();
            go(&container);
            attachment.del();
            attachment.clone().netns(None).del();
        }
        if lab.peer == Peer::Ours {
            assert_eq!(journal(lab), [""; 0]);
        }
    });
}

/// The link is deleted, or another one has its name: neither is the lease's.
#[test]
fn a_lease_ends_with_its_link() {
    for_ours("dhcp", |lab| {
        let server = short(lab);
        let daemon = Daemon::start(lab);
        for what in
            ["ip link del eth0", "ip link del eth0; ip link add eth0 up type veth peer name other"]
        {
            let container = lab.container();
            let attachment = lab.attach(&container, &conf());
            let result = attachment.add();
            container.sh(what);
            wait_until("the lease is forgotten", 4, || journal(lab).is_empty());
            let heard = server.heard().len();
            attachment.check(&result).err();
            attachment.del();
            assert_eq!(server.heard().len(), heard, "nobody is there that could say more");
        }
        assert!(daemon.log().contains("eth0"), "{}", daemon.log());
    });
}

/// Another namespace at the same path is another container's.
#[test]
fn a_new_namespace_at_the_old_path_is_left_alone() {
    for_ours("dhcp", |lab| {
        let server = short(lab);
        let _daemon = Daemon::start(lab);
        let container = lab.container();
        lab.attach(&container, &conf()).add();
        let path = &container.netns;
        lab.host.sh(&format!("umount {path}; unshare --net={path} true"));
        lab.host.sh(&format!(
            "ip link add link lan name eth0 netns {} type macvlan",
            path.rsplit('/').next().unwrap()
        ));
        container.sh("ip addr add 10.60.0.50/24 dev eth0; ip link set eth0 up");
        let heard = server.heard_of(REQUEST).len();
        wait_until("the lease is forgotten", 4, || journal(lab).is_empty());
        assert!(server.heard_of(REQUEST).len() <= heard + 1);
        assert_eq!(container.addresses("eth0"), ["10.60.0.50/24"]);
        assert!(server.heard_of(RELEASE).is_empty());
    });
}

/// A link that somebody has set down, or a server that cannot be reached, is no reason to forget.
#[test]
fn a_link_that_is_down_for_a_while_keeps_its_lease() {
    for_ours("dhcp", |lab| {
        let server = short(lab);
        let _daemon = Daemon::start(lab);
        let container = lab.container();
        let attachment = lab.attach(&container, &conf());
        let result = attachment.add();
        container.sh("ip link set eth0 down");
        std::thread::sleep(std::time::Duration::from_millis(2500)); // renewals fail in it
        container.sh("ip link set eth0 up; ip route add default via 10.60.0.1");
        let before = server.heard_of(REQUEST).len();
        server.wait_for(REQUEST, before + 1, 6);
        assert_eq!(journal(lab).len(), 1);
        attachment.check(&result).ok();
    });
}

/// The daemon starts when the container and its path are gone: nothing to resume.
#[test]
fn containers_that_ended_while_nobody_ran_are_forgotten() {
    for_ours("dhcp", |lab| {
        let _server = short(lab);
        let mut daemon = Daemon::start(lab);
        let (gone, stays) = (lab.container(), lab.container());
        lab.attach(&gone, &conf()).add();
        let attachment = lab.attach(&stays, &conf());
        let result = attachment.add();
        daemon.kill();
        gone.vanish();
        daemon.start_again();
        wait_until("one lease is forgotten", 4, || journal(lab).len() == 1);
        attachment.check(&result).ok();
    });
}

#[test]
fn descriptors_and_threads_belong_to_no_lease() {
    for_ours("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        let _server = Scripted::start(lab, json!({}));
        let daemon = Daemon::start(lab);
        let threads = || std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
        let container = lab.container();
        lab.attach(&container, &conf()).status().ok(); // it has opened all that it needs
        let mut counts = vec![];
        wait_until("it is at rest", 3, || {
            counts.push(daemon.descriptors());
            let last = &counts[counts.len().saturating_sub(10)..];
            last.len() == 10 && last.iter().all(|count| *count == last[0]) && threads() == 1
        });
        let before = daemon.descriptors();
        let attachments: Vec<_> = (0..8)
            .map(|n| lab.attach(&container, &with(&conf(), json!({}))).ifname(&format!("eth{n}")))
            .collect();
        attachments.iter().for_each(|attachment| drop(attachment.add()));
        wait_until("no descriptor is left", 3, || daemon.descriptors() == before);
        wait_until("no thread is left", 3, || threads() == 1);
        attachments.iter().for_each(|attachment| attachment.del());
        wait_until("no descriptor is left", 3, || daemon.descriptors() == before);
    });
}
