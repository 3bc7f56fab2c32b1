//! Kills of the dhcp plugin, which has a daemon and a server to talk to, and of the daemon itself.
//!
//! The daemon is killed after each call that changes something: while it starts, acquires, renews
//! and releases a lease. A lease that the server gave and the daemon had no time to write down is
//! the server's until it ends. Of all others DEL and GC leave nothing, whether or not there is a
//! new daemon, and a neighbour keeps its lease.

use super::sweep;
use crate::faults::dhcp::{During, ENDS, on_a_site, subject, test_each_phase, with_network};
use crate::faults::life::Runtime;
use crate::faults::subject::is_long;
use crate::faults::tell;
use crate::support::dhcp::Daemon;
use crate::support::dhcp::servers::Server;
use crate::support::tracer::Then;

#[test]
fn kills_leave_nothing_of_macvlan_with_dhcp() {
    with_network(|lab| {
        let _server = Server::for_many(lab);
        let _daemon = Daemon::start(lab);
        sweep::run(lab, &subject(), Runtime::EachAlone);
    });
}

fn sweep_of_daemon(during: During) {
    on_a_site(during, |site| {
        let (mut points, mut calls) = (0, 0);
        for (change, way) in (1..).zip(ENDS.into_iter().cycle()) {
            let (mut changes, mut killed) = (0, false);
            let lived = site.live(|stop| {
                changes +=
                    usize::from(stop.changes() && stop.result.is_some_and(|result| result >= 0));
                killed |= changes == change;
                if killed { Then::Kill } else { Then::Go }
            });
            (points, calls) = (points + usize::from(killed), lived.daemon.calls);
            site.recover(&format!("killed, {during:?}, change {change}"), way);
            if !killed || during == During::Renewal && !is_long() && change == 3 {
                break;
            }
        }
        assert!(points > 0, "it was not killed");
        tell(&format!(
            "{:05} | dhcp daemon | {} | {calls} | {points} | 0 |",
            95_000 + during as usize,
            during.words()
        ));
    });
}

test_each_phase!(sweep_of_daemon);
