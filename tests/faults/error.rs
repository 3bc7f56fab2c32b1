//! The error sweep: each system call of a plugin fails, one at a time, in each way that it can.
//!
//! An ADD that fails says so in an error object and leaves everything as it was; one that succeeds
//! all the same is detached. A DEL or GC that fails leaves what the next one can finish. Nothing
//! panics, nothing hangs, and an interrupted call (EINTR) fails nothing.
//!
//! Calls for memory are left out: a process that gets none is ended, and what a killed one leaves
//! is the subject of the kill sweep.

mod dhcp;
mod fault;
mod sweep;
mod sysctls;
mod undoing;

use super::subject::{in_a_lab, test_each_subject};

test_each_subject!(sweep::plugins_each_alone);

#[test]
fn errors_of_net_leave_nothing_of_a_chain_of_five() {
    in_a_lab("bridge, portmap, firewall, tuning, bandwidth", sweep::by_net);
}

#[test]
fn errors_of_net_leave_nothing_of_a_chain_on_macvlan() {
    in_a_lab("macvlan, tuning, sbr", sweep::by_net);
}
