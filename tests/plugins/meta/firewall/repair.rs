//! firewall: what `net sync` accepts again after the rules are gone.

use std::fs::File;

use nix::libc;

use super::*;
use crate::plugins::meta::firewall::firewalld::Firewalld;
use crate::plugins::meta::firewall::isolation::policy;
use crate::support::synced::{attach_another, net};
use crate::support::tracer::{Then, trace};
use crate::support::traffic::is_answered;

#[track_caller]
fn assert_reaches_outside(synced: &Synced<'_>) {
    OUTSIDE.iter().for_each(|outside| assert_pings(&synced.container, outside));
}

#[test]
fn packets_are_accepted_again_by_the_programs() {
    for_ours("firewall", |lab| {
        lab.host.sh(DROPPING);
        route_from_outside(lab);
        let synced = attach(lab, &[network(), firewall(Some("iptables"))], "");
        assert_reaches_outside(&synced);
        synced.assert_repaired("iptables -F; ip6tables -F", &["accept packets of "]);
        assert_reaches_outside(&synced);
    });
}

#[test]
fn bridges_are_kept_apart_again() {
    for (backend, fault) in [
        ("nftables", "nft flush ruleset"),
        ("iptables", "for p in iptables ip6tables; do $p -F; $p -X; done"),
    ] {
        for_ours("firewall", |lab| {
            let chained = policy(Some(backend), "same-bridge");
            let synced = attach(lab, &[network(), chained.clone()], "");
            let others = lab.chain_added(&other_network(), &chained);
            let foreign = &others.ips()[0];
            assert_no_ping(&synced.container, foreign);
            lab.host.sh(fault);
            assert_pings(&synced.container, foreign);
            assert_eq!(synced.net("sync pods").status, 0);
            others.add();
            assert_no_ping(&synced.container, foreign);
            synced.check().ok();
        });
    }
}

/// After the flush another container got the address, as after a DEL that no record has.
#[test]
fn an_address_of_another_container_is_left_to_it() {
    for_ours("firewall", |lab| {
        let synced = attach(lab, &[network(), firewall(Some("nftables"))], "");
        let other = attach_another(lab, "");
        let elements = lab.host.sh("nft list set inet cni_multi_firewall containers4");
        let own = &synced.ips()[0];
        let of_other = elements.split_once(&other.ips()[0]).unwrap().1;
        let comment = of_other.split('"').nth(1).unwrap();
        lab.host.sh(&format!(
            "nft delete element inet cni_multi_firewall containers4 '{{ {own} }}'
            nft add element inet cni_multi_firewall containers4 '{{ {own} comment \"{comment}\" }}'"
        ));
        let outcome = synced.net("sync pods");
        assert_eq!(outcome.status, 1, "{outcome:?}");
        assert!(format!("{outcome:?}").contains("recorded for another"), "{outcome:?}");
    });
}

/// The process that waits for reloads; it is killed on drop.
struct Waiting(Child);

impl Waiting {
    fn start(lab: &Lab) -> Waiting {
        let call = net(lab, "sync --on firewalld");
        let mut command = lab.host.command(call.program.to_str().unwrap());
        let output = File::create(lab.path("/run/output")).unwrap();
        Waiting(command.args(call.args).stdout(output).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended by itself
        let _ = self.0.wait();
    }
}

#[track_caller]
fn assert_reaches_outside_soon(synced: &Synced<'_>) {
    let deadline = Instant::now() + patience(20);
    while !is_answered(&synced.container, OUTSIDE[0], "") {
        assert!(Instant::now() < deadline, "the container is shut out");
    }
}

/// The first reloads come before the process, and are repaired by hand; the others while it waits.
#[test]
fn packets_pass_again_after_each_reload_of_firewalld() {
    for_ours("firewall", |lab| {
        lab.host.sh("mount -t tmpfs none /etc/firewalld || true");
        let Some(firewalld) = Firewalld::start(lab) else { return };
        route_from_outside(lab);
        lab.host.sh(
            "firewall-cmd --permanent --zone=drop --add-interface=br0 && firewall-cmd --reload",
        );
        let ports = json!({"type": "portmap", "capabilities": {"portMappings": true}});
        let synced = attach(lab, &[network(), ports, firewall(None)], "-p 8080:80");
        let change = format!("add {} to zone \"trusted\"", synced.ips().join(" and "));
        synced.assert_repaired("firewall-cmd --reload", &[&change]);
        assert_reaches_outside(&synced);
        let _server = TcpServer::start(&synced.container, 80);
        lab.host.sh("firewall-cmd --reload");
        assert_no_ping(&synced.container, OUTSIDE[0]);
        let mut waiting = Waiting::start(lab);
        for _ in 0..2 {
            assert_reaches_outside_soon(&synced);
            lab.host.sh("nft delete table inet cni_multi_portmap; firewall-cmd --reload");
        }
        assert_reaches_outside_soon(&synced);
        assert_eq!(is_open(lab, 8080), [true, true]);
        synced.check().ok();
        let output = lab.host.sh("cat /run/output");
        assert_eq!(output.matches("to zone \"trusted\"").count(), 3, "{output}");
        drop(firewalld); // with the bus
        assert_eq!(waiting.0.wait().unwrap().code(), Some(1));
    });
}

#[test]
fn what_the_process_cannot_wait_for_is_a_mistake() {
    for_ours("firewall", |lab| {
        for (line, status, text) in [
            ("sync --on cron", 2, "[possible values: firewalld]"),
            ("sync --on firewalld --dry-run", 2, "mutually exclusive"),
            ("sync --on firewalld", 1, "no system bus"),
        ] {
            let outcome = net(lab, line).run();
            assert_eq!(outcome.status, status, "{line}: {outcome:?}");
            assert!(outcome.stderr.contains(text), "{line}: {outcome:?}");
        }
    });
}

/// The rules that attachments share are read once, however many attachments there are.
#[test]
fn sync_reads_shared_rules_once() {
    for backend in [None, Some("iptables")] {
        for_ours("firewall", |lab| {
            lab.host.sh(DROPPING);
            let _first = attach(lab, &[network(), firewall(backend)], "");
            // sockets of netfilter, and programs
            let opened = || {
                let mut count = 0;
                let look = trace(&net(lab, "sync pods --dry-run"), |stop| {
                    let of_netfilter = [stop.args[0], stop.args[2]]
                        == [libc::AF_NETLINK as u64, libc::NETLINK_NETFILTER as u64];
                    let is_opened = match stop.call {
                        libc::SYS_socket => stop.is_own && of_netfilter,
                        libc::SYS_execve => !stop.is_own,
                        _ => false,
                    };
                    count += usize::from(is_opened && stop.result.is_none());
                    Then::Go
                });
                assert_eq!(look.outcome.status, 0, "{:?}", look.outcome);
                count
            };
            let of_one = opened();
            assert!(of_one > 0);
            let _others = [attach_another(lab, ""), attach_another(lab, "")];
            assert_eq!(opened(), of_one, "{backend:?}");
        });
    }
}
