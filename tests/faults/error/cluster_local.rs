//! The error sweep of the daemon of cluster-local: it reports a failure or tries again, keeps running,
//! and loses no block. A daemon that cannot start says why.

use super::daemon::{Daemon, fail_each};
use crate::faults::Decide;
use crate::faults::cluster_local::{During, Site, test_each_phase};
use crate::faults::dhcp::Lived;

fn sweep(during: During) {
    let Some(mut site) = Site::new() else { return };
    let daemon = Daemon {
        network: "ipam daemon",
        operation: during.words(),
        few: 8, // each is a life of two daemons
        loads: (during == During::Start).then_some("cni-multi/ipam.json"),
    };
    let live = |decide: &mut Decide<'_>| {
        let lived = site.live(during, decide);
        Lived { daemon: lived.daemon, died: lived.died, calls: vec![] }
    };
    fail_each(&daemon, live, |_, _| ());
}

test_each_phase!(sweep);
