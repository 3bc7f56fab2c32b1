//! `net sync`: which attachments are repaired, and what is printed. What each plugin repairs is in
//! `tests/plugins`.

use nix::errno::Errno;
use serde_json::{Value, json};

use crate::support::attachment::{for_ours, with};
use crate::support::call::{Call, Outcome, binary, farm};
use crate::support::netns::Lab;
use crate::support::networks::portmap::network;
use crate::support::networks::tuning::tuning;
use crate::support::programs::need_programs;
use crate::support::synced::{Synced, attach, attach_another, net};
use crate::support::tracer::{Stop, Then, trace};

fn portmap() -> Value {
    json!({"type": "portmap", "capabilities": {"portMappings": true}})
}

#[test]
fn attachments_without_a_namespace_are_left_out() {
    for_ours("portmap", |lab| {
        let synced = attach(lab, &[network()], "");
        assert_eq!(synced.syncs(), "1 attachment of 1 network: 0 repaired, 0 could not be\n");
        synced.container.vanish();
        lab.host.sh("rm -f /var/lib/cni/lock; nft flush ruleset");
        assert_eq!(synced.syncs(), "0 attachments of 0 networks: 0 repaired, 0 could not be\n");
        let look = synced.net("sync --dry-run");
        let summary = "0 attachments of 0 networks: 0 to repair, 0 could not be looked at\n";
        assert_eq!((look.status, look.stdout.as_str()), (0, summary), "{look:?}");
        let none = json!({"attachments": 0, "networks": 0, "repaired": 0, "failed": 0, "changes": [],
            "notRepaired": []});
        assert_eq!(synced.net("sync -o json").json(), none);
        lab.host.sh("test ! -e /var/lib/cni/lock"); // no lock was taken
    });
}

/// Nothing of the host is taken for a container's, whatever a path leads to.
#[test]
fn the_host_s_own_namespace_is_an_error() {
    for_ours("portmap", |lab| {
        let synced = attach(lab, &[network()], "");
        let netns = synced.container.netns.replace('/', "[/]");
        lab.host
            .sh(&format!("sed -i 's/{netns}/\\/proc\\/self\\/ns\\/net/' /var/lib/cni/results/*"));
        let outcome = synced.net("sync pods");
        let summary = "1 attachment of 1 network: 0 repaired, 1 could not be\n";
        assert_eq!((outcome.status, outcome.stdout.as_str()), (1, summary), "{outcome:?}");
        let problem = "eth0: \"/proc/self/ns/net\" is the host's own namespace\n\
                       the container is gone: `cni-multi net del` detaches it\n";
        assert!(outcome.stderr.ends_with(problem), "{outcome:?}");
        let unknown = synced.net("sync other");
        assert_eq!(unknown.status, 1, "{unknown:?}");
        assert!(unknown.stderr.contains("available networks: pods"), "{unknown:?}");
    });
}

/// The record changes between the look and the lock: what it has under the lock decides.
#[test]
fn the_record_under_the_lock_decides() {
    need_programs(&["jq"]); // in the tracer's thread, where nobody would see that it is missing
    for_ours("portmap", |lab| {
        let synced = attach(lab, &[network(), portmap()], "-p 8080:80");
        lab.host.sh("nft flush ruleset");
        for (change, expected) in [
            (".capabilityArgs.portMappings[0].hostPort = 8081", "publish port 8081/tcp\n"),
            (
                ".config |= (@base64d | fromjson | .plugins[0].ipMasq = true | tojson | @base64)",
                "masquerade",
            ),
        ] {
            let outcome = sync_while_the_record_changes(lab, change);
            assert_eq!(outcome.status, 0, "{outcome:?}");
            assert!(outcome.stdout.contains(expected), "{outcome:?}");
            assert!(!outcome.stdout.contains("8080"), "{outcome:?}");
            lab.host.sh("nft flush ruleset");
        }
        let outcome = sync_while_the_record_changes(lab, "empty");
        assert!(outcome.stderr.contains("/results/"), "a file without a record: {outcome:?}");
        synced.net("sync"); // the lock is free again
    });
}

/// Runs `net sync`, and lets jq change the record when the lock is about to be taken.
fn sync_while_the_record_changes(lab: &Lab, change: &str) -> Outcome {
    let mut is_changed = false;
    let traced = trace(&net(lab, "sync"), |stop| {
        let locks = stop.call == libc::SYS_fcntl && stop.args[1] == libc::F_OFD_SETLK as u64;
        if locks && stop.result.is_none() && !is_changed {
            is_changed = true;
            lab.host.sh(&format!(
                "cd /var/lib/cni/results; jq '{change}' * >/run/changed; cat /run/changed >$(ls)"
            ));
        }
        Then::Go
    });
    assert!(is_changed, "no lock was taken: {:?}", traced.outcome);
    traced.outcome
}

/// Whether the attachment was there decides what an ADD undoes: an error of that look-up is the
/// ADD's.
#[test]
fn a_record_that_cannot_be_examined_fails_an_add() {
    for_ours("portmap", |lab| {
        let synced = attach(lab, &[network()], "");
        synced.container.vanish();
        let line = format!("add pods {}", synced.container.netns);
        let traced = trace(&net(lab, &line), |stop| {
            let examines = stop.call == libc::SYS_statx && stop.result.is_none();
            if examines && stop.text(1).starts_with("/var/lib/cni/results/") {
                Then::fail(Errno::EACCES)
            } else {
                Then::Go
            }
        });
        let outcome = traced.outcome;
        assert_eq!(outcome.status, 1, "{outcome:?}");
        assert!(outcome.stderr.contains("examine /var/lib/cni/results/"), "{outcome:?}");
        assert!(outcome.stderr.contains("permission denied"), "{outcome:?}");
    });
}

/// cri-dockerd has its records in /var/lib/cni/cache.
#[test]
fn records_of_every_cache_are_repaired() {
    for_ours("portmap", |lab| {
        let synced = attach(lab, &[network(), portmap()], "-p 8080:80");
        let other = lab.container();
        let dir = "--cache-dir /var/lib/cni/cache";
        net(lab, &format!("add pods {} -p 8081:80 {dir}", other.netns)).run().ok();
        lab.host.sh("nft flush ruleset");
        let outcome = synced.net("sync -o json");
        let report = outcome.json();
        let counts = ["attachments", "networks", "repaired", "failed"].map(|name| &report[name]);
        assert_eq!(counts, [2, 1, 2, 0], "{outcome:?}");
        net(lab, &format!("check pods {} {dir}", other.netns)).run().ok();
        lab.host.sh("cp -r /var/lib/cni/cache /var/lib/cni/copy");
        assert_eq!(synced.syncs(), "2 attachments of 1 network: 0 repaired, 0 could not be\n");
    });
}

/// The system calls, the requests to the kernel, and the dumps among these.
#[derive(Clone, Copy, Debug)]
struct Cost {
    calls: usize,
    requests: usize,
    dumps: usize,
}

fn cost(call: &Call) -> Cost {
    let (mut requests, mut dumps) = (0, 0);
    let traced = trace(call, |stop| {
        if stop.call == libc::SYS_sendto && stop.result.is_none() && stop.is_netlink() {
            let flags = stop.memory(stop.args[1] + 6, 2);
            requests += 1;
            dumps += usize::from(u16::from_ne_bytes([flags[0], flags[1]]) & 0x300 == 0x300);
        }
        Then::Go
    });
    assert_eq!(traced.outcome.status, 0, "{:?}", traced.outcome);
    Cost { calls: traced.calls, requests, dumps }
}

/// What the attachments of a node share is read once, so a node with many is looked at in a moment. With iptables, the
/// rules of FORWARD are listed for each.
#[test]
fn a_healthy_attachment_costs_few_calls_and_no_dump() {
    for_ours("firewall", |lab| {
        const MORE: usize = 5;
        lab.hide_iptables();
        let firewall = json!({"type": "firewall", "backend": "nftables"});
        let synced = attach(lab, &[network(), portmap(), firewall], "-p 8080:80");
        let sync = net(lab, "sync");
        let few = cost(&sync);
        for port in 1..=MORE {
            attach_another(lab, &format!("-p {}:80", 8080 + port));
        }
        let many = cost(&sync);
        let each = |of: fn(Cost) -> usize| (of(many) - of(few)).div_ceil(MORE);
        eprintln!("first {few:?}, then {many:?}");
        assert_eq!(many.dumps, few.dumps, "{few:?} {many:?}");
        // Four of them ask whether the container has its two addresses and routes.
        assert!(each(|cost| cost.requests) <= 27, "{few:?} {many:?}");
        assert!(each(|cost| cost.calls) <= 120, "{few:?} {many:?}");
        assert_eq!(synced.syncs(), "6 attachments of 1 network: 0 repaired, 0 could not be\n");
    });
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
            let summary = "1 attachment of 1 network: 0 repaired, 1 could not be\n";
            assert_eq!((outcome.status, outcome.stdout.as_str()), (1, summary), "{outcome:?}");
            assert!(outcome.stderr.contains(problem), "{outcome:?}");
        }
    });
}

/// The second container's port is taken, and the first and the third are repaired.
#[test]
fn each_change_is_a_line_and_failures_stop_no_other_repair() {
    for_ours("portmap", |lab| {
        let first = attach(lab, &[network(), portmap()], "-p 8080:80");
        let second = attach_another(lab, "-p 8081:80");
        lab.host.sh("nft flush ruleset");
        attach_another(lab, "-p 8081:80");
        let look = first.net("sync --dry-run -o json");
        assert_eq!(look.status, 3, "{look:?}");
        let report: Value = serde_json::from_str(&look.stdout).unwrap();
        assert_eq!((&report["toRepair"], &report["failed"]), (&json!(2), &json!(0)), "{report}");
        let rows = report["changes"].as_array().unwrap();
        let mut changes: Vec<&str> =
            rows.iter().map(|row| row["change"].as_str().unwrap()).collect();
        changes.sort_unstable();
        assert_eq!(changes, ["publish port 8080/tcp", "publish port 8081/tcp"]);
        assert!(rows.iter().all(|row| row["network"] == "pods" && row["ifname"] == "eth0"));
        let outcome = first.net("sync");
        assert_eq!(outcome.status, 1, "{outcome:?}");
        let [change, summary] = outcome.stdout.lines().collect::<Vec<_>>()[..] else {
            panic!("{outcome:?}");
        };
        assert!(change.ends_with(" eth0: publish port 8080/tcp"), "{outcome:?}");
        assert_eq!(summary, "3 attachments of 1 network: 1 repaired, 1 could not be");
        assert!(outcome.stderr.contains("hostPort 8081/tcp is taken"), "{outcome:?}");
        first.check().ok();
        second.del();
        assert_eq!(first.syncs(), "2 attachments of 1 network: 0 repaired, 0 could not be\n");
    });
}

/// The kernel takes the change, and it does not last: no repair, whatever was answered.
#[test]
fn a_change_that_does_not_last_is_a_failure() {
    for_ours("tuning", |lab| {
        let sysctls = json!({"sysctl": {
            "net.core.somaxconn": "517", "net.ipv4.conf.IFNAME.arp_filter": "1",
        }});
        let synced = attach(lab, &[network(), tuning(sysctls)], "");
        synced
            .container
            .sh("cd /proc/sys/net; echo 77 >core/somaxconn; echo 0 >ipv4/conf/eth0/arp_filter");
        let lost = |stop: &Stop| {
            let writes = stop.call == libc::SYS_write && stop.result.is_none();
            if writes && stop.descriptor(0).ends_with("/somaxconn") {
                Then::Answer(stop.args[2] as i64)
            } else {
                Then::Go
            }
        };
        let outcome = trace(&net(lab, "sync"), lost).outcome;
        assert_eq!(outcome.status, 1, "{outcome:?}");
        let [change, summary] = outcome.stdout.lines().collect::<Vec<_>>()[..] else {
            panic!("{outcome:?}");
        };
        assert!(change.contains("arp_filter to 1"), "{outcome:?}");
        assert_eq!(summary, "1 attachment of 1 network: 0 repaired, 1 could not be");
        assert!(outcome.stderr.contains("somaxconn to 517"), "{outcome:?}");
        assert!(outcome.stderr.contains("is missing again"), "{outcome:?}");
        let outcome = trace(&net(lab, "sync -o json"), lost).outcome;
        let report = outcome.json();
        let counts = ["repaired", "failed", "changes"].map(|name| &report[name]);
        assert_eq!(counts, [&json!(0), &json!(1), &json!([])], "{outcome:?}");
        synced.syncs();
        synced.check().ok();
    });
}

/// Another program undoes each change at once, of the host's links.
#[test]
fn a_change_that_is_undone_at_once_is_a_failure() {
    for_ours("bridge", |lab| {
        let synced = attach(lab, &[network()], "");
        for fault in ["bridge link set dev $p isolated on", "ip link set $p down"] {
            let fault = format!("for p in $(ls /sys/class/net/br0/brif); do {fault}; done");
            lab.host.sh(&fault);
            let traced = trace(&net(lab, "sync"), |stop| {
                let sends = stop.call == libc::SYS_sendto && stop.result.is_some();
                if sends && [libc::RTM_NEWLINK, libc::RTM_SETLINK].contains(&stop.netlink_type()) {
                    lab.host.sh(&fault);
                }
                Then::Go
            });
            let outcome = traced.outcome;
            let summary = "1 attachment of 1 network: 0 repaired, 1 could not be\n";
            assert_eq!((outcome.status, outcome.stdout.as_str()), (1, summary), "{outcome:?}");
            assert!(outcome.stderr.contains("is missing again"), "{outcome:?}");
            synced.syncs();
            synced.check().ok();
        }
    });
}

/// The kernel resets the flags of a port that changes its bridge.
#[test]
fn a_port_of_another_bridge_gets_its_flags_again() {
    for_ours("bridge", |lab| {
        let flags = json!({"portIsolation": true, "hairpinMode": true});
        let synced = attach(lab, &[with(&network(), flags)], "");
        lab.host.sh("ip link add br9 up type bridge; p=$(ls /sys/class/net/br0/brif)
            ip link set $p master br9; bridge link set dev $p isolated on hairpin on");
        assert!(synced.syncs().contains("to bridge \"br0\""));
        synced.check().ok();
    });
}

#[test]
fn a_plugin_that_is_another_program_is_left_out() {
    need_programs(&["jq"]); // in its script
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
        let summary = "1 attachment of 1 network: 0 repaired, 0 could not be\n";
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, summary), "{outcome:?}");
        assert!(outcome.stderr.contains("plugin foreign is another program"), "{outcome:?}");
        let outcome = net("sync -o json");
        let note = "{\"note\":\"plugin foreign is another program, and has no repair\"}\n";
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, note));
    });
}

/// A further name of a plugin, and of its IPAM plugin: both run in this process, and every command
/// takes them for ours.
#[test]
fn an_alias_is_repaired_as_the_plugin_that_it_is() {
    for_ours("bridge", |lab| {
        let farm = farm().display();
        lab.host.sh(&format!(
            "mkdir /run/bin; ln -s {farm}/bridge /run/bin/cnv-bridge; ln -s {farm}/host-local /run/bin/cnv-ipam"
        ));
        let aliases = json!({"type": "cnv-bridge", "ipam": {"type": "cnv-ipam"}});
        let conf =
            json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [with(&network(), aliases)]});
        lab.host.sh(&format!("mkdir /run/net.d; echo '{conf}' >/run/net.d/pods.conflist"));
        let container = lab.container();
        let net = |line: &str| {
            let mut call = net(lab, line);
            *call.args.last_mut().unwrap() += ":/run/bin";
            call.run()
        };
        net(&format!("add pods {}", container.netns)).ok();
        lab.host.sh(
            "ip link set $(ls /sys/class/net/br0/brif) down; rm /var/lib/cni/networks/pods/10.*",
        );
        let outcome = net("sync");
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
        for change in ["to bridge \"br0\"", "lease 10.10.0.2 again"] {
            assert!(outcome.stdout.contains(change), "{outcome:?}");
        }
        net(&format!("check pods {}", container.netns)).ok();
        let run = |line: &str| {
            let (env, program) = ("NETCONFPATH=/run/net.d", binary());
            let output = lab
                .host
                .try_sh(&format!("CNI_PATH={farm}:/run/bin {env} {} {line}", program.display()));
            String::from_utf8(output.stdout).unwrap()
        };
        let ranges: Value = serde_json::from_str(&run("ipam ls -o json")).unwrap();
        assert_eq!(ranges["ranges"][0]["held"], 1, "of its configuration: {ranges}");
        lab.host.sh("ip link set br0 down");
        let found = run("doctor -o json");
        assert!(found.contains("bridge \\\"br0\\\" is down"), "{found}");
        net(&format!("del pods {}", container.netns)).ok();
    });
}

impl Synced<'_> {
    /// The output of a repair that succeeds.
    #[track_caller]
    fn syncs(&self) -> String {
        let outcome = self.net("sync");
        assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{outcome:?}");
        outcome.stdout
    }
}
