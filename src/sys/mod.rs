//! The process and the machine that it runs on: capabilities, system calls, signals, clocks, local
//! sockets. Knows nothing of networks and of CNI.

pub mod activation;
pub mod capabilities;
pub mod clock;
pub mod dbus;
#[cfg(small_binary)]
mod left_out;
pub mod local_stream;
pub mod process;
pub mod random;
pub mod seccomp;
