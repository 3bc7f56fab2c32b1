//! The ways in which a system call can fail, and the injection of one such fault.

use nix::errno::Errno;

use crate::support::call::{Call, Outcome};
use crate::support::tracer::{Stop, Then, Traced, old_calls, trace};

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call itself fails.
    Call(Errno),
    /// The netlink request is not carried out, and the kernel's answer is this error.
    Refusal(Errno),
}

impl Fault {
    pub fn errno(self) -> Errno {
        match self {
            Fault::Call(errno) | Fault::Refusal(errno) => errno,
        }
    }
}

/// The faults that are possible for a system call.
pub fn faults(stop: &Stop) -> Vec<Fault> {
    use Errno::*;
    let by_itself: &[Errno] = match stop.call {
        libc::SYS_openat if stop.changes() => &[ENOSPC, EACCES, EIO],
        libc::SYS_openat => &[EACCES, EIO, EMFILE],
        // EIO comes from a device, and a pipe has none.
        libc::SYS_read if stop.descriptor(0).starts_with("pipe:") => &[EINTR],
        libc::SYS_read => &[EIO, EINTR],
        libc::SYS_write => &[ENOSPC, EIO, EINTR],
        // std treats a failed close of a directory as a bug, and no kernel reports one.
        libc::SYS_close if !stop.is_directory(0) => &[EIO],
        old_calls::SYS_link | libc::SYS_linkat | old_calls::SYS_mkdir | libc::SYS_mkdirat => {
            &[ENOSPC, EACCES, EIO]
        }
        old_calls::SYS_rename | libc::SYS_renameat | libc::SYS_renameat2 => &[ENOSPC, EACCES, EIO],
        old_calls::SYS_unlink | libc::SYS_unlinkat | old_calls::SYS_rmdir => &[EBUSY, EACCES, EIO],
        libc::SYS_ftruncate | libc::SYS_fsync | libc::SYS_fdatasync => &[EIO],
        // A non-blocking flock is not interrupted.
        libc::SYS_flock if stop.args[1] & libc::LOCK_NB as u64 != 0 => &[ENOLCK, EIO],
        libc::SYS_flock => &[EINTR, ENOLCK],
        libc::SYS_fchmod | old_calls::SYS_chmod | libc::SYS_mount | libc::SYS_umount2 => {
            &[EACCES, EBUSY]
        }
        libc::SYS_statx | libc::SYS_fstat | libc::SYS_newfstatat => &[EACCES, EIO],
        old_calls::SYS_readlink
        | libc::SYS_statfs
        | libc::SYS_fstatfs
        | libc::SYS_getdents64
        | libc::SYS_lseek => &[EIO],
        libc::SYS_socket => &[EMFILE, EACCES, ENOBUFS],
        libc::SYS_bind | libc::SYS_setsockopt | libc::SYS_getsockname => &[ENOBUFS],
        // Connecting a netlink socket does not block.
        libc::SYS_connect if stop.memory(stop.args[1], 2) == [libc::AF_NETLINK as u8, 0] => {
            &[ENOMEM]
        }
        libc::SYS_connect => &[ECONNREFUSED, EINTR],
        libc::SYS_recvfrom | libc::SYS_recvmsg => &[EINTR],
        libc::SYS_sendmsg => &[ENOBUFS, EINTR],
        // Setting a pipe to non-blocking never fails, and std relies on it.
        libc::SYS_ioctl if !stop.descriptor(0).starts_with("pipe:") => &[EBUSY, EACCES],
        libc::SYS_setns | libc::SYS_unshare => &[EACCES, ENOMEM],
        libc::SYS_clone | libc::SYS_clone3 => &[EAGAIN],
        libc::SYS_execve => &[EACCES, ENOMEM],
        libc::SYS_wait4 | old_calls::SYS_poll => &[EINTR],
        libc::SYS_pipe2 => &[EMFILE],
        libc::SYS_sendto if stop.is_netlink() => {
            let refusals = [EPERM, EBUSY, ENOMEM].map(Fault::Refusal);
            return [&refusals[..], &[ENOBUFS, EINTR].map(Fault::Call)].concat();
        }
        libc::SYS_sendto => &[ENOBUFS, EINTR],
        _ => &[],
    };
    by_itself.iter().map(|errno| Fault::Call(*errno)).collect()
}

/// A failing call: its number within the program, and the fault.
pub type Point = (usize, Fault);

/// A fault armed for one call.
pub struct Trap {
    fault: Fault,
    /// The socket on which the refusal is to be answered.
    refused: Option<(u64, Vec<u8>)>,
    /// The result to return from the running call of this number.
    answer: Option<(usize, Then)>,
    /// A description of the call that failed; None if the program took another path.
    pub sprung: Option<String>,
}

impl Trap {
    pub fn new(fault: Fault) -> Trap {
        Trap { fault, refused: None, answer: None, sprung: None }
    }

    /// Decides the fate of a call that is about to be made. `is_it` marks the call that is to fail.
    pub fn decide(&mut self, stop: &Stop, is_it: bool) -> Then {
        let fault = self.fault;
        if stop.result.is_some() {
            let answer = self.answer.take_if(|(number, _)| *number == stop.number);
            return answer.map_or(Then::Go, |(_, answer)| answer);
        }
        if is_it && faults(stop).contains(&fault) {
            self.sprung = Some(format!("{} fails with {fault:?}", stop.describe()));
            return match fault {
                // close(2) releases the descriptor even if it returns an error, so it runs first.
                Fault::Call(errno) if stop.call == libc::SYS_close => {
                    self.answer = Some((stop.number, Then::fail(errno)));
                    Then::Go
                }
                Fault::Call(errno) => Then::fail(errno),
                Fault::Refusal(errno) => {
                    self.refused = Some((stop.args[0], refusal(stop, errno)));
                    Then::Answer(stop.args[2].cast_signed())
                }
            };
        }
        let is_answer = |(socket, _): &mut (u64, Vec<u8>)| {
            stop.call == libc::SYS_recvfrom && *socket == stop.args[0]
        };
        self.refused.take_if(is_answer).map_or(Then::Go, |(_, answer)| {
            stop.set_memory(stop.args[1], &answer);
            Then::Answer(answer.len() as i64)
        })
    }
}

/// Runs the call with the fault of `point`. Returns a description of the system call that failed.
pub fn run(call: &Call, point: Point) -> (Outcome, Option<String>) {
    let (number, fault) = point;
    let mut trap = Trap::new(fault);
    let traced = trace(call, |stop| trap.decide(stop, stop.number == number));
    (traced.outcome, trap.sprung)
}

/// The refusal of a netlink message that is about to be sent: nlmsghdr, errno, and the header of
/// the request.
fn refusal(stop: &Stop, errno: Errno) -> Vec<u8> {
    const ERROR: u16 = 2;
    let request = stop.memory(stop.args[1], 16);
    let (length, errno) = (36_u32.to_ne_bytes(), (-(errno as i32)).to_ne_bytes());
    let parts = [&length[..], &ERROR.to_ne_bytes(), &[0; 2], &request[8..16], &errno, &request];
    parts.concat()
}

/// The points of a call to try, and its outcome without a fault.
pub fn points(call: &Call, is_whole: bool) -> (Vec<Point>, Traced) {
    let mut points = vec![];
    // Calls before the program reads its configuration belong to the loader and libc.
    let mut reads = false;
    let traced = trace(call, |stop| {
        reads |= match stop.call {
            libc::SYS_read => stop.args[0] == 0,
            libc::SYS_openat => stop.text(1).ends_with("/run/net.d"),
            _ => false,
        };
        if stop.result.is_none() && reads {
            points.extend(chosen(stop, is_whole).into_iter().map(|fault| (stop.number, fault)));
        }
        Then::Go
    });
    (points, traced)
}

/// Every fault of the call in a whole sweep. Otherwise one fault for each call that changes
/// something, reads state from the disk, or concerns locks, threads or processes. A plugin makes so
/// many such calls that all faults get their turn.
pub fn chosen(stop: &Stop, is_whole: bool) -> Vec<Fault> {
    let faults = faults(stop);
    let is_kept = |path: String| path.starts_with("/run/cni") || path.starts_with("/var/lib/cni");
    let reads_state = match stop.call {
        libc::SYS_openat => is_kept(stop.text(1)),
        libc::SYS_read | libc::SYS_fstat => is_kept(stop.descriptor(0)),
        libc::SYS_flock | libc::SYS_setns | libc::SYS_recvfrom => true,
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_wait4 => true,
        _ => false,
    };
    match faults.len() {
        0 => faults,
        // Other programs without memory are out of scope, but a program that cannot be started is
        // not.
        _ if !stop.is_own && stop.call != libc::SYS_execve => vec![],
        _ if is_whole => faults,
        count if stop.changes() || reads_state => vec![faults[stop.number % count]],
        _ => vec![],
    }
}

/// The text of the kernel's error as in strerror(3), in lower case.
pub fn words(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string().to_lowercase();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
