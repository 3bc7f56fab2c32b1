//! Our plugin with the reference's daemon and the reverse, as during an upgrade: the error names
//! the mismatch.

use serde_json::json;

use super::network;
use crate::support::attachment::{for_ours, for_reference, not_compared, skip, with};
use crate::support::call::{Peer, farm};
use crate::support::dhcp::Daemon;
use crate::support::dhcp::scripted::DISCOVER;
use crate::support::netns::Lab;
use crate::support::networks::dhcp::conf;

/// Runs a case in a lab of the reference if both plugins are installed.
fn for_both(case: impl Fn(&Lab)) {
    if farm().join("dhcp").exists() { for_reference("dhcp", case) } else { skip("our plugin dhcp") }
}

#[test]
fn our_plugin_and_the_reference_s_daemon() {
    for_both(|lab| {
        let server = network(lab);
        let _daemon = Daemon::start(lab);
        let attachment = lab
            .attach(&lab.container(), &with(&conf(), json!({"type": "dhcp", "master": null})))
            .by(&Peer::Ours);
        let text = attachment.try_add().err().text();
        assert!(text.contains("reference") && text.contains("cni-dhcp.service"), "{text}");
        assert_eq!(attachment.status().err().code, 50);
        // DEL succeeds: the plugin has no lease of ours.
        attachment.del();
        assert!(server.heard_of(DISCOVER).is_empty());
    });
}

#[test]
fn the_reference_s_plugin_and_our_daemon() {
    let Some(reference) = Peer::reference() else { return not_compared("dhcp") };
    for_ours("dhcp", |lab| {
        let _server = network(lab);
        let mut daemon = Daemon::start(lab);
        let attachment = lab.attach(&lab.container(), &conf()).by(&reference);
        let text = attachment.try_add().err().text();
        assert!(text.contains("cni-multi"), "{text}");
        assert!(!daemon.has_ended());
        lab.attach(&lab.container(), &conf()).add();
    });
}

/// The reference's daemon keeps its leases in memory, and ours starts without them. A running
/// container keeps its address until DEL.
#[test]
fn containers_of_the_reference_are_deleted_by_ours() {
    for_both(|lab| {
        let _server = network(lab);
        let mut daemon = Daemon::start(lab);
        let attachment = lab.attach(&lab.container(), &conf());
        attachment.add();
        daemon.kill();
        attachment.clone().by(&Peer::Ours).del();
    });
}
