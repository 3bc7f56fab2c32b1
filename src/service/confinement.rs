//! The privileges of a daemon. It reads untrusted packets and runs for a long time, so it drops
//! every privilege that it does not use: it cannot execute a program, create another process, or
//! reach unrelated parts of the kernel.

use nix::libc::{c_int, c_long};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, umask};

use super::Identity;
use super::log::Log;
use crate::error::{Code, Error, Result};
use crate::sys::capabilities::{self, Capability};
use crate::sys::process;
use crate::sys::seccomp::Call;

/// The needs of a daemon beyond its event loop, its socket and its journal.
#[derive(Debug)]
pub struct Confinement {
    /// Capabilities required to start.
    pub needed: &'static [Capability],
    /// Optional capabilities, each with what does not work without it.
    pub useful: &'static [(Capability, &'static str)],
    /// The socket families that it opens (AF_*).
    pub families: &'static [c_int],
    /// System calls with any arguments.
    pub always: &'static [c_long],
    /// System calls with a condition on one argument.
    pub some: &'static [Call],
}

impl Confinement {
    /// Checks for the capabilities before the daemon does anything.
    pub fn require_capabilities(&self, identity: &Identity, log: &Log) -> Result<()> {
        let missing = capabilities::missing(self.needed);
        if !missing.is_empty() {
            let names: Vec<&str> = missing.into_iter().map(Capability::name).collect();
            let msg = format!("start the {}: it lacks {}", identity.name, names.join(", "));
            return Err(
                Error::new(Code::KERNEL, msg).with_details("SECURITY.md says what each one is for")
            );
        }
        for (capability, lack) in self.useful {
            if !capabilities::missing(&[*capability]).is_empty() {
                log.line(format_args!("without {}: {lack}", capability.name()));
            }
        }
        Ok(())
    }

    /// Drops everything that is not needed, permanently. The socket and the files needed at start
    /// are already open.
    pub fn give_up_the_rest(&self, log: &Log) -> Result<()> {
        umask(Mode::from_bits_truncate(0o077)); // the journal also sets the mode of each file
        let useful = self.useful.iter().map(|(capability, _)| *capability);
        let kept: Vec<Capability> = self.needed.iter().copied().chain(useful).collect();
        capabilities::keep_only(&kept).map_err(|e| Error::kernel("give up capabilities", e))?;
        // Serve even on a kernel or in a sandbox without filters.
        if let Err(e) = system_calls::allow(self) {
            log.line(format_args!("system calls are not restricted: {}", e.desc()));
        }
        Ok(())
    }
}

/// Sets limits and the umask. Each connection needs a descriptor. A core dump would expose the
/// memory in a file. And the daemon sets the modes of its files, not the umask it inherits.
pub fn set_limits() {
    umask(Mode::from_bits_truncate(0o022));
    process::raise_descriptors();
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0); // lowering a limit succeeds
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod system_calls {
    use nix::errno::Errno;
    use nix::libc::{self, c_long};

    use super::Confinement;
    use crate::sys::seccomp::{self, Call, Is};

    /// The calls of a daemon, the standard library and both C libraries (glibc, musl).
    const ALWAYS: [c_long; 50] = [
        // waiting and time
        libc::SYS_ppoll,
        libc::SYS_timerfd_settime,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_restart_syscall,
        // sockets
        libc::SYS_accept4,
        libc::SYS_bind,
        libc::SYS_connect,
        libc::SYS_getsockname,
        libc::SYS_getsockopt,
        libc::SYS_setsockopt,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        // descriptors
        libc::SYS_close,
        libc::SYS_fcntl,
        libc::SYS_read,
        libc::SYS_write,
        libc::SYS_writev,
        // files
        libc::SYS_openat,
        libc::SYS_newfstatat,
        libc::SYS_fstat,
        libc::SYS_statx,
        libc::SYS_fstatfs,
        libc::SYS_getdents64,
        libc::SYS_lseek,
        libc::SYS_renameat2,
        libc::SYS_unlinkat,
        // memory
        libc::SYS_brk,
        libc::SYS_madvise,
        libc::SYS_mremap,
        libc::SYS_munmap,
        libc::SYS_getrandom,
        // threads and their end
        libc::SYS_clone3, // hidden below
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_futex,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_membarrier,
        libc::SYS_rseq,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_yield,
        libc::SYS_set_robust_list,
        libc::SYS_set_tid_address,
        libc::SYS_sigaltstack,
    ];

    /// Calls of the first Unixes, which newer architectures lack.
    #[cfg(target_arch = "x86_64")]
    const OLD: [c_long; 6] = [
        libc::SYS_poll,
        libc::SYS_open,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_rename,
        libc::SYS_unlink,
    ];
    /// renameat(2), whose number the libc crate lacks here.
    #[cfg(target_arch = "aarch64")]
    const OLD: [c_long; 1] = [38];

    const SOME: [Call; 4] = [
        call(libc::SYS_clone, 0, Is::With(libc::CLONE_THREAD)),
        call(libc::SYS_ioctl, 1, Is::OneOf(&[libc::FIONBIO as i32])),
        call(libc::SYS_mmap, 2, Is::Without(libc::PROT_EXEC)),
        call(libc::SYS_mprotect, 2, Is::Without(libc::PROT_EXEC)),
    ];

    const fn call(number: c_long, argument: u32, is: Is) -> Call {
        Call { number, argument, is }
    }

    pub fn allow(daemon: &Confinement) -> Result<(), Errno> {
        // The flags of clone3(2) are in memory, which a filter cannot inspect; without it glibc
        // falls back to clone(2).
        seccomp::hide(libc::SYS_clone3)?;
        let sockets = call(libc::SYS_socket, 0, Is::OneOf(daemon.families));
        seccomp::allow_only(
            &[&ALWAYS[..], &OLD, daemon.always].concat(),
            &[&SOME[..], &[sockets], daemon.some].concat(),
        )
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod system_calls {
    use nix::errno::Errno;

    use super::Confinement;

    /// The call list has not been tested on other architectures.
    pub fn allow(_: &Confinement) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }
}

#[cfg(test)]
mod tests {
    /// The thread that has the filter ends with the test.
    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn no_program_no_other_socket_and_no_mode_of_a_file() {
        use std::fs::{Permissions, set_permissions};
        use std::os::unix::fs::PermissionsExt as _;

        use super::*;

        const UNIX_SOCKETS_ALONE: Confinement = Confinement {
            needed: &[],
            useful: &[],
            families: &[nix::libc::AF_UNIX],
            always: &[],
            some: &[],
        };
        let confined = || {
            nix::sys::prctl::set_no_new_privs().unwrap();
            system_calls::allow(&UNIX_SOCKETS_ALONE).unwrap();
            [
                std::process::Command::new("/bin/true").spawn().is_ok(),
                std::net::UdpSocket::bind("127.0.0.1:0").is_ok(),
                set_permissions("/", Permissions::from_mode(0o755)).is_ok(),
                std::os::unix::net::UnixDatagram::unbound().is_ok(),
            ]
        };
        let done = std::thread::spawn(confined).join().unwrap();
        assert_eq!(done, [false, false, false, true]);
    }
}
