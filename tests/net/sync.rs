//! `net sync`: which attachments are repaired, and what is printed. What each plugin repairs is in
//! `tests/plugins`.

use serde_json::{Value, json};

use super::{Site, assert_failed, result, static_network};
use crate::support::attachment::for_ours;
use crate::support::networks::portmap::network;
use crate::support::synced::{attach, attach_another};

#[test]
fn attachments_without_a_namespace_are_left_out() {
    let site = Site::with_lab();
    site.attached("lab", "a", "/nonexistent", &result(&[]));
    assert_eq!(site.prints("sync"), "");
    assert_eq!(site.prints("sync --dry-run"), "");
    assert_eq!(site.json("sync"), json!([]));
    assert!(!site.has("cache/lock"), "no lock was taken");
}

/// Nothing of the host is taken for a container's, whatever a path leads to.
#[test]
fn the_host_s_own_namespace_is_an_error() {
    let site = Site::with_lab();
    site.attached("lab", "a", "/proc/self/ns/net", &result(&[]));
    let msg = "lab a eth0: \"/proc/self/ns/net\" is the host's own namespace";
    let details = "the container is gone: `cni-multi net del` detaches it";
    assert_failed(&site.net("sync lab"), msg, details);
    let unknown = format!("no net configuration with name \"other\" in {}", site.at("net.d"));
    assert_failed(&site.net("sync other"), &unknown, "available networks: lab");
    site.network("20-other.conflist", &static_network("other"));
    assert_eq!(site.prints("sync other"), "");
}

#[test]
fn an_interface_that_is_gone_or_another_is_an_error() {
    for_ours("portmap", |lab| {
        let synced = attach(lab, &[network()], "");
        for (fault, problem) in [
            ("ip link set eth0 address 02:00:00:00:00:99", "is another"),
            ("ip link del eth0", "interface \"eth0\" is not in"),
        ] {
            synced.container.sh(fault);
            let outcome = synced.net("sync");
            assert_eq!((outcome.status, outcome.stdout.as_str()), (1, ""), "{outcome:?}");
            assert!(outcome.stderr.contains(problem), "{outcome:?}");
        }
    });
}

/// The second container's port is taken, and the first and the third are repaired.
#[test]
fn each_change_is_a_line_and_failures_stop_no_other_repair() {
    for_ours("portmap", |lab| {
        let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        let first = attach(lab, &[network(), portmap], "-p 8080:80");
        let second = attach_another(lab, "-p 8081:80");
        lab.host.sh("nft flush ruleset");
        attach_another(lab, "-p 8081:80");
        let look = first.net("sync --dry-run -o json");
        assert_eq!(look.status, 3, "{look:?}");
        let rows: Vec<Value> = serde_json::from_str(&look.stdout).unwrap();
        let mut changes: Vec<&str> =
            rows.iter().map(|row| row["change"].as_str().unwrap()).collect();
        changes.sort_unstable();
        assert_eq!(changes, ["publish port 8080/tcp", "publish port 8081/tcp"]);
        assert!(rows.iter().all(|row| row["network"] == "pods" && row["ifname"] == "eth0"));
        let outcome = first.net("sync");
        assert_eq!(outcome.status, 1, "{outcome:?}");
        assert_eq!(outcome.stdout.lines().count(), 1, "{outcome:?}");
        assert!(outcome.stdout.ends_with(" eth0: publish port 8080/tcp\n"), "{outcome:?}");
        assert!(outcome.stderr.contains("hostPort 8081/tcp is taken"), "{outcome:?}");
        first.check().ok();
        second.del();
        let again = first.net("sync");
        assert_eq!((again.status, again.stdout.as_str()), (0, ""), "{again:?}");
    });
}

#[test]
fn a_plugin_that_is_another_program_is_left_out() {
    for_ours("portmap", |lab| {
        lab.host.sh(
            "mkdir /run/bin; printf '#!/bin/sh\ncat | jq .prevResult\n' >/run/bin/foreign; chmod +x /run/bin/foreign",
        );
        let conf = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [network(), {"type": "foreign"}]});
        lab.host.sh(&format!("mkdir /run/net.d; echo '{conf}' >/run/net.d/pods.conflist"));
        let container = lab.container();
        let net = |line: &str| {
            let mut call = crate::support::synced::net(lab, line);
            *call.args.last_mut().unwrap() += ":/run/bin";
            call.run()
        };
        net(&format!("add pods {}", container.netns)).ok();
        let outcome = net("sync");
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""), "{outcome:?}");
        assert!(outcome.stderr.contains("plugin foreign is another program"), "{outcome:?}");
    });
}
