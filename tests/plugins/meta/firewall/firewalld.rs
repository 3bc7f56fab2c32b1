//! firewall with a real firewalld, on a private bus.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::*;
use crate::support::call::Outcome;
use crate::support::signals::send;

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
        if !has_programs(&["firewalld", "firewall-cmd", "dbus-daemon"]) {
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

fn for_ours_with_firewalld(case: impl Fn(&Lab, Firewalld)) {
    for_ours("firewall", |lab| {
        lab.host.sh("mount -t tmpfs none /etc/firewalld || true");
        Firewalld::start(lab).into_iter().for_each(|firewalld| case(lab, firewalld));
    });
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
    for_ours_with_firewalld(|lab, firewalld| {
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
    for_ours_with_firewalld(|lab, _firewalld| {
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
    for_ours_with_firewalld(|lab, firewalld| {
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

        let status = |conf: Value| in_network(lab, &conf).status();
        status(firewall(None)).ok();
        status(with(&firewall(None), json!({"firewalldZone": "no-such-zone"}))).fails(50, "");
        drop(firewalld);
        status(firewall(Some("firewalld"))).fails(50, "");
        chain.bare().conf(json!({"backend": "firewalld"})).del();
        chain.main.del();
    });
}

#[test]
fn bridges_are_kept_apart_with_firewalld_too() {
    for_ours_with_firewalld(|lab, _firewalld| {
        let chain = admit(lab, &isolation::policy(None, "same-bridge"));
        assert!(lab.host.sh("nft list set inet cni_multi_firewall bridges").contains("\"br0\""));
        chain.check(&chain.result).ok();
        chain.bare().del();
        assert_no_table(lab);
    });
}

/// Runs a call with a bus that accepts connections and never answers.
#[track_caller]
fn with_mute_bus(lab: &Lab, attachment: &Attachment<'_>, command: &str, limit: u64) -> Outcome {
    let _ = std::fs::remove_file(lab.path("/run/mute")); // of an earlier call
    let _bus = UnixListener::bind(lab.path("/run/mute")).unwrap();
    let begin = Instant::now();
    let call = attachment.call(command, None);
    let outcome = call.env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/run/mute").run();
    assert!(begin.elapsed() < patience(limit), "{:?}", begin.elapsed());
    outcome
}

/// The zone in the configuration may have changed since ADD, and GC never sees the configuration of
/// ADD.
#[test]
fn del_and_gc_take_an_address_out_of_the_zone_it_was_put_into() {
    for_ours_with_firewalld(|lab, _firewalld| {
        let chained = with(&firewall(None), json!({"firewalldZone": "internal"}));
        let chains: Vec<Chain<'_>> = (0..2).map(|_| admit(lab, &chained)).collect();
        chains[0].bare().conf(json!({"firewalldZone": "trusted", "backend": "nftables"})).del();
        assert_eq!(sources(lab, "internal"), with_prefixes(&chains[1]));
        chains[1].bare().conf(json!({"firewalldZone": null})).gc(&[]).ok();
        assert_eq!(sources(lab, "internal"), [""; 0]);
        assert_no_table(lab);
    });
}

#[test]
fn del_that_cannot_ask_firewalld_fails_and_the_next_one_does_it() {
    for_ours_with_firewalld(|lab, firewalld| {
        let (chain, other) = (admit(lab, &firewall(None)), admit(lab, &firewall(None)));
        with_mute_bus(lab, &chain.bare(), "DEL", 10).fails(105, "");
        assert_eq!(sources(lab, "trusted").len(), 4);
        chain.bare().del();
        assert_eq!(sources(lab, "trusted"), with_prefixes(&other));
        drop(firewalld); // its zones lose the containers' sources
        other.bare().del();
        assert_no_table(lab);
    });
}

/// The zone was deleted after ADD, and the administrator has put the address into another zone:
/// that entry stays.
#[test]
fn del_of_a_zone_that_is_gone_is_done() {
    for_ours_with_firewalld(|lab, _firewalld| {
        lab.host.sh("firewall-cmd --permanent --new-zone=mine && firewall-cmd --reload");
        let chain = admit(lab, &with(&firewall(None), json!({"firewalldZone": "mine"})));
        assert_eq!(sources(lab, "mine"), with_prefixes(&chain));
        lab.host.sh("firewall-cmd --permanent --delete-zone=mine && firewall-cmd --reload");
        let his = with_prefixes(&chain)[0].clone();
        lab.host.sh(&format!("firewall-cmd --zone=internal --add-source={his}"));
        chain.bare().del();
        assert_eq!(sources(lab, "internal"), [his]);
        assert_no_table(lab);
    });
}

/// ADD falls back to another backend and reports it. DEL of an address that was never in a zone
/// does not ask firewalld. The reference waits for ever.
#[test]
fn a_bus_that_does_not_answer_is_reported_in_time() {
    for_ours("firewall", |lab| {
        lab.host.sh(DROPPING);
        let chain = lab.chain(&network(), &firewall(None));
        let added = with_mute_bus(lab, &chain, "ADD", 8);
        added.ok();
        for words in ["nftables", "no answer"] {
            assert!(added.stderr.contains(words), "{added:?}");
        }
        with_mute_bus(lab, &chain.bare(), "DEL", 3).assert_is(0, "", "");
        // Without a record, as for an ADD of the reference.
        let told = with_mute_bus(lab, &chain, "DEL", 60);
        assert_eq!(told.ok(), Value::Null);
        assert!(told.stderr.contains("trusted"), "{told:?}");
        let by_firewalld = (*chain).clone().conf(json!({"backend": "firewalld"}));
        with_mute_bus(lab, &by_firewalld, "DEL", 60).fails(105, "");
    });
}
