//! The error sweep of the dhcp plugin, which talks to a daemon and a server, and of the daemon
//! itself.
//!
//! A daemon that fails at something reports it to the plugin or retries; it keeps running and keeps
//! its leases. A daemon that cannot start says why.

use super::daemon::{Counts, Point, mistake};
use super::fault::{Fault, Trap, chosen};
use super::sweep::{assert_none, plugins_each_alone, told_to_runtimes};
use crate::faults::dhcp::{
    During, ENDS, Lived, Site, on_a_site, subject, test_each_phase, with_network,
};
use crate::faults::table::Row;
use crate::support::dhcp::Daemon;
use crate::support::dhcp::servers::Server;
use crate::support::extent::is_long;
use crate::support::tracer::Then;

#[test]
fn errors_leave_nothing_of_macvlan_with_dhcp() {
    with_network(|lab| {
        let _server = Server::for_many(lab);
        let _daemon = Daemon::start(lab);
        plugins_each_alone(lab, &subject());
    });
}

/// The points of failure in this phase, and the number of system calls that the phase makes.
fn points(site: &Site<'_>, during: During) -> (Vec<Point>, usize) {
    let (mut points, mut counts) = (vec![], Counts::default());
    // Calls before the first use of /run/cni belong to the loader and libc.
    let mut is_loaded = during != During::Start;
    let lived = site.live(|stop| {
        let call = counts.count(stop);
        is_loaded = is_loaded || stop.describe().contains("/run/cni");
        if stop.result.is_none() && is_loaded {
            points.extend(chosen(stop, is_long()).into_iter().map(|fault| (call, fault)));
        }
        Then::Go
    });
    assert!(lived.calls.iter().all(|outcome| outcome.status == 0), "{:?}", lived.calls);
    site.recover("no fault", ENDS[0]);
    (points, counts.0.values().sum())
}

/// The number of points in the short form. A lost packet costs a timeout of seconds, and every
/// renewal takes seconds.
fn few(during: During) -> usize {
    match during {
        During::Renewal => 3,
        _ => 16,
    }
}

fn sweep_of_daemon(during: During) {
    on_a_site(during, |site| {
        let (points, calls) = points(site, during);
        let every = if is_long() { 1 } else { points.len().div_ceil(few(during)).max(1) };
        let (mut tried, mut found) = (0, vec![]);
        for (point, way) in points.into_iter().step_by(every).zip(ENDS.into_iter().cycle()) {
            let (wanted, fault) = point;
            let (mut trap, mut counts) = (Trap::new(fault), Counts::default());
            let lived = site.live(|stop| {
                let call = counts.count(stop);
                trap.decide(stop, call == wanted)
            });
            let what = format!("{during:?}: {}", trap.sprung.as_deref().unwrap_or("nothing fails"));
            site.recover(&what, way);
            tried += usize::from(trap.sprung.is_some());
            found.extend(
                mistakes(&lived, during, fault)
                    .map(|mistake| format!("{what}: {mistake}: {:?}", lived.calls)),
            );
        }
        assert_none(&found);
        assert!(tried > 0, "nothing has failed");
        Row {
            network: "dhcp daemon",
            operation: during.words(),
            calls,
            points: tried,
            failures: 0,
        }
        .tell("errors");
    });
}

/// What is wrong with a life in which a call failed.
fn mistakes(lived: &Lived, during: During, fault: Fault) -> Option<String> {
    let said = &lived.daemon.outcome.stderr;
    if let Some(mistake) = mistake(said, lived.died, during == During::Start, fault) {
        return Some(mistake);
    }
    let failed = lived.calls.iter().filter(|outcome| outcome.status != 0);
    failed.map(told_to_runtimes).find_map(Result::err).map(str::to_owned)
}

test_each_phase!(sweep_of_daemon);
