//! The process and its machine: capabilities, system calls, signals, clocks, local sockets.
//! Independent of networks and of CNI.

pub mod activation;
#[cfg(small_binary)]
mod backtrace;
pub mod bpf;
pub mod capabilities;
pub mod clock;
pub mod dbus;
pub mod directory_watch;
pub mod journald;
pub mod local_stream;
pub mod process;
pub mod random;
pub mod seccomp;
pub mod signals;
pub mod start;

/// The descriptor of a type is that of one of its fields.
macro_rules! impl_as_fd {
    ($of:ty, $($field:tt).+) => {
        impl std::os::fd::AsFd for $of {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                std::os::fd::AsFd::as_fd(&self.$($field).+)
            }
        }
    };
}
pub(crate) use impl_as_fd;
