//! What the daemon may do. It reads what strangers send and keeps on running, so it keeps no right
//! that it has no use for: not to execute a program, to make another process, or to reach any other
//! part of the kernel than the network.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};

use super::log::Log;
use crate::error::{Code, Error, Result};
use crate::sys::capabilities::{self, Capability};

/// Without these no lease can be had, or none given up: for its links and addresses, packets, and
/// namespaces.
const NEEDED: [Capability; 3] = [Capability::NetAdmin, Capability::NetRaw, Capability::SysAdmin];
/// Without these some things do not work.
const USEFUL: [(Capability, &str); 3] = [
    (Capability::NetBindService, "servers behind a router, and DHCPv6, cannot be asked"),
    (Capability::SysPtrace, "namespaces of the form /proc/PID/ns/net cannot be entered"),
    (Capability::DacReadSearch, "namespaces in directories of other users cannot be entered"),
];

/// Says what is missing before anything is done.
pub fn require_capabilities(log: &Log) -> Result<()> {
    let missing = capabilities::missing(&NEEDED);
    if !missing.is_empty() {
        let names: Vec<&str> = missing.into_iter().map(Capability::name).collect();
        let msg = format!("start the DHCP daemon: it has not got {}", names.join(", "));
        return Err(
            Error::new(Code::KERNEL, msg).with_details("SECURITY.md says what each one is for")
        );
    }
    for (capability, lack) in USEFUL {
        if !capabilities::missing(&[capability]).is_empty() {
            log.line(format_args!("without {}: {lack}", capability.name()));
        }
    }
    Ok(())
}

/// Each exchange and each connection has descriptors; the usual limit is for programs that use
/// select(2). What is in the memory is not for a file that others may read. And the modes of files
/// are ours to say, not of whoever started us.
pub fn set_limits() {
    umask(Mode::from_bits_truncate(0o022));
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard); // then there are as many as there are
    }
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0); // it is never raised
}

/// Gives up all that is not needed to keep leases, for good. The socket and the files of the start
/// are there already.
pub fn give_up_the_rest(log: &Log) -> Result<()> {
    umask(Mode::from_bits_truncate(0o077)); // every file of leases says it as well
    let kept: Vec<Capability> =
        NEEDED.into_iter().chain(USEFUL.map(|(capability, _)| capability)).collect();
    capabilities::keep_only(&kept).map_err(|e| Error::kernel("give up capabilities", e))?;
    // A kernel, or a sandbox, that has no filters is no reason to leave containers without leases.
    if let Err(e) = system_calls::allow() {
        log.line(format_args!("system calls are not restricted: {}", e.desc()));
    }
    Ok(())
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod system_calls {
    use nix::errno::Errno;
    use nix::libc::{self, c_long};

    use crate::sys::seccomp::{self, Call, Is};

    /// What the daemon, the standard library and either C library (glibc, musl) make.
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
        libc::SYS_connect, // a netlink socket to the kernel
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

    const SOME: [Call; 6] = [
        call(libc::SYS_clone, 0, Is::With(libc::CLONE_THREAD)),
        call(libc::SYS_setns, 1, Is::OneOf(&[libc::CLONE_NEWNET])),
        call(
            libc::SYS_socket,
            0,
            Is::OneOf(&[libc::AF_NETLINK, libc::AF_PACKET, libc::AF_INET, libc::AF_INET6]),
        ),
        call(libc::SYS_ioctl, 1, Is::OneOf(&[libc::FIONBIO as i32])),
        call(libc::SYS_mmap, 2, Is::Without(libc::PROT_EXEC)),
        call(libc::SYS_mprotect, 2, Is::Without(libc::PROT_EXEC)),
    ];

    const fn call(number: c_long, argument: u32, is: Is) -> Call {
        Call { number, argument, is }
    }

    pub fn allow() -> Result<(), Errno> {
        // What clone3(2) is to do is in memory, where no filter looks; without it glibc goes on
        // with clone(2).
        seccomp::hide(libc::SYS_clone3)?;
        seccomp::allow_only(&[&ALWAYS[..], &OLD].concat(), &SOME)
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod system_calls {
    use nix::errno::Errno;

    /// Which ones they would be there has not been tried.
    pub fn allow() -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }
}
