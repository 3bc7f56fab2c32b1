//! DEL, GC, CHECK and STATUS of dhcp.

use serde_json::{Value, json};

use super::{alone, on_a_lan, on_each_lan, plugged, short, with_each_server};
use crate::support::attachment::{Attachment, for_ours, ips, with};
use crate::support::call::Peer;
use crate::support::dhcp::scripted::{RELEASE, REQUEST, hex, option, wait_for_release};
use crate::support::dhcp::{Daemon, Kind, SOCKET, wait_until};
use crate::support::netns::Container;
use crate::support::networks::dhcp::{conf, journal};

#[test]
fn del_again_and_del_of_what_never_was() {
    on_each_lan(json!({}), |lab, server, _| {
        let (_, attachment, _) = lab.added(&conf());
        (0..3).for_each(|_| attachment.del());
        wait_for_release(lab, server);
        let (_, never) = lab.place(&conf());
        never.del();
        never.netns(None).del();
        assert!(server.heard_of(RELEASE).len() <= 1);
    });
}

/// A test of the reference plugin.
#[test]
fn three_dels_at_once_and_one_more() {
    with_each_server(Kind::Macvlan, |lab, server, _| {
        let (_, attachment, _) = lab.added(&conf());
        let alone = attachment.clone().conf(json!({"type": "dhcp", "master": null}));
        std::thread::scope(|scope| (0..3).for_each(|_| drop(scope.spawn(|| alone.del()))));
        alone.del();
        server.assert_has_no_lease();
        attachment.del();
    });
}

#[test]
fn the_lease_of_another_attachment_stays() {
    on_each_lan(json!({}), |lab, server, _| {
        let (_, attachment, result) = lab.added(&conf());
        let alone = attachment.clone().conf(json!({"type": "dhcp", "master": null}));
        alone.clone().ifname("eth1").del();
        alone.clone().id("another").del();
        alone.conf(json!({"name": "net2"})).del();
        attachment.check(&result).ok();
        assert!(server.heard_of(RELEASE).is_empty());
    });
}

/// The daemon may be down for an upgrade; DEL of a container does not wait for it.
#[test]
fn del_needs_no_daemon() {
    on_a_lan(json!({}), |lab, server, daemon| {
        let (_, attachment, _) = lab.added(&conf());
        let (_, other, result) = lab.added(&conf());
        assert_eq!(journal(lab).len(), 2);
        daemon.kill();
        attachment.del();
        let released = &server.wait_for(RELEASE, 1, 5)[0];
        assert_eq!(released["ciaddr"], "10.60.0.50");
        let key = format!("\0{}/net1/eth0", attachment.container_id);
        assert_eq!(option(released, 61), Some(hex(key.as_bytes())));
        assert_eq!(journal(lab).len(), 1);
        attachment.del();
        lab.place(&conf()).1.del();
        daemon.start_again();
        other.check(&result).ok();
        assert_eq!(server.heard_of(RELEASE).len(), 1);
    });
}

#[test]
fn del_without_daemon_and_namespace_forgets_the_lease() {
    on_a_lan(json!({}), |lab, _, daemon| {
        let (container, attachment, _) = lab.added(&conf());
        daemon.kill();
        container.vanish();
        attachment.del();
        assert_eq!(journal(lab), [""; 0]);
    });
}

/// DEL creates nothing on a host that never had a daemon.
#[test]
fn del_where_there_never_was_a_daemon_leaves_no_directory() {
    for_ours("dhcp", |lab| {
        let (_, attachment, before) = lab.watched(&alone());
        attachment.del();
        before.assert_unchanged("DEL");
        assert_eq!(lab.host.sh("ls /run/cni"), "");
    });
}

#[test]
fn del_takes_any_configuration_that_says_where_the_daemon_is() {
    on_a_lan(json!({}), |lab, server, _| {
        let attachment = plugged(lab, &lab.container());
        attachment.add();
        let wrong = json!({"ipam": {"provide": [{"option": "nonsense"}]}});
        attachment.args("NONSENSE=1;IP=999").conf(wrong).del();
        server.wait_for(RELEASE, 1, 5);
    });
}

// --- GC ---

/// The reference's GC has no effect.
#[test]
fn gc_releases_what_is_not_listed() {
    on_a_lan(json!({}), |lab, server, _| {
        let [keep, stale, other] = [(), (), ()].map(|()| plugged(lab, &lab.container()));
        let other = other.conf(json!({"name": "net2"}));
        let results = [&keep, &stale, &other].map(|at| at.add());
        keep.call("GC", None).run().ok(); // without a list nothing is released
        keep.gc(&[(&keep.container_id, "eth0"), ("nobody", "eth0")]).ok();
        let released = server.wait_for(RELEASE, 1, 5);
        assert_eq!(released[0]["ciaddr"], json!(ips(&results[1])[0]));
        keep.check(&results[0]).ok();
        stale.check(&results[1]).err();
        other.check(&results[2]).ok();
        assert_eq!(journal(lab).len(), 2);
        keep.gc(&[(&keep.container_id, "eth1")]).ok();
        keep.check(&results[0]).err();
        other.check(&results[2]).ok();
        other.gc(&[]).ok();
        other.check(&results[2]).err();
        assert_eq!(journal(lab), [""; 0]);
    });
}

// --- CHECK ---

#[test]
fn check_finds_what_has_changed() {
    on_a_lan(json!({}), |lab, _, daemon| {
        let attachment = plugged(lab, &lab.container());
        let result = attachment.add();
        attachment.check(&result).ok();
        let says = |result: &Value, words: &str| {
            let error = attachment.check(result).err();
            assert!(error.text().contains(words), "{error:?}");
        };
        says(&with(&result, json!({"ips": [{"address": "10.60.0.51/24"}]})), "10.60.0.50");
        attachment.clone().id("another").check(&result).err();
        daemon.kill();
        says(&result, SOCKET);
    });
}

// --- STATUS ---

#[test]
fn status_asks_the_daemon() {
    for_ours("dhcp", |lab| {
        let (_, attachment) = lab.place(&alone());
        attachment.status().fails(50, SOCKET);
        let mut daemon = Daemon::start(lab);
        attachment.status().ok();
        daemon.kill();
        attachment.status().fails(50, SOCKET);
    });
}

// --- containers that end without DEL ---

#[test]
fn del_of_a_container_that_is_gone_succeeds() {
    on_each_lan(short(), |lab, _, _| {
        let is_ours = lab.peer == Peer::Ours;
        let ways = [Container::vanish, Container::go_stale];
        // The reference's macvlan fails if the path is a plain file.
        for go in &ways[..if is_ours { 2 } else { 1 }] {
            let (container, attachment, _) = lab.added(&conf());
            go(&container);
            attachment.del();
            attachment.netns(None).del();
        }
        if is_ours {
            assert_eq!(journal(lab), [""; 0]);
        }
    });
}

/// The daemon holds no namespace open, also after it has been in it for a renewal.
#[test]
fn a_lease_ends_with_its_namespace() {
    on_a_lan(short(), |lab, server, daemon| {
        let (container, ..) = lab.added(&conf());
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
            let (container, attachment, result) = lab.added(&conf());
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
        let (container, ..) = lab.added(&conf());
        let path = &container.netns;
        lab.host.sh(&format!(
            "umount {path}; unshare --net={path} true; ip link add link lan name eth0 netns $(basename {path}) type macvlan"
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
        let (container, attachment, result) = lab.added(&conf());
        container.sh("ip link set eth0 down");
        std::thread::sleep(std::time::Duration::from_millis(2500)); // renewals fail meanwhile
        container.sh("ip link set eth0 up; ip route add default via 10.60.0.1");
        server.wait_for(REQUEST, server.heard_of(REQUEST).len() + 1, 6);
        assert_eq!(journal(lab).len(), 1);
        attachment.check(&result).ok();
    });
}

/// The container and the path of its namespace vanish while the daemon is down: there is nothing to
/// resume.
#[test]
fn containers_that_ended_without_the_daemon_are_forgotten() {
    on_a_lan(short(), |lab, _, daemon| {
        let (gone, ..) = lab.added(&conf());
        let (_, attachment, result) = lab.added(&conf());
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
        let (_, attachment) = lab.place(&conf());
        // The first call makes the daemon open everything it keeps open.
        attachment.status().ok();
        let mut counts = vec![];
        wait_until("it is at rest", 3, || {
            counts.push(daemon.descriptors());
            let last = &counts[counts.len().saturating_sub(10)..];
            last.len() == 10 && last.iter().all(|count| *count == last[0]) && threads() == 1
        });
        let before = daemon.descriptors();
        let attachments: Vec<_> =
            (0..8).map(|n| attachment.clone().ifname(&format!("eth{n}"))).collect();
        attachments.iter().for_each(|attachment| drop(attachment.add()));
        wait_until("no descriptor is left", 3, || daemon.descriptors() == before);
        wait_until("no thread is left", 3, || threads() == 1);
        attachments.iter().for_each(Attachment::del);
        wait_until("no descriptor is left", 3, || daemon.descriptors() == before);
    });
}
