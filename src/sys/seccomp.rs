//! System call filters (seccomp(2)) for a thread and the threads it starts later: the kernel
//! rejects all other calls.

use nix::errno::Errno;
use nix::libc::{self, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO};

use super::bpf::{Program, Test, Width};

/// The offsets of the call's number, its architecture, and the first of six arguments in a filter's
/// input (`seccomp_data` of linux/seccomp.h). The low half of an argument, the significant one,
/// comes first.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// AUDIT_ARCH_* of linux/audit.h: the same number is another call on another architecture.
#[cfg(target_arch = "x86_64")]
const OWN_ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const OWN_ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
/// Filters are untested on other architectures.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OWN_ARCHITECTURE: Option<u32> = None;

/// A call that is refused unless one of its arguments meets a condition.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// SYS_* of the C library.
    pub number: libc::c_long,
    /// The index of the argument, from 0.
    pub argument: u32,
    /// The condition.
    pub is: Is,
}

/// The condition for an argument.
#[derive(Clone, Copy, Debug)]
pub enum Is {
    /// It is one of these.
    OneOf(&'static [libc::c_int]),
    /// It has at least one of these bits.
    With(libc::c_int),
    /// It has none of these bits.
    Without(libc::c_int),
}

/// Refuses all other calls, permanently. A refused call fails with EPERM and appears in the
/// kernel's audit log.
///
/// This and [`hide`] require CAP_SYS_ADMIN or `no_new_privs`, and fail with ENOSYS on architectures
/// with unknown call numbers.
pub fn allow_only(always: &[libc::c_long], some: &[Call]) -> Result<(), Errno> {
    let mut program = beginning()?;
    for number in always {
        program.answer_if(Test::Is(*number as u32), SECCOMP_RET_ALLOW);
    }
    for call in some {
        program.when(Test::Is(call.number as u32), call.checks())?;
    }
    program.answer(REFUSE);
    install(&program, libc::SECCOMP_FILTER_FLAG_LOG)
}

/// Makes a call fail as in a kernel that lacks it, for calls that the C library tries first, each
/// time: the audit log does not show it.
pub fn hide(number: libc::c_long) -> Result<(), Errno> {
    let mut program = beginning()?;
    program.answer_if(Test::Is(number as u32), SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
    program.answer(SECCOMP_RET_ALLOW);
    install(&program, 0)
}

/// Installs a filter. If there are several, the kernel applies the strictest result.
fn install(program: &Program, flags: libc::c_ulong) -> Result<(), Errno> {
    let program = program.as_fprog()?;
    // SAFETY: the kernel reads a sock_fprog and the instructions of our program, which it points
    // to, and keeps a copy.
    let set = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    Errno::result(set).map(drop)
}

const REFUSE: u32 = SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// Refuses calls of another architecture, and loads the call's number.
fn beginning() -> Result<Program, Errno> {
    let own = OWN_ARCHITECTURE.ok_or(Errno::ENOSYS)?;
    let mut program = Program::default();
    program.load(Width::Word, ARCHITECTURE).answer_unless(Test::Is(own), REFUSE);
    program.load(Width::Word, NUMBER);
    Ok(program)
}

impl Call {
    /// The steps that check the argument.
    fn checks(&self) -> Program {
        let mut checks = Program::default();
        checks.load(Width::Word, ARGUMENTS + 8 * self.argument);
        self.is.write(&mut checks);
        checks
    }
}

impl Is {
    fn write(self, checks: &mut Program) {
        match self {
            Is::OneOf(values) => {
                for value in values {
                    checks.answer_if(Test::Is(*value as u32), SECCOMP_RET_ALLOW);
                }
                checks.answer(REFUSE)
            }
            Is::With(bits) => {
                checks.answer_if(Test::HasAny(bits as u32), SECCOMP_RET_ALLOW).answer(REFUSE)
            }
            Is::Without(bits) => {
                checks.answer_if(Test::HasAny(bits as u32), REFUSE).answer(SECCOMP_RET_ALLOW)
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// The kernel's results for the calls of a thread that has the filter, which then ends.
    fn answers<const N: usize>(
        install: fn() -> Result<(), Errno>,
        calls: [fn() -> libc::c_long; N],
    ) -> [Option<Errno>; N] {
        let confined = move || {
            // SAFETY: the option takes no pointer.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
            install().unwrap();
            calls.map(|call| Errno::result(call()).err())
        };
        std::thread::spawn(confined).join().unwrap()
    }

    fn call(number: libc::c_long, argument: libc::c_long) -> libc::c_long {
        // SAFETY: none of the calls below takes a pointer.
        unsafe { libc::syscall(number, argument, argument, 0, 0, 0, 0) }
    }

    const ALWAYS: [libc::c_long; 7] = [
        libc::SYS_exit,
        libc::SYS_futex,
        libc::SYS_madvise,
        libc::SYS_munmap,
        libc::SYS_rt_sigprocmask,
        libc::SYS_sigaltstack,
        libc::SYS_getppid,
    ];
    const SOME: [Call; 3] = [
        Call {
            number: libc::SYS_socket,
            argument: 0,
            is: Is::OneOf(&[libc::AF_INET, libc::AF_UNIX]),
        },
        Call { number: libc::SYS_unshare, argument: 0, is: Is::With(0x100) },
        Call { number: libc::SYS_umask, argument: 0, is: Is::Without(0x5) },
    ];

    #[test]
    fn calls_are_refused_unless_allowed_with_their_arguments() {
        let answers = answers(
            || allow_only(&ALWAYS, &SOME),
            [
                || call(libc::SYS_getppid, 0),
                || call(libc::SYS_getuid, 0),
                // the type is invalid: the kernel's own error
                || call(libc::SYS_socket, libc::AF_UNIX.into()),
                || call(libc::SYS_socket, libc::AF_ALG.into()),
                || call(libc::SYS_unshare, 0x100), // passes the filter; the kernel may refuse
                || call(libc::SYS_unshare, 0),
                || call(libc::SYS_umask, 0o22),
                || call(libc::SYS_umask, 0o26),
                // getppid(2) as called by x32 programs, whose numbers have this bit.
                || call(libc::SYS_getppid | 0x4000_0000, 0),
            ],
        );
        let refused = Some(Errno::EPERM);
        let of_kernel = [None, Some(Errno::ESOCKTNOSUPPORT), Some(Errno::EINVAL)];
        let allowed: Vec<_> = [0, 2, 4, 6].map(|at: usize| answers[at]).to_vec();
        assert!(allowed.iter().all(|answer| of_kernel.contains(answer)), "{answers:?}");
        assert_eq!([1, 3, 5, 7, 8].map(|at: usize| answers[at]), [refused; 5]);
    }

    #[test]
    fn what_is_hidden_is_unknown_and_all_else_is_as_before() {
        let answers = answers(
            || hide(libc::SYS_getppid),
            [
                || call(libc::SYS_getppid, 0),
                || call(libc::SYS_getuid, 0),
                || {
                    std::net::UdpSocket::bind("127.0.0.1:0")
                        .map_or(-1, |socket| socket.as_raw_fd().into())
                },
            ],
        );
        assert_eq!(answers, [Some(Errno::ENOSYS), None, None]);
    }
}
