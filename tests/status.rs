//! STATUS of every plugin: a condition that makes every ADD fail is code 50, and the call changes
//! nothing. A runtime then declares the whole node not ready. docs/status-and-gc.md has a row for
//! each plugin; conditions of a single plugin are in its own tests.

use std::process::Command;

use serde_json::{Value, json};

use crate::gc::subjects::SUBJECTS;
use crate::support::attachment::{for_ours, skip, with};
use crate::support::call::{Call, Outcome};
use crate::support::dhcp::wait_until;
use crate::support::netns::Lab;
use crate::support::networks::{bond, bridge};
use crate::support::scratch::Scratch;
use crate::support::snapshot::Watch;

fn newest(conf: &Value) -> Value {
    with(conf, json!({"cniVersion": "1.1.0"}))
}

fn status(lab: &Lab, conf: &Value) -> Call {
    lab.attach(&lab.container(), &newest(conf)).netns(None).call("STATUS", None)
}

/// The call with one kind of system call failing; None if strace cannot inject failures.
fn failing(mut call: Call, inject: &str) -> Option<Call> {
    let strace = format!("strace -f -qq -o /dev/null -e inject={inject}");
    let tried = Command::new("sh").args(["-c", &format!("{strace} true")]).output().unwrap();
    if !tried.status.success() {
        skip("strace that can make system calls fail");
        return None;
    }
    call.wrapper.extend(strace.split(' ').map(str::to_owned));
    Some(call)
}

#[track_caller]
fn assert_not_available(outcome: &Outcome, msg: &str) {
    let error = outcome.fails(50, "");
    assert!(error.msg.starts_with(msg), "expected {msg:?}: {error:?}");
}

/// For each plugin with an ADD that creates a link: a configuration, the kind of the link, and the
/// number of the STATUS message that probes for the kind.
fn makers() -> [(Value, &'static str, usize); 9] {
    let leased = |changes: Value| {
        with(
            &with(&bridge::conf(), json!({"type": null, "bridge": null, "isGateway": null})),
            changes,
        )
    };
    [
        (bridge::conf(), "veth", 1),
        (bridge::conf(), "bridge", 3),
        (leased(json!({"type": "ptp"})), "veth", 1),
        (leased(json!({"type": "dummy"})), "dummy", 1),
        (leased(json!({"type": "ipvlan", "master": "uplink"})), "ipvlan", 1),
        (leased(json!({"type": "macvlan", "master": "uplink"})), "macvlan", 1),
        (leased(json!({"type": "vlan", "master": "uplink", "vlanId": 7})), "vlan", 1),
        (json!({"name": "net1", "type": "vrf", "vrfname": "blue"}), "vrf", 1),
        (with(&bond::layer_two(), json!({"cniVersion": null})), "bond", 1),
    ]
}

/// A kernel that lacks the kind reports that itself; on any other, strace injects the same error. Without
/// CAP_NET_ADMIN, too, nothing can be made.
#[test]
fn a_kernel_without_the_kind_of_link_cannot_serve() {
    for (conf, kind, nth) in makers() {
        for_ours(conf["type"].as_str().unwrap(), |lab| {
            let call = status(lab, &conf);
            let plain = call.run();
            let is_missing =
                plain.status != 0 && plain.err().msg.starts_with("the kernel has no links");
            let outcome = if is_missing {
                plain
            } else {
                plain.ok();
                let Some(call) = failing(call, &format!("sendto:error=EOPNOTSUPP:when={nth}"))
                else {
                    return;
                };
                call.run()
            };
            assert_not_available(&outcome, &format!("the kernel has no links of type {kind}"));
            let module = match kind {
                "vlan" => "8021q",
                "bond" => "bonding",
                _ => kind,
            };
            let advice =
                format!("the kernel's module {module} is missing; load it with: modprobe {module}");
            assert_eq!(outcome.err().details, advice);
            let denied = format!("sendto:error=EPERM:when={nth}");
            let Some(call) = failing(status(lab, &conf), &denied) else { return };
            let error = call.run().fails(50, kind);
            assert!(error.msg.contains("operation not permitted"), "{error:?}");
        });
    }
}

#[test]
fn a_link_of_the_bridge_s_name_that_is_none_is_in_the_way() {
    for_ours("bridge", |lab| {
        lab.host.sh("ip link add br0 type veth peer name other");
        let outcome = status(lab, &bridge::conf()).run();
        assert_not_available(&outcome, "\"br0\" already exists but is not a bridge");
        lab.host.sh("ip link del br0; ip link add br0 type bridge");
        status(lab, &bridge::conf()).run().ok();
    });
}

#[test]
fn masquerading_needs_its_backend() {
    for plugin in ["bridge", "ptp"] {
        for_ours(plugin, |lab| {
            let conf = |backend: &str| {
                with(
                    &bridge::conf(),
                    json!({"type": plugin, "ipMasq": true, "ipMasqBackend": backend}),
                )
            };
            status(lab, &conf("iptables")).run().ok();
            status(lab, &conf("nftables")).run().ok();
            let Some(call) =
                failing(status(lab, &conf("nftables")), "socket:error=EPROTONOSUPPORT:when=2+")
            else {
                return;
            };
            assert_not_available(&call.run(), "masquerade: ");
            lab.hide_iptables();
            let outcome = status(lab, &conf("iptables")).run();
            assert_not_available(&outcome, "masquerade: ");
            assert!(outcome.err().text().contains("iptables"), "{outcome:?}");
            status(lab, &with(&conf("iptables"), json!({"ipMasq": false}))).run().ok();
            status(lab, &conf("nftables")).run().ok();
        });
    }
}

/// STATUS succeeds, and with the injected fault it fails with these words.
#[track_caller]
fn assert_needs(lab: &Lab, conf: &Value, inject: &str, said: &str) {
    status(lab, conf).run().ok();
    if let Some(call) = failing(status(lab, conf), inject) {
        assert_not_available(&call.run(), said);
    }
}

#[test]
fn macspoofchk_needs_nf_tables_and_sbr_needs_rules() {
    for_ours("bridge", |lab| {
        let conf = with(&bridge::conf(), json!({"macspoofchk": true}));
        assert_needs(lab, &conf, "socket:error=EPROTONOSUPPORT:when=2+", "macspoofchk: ");
    });
    for_ours("sbr", |lab| {
        let conf = json!({"name": "net1", "type": "sbr"});
        let said = "list the rules: operation not supported";
        assert_needs(lab, &conf, "sendto:error=EOPNOTSUPP:when=1", said);
    });
}

#[test]
fn loopback_and_a_static_address_always_serve() {
    for_ours("loopback", |lab| {
        status(lab, &json!({"name": "net1", "type": "loopback"})).run().ok();
        let alone = json!({"name": "net1", "type": "static", "ipam": {"type": "static", "addresses": [{"address": "10.0.0.1/24"}]}});
        status(lab, &alone).run().ok();
        let wrong = with(&alone, json!({"ipam": {"addresses": [{"address": "10.0.0.1"}]}}));
        assert_eq!(status(lab, &wrong).run().err().code, 7, "what ADD would refuse");
    });
}

/// libcni sends `runtimeConfig` with ADD, and not with STATUS: a node would never be ready. Our runtime removes
/// `capabilities`, and sends an empty `runtimeConfig`.
#[test]
fn issue_23_what_a_runtime_supplies_with_add_may_be_missing() {
    let of_ipam = |kind: &str| json!({"name": "net1", "type": "bridge", "ipam": {"type": kind, "scope": "machine"}});
    for (conf, capability) in [
        (of_ipam("host-local"), "ipRanges"),
        (of_ipam("cluster-local"), "ipRanges"),
        (json!({"name": "net1", "type": "host-device"}), "deviceID"),
    ] {
        for_ours(conf["type"].as_str().unwrap(), |lab| {
            let asked = |capabilities: Value| {
                status(lab, &with(&conf, json!({"capabilities": capabilities}))).run()
            };
            asked(json!({capability: true})).ok();
            status(lab, &with(&conf, json!({"runtimeConfig": {}}))).run().ok();
            for others in [json!({capability: false}), json!({"mac": true}), json!(null)] {
                assert_eq!(asked(others).err().code, 7, "{conf}");
            }
        });
    }
}

/// The IPAM plugin knows the cause: its code and message are passed on.
#[test]
fn what_an_ipam_plugin_of_others_says_is_passed_on() {
    const SAYING: &str = r#"#!/bin/sh
echo '{"cniVersion":"1.1.0","code":51,"msg":"half the pool is cut off","details":"since noon"}'; exit 1
"#;
    for plugin in
        ["bridge", "ptp", "macvlan", "ipvlan", "vlan", "dummy", "tap", "host-device", "bond"]
    {
        let subject = SUBJECTS.iter().find(|subject| subject.plugin == plugin).unwrap();
        for_ours(plugin, |lab| {
            let Some(_kept) = subject.prepare(lab) else { return };
            lab.host
                .sh(&format!("mkdir /run/bin; cat >/run/bin/saying <<'END'\n{SAYING}END\nchmod +x /run/bin/saying"));
            let conf = with(&subject.chain(1, 1)[0], json!({"ipam": {"type": "saying"}}));
            let path = lab.path("/run/bin").display().to_string();
            let error = status(lab, &conf).env("CNI_PATH", path).run().err();
            let is = (error.code, error.msg.as_str(), error.details.as_str());
            assert_eq!(is, (51, "half the pool is cut off", "since noon"), "{plugin}");
        });
    }
}

/// Runtimes call STATUS every few seconds. It changes neither kernel nor disk, and `nft monitor`
/// reports nothing: tables are probed in a batch without its end message, which the kernel rolls
/// back.
#[test]
fn asking_changes_nothing() {
    for_ours("bridge", |lab| {
        let watcher = "setpriv --pdeathsig KILL -- nft monitor";
        let mut monitor = lab.host.command("sh");
        let scratch = Scratch::new();
        let file = scratch.join("events");
        monitor.args(["-c", &format!("exec {watcher} >{} 2>&1", file.display())]);
        let mut monitor = monitor.spawn().unwrap();
        let events = || std::fs::read_to_string(&file).unwrap_or_default();
        wait_until("nft monitor listens", 10, || {
            lab.host.sh("nft add table inet first; nft delete table inet first");
            events().contains("delete table inet first")
        });
        let before = Watch::start(lab, &[]);
        for subject in SUBJECTS.iter() {
            for conf in subject.chain(1, 1) {
                status(lab, &with(&conf, json!({"runtimeConfig": null}))).run(); // any outcome is fine
            }
        }
        for (conf, kind, _) in makers() {
            let outcome = status(lab, &conf).run();
            if outcome.status != 0 && outcome.err().msg.starts_with("the kernel has no links") {
                skip(kind); // a kernel that supports the kind has to be covered as well
            }
        }
        lab.host.sh("nft add table inet last");
        wait_until("nft monitor tells of the last table", 10, || {
            events().contains("add table inet last")
        });
        lab.host.sh("nft delete table inet last");
        let seen = events();
        let between: Vec<&str> =
            seen.lines().filter(|line| line.contains("table") || line.contains("chain")).collect();
        assert!(
            between.iter().all(|line| line.contains("inet first") || line.contains("inet last")),
            "{seen}"
        );
        monitor.kill().unwrap();
        monitor.wait().unwrap();
        before.assert_unchanged("STATUS");
    });
}
