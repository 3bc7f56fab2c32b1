//! The kill sweep: SIGKILL between the system calls of ADD, DEL, GC and CHECK of everything that a
//! network can have.
//!
//! After each kill the runtime goes on in one of the ways in which runtimes do, and then the host
//! and the container are as before, and a neighbour on the same network is as it was all the time.
//! Of the two forms, the short one kills after each call that changes something in the kernel or on
//! the disk, and the ways take turns: between two such calls one kill is like the other. The long
//! one (`tests/faults/run kill`) takes all ways at each of those points, and kills before each
//! single call of the plugin's own as well.

mod dhcp;
mod sweep;

use super::life::Runtime;
use super::subject::{Subject, in_a_lab, test_each_subject};
use crate::support::netns::Lab;

test_each_subject!(plugins_each_alone);

/// As libcni runs them.
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
