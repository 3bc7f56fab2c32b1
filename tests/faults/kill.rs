//! The kill sweep: SIGKILL between the system calls of ADD, DEL, GC and CHECK, for every plugin.
//!
//! After each kill the runtime continues in one of the ways that runtimes do. Afterwards the host
//! and the container are as before, and a neighbour on the same network has not changed. The short
//! form kills after each call that changes something in the kernel or on the disk, with the ways in
//! rotation, or where programs are started, after every fourth: between two such calls all kills are alike. The long form (`tests/faults/run kill`)
//! tries every way at each of those points, and also kills before every single call of the plugin
//! itself.

#[cfg(feature = "cluster")]
mod cluster_local;
mod dhcp;
mod sweep;

use super::life::Runtime;
use crate::support::netns::Lab;
use crate::support::subject::{Subject, in_a_lab, test_each_subject};

test_each_subject!(plugins_each_alone);

/// One process per plugin, as libcni runs them.
fn plugins_each_alone(lab: &Lab, subject: &Subject) {
    sweep::run(lab, subject, Runtime::EachAlone);
}

/// The whole list in one process, with the result in the cache.
#[test]
fn kills_of_net_leave_nothing_of_a_chain_of_five() {
    in_a_lab("bridge, portmap, firewall, tuning, bandwidth", by_net);
}

#[test]
fn kills_of_net_leave_nothing_of_a_chain_on_macvlan() {
    in_a_lab("macvlan, tuning, sbr", by_net);
}

fn by_net(lab: &Lab, subject: &Subject) {
    sweep::run(lab, subject, Runtime::Net);
}
