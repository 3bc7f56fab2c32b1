//! DEL, GC, CHECK and STATUS of dhcp.

use serde_json::json;

use super::{on_a_lan, on_each_lan, plugged, with_each_server};
use crate::support::attachment::{for_ours, ips, with};
use crate::support::call::Outcome;
use crate::support::dhcp::scripted::{RELEASE, hex, option, wait_for_release};
use crate::support::dhcp::{Daemon, Kind, SOCKET};
use crate::support::netns::Lab;
use crate::support::networks::dhcp::{conf, journal};
use crate::support::snapshot::Watch;

#[test]
fn del_again_and_del_of_what_never_was() {
    on_each_lan(json!({}), |lab, server, _| {
        let attachment = lab.attach(&lab.container(), &conf());
        attachment.add();
        for _ in 0..3 {
            attachment.del();
        }
        wait_for_release(lab, server);
        lab.attach(&lab.container(), &conf()).del();
        lab.attach(&lab.container(), &conf()).netns(None).del();
        assert!(server.heard_of(RELEASE).len() <= 1);
    });
}

/// A test of the reference plugin.
#[test]
fn three_dels_at_once_and_one_more() {
    with_each_server(Kind::Macvlan, |lab, server, _| {
        let attachment = lab.attach(&lab.container(), &conf());
        attachment.add();
        let alone = attachment.clone().conf(json!({"type": "dhcp", "master": null}));
        std::thread::scope(|scope| {
            let dels: Vec<_> = (0..3).map(|_| scope.spawn(|| alone.del())).collect();
            dels.into_iter().for_each(|del| del.join().unwrap());
        });
        alone.del();
        server.assert_has_no_lease();
        attachment.del();
    });
}

#[test]
fn the_lease_of_another_attachment_stays() {
    on_each_lan(json!({}), |lab, server, _| {
        let attachment = lab.attach(&lab.container(), &conf());
        let result = attachment.add();
        let alone = attachment.clone().conf(json!({"type": "dhcp", "master": null}));
        alone.clone().ifname("eth1").del();
        alone.clone().id("another").del();
        alone.clone().conf(json!({"name": "net2"})).del();
        attachment.check(&result).ok();
        assert!(server.heard_of(RELEASE).is_empty());
    });
}

/// The daemon may be down for an upgrade; DEL of a container does not wait for it.
#[test]
fn del_needs_no_daemon() {
    on_a_lan(json!({}), |lab, server, daemon| {
        let container = lab.container();
        let attachment = lab.attach(&container, &conf());
        attachment.add();
        let other = lab.attach(&lab.container(), &conf());
        let result = other.add();
        assert_eq!(journal(lab).len(), 2);
        daemon.kill();
        attachment.del();
        let released = server.wait_for(RELEASE, 1, 5);
        assert_eq!(released[0]["ciaddr"], "10.60.0.50");
        assert_eq!(
            option(&released[0], 61),
            Some(hex(format!("\0{}/net1/eth0", attachment.container_id).as_bytes()))
        );
        assert_eq!(journal(lab).len(), 1);
        attachment.del();
        lab.attach(&lab.container(), &conf()).del();
        daemon.start_again();
        other.check(&result).ok();
        assert_eq!(server.heard_of(RELEASE).len(), 1);
    });
}

#[test]
fn del_without_daemon_and_namespace_forgets_the_lease() {
    on_a_lan(json!({}), |lab, _, daemon| {
        let container = lab.container();
        let attachment = lab.attach(&container, &conf());
        attachment.add();
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
        let container = lab.container();
        let watch = Watch::start(lab, &[&container]);
        lab.attach(&container, &with(&conf(), json!({"type": "dhcp", "master": null}))).del();
        watch.assert_unchanged("since before DEL");
        assert_eq!(lab.host.sh("ls /run/cni"), "");
    });
}

#[test]
fn del_takes_any_configuration_that_says_where_the_daemon_is() {
    on_a_lan(json!({}), |lab, server, _| {
        let attachment = plugged(lab, &lab.container());
        attachment.add();
        attachment
            .clone()
            .args("NONSENSE=1;IP=999")
            .conf(json!({"ipam": {"provide": [{"option": "nonsense"}]}}))
            .del();
        server.wait_for(RELEASE, 1, 5);
    });
}

// --- GC ---

/// The reference's GC has no effect.
#[test]
fn gc_releases_what_is_not_listed() {
    on_a_lan(json!({}), |lab, server, _| {
        let containers = [lab.container(), lab.container(), lab.container()];
        let [keep, stale, other] = containers.each_ref().map(|c| plugged(lab, c));
        let other = other.conf(json!({"name": "net2"}));
        let results = [&keep, &stale, &other].map(|at| at.add());
        assert_eq!(keep.gc(&[(&keep.container_id, "eth0"), ("nobody", "eth0")]).ok(), json!(null));
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

#[test]
fn gc_without_a_list_releases_nothing() {
    on_a_lan(json!({}), |lab, _, _| {
        let attachment = plugged(lab, &lab.container());
        let result = attachment.add();
        attachment.call("GC", None).run().ok();
        attachment.check(&result).ok();
    });
}

// --- CHECK ---

#[test]
fn check_finds_what_has_changed() {
    on_a_lan(json!({}), |lab, _, daemon| {
        let container = lab.container();
        let attachment = plugged(lab, &container);
        let result = attachment.add();
        attachment.check(&result).ok();
        let other = with(&result, json!({"ips": [{"address": "10.60.0.51/24"}]}));
        let text = attachment.check(&other).err().text();
        assert!(text.contains("10.60.0.50"), "{text}");
        attachment.clone().id("another").check(&result).err();
        daemon.kill();
        let text = attachment.check(&result).err().text();
        assert!(text.contains(SOCKET), "{text}");
    });
}

// --- STATUS ---

fn status(lab: &Lab) -> Outcome {
    lab.attach(&lab.container(), &with(&conf(), json!({"type": "dhcp", "master": null}))).status()
}

#[test]
fn status_asks_the_daemon() {
    for_ours("dhcp", |lab| {
        let error = status(lab).err();
        assert_eq!(error.code, 50, "{error:?}");
        assert!(error.text().contains(SOCKET), "{error:?}");
        let mut daemon = Daemon::start(lab);
        status(lab).ok();
        daemon.kill();
        assert_eq!(status(lab).err().code, 50);
    });
}
