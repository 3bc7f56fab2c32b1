//! firewall with a real firewalld, on a private bus.

use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::assert_shut_out;
use crate::support::attachment::{Attachment, for_each_peer, for_ours, skip, with};
use crate::support::call::{Outcome, Peer};
use crate::support::chain::Chain;
use crate::support::netns::{Lab, OUTSIDE};
use crate::support::networks::firewall::{admit, firewall, network};
use crate::support::patience;
use crate::support::signals::send;
use crate::support::snapshot::Watch;
use crate::support::traffic::assert_pings;

/// The configuration of a bus without access control, at the path of the system bus.
const BUS: &str = r#"mkdir -p /run/dbus && cat > /run/dbus/lab.conf <<'END'
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
  "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path=/run/dbus/system_bus_socket</listen>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
  </policy>
</busconfig>
END"#;

/// The bus and firewalld; both are killed on drop.
pub struct Firewalld(Vec<Child>);

impl Firewalld {
    /// Returns None if firewalld is not installed.
    pub fn start(lab: &Lab) -> Option<Firewalld> {
        if !lab
            .host
            .try_sh("command -v firewalld && command -v firewall-cmd && command -v dbus-daemon")
            .status
            .success()
        {
            skip("firewalld and dbus-daemon");
            return None;
        }
        lab.host.sh(BUS);
        let mut running = Firewalld(vec![]);
        running.spawn(lab, &["dbus-daemon", "--nofork", "--config-file=/run/dbus/lab.conf"]);
        until(lab, "[ -S /run/dbus/system_bus_socket ]");
        running.spawn(lab, &["firewalld", "--nofork", "--nopid"]);
        until(lab, "timeout 30 firewall-cmd --state");
        Some(running)
    }

    fn spawn(&mut self, lab: &Lab, line: &[&str]) {
        let mut command = lab.host.command(line[0]);
        self.0.push(
            command.args(&line[1..]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap(),
        );
    }
}

impl Drop for Firewalld {
    fn drop(&mut self) {
        for child in self.0.iter_mut().rev() {
            let _ = child.kill(); // it may have exited already
            let _ = child.wait();
        }
    }
}

fn until(lab: &Lab, condition: &str) {
    let deadline = Instant::now() + Duration::from_secs(90);
    while !lab.host.try_sh(condition).status.success() {
        assert!(Instant::now() < deadline, "never: {condition}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn sources(lab: &Lab, zone: &str) -> Vec<String> {
    let listed = lab.host.sh(&format!("firewall-cmd --zone={zone} --list-sources"));
    let mut sources: Vec<String> = listed.split_whitespace().map(str::to_owned).collect();
    sources.sort();
    sources
}

fn with_prefixes(chain: &Chain<'_>) -> Vec<String> {
    let ips = chain.ips();
    vec![format!("{}/32", ips[0]), format!("{}/128", ips[1])]
}

/// firewalld is used when detected, as in the reference, and when configured.
#[test]
fn containers_are_sources_of_the_zone() {
    for backend in [None, Some("firewalld")] {
        for_each_peer("firewall", |lab| {
            let Some(_firewalld) = Firewalld::start(lab) else { return };
            super::route_from_outside(lab);
            let chain = lab.chain(&network(), &firewall(backend));
            lab.host.sh("firewall-cmd --zone=drop --change-interface=br0");
            assert_shut_out(&chain);
            assert_eq!(chain.add(), chain.result);
            assert_eq!(sources(lab, "trusted"), with_prefixes(&chain), "with {backend:?}");
            OUTSIDE.iter().for_each(|outside| assert_pings(&chain.container, outside));
            chain.check(&chain.result).ok();
            chain.add();
            chain.del();
            assert_eq!(sources(lab, "trusted"), [""; 0]);
            assert_shut_out(&chain);
            chain.del();
            chain.main.del();
        });
    }
}

/// firewalld answers nobody while it starts or reloads; the bus takes calls for it meanwhile.
#[test]
fn a_busy_firewalld_is_waited_for() {
    for_ours("firewall", |lab| {
        let Some(firewalld) = Firewalld::start(lab) else { return };
        let process = &firewalld.0[1];
        send(process, Signal::SIGSTOP);
        let chain = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(7));
                send(process, Signal::SIGCONT);
            });
            admit(lab, &firewall(Some("firewalld")))
        });
        assert_eq!(sources(lab, "trusted"), with_prefixes(&chain));
        chain.del();
    });
}

/// The reference's CHECK accepts firewalld's answer "no".
#[test]
fn check_reports_a_reload_of_firewalld_and_another_add_repairs() {
    for_ours("firewall", |lab| {
        let Some(_firewalld) = Firewalld::start(lab) else { return };
        let chain = admit(lab, &firewall(None));
        chain.check(&chain.result).ok();
        lab.host.sh("firewall-cmd --reload");
        let error = chain.check(&chain.result).fails(103, &chain.ips()[0]);
        assert!(error.text().contains("reload"), "{error:?}");
        chain.add();
        chain.check(&chain.result).ok();
        chain.bare().del();
        assert_eq!(sources(lab, "trusted"), [""; 0]);
    });
}

#[test]
fn what_firewalld_refuses_is_an_error_and_leaves_nothing() {
    for_ours("firewall", |lab| {
        let Some(firewalld) = Firewalld::start(lab) else { return };
        let chain = lab.chain(&network(), &firewall(None));
        let before = Watch::start(lab, &[]);
        let refused = |changes: Value| chain.clone().conf(changes).try_add();
        let error = refused(json!({"firewalldZone": "no-such-zone"})).fails(105, "INVALID_ZONE");
        assert!(error.text().contains("no-such-zone"), "{error:?}");
        before.assert_unchanged("the refused ADD");

        let [v4, v6] = [0, 1].map(|at| with_prefixes(&chain)[at].clone());
        lab.host.sh(&format!("firewall-cmd --zone=internal --add-source={v6}"));
        refused(json!({})).fails(102, ""); // another zone has the address
        assert_eq!(sources(lab, "internal"), [v6]);
        assert!(!sources(lab, "trusted").contains(&v4), "the first address is taken back");

        let status = |conf: Value| {
            lab.attach(
                &lab.container(),
                &with(&conf, json!({"name": "net1", "cniVersion": "1.1.0"})),
            )
            .status()
        };
        status(firewall(None)).ok();
        status(with(&firewall(None), json!({"firewalldZone": "no-such-zone"}))).fails(50, "");
        drop(firewalld);
        status(firewall(Some("firewalld"))).fails(50, "");
        chain.bare().conf(json!({"backend": "firewalld"})).del();
        chain.main.del();
    });
}

/// Isolation is in our own table, also where firewalld accepts the packets.
#[test]
fn bridges_are_kept_apart_with_firewalld_too() {
    for_ours("firewall", |lab| {
        let Some(_firewalld) = Firewalld::start(lab) else { return };
        let chain = admit(lab, &super::isolation::policy(None, "same-bridge"));
        assert!(lab.host.sh("nft list set inet cni_multi_firewall bridges").contains("\"br0\""));
        assert_eq!(lab.peer, Peer::Ours);
        chain.check(&chain.result).ok();
        chain.bare().del();
        assert!(!lab.host.sh("nft list tables").contains("cni_multi"));
    });
}

/// A bus that accepts connections and never answers, until it is dropped.
fn mute_bus(lab: &Lab) -> UnixListener {
    UnixListener::bind(lab.path("/run/mute")).unwrap()
}

#[track_caller]
fn with_mute_bus(
    attachment: &Attachment<'_>,
    command: &str,
    prev_result: Option<&Value>,
) -> (Outcome, Duration) {
    let begin = Instant::now();
    let call =
        attachment.call(command, prev_result).env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/run/mute");
    (call.run(), begin.elapsed())
}

/// The zone in the configuration may have changed since ADD, and GC never sees the configuration of
/// ADD.
#[test]
fn del_and_gc_take_an_address_out_of_the_zone_it_was_put_into() {
    for_ours("firewall", |lab| {
        let Some(_firewalld) = Firewalld::start(lab) else { return };
        let chained = with(&firewall(None), json!({"firewalldZone": "internal"}));
        let chains: Vec<Chain<'_>> = (0..2).map(|_| admit(lab, &chained)).collect();
        chains[0].bare().conf(json!({"firewalldZone": "trusted", "backend": "nftables"})).del();
        assert_eq!(sources(lab, "internal"), with_prefixes(&chains[1]));
        chains[1].bare().conf(json!({"firewalldZone": null})).gc(&[]).ok();
        assert_eq!(sources(lab, "internal"), [""; 0]);
        assert!(!lab.host.sh("nft list tables").contains("cni_multi"));
    });
}

#[test]
fn del_that_cannot_ask_firewalld_fails_and_the_next_one_does_it() {
    for_ours("firewall", |lab| {
        let Some(firewalld) = Firewalld::start(lab) else { return };
        let (chain, other) = (admit(lab, &firewall(None)), admit(lab, &firewall(None)));
        let _bus = mute_bus(lab);
        let (outcome, time) = with_mute_bus(&chain.bare(), "DEL", None);
        assert_eq!(outcome.err().code, 105, "{outcome:?}");
        assert!(time < patience(10), "{time:?}");
        assert_eq!(sources(lab, "trusted").len(), 4);
        chain.bare().del();
        assert_eq!(sources(lab, "trusted"), with_prefixes(&other));
        drop(firewalld); // its zones lose the containers' sources
        other.bare().del();
        assert!(!lab.host.sh("nft list tables").contains("cni_multi"));
    });
}

/// The zone was deleted after ADD, and the administrator has put the address into another zone:
/// that entry stays.
#[test]
fn del_of_a_zone_that_is_gone_is_done() {
    for_ours("firewall", |lab| {
        lab.host.sh("mount -t tmpfs none /etc/firewalld || true");
        let Some(_firewalld) = Firewalld::start(lab) else { return };
        lab.host.sh("firewall-cmd --permanent --new-zone=mine && firewall-cmd --reload");
        let chain = admit(lab, &with(&firewall(None), json!({"firewalldZone": "mine"})));
        assert_eq!(sources(lab, "mine"), with_prefixes(&chain));
        lab.host.sh("firewall-cmd --permanent --delete-zone=mine && firewall-cmd --reload");
        let his = with_prefixes(&chain)[0].clone();
        lab.host.sh(&format!("firewall-cmd --zone=internal --add-source={his}"));
        chain.bare().del();
        assert_eq!(sources(lab, "internal"), [his]);
        assert!(!lab.host.sh("nft list tables").contains("cni_multi"));
    });
}

/// ADD falls back to another backend and reports it. DEL of an address that was never in a zone
/// does not ask firewalld. The reference waits for ever.
#[test]
fn a_bus_that_does_not_answer_is_reported_in_time() {
    for_ours("firewall", |lab| {
        lab.host.sh(super::DROPPING);
        let _bus = mute_bus(lab);
        let chain = lab.chain(&network(), &firewall(None));
        let (outcome, time) = with_mute_bus(&chain, "ADD", None);
        outcome.ok();
        assert!(
            outcome.stderr.contains("nftables") && outcome.stderr.contains("no answer"),
            "{outcome:?}"
        );
        assert!(time < patience(8), "{time:?}");
        let (outcome, time) = with_mute_bus(&chain.bare(), "DEL", None);
        assert_eq!((outcome.ok(), outcome.stderr.as_str()), (Value::Null, ""));
        assert!(time < patience(3), "{time:?}");
        let (outcome, _) = with_mute_bus(&chain, "DEL", None); // without a record, as for an ADD of the reference
        assert_eq!(outcome.ok(), Value::Null);
        assert!(outcome.stderr.contains("trusted"), "{outcome:?}");
        let (outcome, _) =
            with_mute_bus(&(*chain).clone().conf(json!({"backend": "firewalld"})), "DEL", None);
        assert_eq!(outcome.err().code, 105, "{outcome:?}");
    });
}
