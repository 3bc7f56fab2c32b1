//! Which system calls a thread makes from now on, and those that it starts (seccomp(2)): the kernel
//! refuses all others.

use nix::errno::Errno;
use nix::libc::{
    self, BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter,
};

/// Where a filter finds the number of the call, the architecture that it is one of, and the first
/// of six arguments; of an argument the half that says something is the first one (`seccomp_data`
/// of linux/seccomp.h).
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

/// AUDIT_ARCH_* of linux/audit.h: the same number is another call elsewhere.
#[cfg(target_arch = "x86_64")]
const OWN_ARCHITECTURE: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
const OWN_ARCHITECTURE: Option<u32> = Some(0xc000_00b7);
/// Elsewhere no filter has been tried.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OWN_ARCHITECTURE: Option<u32> = None;

/// A call that is refused unless one of its arguments is as it has to be.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// SYS_* of the C library.
    pub number: libc::c_long,
    /// The argument that is looked at, from 0.
    pub argument: u32,
    /// What it has to be.
    pub is: Is,
}

/// What an argument has to be.
#[derive(Clone, Copy, Debug)]
pub enum Is {
    /// One of these.
    OneOf(&'static [libc::c_int]),
    /// A word with all of these bits, or with some.
    With(libc::c_int),
    /// A word without any of these bits.
    Without(libc::c_int),
}

/// Refuses all calls but these, for good. What is refused fails with EPERM, and the kernel's log of
/// audits has it.
///
/// This and [`hide`] take CAP_SYS_ADMIN or `no_new_privs`, and fail with ENOSYS where the numbers
/// of an architecture are not known.
pub fn allow_only(always: &[libc::c_long], some: &[Call]) -> Result<(), Errno> {
    let mut program = beginning()?;
    for number in always {
        program.extend([unless(BPF_JEQ, *number as u32, 1), answer(libc::SECCOMP_RET_ALLOW)]);
    }
    for call in some {
        let tests = tests(&call.is);
        program.push(unless(BPF_JEQ, call.number as u32, tests.len() as u8 + 1));
        program.push(load(ARGUMENTS + 8 * call.argument));
        program.extend(tests);
    }
    program.push(answer(REFUSE));
    install(&program, libc::SECCOMP_FILTER_FLAG_LOG)
}

/// Makes a call fail as in a kernel that has not got it, for what the C library tries first,
/// however often: no log has it.
pub fn hide(number: libc::c_long) -> Result<(), Errno> {
    let mut program = beginning()?;
    program.extend([
        unless(BPF_JEQ, number as u32, 1),
        answer(libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    ]);
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    install(&program, 0)
}

/// Of several filters the kernel does what the strictest says.
fn install(program: &[sock_filter], flags: libc::c_ulong) -> Result<(), Errno> {
    let len = u16::try_from(program.len()).map_err(|_| Errno::EINVAL)?;
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel reads a sock_fprog and the `len` instructions that it points to, and keeps
    // a copy.
    let set = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    Errno::result(set).map(drop)
}

const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;

/// Refuses what is of another architecture, and loads the number of the call.
fn beginning() -> Result<Vec<sock_filter>, Errno> {
    let own = OWN_ARCHITECTURE.ok_or(Errno::ENOSYS)?;
    Ok(vec![load(ARCHITECTURE), when(BPF_JEQ, own, 1), answer(REFUSE), load(NUMBER)])
}

/// What decides about an argument that has been loaded.
fn tests(is: &Is) -> Vec<sock_filter> {
    let allow = answer(libc::SECCOMP_RET_ALLOW);
    let refuse = answer(REFUSE);
    match is {
        Is::OneOf(values) => {
            let one = |value: &libc::c_int| [unless(BPF_JEQ, *value as u32, 1), allow];
            values.iter().flat_map(one).chain([refuse]).collect()
        }
        Is::With(bits) => vec![unless(BPF_JSET, *bits as u32, 1), allow, refuse],
        Is::Without(bits) => vec![unless(BPF_JSET, *bits as u32, 1), refuse, allow],
    }
}

fn load(at: u32) -> sock_filter {
    sock_filter { code: (BPF_LD | BPF_W | BPF_ABS) as u16, jt: 0, jf: 0, k: at }
}

/// Passes over so many instructions where the test is met.
fn when(test: u32, k: u32, over: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt: over, jf: 0, k }
}

/// Passes over so many instructions where the test is not met.
fn unless(test: u32, k: u32, over: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt: 0, jf: over, k }
}

fn answer(k: u32) -> sock_filter {
    sock_filter { code: (BPF_RET | BPF_K) as u16, jt: 0, jf: 0, k }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    /// The answers to a call as the kernel gives them to a thread that has the filter, and ends
    /// then.
    fn answers<const N: usize>(
        install: fn() -> Result<(), Errno>,
        calls: [fn() -> libc::c_long; N],
    ) -> [Option<Errno>; N] {
        let confined = move || {
            // SAFETY: the option has no pointer.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
            install().unwrap();
            calls.map(|call| Errno::result(call()).err())
        };
        std::thread::spawn(confined).join().unwrap()
    }

    fn call(number: libc::c_long, argument: libc::c_long) -> libc::c_long {
        // SAFETY: none of the calls below has a pointer.
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
    fn calls_are_refused_unless_they_and_their_arguments_are_allowed() {
        let answers = answers(
            || allow_only(&ALWAYS, &SOME),
            [
                || call(libc::SYS_getppid, 0),
                || call(libc::SYS_getuid, 0),
                // its type is none: the kernel's own answer
                || call(libc::SYS_socket, libc::AF_UNIX.into()),
                || call(libc::SYS_socket, libc::AF_ALG.into()),
                || call(libc::SYS_unshare, 0x100), // the thread's own, of which it makes one anew
                || call(libc::SYS_unshare, 0),
                || call(libc::SYS_umask, 0o22),
                || call(libc::SYS_umask, 0o26),
                // As 32-bit programs say getppid(2), and x32 ones, whose numbers have this bit.
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
