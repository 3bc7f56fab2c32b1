//! The kill sweep of the dhcp plugin, which talks to a daemon and a server, and of the daemon
//! itself.
//!
//! The daemon is killed after each call that changes something while it starts, acquires, renews
//! and releases a lease. A lease that the server granted and the daemon had no time to record
//! belongs to the server until it expires. DEL and GC leave nothing of any other lease, with or
//! without a new daemon, and a neighbour keeps its lease.

use super::sweep;
use crate::faults::dhcp::{During, ENDS, on_a_site, subject, test_each_phase, with_network};
use crate::faults::life::Runtime;
use crate::faults::table::Row;
use crate::support::dhcp::Daemon;
use crate::support::dhcp::servers::Server;
use crate::support::extent::is_long;
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
        Row { network: "dhcp daemon", operation: during.words(), calls, points, failures: 0 }
            .tell("kills");
    });
}

test_each_phase!(sweep_of_daemon);
