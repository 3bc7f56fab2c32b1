//! A network with leased addresses and a DHCP daemon under the tracer, for the kill and error
//! sweeps.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::life::{Life, Runtime};
use crate::support::attachment::for_ours;
use crate::support::call::{Call, Outcome};
use crate::support::dhcp::servers::{Program, Server};
use crate::support::dhcp::{Daemon, Kind, SOCKET, wait_until};
use crate::support::netns::{Container, Lab};
use crate::support::networks::dhcp::{conf, journal};
use crate::support::patience;
use crate::support::probe::Probe;
use crate::support::subject::Subject;
use crate::support::tracer::{Stop, Then, Traced, trace};

pub fn subject() -> Subject {
    Subject { name: "macvlan with dhcp", prepare: |_| true, plugins: vec![conf()] }
}

pub fn with_network(case: impl Fn(&Lab)) {
    if !Program::Dnsmasq.is_there() {
        return;
    }
    for_ours("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        case(lab);
    });
}

/// The same with a server and a daemon.
pub fn with_a_daemon(case: impl Fn(&Lab)) {
    with_network(|lab| {
        let _server = Server::for_many(lab);
        let _daemon = Daemon::start(lab);
        case(lab);
    });
}

/// The phase of the daemon in which the fault occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    Start,
    Acquisition,
    Renewal,
    Release,
}

impl During {
    pub fn words(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// Defines a test for each phase.
macro_rules! test_each_phase {
    ($sweep:path) => {
        $crate::support::peers::tests! {
            a_daemon_that_starts_loses_no_lease = $sweep($crate::faults::dhcp::During::Start);
            a_daemon_that_acquires_leaves_nothing = $sweep($crate::faults::dhcp::During::Acquisition);
            a_daemon_that_renews_loses_no_lease = $sweep($crate::faults::dhcp::During::Renewal);
            a_daemon_that_releases_leaves_nothing = $sweep($crate::faults::dhcp::During::Release);
        }
    };
}
pub(super) use test_each_phase;

/// The outcome of a life beside a traced daemon.
pub struct Lived {
    pub daemon: Traced,
    /// Whether the daemon died before its work was done.
    pub died: bool,
    /// The plugin's ADD, and its DEL if the phase includes one.
    pub calls: Vec<Outcome>,
}

/// The attachment under test, and a neighbour with a lease that must survive.
pub struct Site<'a> {
    pub lab: &'a Lab,
    during: During,
    life: Life<'a>,
    neighbour: Life<'a>,
    neighbours_result: Value,
    /// None for renewals: the neighbour's lease is renewed too, so its record changes.
    probe: Option<Probe<'a>>,
    server: Server<'a>,
}

/// Creates a lab with a server and the two containers. At the end the neighbour detaches and
/// nothing is left.
pub fn on_a_site(during: During, case: impl Fn(&Site<'_>)) {
    with_network(|lab| {
        let [neighbours, swept] = [(), ()].map(|()| lab.container());
        let site = Site::new(lab, during, [&neighbours, &swept]);
        case(&site);
        site.end();
    });
}

impl<'a> Site<'a> {
    fn new(lab: &'a Lab, during: During, [neighbours, swept]: [&'a Container; 2]) -> Site<'a> {
        let server = match during {
            During::Renewal => Server::start(lab, Program::Dnsmasq, 50, 99),
            _ => Server::for_many(lab),
        };
        let subject = subject();
        let neighbour = Life::new(lab, Runtime::EachAlone, &subject, neighbours);
        let life = Life::new(lab, Runtime::EachAlone, &subject, swept).beside(Some(&neighbour));
        let daemon = Daemon::start(lab);
        life.del(&life.add(1));
        let neighbours_result = neighbour.add(1);
        drop(daemon);
        let probe = (during != During::Renewal).then(|| Probe::start(lab, &[swept, neighbours]));
        Site { lab, during, life, neighbour, neighbours_result, probe, server }
    }

    /// Attaches by a traced daemon. `decide` chooses the fate of each of the daemon's system calls
    /// during the phase under test.
    pub fn live(&self, mut decide: impl FnMut(&Stop) -> Then + Send) -> Lived {
        let during = self.during;
        let armed = AtomicBool::new(during == During::Start);
        let arm = |wanted| armed.store(during == wanted, SeqCst);
        let (mut calls, mut died) = (vec![], false);
        let decide = |stop: &Stop| if armed.load(SeqCst) { decide(stop) } else { Then::Go };
        let daemon = run(self.lab, decide, |is_dead| {
            if during != During::Start {
                self.life.gc(); // an answer means that the daemon has started
                arm(During::Acquisition);
                calls.push(self.life.call(0, "ADD", &Value::Null).run());
                arm(During::Renewal);
                if during == During::Renewal && calls[0].status == 0 {
                    self.wait_for_renewals(is_dead);
                }
                arm(During::Release);
                if during == During::Release {
                    calls.push(self.life.call(0, "DEL", &Value::Null).run());
                }
            }
            died = is_dead();
        });
        Lived { daemon, died, calls }
    }

    /// Waits until both leases are renewed or no renewal can come any more.
    fn wait_for_renewals(&self, is_dead: &dyn Fn() -> bool) {
        let given = || self.server.log().matches("DHCPACK").count();
        let (before, deadline) = (given(), Instant::now() + patience(5));
        while given() < before + 2 && !is_dead() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the attachment by DEL or by GC, with a new daemon or without any, in turn, and asserts that everything is
    /// as before.
    pub fn recover(&self, what: &str, turn: usize) {
        let (has_daemon, by_gc) = (turn % 4 < 2, turn % 2 == 1);
        let what = &format!("{what}, then with a daemon: {has_daemon}, by GC: {by_gc}");
        let daemon = has_daemon.then(|| Daemon::start(self.lab));
        if by_gc {
            self.life.gc();
            self.assert_one_record(what);
        }
        self.life.del(&Value::Null);
        if daemon.is_some() {
            self.neighbour.check(&self.neighbours_result);
        }
        drop(daemon);
        // Cleans up an unfinished record of the neighbour's lease and recreates the socket.
        drop(Daemon::start(self.lab));
        match &self.probe {
            Some(probe) => probe.assert_unchanged(what),
            // The neighbour's lease is renewed too, perhaps by the daemon that was just killed.
            None => self.assert_one_record(what),
        }
    }

    /// The journal has the neighbour's lease alone. A killed renewal may have left a draft.
    fn assert_one_record(&self, what: &str) {
        let names = journal(self.lab);
        let records = names.iter().filter(|name| name.ends_with(".json")).count();
        assert_eq!(records, 1, "{what}: {names:?}");
    }

    fn end(&self) {
        let _daemon = Daemon::start(self.lab);
        self.neighbour.check(&self.neighbours_result);
        self.neighbour.del(&self.neighbours_result);
        assert!(journal(self.lab).is_empty(), "{:?}", journal(self.lab));
    }
}

/// Runs a daemon under the tracer until `act` returns, then kills it. `act` can ask whether the
/// daemon is dead.
fn run(
    lab: &Lab,
    mut decide: impl FnMut(&Stop) -> Then + Send,
    act: impl FnOnce(&dyn Fn() -> bool),
) -> Traced {
    let call = Call::cni_multi(&lab.host.enter, ["dhcp", "daemon"]);
    let [over, done] = [(); 2].map(|()| AtomicBool::new(false));
    let socket = lab.path(SOCKET);
    std::thread::scope(|scope| {
        let tracer = scope.spawn(|| {
            let traced =
                trace(&call, |stop| if over.load(SeqCst) { Then::Kill } else { decide(stop) });
            done.store(true, SeqCst);
            traced
        });
        let is_dead = || done.load(SeqCst);
        wait_until("the daemon listens or is dead", 20, || {
            is_dead() || UnixStream::connect(&socket).is_ok()
        });
        act(&is_dead);
        over.store(true, SeqCst);
        while !is_dead() {
            let _ = UnixStream::connect(&socket); // makes the daemon enter a system call
            std::thread::sleep(Duration::from_millis(2));
        }
        tracer.join().unwrap()
    })
}
