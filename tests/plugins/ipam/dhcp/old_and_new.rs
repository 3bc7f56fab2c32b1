//! Our plugin with the reference's daemon and the reverse, as during an upgrade: the error names
//! the mismatch.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::{alone, network, on_a_lan, short};
use crate::support::attachment::{for_ours, for_reference, not_compared, skip};
use crate::support::call::{Peer, binary, farm};
use crate::support::dhcp::Daemon;
use crate::support::dhcp::scripted::{DISCOVER, RELEASE, REQUEST};
use crate::support::netns::Lab;
use crate::support::networks::dhcp::conf;
use crate::support::scratch::Scratch;

/// Runs a case in a lab of the reference if both plugins are installed.
fn for_both(case: impl Fn(&Lab)) {
    if farm().join("dhcp").exists() { for_reference("dhcp", case) } else { skip("our plugin dhcp") }
}

#[test]
fn our_plugin_and_the_reference_s_daemon() {
    for_both(|lab| {
        let server = network(lab, json!({}));
        let _daemon = Daemon::start(lab);
        let attachment = lab.place(&alone()).1.by(&Peer::Ours);
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
    on_a_lan(json!({}), |lab, _, daemon| {
        let text = lab.place(&conf()).1.by(&reference).try_add().err().text();
        assert!(text.contains("cni-multi"), "{text}");
        assert!(!daemon.has_ended());
        lab.added(&conf());
    });
}

/// The reference's daemon keeps its leases in memory, and ours starts without them. A running
/// container keeps its address until DEL.
#[test]
fn containers_of_the_reference_are_deleted_by_ours() {
    for_both(|lab| {
        let _server = network(lab, json!({}));
        let mut daemon = Daemon::start(lab);
        let (_, attachment, _) = lab.added(&conf());
        daemon.kill();
        attachment.by(&Peer::Ours).del();
    });
}

/// As a package is upgraded: a rename gives the new program the name of the old one, and the service
/// is restarted.
#[test]
fn an_upgraded_daemon_keeps_the_leases() {
    for_ours("dhcp", |lab| {
        let server = network(lab, short());
        let scratch = Scratch::new();
        let program = scratch.join("dhcp");
        write_build("old", &program);
        let command = format!("exec {} daemon", program.display());
        let mut old = Daemon::wrapped(lab, &["sh", "-c", &command]);
        let (_, attachment, result) = lab.added(&conf());
        let leases = || lab.dhcp(&["leases", "-o", "json"]).json();
        let lease = leases();
        write_build("new", &scratch.join("unpacked"));
        std::fs::rename(scratch.join("unpacked"), &program).unwrap();
        assert!(running_build(&old).ends_with(b"\nbuild old\n"));
        assert_eq!(old.end_by("TERM"), 0);
        let new = Daemon::wrapped(lab, &["sh", "-c", &command]);
        assert!(running_build(&new).ends_with(b"\nbuild new\n"));
        server.wait_for(REQUEST, server.heard_of(REQUEST).len() + 1, 5);
        attachment.check(&result).ok();
        let kept = leases();
        for key in ["key", "address", "server"] {
            assert_eq!(kept[0][key], lease[0][key], "{key}: {lease} {kept}");
            assert!(!kept[0][key].is_null(), "{key}: {kept}");
        }
        assert!(server.heard_of(RELEASE).is_empty());
        attachment.del();
    });
}

/// Another build of the program under test: the same with a word appended. cp writes it, since a
/// file that is open for writing in this process cannot be executed.
fn write_build(word: &str, path: &Path) {
    let draft = path.with_extension("draft");
    let content = [std::fs::read(binary()).unwrap(), format!("\nbuild {word}\n").into()].concat();
    std::fs::write(&draft, content).unwrap();
    std::fs::set_permissions(&draft, Permissions::from_mode(0o755)).unwrap();
    assert!(Command::new("cp").args([&draft, path]).status().unwrap().success());
}

fn running_build(daemon: &Daemon<'_>) -> Vec<u8> {
    std::fs::read(format!("/proc/{}/exe", daemon.pid())).unwrap()
}
