//! A lease is renewed as long as its container lives, whatever happens to the daemon and the
//! servers.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use super::{network, on_a_lan, only_lease, plugged, short, with_each_server};
use crate::support::attachment::{for_each_peer, for_ours, ips, skip};
use crate::support::dhcp::scripted::{DISCOVER, RELEASE, REQUEST, Scripted, option};
use crate::support::dhcp::servers::{BOTH, Server};
use crate::support::dhcp::{Daemon, JOURNAL, Kind, Process, SERVER, wait_until};
use crate::support::kernel;
use crate::support::netns::{Container, Lab};
use crate::support::networks::dhcp::{conf, journal};
use crate::support::peers::tests;
use crate::support::scratch::Scratch;
use crate::support::traffic::assert_pings;

/// Waits until the server extends the lease. The timeout covers a lost renewal, which is retried at
/// T2. A missing lease is ignored: the server's file is empty for a moment while it is rewritten.
#[track_caller]
fn wait_for_renewal(server: &Server, address: &str, what: &str) {
    let until = || server.leases().get(address).copied();
    let mut before = None;
    wait_until("the server has the lease", 2, || {
        before = until();
        before.is_some()
    });
    wait_until(&format!("a renewal {what}"), 10, || until() > before);
}

#[test]
fn leases_are_renewed() {
    with_each_server(Kind::Macvlan, |lab, server, _| {
        let (_, attachment, result) = lab.added(&conf());
        let address = only_lease(server);
        for turn in 0..2 {
            wait_for_renewal(server, &address, &format!("{turn}"));
        }
        attachment.check(&result).ok();
        assert_eq!(only_lease(server), address);
    });
}

/// The acceptance criterion of issue 7: no renewal is missed although the daemon is restarted and
/// killed.
fn no_renewal_is_missed(kind: Kind) {
    for program in BOTH.into_iter().filter(|program| program.is_there()) {
        for_ours("dhcp", |lab| {
            if !kind.is_in(lab) {
                return skip("ipvlan");
            }
            lab.lan(kind);
            let mut server = Server::start(lab, program, 50, 59);
            let mut daemon = Daemon::start(lab);
            let (container, attachment, result) = lab.added(&kind.conf());
            let address = ips(&result)[0].clone();
            wait_for_renewal(&server, &address, "by the first daemon");
            assert_eq!(daemon.end_by("TERM"), 0);
            daemon.start_again();
            wait_for_renewal(&server, &address, "after a restart");
            daemon.start_again();
            wait_for_renewal(&server, &address, "after a crash");
            server.restart();
            wait_for_renewal(&server, &address, "after a restart of the server");
            attachment.check(&result).ok();
            assert_eq!(container.addresses("eth0"), [format!("{address}/24")]);
            assert_pings(&container, SERVER);
            attachment.del();
            server.assert_has_no_lease();
            assert_eq!(journal(lab), [""; 0]);
        });
    }
}

tests! {
    no_renewal_is_missed_on_a_bridge = no_renewal_is_missed(Kind::Bridge);
    no_renewal_is_missed_on_macvlan = no_renewal_is_missed(Kind::Macvlan);
    no_renewal_is_missed_on_ipvlan = no_renewal_is_missed(Kind::Ipvlan);
}

/// A lease of a scripted server, with a monitor on the addresses and routes of the container.
struct Leased<'a> {
    server: Scripted,
    daemon: Daemon<'a>,
    container: Container,
    attachment: crate::support::attachment::Attachment<'a>,
    result: Value,
    monitor: Process,
    _scratch: Scratch,
}

fn lease(lab: &Lab, script: Value) -> Leased<'_> {
    let server = network(lab, script);
    // A DISCOVER is retried after two seconds at most.
    let daemon = Daemon::with_flags(lab, &["-timeout", "1s", "-resendmax", "2s"]);
    let (container, attachment, result) = lab.added(&conf());
    let scratch = Scratch::new();
    let line = ["ip", "-o", "-4", "monitor", "address", "route"].map(str::to_owned);
    let monitor = Process::start(&container, &line, Stdio::null(), scratch.join("monitor"));
    Leased { server, daemon, container, attachment, result, monitor, _scratch: scratch }
}

/// A server that answers nothing.
fn silence() -> Value {
    json!({"discover": "silence", "request": "silence", "renew": "silence", "rebind": "silence"})
}

/// Runs the case with a lease of our plugin.
fn with_lease(script: Value, case: impl Fn(&Lab, &mut Leased<'_>)) {
    for_ours("dhcp", |lab| case(lab, &mut lease(lab, script.clone())));
}

impl Leased<'_> {
    fn has_address(&self) -> bool {
        self.container.addresses("eth0") == ["10.60.0.50/24"]
    }

    /// Expects that no address or route was deleted from the container, not even for a moment.
    #[track_caller]
    fn assert_undisturbed(&self) {
        assert!(!self.monitor.output().contains("Deleted"), "{}", self.monitor.output());
        assert!(self.has_address());
        self.attachment.check(&self.result).ok();
    }
}

/// A renewal that was due while the daemon was down is made when the daemon starts.
#[test]
fn a_renewal_due_while_the_daemon_was_down_is_made_at_once() {
    with_lease(json!({"lease": 20, "t1": 1, "t2": 15}), |_, leased| {
        leased.daemon.kill();
        let before = leased.server.heard_of(REQUEST).len();
        sleep(Duration::from_millis(1500)); // past T1 of the lease
        leased.daemon.start_again();
        leased.server.wait_for(REQUEST, before + 1, 2);
        leased.assert_undisturbed();
    });
}

/// The lease was not renewed in time: its address is removed, because the server does not grant it
/// again.
#[test]
fn a_lease_that_expired_while_the_daemon_was_down_is_over() {
    with_lease(json!({"lease": 2, "t1": 1, "t2": 1}), |_, leased| {
        leased.daemon.kill();
        leased.server.change(silence());
        sleep(Duration::from_millis(2500)); // past the end of the lease
        assert!(leased.has_address());
        leased.daemon.start_again();
        let is_gone = || leased.container.addresses("eth0").is_empty();
        wait_until("the address is taken back", 3, is_gone);
        leased.attachment.check(&leased.result).err();
    });
}

#[test]
fn sigterm_releases_nothing() {
    for_each_peer("dhcp", |lab| {
        let mut leased = lease(lab, json!({}));
        assert_eq!(leased.daemon.end_by("TERM"), 0);
        assert!(leased.server.heard_of(RELEASE).is_empty());
        assert!(leased.has_address());
    });
}

/// At T2 any server may extend the lease, and from then on it belongs to that server.
#[test]
fn another_server_takes_the_lease_over() {
    for_ours("dhcp", |lab| {
        let leased = lease(lab, json!({"lease": 8, "t1": 1, "t2": 2}));
        lab.outside.sh("ip addr add 10.60.0.2/16 dev lan");
        let Leased { server, daemon: _daemon, container, attachment, result, monitor, .. } = leased;
        drop(server);
        let of_second = json!({"server": "10.60.0.2", "lease": 8, "t1": 1, "t2": 6});
        let heard = Scripted::start(lab, of_second).wait_for(REQUEST, 3, 10);
        assert_eq!([&heard[0]["to"], &heard[0]["ciaddr"]], ["broadcast", "10.60.0.50"]);
        assert_eq!((option(&heard[0], 50), option(&heard[0], 54)), (None, None));
        assert_eq!(heard[2]["to"], "unicast", "to the server that has extended it");
        assert!(!monitor.output().contains("Deleted"), "{}", monitor.output());
        attachment.check(&result).ok();
        assert_eq!(container.addresses("eth0"), ["10.60.0.50/24"]);
    });
}

/// The server has forgotten the lease and refuses the renewal, but grants the same address after a
/// DISCOVER.
#[test]
fn a_refused_renewal_and_the_same_address_again() {
    with_lease(short(), |_, leased| {
        let before = leased.server.heard_of(DISCOVER).len();
        leased.server.change(json!({"renew": "nak"}));
        let asked = leased.server.wait_for(DISCOVER, before + 1, 10);
        let old = option(&asked[before], 50);
        assert_eq!(old.as_deref(), Some("0a3c0032"), "the old address is asked for");
        leased.server.change(json!({"renew": "ack"}));
        leased.server.wait_for(REQUEST, leased.server.heard_of(REQUEST).len() + 2, 5);
        leased.assert_undisturbed();
    });
}

/// The lease is over and the address may belong to another host. If the server grants the same
/// address again, the routes are restored too. In the reference CHECK and ADD of such a lease wait
/// for ever.
#[test]
fn an_expired_lease_takes_its_address_along_and_may_come_back() {
    let answers = json!({"discover": "offer", "request": "ack", "renew": "ack", "rebind": "ack"});
    let script = json!({"lease": 3, "t1": 1, "t2": 2, "options": {"33": "c00002000a3c0008"}});
    with_lease(script, |_, leased| {
        let routes = leased.container.sh("ip route");
        leased.server.change(silence());
        wait_until("the address is gone", 5, || leased.container.addresses("eth0").is_empty());
        let error = leased.attachment.check(&leased.result).err().text();
        assert!(error.contains("expired"), "{error}");
        assert!(leased.daemon.log().contains("state=expired"), "{}", leased.daemon.log());
        leased.server.change(answers.clone());
        wait_until("the address is back", 8, || leased.has_address());
        wait_until("the routes are back", 2, || leased.container.sh("ip route") == routes);
        leased.attachment.check(&leased.result).ok();
        assert_pings(&leased.container, SERVER);
    });
}

// --- the journal ---

/// After a reboot the containers of the journal no longer exist.
#[test]
fn leases_from_before_a_reboot_are_void() {
    with_lease(json!({}), |lab, leased| {
        leased.daemon.kill();
        assert_eq!(journal(lab).len(), 1);
        lab.host.sh(
            "echo 11111111-2222-3333-4444-555555555555 >/run/boot_id; mount --bind /run/boot_id /proc/sys/kernel/random/boot_id",
        );
        leased.daemon.start_again();
        wait_until("the journal is empty", 3, || journal(lab).is_empty());
        assert!(leased.server.heard_of(RELEASE).is_empty());
    });
}

/// Foreign files in the journal do not stop the daemon, and readable leases are resumed.
#[test]
fn torn_and_foreign_files_of_the_journal_are_passed_over() {
    with_lease(short(), |lab, leased| {
        let (_, torn, second) = lab.added(&conf());
        leased.daemon.kill();
        assert_eq!(journal(lab).len(), 2);
        let address = &ips(&second)[0];
        lab.host.sh(&format!(
            "cd {JOURNAL}; second=$(grep -rlwF {address} .); head -c 40 $second >x; mv x $second; echo hello >README; : >empty; mkdir dir; \
             ln -s /etc/passwd link; head -c 100000 /dev/urandom >noise; echo '{{\"protocol\": 99}}' >other.json; mkfifo pipe"
        ));
        leased.daemon.start_again();
        leased.server.wait_for(REQUEST, leased.server.heard_of(REQUEST).len() + 1, 5);
        leased.assert_undisturbed();
        torn.check(&second).err();
        torn.del();
    });
}

/// The server may grant the lease between REQUEST and the daemon's crash, so the daemon releases
/// it.
#[test]
fn a_crash_while_a_lease_is_requested_gives_it_back() {
    on_a_lan(json!({"request": "silence"}), |lab, server, daemon| {
        // A main plugin would call DEL after the failure.
        let mut plugin = plugged(lab, &lab.container()).call("ADD", None).spawn();
        server.wait_for(REQUEST, 1, 5);
        let stop = Command::new("kill").args(["-STOP", &plugin.id().to_string()]).status();
        assert!(stop.unwrap().success(), "the plugin would see to it itself");
        daemon.kill();
        plugin.kill().unwrap();
        plugin.wait().unwrap();
        assert_eq!(journal(lab).len(), 1, "what has been asked for is written down");
        daemon.start_again();
        assert_eq!(server.wait_for(RELEASE, 1, 5)[0]["ciaddr"], "10.60.0.50");
        wait_until("the journal is empty", 3, || journal(lab).is_empty());
    });
}

/// The failed ADD deletes the interface, so the plugin is the last process that can release the
/// lease.
#[test]
fn a_plugin_gives_back_its_lease_when_its_daemon_dies() {
    on_a_lan(json!({"request": "silence"}), |lab, server, daemon| {
        let (_, attachment) = lab.place(&conf());
        std::thread::scope(|scope| {
            let adding = scope.spawn(|| attachment.try_add());
            server.wait_for(REQUEST, 1, 5);
            daemon.kill();
            adding.join().unwrap().err();
        });
        assert_eq!(server.wait_for(RELEASE, 1, 5)[0]["ciaddr"], "10.60.0.50");
        assert_eq!(journal(lab), [""; 0]);
    });
}

/// `tuning` changes the hardware address after the lease is acquired. The server keeps the lease
/// under the first one.
#[test]
fn a_lease_survives_a_new_hardware_address_and_a_new_name() {
    with_lease(short(), |lab, leased| {
        if !kernel::has_cookies() {
            return;
        }
        let await_renewals = |more| {
            leased.server.wait_for(REQUEST, leased.server.heard_of(REQUEST).len() + more, 15);
        };
        let mac = leased.server.heard()[0]["chaddr"].clone();
        leased.container.sh("ip link set eth0 address 02:00:00:00:00:77");
        await_renewals(2);
        let mut result = leased.result.clone();
        result["interfaces"][0]["mac"] = json!("02:00:00:00:00:77"); // as `tuning` reports it
        leased.attachment.check(&result).ok();
        let before = leased.server.heard_of(DISCOVER).len();
        leased.server.change(json!({"renew": "nak"}));
        let asked = &leased.server.wait_for(DISCOVER, before + 1, 15)[before];
        let broadcast = json!(0x8000); // to the old address nothing comes
        assert_eq!((&asked["chaddr"], &asked["flags"]), (&mac, &broadcast));
        leased.server.change(json!({"renew": "ack"}));
        leased
            .container
            .sh("ip link set eth0 down; ip link set eth0 name other; ip link set other up");
        await_renewals(3);
        assert!(!leased.monitor.output().contains("Deleted inet"), "{}", leased.monitor.output());
        assert_eq!(leased.container.addresses("other"), ["10.60.0.50/24"]);
        leased.attachment.del();
        leased.server.wait_for(RELEASE, 1, 10);
        assert_eq!(journal(lab), [""; 0]);
    });
}
