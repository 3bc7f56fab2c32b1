//! The privileges that the daemon keeps: none beyond files of root and connections to the store.

use nix::libc;

use crate::service::confinement::Confinement;

/// Sockets to the store, and files of root: no capability is needed for either.
pub const CONFINEMENT: Confinement = Confinement {
    needed: &[],
    useful: &[],
    families: &[libc::AF_INET, libc::AF_INET6],
    always: &[
        libc::SYS_eventfd2, // of the worker, which begins confined
        libc::SYS_flock,
        libc::SYS_fsync,
        libc::SYS_getpeername,
        libc::SYS_sched_getaffinity, // of each new thread
        libc::SYS_shutdown,
    ],
    some: &[],
};
