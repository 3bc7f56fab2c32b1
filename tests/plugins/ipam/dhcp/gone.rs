//! Containers that end without DEL: the daemon holds no reference to them and forgets their leases.

use serde_json::json;

use super::{on_a_lan, on_each_lan, short};
use crate::support::attachment::with;
use crate::support::call::Peer;
use crate::support::dhcp::scripted::{RELEASE, REQUEST};
use crate::support::dhcp::wait_until;
use crate::support::netns::Container;
use crate::support::networks::dhcp::{conf, journal};

#[test]
fn del_of_a_container_that_is_gone_succeeds() {
    on_each_lan(short(), |lab, _, _| {
        let ways = [Container::vanish, Container::go_stale];
        // The reference's macvlan fails if the path is a plain file.
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

/// The daemon holds no namespace open, also after it has been in it for a renewal.
#[test]
fn a_lease_ends_with_its_namespace() {
    on_a_lan(short(), |lab, server, daemon| {
        let container = lab.container();
        lab.attach(&container, &conf()).add();
        server.wait_for(REQUEST, 2, 5);
        container.vanish();
        wait_until("the lease is forgotten", 4, || journal(lab).is_empty());
        assert!(!daemon.log().contains("panic"), "{}", daemon.log());
    });
}

/// If the link is deleted or its name belongs to another link, the lease ends.
#[test]
fn a_lease_ends_with_its_link() {
    on_a_lan(short(), |lab, server, daemon| {
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

/// A new namespace at the same path belongs to another container.
#[test]
fn a_new_namespace_at_the_old_path_is_left_alone() {
    on_a_lan(short(), |lab, server, _| {
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

/// A lease survives a link that is set down and a server that cannot be reached.
#[test]
fn a_link_that_is_down_for_a_while_keeps_its_lease() {
    on_a_lan(short(), |lab, server, _| {
        let container = lab.container();
        let attachment = lab.attach(&container, &conf());
        let result = attachment.add();
        container.sh("ip link set eth0 down");
        std::thread::sleep(std::time::Duration::from_millis(2500)); // renewals fail meanwhile
        container.sh("ip link set eth0 up; ip route add default via 10.60.0.1");
        let before = server.heard_of(REQUEST).len();
        server.wait_for(REQUEST, before + 1, 6);
        assert_eq!(journal(lab).len(), 1);
        attachment.check(&result).ok();
    });
}

/// The container and the path of its namespace vanish while the daemon is down: there is nothing to
/// resume.
#[test]
fn containers_that_ended_without_the_daemon_are_forgotten() {
    on_a_lan(short(), |lab, _, daemon| {
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
    on_a_lan(json!({}), |lab, _, daemon| {
        let threads = || std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
        let container = lab.container();
        // The first call makes the daemon open everything it keeps open.
        lab.attach(&container, &conf()).status().ok();
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
