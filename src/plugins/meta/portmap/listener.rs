//! Processes of the host that listen at a port which is published: its packets reach the
//! container instead. As with the reference, that is no error.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use super::mapping::{Forward, Protocol};
use super::publication::Publication;
use crate::error::warn;
use crate::family::Family;
use crate::net::module;
use crate::net::sock_diag::{Local, SocketDiag};
use crate::sys::process::{self, Holder};

/// The limit of all searches for processes of one ADD. A node with many descriptors exceeds it, and
/// then the warning names no process.
const SEARCH: Duration = Duration::from_millis(100);

/// Warns of each such process. A kernel without sock_diag, or an unanswered question, is no warning
/// and no error: ADD does not depend on it.
pub fn warn_of_each(ports: &Publication<'_>) {
    let Ok(sockets) = SocketDiag::open() else { return };
    let mut known = vec![];
    let mut left = SEARCH;
    for forward in ports.forwards.iter().filter(|forward| may_ask(forward.protocol)) {
        let Ok(Some(inode)) = sockets.receiver(&local(forward)) else { continue };
        if !known.contains(&inode) {
            known.push(inode); // one socket can serve both families
            let start = Instant::now();
            let who = match process::holder_of_socket(inode, start + left) {
                Some(Holder { pid, command }) => format!("process {pid} ({command:?})"),
                None => "a process".to_owned(),
            };
            warn(format_args!(
                "portmap: {who} of the host listens at port {forward}, which leads to the container now"
            ));
            left = left.saturating_sub(start.elapsed());
        }
    }
}

/// Whether the kernel answers for this protocol without starting modprobe in vain at each ADD.
fn may_ask(protocol: Protocol) -> bool {
    let module = match protocol {
        Protocol::Tcp => "tcp_diag",
        Protocol::Udp => "udp_diag",
        Protocol::Sctp => return false,
    };
    ["inet_diag", module].into_iter().all(module::is_there_or_loads)
}

/// Where a process would listen. At the loopback address the kernel finds sockets at all addresses
/// as well.
fn local(forward: &Forward) -> Local {
    let loopback: IpAddr = match forward.family() {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    };
    Local {
        protocol: forward.protocol as u8,
        address: forward.at.unwrap_or(loopback),
        port: forward.host_port,
    }
}
