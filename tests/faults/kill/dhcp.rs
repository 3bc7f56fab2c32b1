//! Kills of the dhcp plugin, which has a daemon and a server to talk to, and of the daemon itself.
//!
//! The daemon is killed after each call that changes something: while it starts, acquires, renews and releases a lease. A lease that
//! the server gave and the daemon had no time to write down is the server's until it ends. Of all others DEL and GC leave
//! nothing, whether or not there is a new daemon, and a neighbour keeps its lease.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::life::{Life, Runtime};
use super::sweep;
use crate::faults::tell;

use crate::faults::subject::{Subject, is_long};
use crate::plugins::ipam::dhcp::{conf, failed_add::journal};
use crate::support::attachment::{for_ours, skip};
use crate::support::call::{Call, Peer};
use crate::support::dhcp::servers::{Program, Server};
use crate::support::dhcp::{Daemon, Kind, SOCKET, wait_until};
use crate::support::netns::Lab;
use crate::support::patience;
use crate::support::probe::Probe;
use crate::support::tracer::{Then, trace};

fn subject() -> Subject {
    Subject { name: "macvlan with dhcp", prepare: |_| true, plugins: vec![conf()] }
}

fn with_network(case: impl Fn(&Lab)) {
    if !Program::Dnsmasq.is_there() {
        return skip("dnsmasq");
    }
    for_ours("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        case(lab);
    });
}

#[test]
fn kills_leave_nothing_of_macvlan_with_dhcp() {
    with_network(|lab| {
        let _server = Server::for_many(lab);
        let _daemon = Daemon::start(lab);
        sweep::run(lab, &subject(), Runtime::EachAlone);
    });
}

/// What the daemon is doing when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum During {
    Start,
    Acquisition,
    Renewal,
    Release,
}

impl During {
    fn words(self) -> &'static str {
        match self {
            During::Start => "start",
            During::Acquisition => "acquisition",
            During::Renewal => "renewal",
            During::Release => "release",
        }
    }
}

/// How the attachment ends then: by DEL or by GC, by another daemon or without any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    DelByAnother,
    GcByAnother,
    DelAlone,
    GcAlone,
}

const ENDS: [End; 4] = [End::DelByAnother, End::GcByAnother, End::DelAlone, End::GcAlone];

/// Runs a daemon that is killed when so many of its calls have changed something since `armed` was set, or when `act` is over.
/// Whether the kill came before that.
fn doomed(lab: &Lab, change: usize, armed: &AtomicBool, act: impl FnOnce(&dyn Fn() -> bool)) -> (bool, usize) {
    let mut call = Call::new(&Peer::Ours, "dhcp", "", "").without("CNI_COMMAND").wrapped(&lab.host.enter);
    call.args = vec!["daemon".to_owned()];
    let [hit, over, done] = [(); 3].map(|()| AtomicBool::new(false));
    let socket = lab.path(SOCKET);
    std::thread::scope(|scope| {
        let tracer = scope.spawn(|| {
            let mut changes = 0;
            let traced = trace(&call, |stop| {
                let counts = armed.load(SeqCst) && stop.changes() && stop.result.is_some_and(|result| result >= 0);
                changes += usize::from(counts);
                if counts && changes == change {
                    hit.store(true, SeqCst);
                }
                if hit.load(SeqCst) || over.load(SeqCst) { Then::Kill } else { Then::Go }
            });
            done.store(true, SeqCst);
            traced.calls
        });
        let listens = || done.load(SeqCst) || UnixStream::connect(&socket).is_ok();
        wait_until("the daemon listens or is dead", 20, listens);
        act(&|| done.load(SeqCst));
        let was_hit = hit.load(SeqCst);
        over.store(true, SeqCst);
        while !done.load(SeqCst) {
            let _ = UnixStream::connect(&socket); // so that it makes a call
            std::thread::sleep(Duration::from_millis(2));
        }
        (was_hit, tracer.join().unwrap())
    })
}

/// One life with one kill; whether there was one, and how many calls the daemon made.
fn live(lab: &Lab, life: &Life<'_>, during: During, change: usize) -> (bool, usize) {
    let armed = AtomicBool::new(during == During::Start);
    let arm = |wanted| armed.store(during == wanted, SeqCst);
    doomed(lab, change, &armed, |is_dead| {
        if during == During::Start {
            return;
        }
        arm(During::Acquisition);
        let added = life.try_add(1).is_ok();
        arm(During::Renewal);
        let deadline = Instant::now() + patience(5);
        while during == During::Renewal && added && !is_dead() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        arm(During::Release);
        if during == During::Release {
            drop(life.call(0, "DEL", &Value::Null).run()); // it may fail
        }
    })
}

/// Ends it so, with or without a new daemon.
fn end(lab: &Lab, life: &Life<'_>, neighbour: &Life<'_>, result: &Value, end: End) {
    let daemon = matches!(end, End::DelByAnother | End::GcByAnother).then(|| Daemon::start(lab));
    if matches!(end, End::GcByAnother | End::GcAlone) {
        life.gc();
        let is_record = |name: &String| name.ends_with(".json");
        let records = journal(lab).iter().filter(|name| is_record(name)).count();
        assert_eq!(records, 1, "the neighbour's lease alone: {:?}", journal(lab));
    }
    life.del(&Value::Null);
    if daemon.is_some() {
        neighbour.check(result);
    }
}

fn sweep_of_daemon(during: During) {
    with_network(|lab| {
        let server = match during {
            During::Renewal => Server::start(lab, Program::Dnsmasq, 50, 99),
            _ => Server::for_many(lab),
        };
        let subject = subject();
        let [neighbours, swept] = [(), ()].map(|()| lab.container());
        let neighbour = Life::new(lab, Runtime::EachAlone, &subject, &neighbours);
        let life = Life::new(lab, Runtime::EachAlone, &subject, &swept).beside(Some(&neighbour));
        let daemon = Daemon::start(lab);
        life.del(&life.add(1));
        let result = neighbour.add(1);
        drop(daemon);
        let probe = (during != During::Renewal).then(|| Probe::start(lab, &[&swept, &neighbours]));
        let (mut points, mut calls) = (0, 0);
        for (change, way) in (1..).zip(ENDS.into_iter().cycle()) {
            let (killed, made) = live(lab, &life, during, change);
            (points, calls) = (points + usize::from(killed), made);
            end(lab, &life, &neighbour, &result, way);
            drop(Daemon::start(lab)); // it removes what was begun of the neighbour's lease, and makes the socket anew
            match &probe {
                Some(probe) => probe.assert_unchanged(&format!("{during:?}, change {change}, {way:?}")),
                // The neighbour's lease is renewed as well.
                None => assert_eq!(journal(lab).len(), 1, "{during:?}, change {change}, {way:?}: {:?}", journal(lab)),
            }
            if !killed || during == During::Renewal && !is_long() && change == 3 {
                break;
            }
        }
        let _daemon = Daemon::start(lab);
        neighbour.check(&result);
        neighbour.del(&result);
        assert!(journal(lab).is_empty(), "{:?}", journal(lab));
        drop(server);
        tell(&format!("{:05} | dhcp daemon | {} | {calls} | {points} | 0 |", 95_000 + during as usize, during.words()));
    });
}

#[test]
fn a_dhcp_daemon_that_is_killed_while_it_starts_loses_no_lease() {
    sweep_of_daemon(During::Start);
}

#[test]
fn a_dhcp_daemon_that_is_killed_while_it_acquires_leaves_nothing() {
    sweep_of_daemon(During::Acquisition);
}

#[test]
fn a_dhcp_daemon_that_is_killed_while_it_renews_loses_no_lease() {
    sweep_of_daemon(During::Renewal);
}

#[test]
fn a_dhcp_daemon_that_is_killed_while_it_releases_leaves_nothing() {
    sweep_of_daemon(During::Release);
}
