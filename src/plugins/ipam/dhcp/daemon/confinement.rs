//! The privileges that the daemon keeps.

use nix::libc;

use crate::service::confinement::Confinement;
use crate::sys::capabilities::Capability;
use crate::sys::seccomp::{Call, Is};

/// Links and addresses, packets, and namespaces; no files, programs or processes beyond that.
pub const CONFINEMENT: Confinement = Confinement {
    needed: &[Capability::NetAdmin, Capability::NetRaw, Capability::SysAdmin],
    useful: &[
        (Capability::NetBindService, "servers behind a router, and DHCPv6, cannot be asked"),
        (Capability::SysPtrace, "namespaces of the form /proc/PID/ns/net cannot be entered"),
        (Capability::DacReadSearch, "namespaces in directories of other users cannot be entered"),
    ],
    families: &[libc::AF_NETLINK, libc::AF_PACKET, libc::AF_INET, libc::AF_INET6],
    always: &[],
    some: &[Call { number: libc::SYS_setns, argument: 1, is: Is::OneOf(&[libc::CLONE_NEWNET]) }],
};
