//! What a daemon may do. It reads what strangers send and keeps on running, so it keeps no right
//! that it has no use for: not to execute a program, to make another process, or to reach any other
//! part of the kernel than its own.

use nix::libc::{c_int, c_long};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};

use super::Identity;
use super::log::Log;
use crate::error::{Code, Error, Result};
use crate::sys::capabilities::{self, Capability};
use crate::sys::seccomp::Call;

/// What a daemon needs beyond its event loop, its socket and its journal.
#[derive(Debug)]
pub struct Confinement {
    /// Without these it does not start.
    pub needed: &'static [Capability],
    /// Without these some things do not work, and what.
    pub useful: &'static [(Capability, &'static str)],
    /// The families of sockets that it opens (AF_*).
    pub families: &'static [c_int],
    /// System calls.
    pub always: &'static [c_long],
    /// System calls with one of their arguments.
    pub some: &'static [Call],
}

impl Confinement {
    /// Says what is missing before anything is done.
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

    /// Gives up all that is not needed, for good. The socket and the files of the start are there
    /// already.
    pub fn give_up_the_rest(&self, log: &Log) -> Result<()> {
        umask(Mode::from_bits_truncate(0o077)); // every file of the journal says it as well
        let useful = self.useful.iter().map(|(capability, _)| *capability);
        let kept: Vec<Capability> = self.needed.iter().copied().chain(useful).collect();
        capabilities::keep_only(&kept).map_err(|e| Error::kernel("give up capabilities", e))?;
        // A kernel, or a sandbox, that has no filters is no reason not to serve.
        if let Err(e) = system_calls::allow(self) {
            log.line(format_args!("system calls are not restricted: {}", e.desc()));
        }
        Ok(())
    }
}

/// Each connection has a descriptor; the usual limit is for programs that use select(2). What is in
/// the memory is not for a file that others may read. And the modes of files are the daemon's to
/// say, not its starter's.
pub fn set_limits() {
    umask(Mode::from_bits_truncate(0o022));
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard); // then there are as many as there are
    }
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0); // it is never raised
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod system_calls {
    use nix::errno::Errno;
    use nix::libc::{self, c_long};

    use super::Confinement;
    use crate::sys::seccomp::{self, Call, Is};

    /// What a daemon, the standard library and either C library (glibc, musl) make.
    const ALWAYS: [c_long; 50] = [
        // waiting, and time
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
        // threads, and their end
        libc::SYS_clone3, // which is hidden
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

    /// Those of the first Unixes, which younger architectures have not got.
    #[cfg(target_arch = "x86_64")]
    const OLD: [c_long; 6] = [
        libc::SYS_poll,
        libc::SYS_open,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_rename,
        libc::SYS_unlink,
    ];
    /// renameat(2), whose number the libc crate has not got here.
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
        // What clone3(2) is to do is in memory, where no filter looks; without it glibc goes on
        // with clone(2).
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

    /// Which ones they would be there has not been tried.
    pub fn allow(_: &Confinement) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }
}
