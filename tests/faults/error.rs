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
mod once;
mod sweep;

super::life::test_each_runtime!(sweep::run_each);
