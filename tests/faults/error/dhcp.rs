//! The error sweep of the dhcp plugin, which talks to a daemon and a server, and of the daemon
//! itself.
//!
//! A daemon that fails at something reports it to the plugin or retries; it keeps running and keeps
//! its leases. A daemon that cannot start says why.

use super::daemon::{Daemon, fail_each};
use super::sweep::run_each;
use crate::faults::Decide;
use crate::faults::dhcp::{During, on_a_site, subject, test_each_phase, with_a_daemon};
use crate::faults::life::Runtime;

#[test]
fn errors_leave_nothing_of_macvlan_with_dhcp() {
    with_a_daemon(|lab| run_each(lab, &subject(), Runtime::EachAlone));
}

fn sweep_of_daemon(during: During) {
    let daemon = Daemon {
        network: "dhcp daemon",
        operation: &during.words(),
        // A lost packet costs a timeout of seconds, and every renewal takes seconds.
        few: if during == During::Renewal { 3 } else { 16 },
        loads: (during == During::Start).then_some("/run/cni"),
    };
    on_a_site(during, |site| {
        let live = |decide: &mut Decide<'_>| site.live(decide);
        fail_each(&daemon, live, |what, turn| site.recover(what, turn));
    });
}

test_each_phase!(sweep_of_daemon);
