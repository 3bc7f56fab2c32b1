//! The ways in which a system call fails, and how one of them comes to be.

use nix::errno::Errno;

use crate::support::call::{Call, Outcome};
use crate::support::tracer::{Stop, Then, Traced, trace};

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// By itself.
    Call(Errno),
    /// What is asked of netlink is not done, and the kernel's answer is this.
    Refusal(Errno),
}

impl Fault {
    pub fn errno(self) -> Errno {
        match self {
            Fault::Call(errno) | Fault::Refusal(errno) => errno,
        }
    }
}

/// The ways in which a call can fail.
pub fn faults(stop: &Stop) -> Vec<Fault> {
    use Errno::*;
    let by_itself: &[Errno] = match stop.call {
        libc::SYS_openat if stop.changes() => &[ENOSPC, EACCES, EIO],
        libc::SYS_openat => &[EACCES, EIO, EMFILE],
        // A pipe has no device that could fail.
        libc::SYS_read if stop.descriptor(0).starts_with("pipe:") => &[EINTR],
        libc::SYS_read => &[EIO, EINTR],
        libc::SYS_write => &[ENOSPC, EIO, EINTR],
        // std takes it for a bug where a directory cannot be closed, and no kernel says so.
        libc::SYS_close if !stop.is_directory(0) => &[EIO],
        libc::SYS_link | libc::SYS_linkat | libc::SYS_mkdir | libc::SYS_mkdirat => {
            &[ENOSPC, EACCES, EIO]
        }
        libc::SYS_rename | libc::SYS_renameat | libc::SYS_renameat2 => &[ENOSPC, EACCES, EIO],
        libc::SYS_unlink | libc::SYS_unlinkat | libc::SYS_rmdir => &[EBUSY, EACCES, EIO],
        libc::SYS_ftruncate | libc::SYS_fsync | libc::SYS_fdatasync => &[EIO],
        // One that does not wait is not interrupted.
        libc::SYS_flock if stop.args[1] & libc::LOCK_NB as u64 != 0 => &[ENOLCK, EIO],
        libc::SYS_flock => &[EINTR, ENOLCK],
        libc::SYS_fchmod | libc::SYS_chmod | libc::SYS_mount | libc::SYS_umount2 => {
            &[EACCES, EBUSY]
        }
        libc::SYS_statx | libc::SYS_fstat | libc::SYS_newfstatat => &[EACCES, EIO],
        libc::SYS_readlink
        | libc::SYS_statfs
        | libc::SYS_fstatfs
        | libc::SYS_getdents64
        | libc::SYS_lseek => &[EIO],
        libc::SYS_socket => &[EMFILE, EACCES, ENOBUFS],
        libc::SYS_bind | libc::SYS_setsockopt | libc::SYS_getsockname => &[ENOBUFS],
        // A netlink socket is connected at once.
        libc::SYS_connect if stop.memory(stop.args[1], 2) == [libc::AF_NETLINK as u8, 0] => {
            &[ENOMEM]
        }
        libc::SYS_connect => &[ECONNREFUSED, EINTR],
        libc::SYS_recvfrom | libc::SYS_recvmsg => &[EINTR],
        libc::SYS_sendmsg => &[ENOBUFS, EINTR],
        // A pipe can always be told not to wait, and std relies on it.
        libc::SYS_ioctl if !stop.descriptor(0).starts_with("pipe:") => &[EBUSY, EACCES],
        libc::SYS_setns | libc::SYS_unshare => &[EACCES, ENOMEM],
        libc::SYS_clone | libc::SYS_clone3 => &[EAGAIN],
        libc::SYS_execve => &[EACCES, ENOMEM],
        libc::SYS_wait4 | libc::SYS_poll => &[EINTR],
        libc::SYS_pipe2 => &[EMFILE],
        libc::SYS_sendto if stop.is_netlink() => {
            return vec![
                Fault::Refusal(EPERM),
                Fault::Refusal(EBUSY),
                Fault::Refusal(ENOMEM),
                Fault::Call(ENOBUFS),
                Fault::Call(EINTR),
            ];
        }
        libc::SYS_sendto => &[ENOBUFS, EINTR],
        _ => &[],
    };
    by_itself.iter().map(|errno| Fault::Call(*errno)).collect()
}

/// A call that fails: the how-manieth of its program, and in which of its ways.
pub type Point = (usize, Fault);

/// A fault that is waiting for its call.
pub struct Trap {
    fault: Fault,
    /// The socket that is to get the answer of a refusal.
    refused: Option<(u64, Vec<u8>)>,
    /// What the call of this number, which is being made, is to return.
    answer: Option<(usize, Then)>,
    /// What had the fault; None where the program has gone another way.
    pub sprung: Option<String>,
}

impl Trap {
    pub fn new(fault: Fault) -> Trap {
        Trap { fault, refused: None, answer: None, sprung: None }
    }

    /// What becomes of a call that is about to be made; whether it is the one that is to fail.
    pub fn decide(&mut self, stop: &Stop, is_it: bool) -> Then {
        let fault = self.fault;
        if stop.result.is_some() {
            let answer = self.answer.take_if(|(number, _)| *number == stop.number);
            return answer.map_or(Then::Go, |(_, answer)| answer);
        }
        if is_it && faults(stop).contains(&fault) {
            self.sprung = Some(format!("{} fails with {fault:?}", stop.describe()));
            return match fault {
                // Whatever close(2) returns, the descriptor is closed.
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

/// Runs the call, with a fault where one is asked for. What had the fault is described.
pub fn run(call: &Call, point: Point) -> (Outcome, Option<String>) {
    let (number, fault) = point;
    let mut trap = Trap::new(fault);
    let traced = trace(call, |stop| trap.decide(stop, stop.number == number));
    (traced.outcome, trap.sprung)
}

/// The answer to a netlink message that is about to be sent: nlmsghdr, errno, and the header that
/// is answered.
fn refusal(stop: &Stop, errno: Errno) -> Vec<u8> {
    const ERROR: u16 = 2;
    let request = stop.memory(stop.args[1], 16);
    let mut answer = 36_u32.to_ne_bytes().to_vec();
    answer.extend(ERROR.to_ne_bytes());
    answer.extend([0; 2]);
    answer.extend(&request[8..16]);
    answer.extend((-(errno as i32)).to_ne_bytes());
    answer.extend(request);
    answer
}

/// Where `cni-multi net` finds its networks.
pub const CONF_DIR: &str = "/run/net.d";

/// The points of a call that are tried, and its outcome without any.
pub fn points(call: &Call, is_whole: bool) -> (Vec<Point>, Traced) {
    let mut points = vec![];
    // What comes before the program reads its configuration is the loader's and libc's.
    let mut reads = false;
    let traced = trace(call, |stop| {
        reads |= match stop.call {
            libc::SYS_read => stop.args[0] == 0,
            libc::SYS_openat => stop.text(1).ends_with(CONF_DIR),
            _ => false,
        };
        if stop.result.is_none() && reads {
            points.extend(chosen(stop, is_whole).into_iter().map(|fault| (stop.number, fault)));
        }
        Then::Go
    });
    (points, traced)
}

/// All faults of the call for a sweep that tries everything; else a fault for each call that
/// changes something, reads what is kept on the disk, or has to do with threads and processes; the
/// calls of a plugin are many, so all faults have their turns.
pub fn chosen(stop: &Stop, is_whole: bool) -> Vec<Fault> {
    const OTHERS: [i64; 6] = [
        libc::SYS_flock,
        libc::SYS_setns,
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_recvfrom,
        libc::SYS_wait4,
    ];
    let faults = faults(stop);
    let is_kept = |path: String| path.starts_with("/run/cni") || path.starts_with("/var/lib/cni");
    let reads_state = match stop.call {
        libc::SYS_openat => is_kept(stop.text(1)),
        libc::SYS_read | libc::SYS_fstat => is_kept(stop.descriptor(0)),
        call => OTHERS.contains(&call),
    };
    match faults.len() {
        0 => faults,
        // What others' programs do when they have no memory is not ours; that they cannot be
        // started is.
        _ if !stop.is_own && stop.call != libc::SYS_execve => vec![],
        _ if is_whole => faults,
        count if stop.changes() || reads_state => vec![faults[stop.number % count]],
        _ => vec![],
    }
}

/// The kernel's error in the words of strerror(3), in lower case.
pub fn words(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string().to_lowercase();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
