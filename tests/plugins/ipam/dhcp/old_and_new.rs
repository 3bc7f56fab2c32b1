//! The reference's daemon or plugin at the other end, as it is for a moment in an upgrade: an error that says so.

use super::conf;
use crate::support::attachment::{for_ours, for_reference, with};
use crate::support::call::Peer;
use crate::support::dhcp::scripted::{DISCOVER, Scripted};
use crate::support::dhcp::{Daemon, Kind};
use serde_json::json;

#[test]
fn our_plugin_and_the_reference_s_daemon() {
    for_reference("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        let server = Scripted::start(lab, json!({}));
        let _daemon = Daemon::start(lab);
        let attachment =
            lab.attach(&lab.container(), &with(&conf(), json!({"type": "dhcp", "master": null}))).by(&Peer::Ours);
        let text = attachment.try_add().err().text();
        assert!(text.contains("reference") && text.contains("cni-dhcp.service"), "{text}");
        assert_eq!(attachment.status().err().code, 50);
        assert!(server.heard_of(DISCOVER).is_empty());
    });
}

#[test]
fn the_reference_s_plugin_and_our_daemon() {
    let Some(reference) = Peer::reference() else { return crate::support::attachment::not_compared("dhcp") };
    for_ours("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        let _server = Scripted::start(lab, json!({}));
        let mut daemon = Daemon::start(lab);
        let attachment = lab.attach(&lab.container(), &conf()).by(&reference);
        let text = attachment.try_add().err().text();
        assert!(text.contains("cni-multi"), "{text}");
        assert!(!daemon.has_ended());
        lab.attach(&lab.container(), &conf()).add();
    });
}

/// The reference's daemon knows the leases it has made; ours starts without them. What runs keeps its address until then.
#[test]
fn containers_of_the_reference_are_deleted_by_ours() {
    for_reference("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        let _server = Scripted::start(lab, json!({}));
        let mut daemon = Daemon::start(lab);
        let attachment = lab.attach(&lab.container(), &conf());
        attachment.add();
        daemon.kill();
        attachment.clone().by(&Peer::Ours).del();
    });
}
