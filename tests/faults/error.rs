//! The error sweep: each system call of a plugin fails, one at a time, in each possible way.
//!
//! A failed ADD prints an error object and leaves everything as it was; an ADD that succeeds
//! despite the error is detached. What a failed DEL or GC leaves is finished by the next one.
//! Nothing panics, nothing hangs, and an interrupted call (EINTR) is not a failure.
//!
//! Memory allocation is left out: a process without memory aborts, and the kill sweep covers killed
//! processes.

#[cfg(feature = "cluster")]
mod cluster_local;
mod daemon;
mod dhcp;
mod fault;
mod sweep;
mod sysctls;
mod undoing;

use crate::support::subject::{in_a_lab, test_each_subject};

test_each_subject!(sweep::plugins_each_alone);

#[test]
fn errors_of_net_leave_nothing_of_a_chain_of_five() {
    in_a_lab("bridge, portmap, firewall, tuning, bandwidth", sweep::by_net);
}

#[test]
fn errors_of_net_leave_nothing_of_a_chain_on_macvlan() {
    in_a_lab("macvlan, tuning, sbr", sweep::by_net);
}
