//! The kill sweep of the dhcp plugin, which talks to a daemon and a server, and of the daemon
//! itself.
//!
//! The daemon is killed after each call that changes something while it starts, acquires, renews
//! and releases a lease. A lease that the server granted and the daemon had no time to record
//! belongs to the server until it expires. DEL and GC leave nothing of any other lease, with or
//! without a new daemon, and a neighbour keeps its lease.

use super::{kill_daemon, sweep};
use crate::faults::dhcp::{During, on_a_site, subject, test_each_phase, with_a_daemon};
use crate::faults::life::Runtime;
use crate::support::extent::is_long;

#[test]
fn kills_leave_nothing_of_macvlan_with_dhcp() {
    with_a_daemon(|lab| sweep::run(lab, &subject(), Runtime::EachAlone));
}

fn sweep_of_daemon(during: During) {
    on_a_site(during, |site| {
        let is_short = during == During::Renewal && !is_long();
        let changes = 1..if is_short { 4 } else { usize::MAX };
        kill_daemon(["dhcp daemon", &during.words()], changes, |change, decide| {
            let lived = site.live(decide);
            site.recover(&format!("killed, {during:?}, change {change}"), change - 1);
            lived.daemon
        });
    });
}

test_each_phase!(sweep_of_daemon);
