//! Runs a call under ptrace and stops it before and after each system call, so that a test can
//! intervene.
//!
//! Counting starts with the program itself, not with the commands that enter its namespace, and
//! covers all its threads and child processes. The numbers are valid for one run: thread scheduling
//! may order the calls differently in the next run.

pub mod old_calls;
mod registers;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, Metadata};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Event, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use self::registers::{Registers, is_entry};
use super::call::{Call, Outcome};
use super::programs::located;

/// A stop at the entry or the exit of a system call.
pub struct Stop {
    /// 1 for the first call of the program.
    pub number: usize,
    /// As in `libc::SYS_*`.
    pub call: i64,
    pub args: [u64; 6],
    /// None at the entry; at the exit the return value, a negative errno on failure.
    pub result: Option<i64>,
    /// Whether the program itself makes the call, not a program that it has started.
    pub is_own: bool,
    task: Pid,
}

/// What to do with the call at which the tracer has stopped, or with the processes.
pub enum Then {
    Go,
    /// Makes the call return this value, a negative errno for a failure. At the entry, the call is
    /// also skipped.
    Answer(i64),
    /// Sends SIGKILL to every process.
    Kill,
    /// Sends SIGKILL to the program alone; the processes that it has started live on.
    KillProgram,
}

impl Then {
    /// Fails the call that is about to be made.
    pub fn fail(errno: Errno) -> Then {
        Then::Answer(-i64::from(errno as i32))
    }
}

/// The result of a traced call.
pub struct Traced {
    /// The number of system calls.
    pub calls: usize,
    pub killed: bool,
    pub outcome: Outcome,
}

/// Whether a process is blocked on the lock (flock) of this file.
pub fn is_waited_for(lock: &Path) -> bool {
    let Ok(lock) = std::fs::metadata(lock) else { return false };
    let place = place_in_locks(&lock);
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|line| line.contains("->") && line.contains(&place))
}

/// How /proc/locks names the file: files of other labs have the same number.
pub fn place_in_locks(file: &Metadata) -> String {
    let (major, minor) = (libc::major(file.dev()), libc::minor(file.dev()));
    format!(" {major:02x}:{minor:02x}:{} ", file.ino())
}

impl Stop {
    /// Up to `length` bytes of the program's memory.
    pub fn memory(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let read = self
            .open_memory(false)
            .and_then(|memory| memory.read_at(&mut bytes, address))
            .unwrap_or_default();
        bytes.truncate(read);
        bytes
    }

    pub fn set_memory(&self, address: u64, bytes: &[u8]) {
        self.open_memory(true).unwrap().write_all_at(bytes, address).unwrap();
    }

    fn open_memory(&self, write: bool) -> std::io::Result<File> {
        File::options().read(true).write(write).open(format!("/proc/{}/mem", self.task))
    }

    /// The path or other string to which an argument points.
    pub fn text(&self, arg: usize) -> String {
        let bytes = self.memory(self.args[arg], 4096);
        String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
            .into_owned()
    }

    /// The target of a file descriptor as /proc shows it: a path, or `socket:[7]`.
    pub fn descriptor(&self, arg: usize) -> String {
        let link = std::fs::read_link(format!("/proc/{}/fd/{}", self.task, self.args[arg]));
        link.map(|target| target.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Whether a file descriptor refers to a directory.
    pub fn is_directory(&self, arg: usize) -> bool {
        std::fs::metadata(format!("/proc/{}/fd/{}", self.task, self.args[arg]))
            .is_ok_and(|file| file.is_dir())
    }

    /// The call's name and its object, for messages.
    pub fn describe(&self) -> String {
        let Some((name, object, _)) = known(self.call) else {
            return format!("call {}", self.call);
        };
        let about = match object {
            Object::Nothing => String::new(),
            Object::Path(arg) => self.text(arg),
            Object::Paths(from, to) => format!("{} {}", self.text(from), self.text(to)),
            Object::Descriptor => self.descriptor(0),
            Object::Message => format!("message of type {}", self.netlink_type()),
        };
        format!("{} ({about})", name.trim_start_matches("SYS_"))
    }

    /// The type of the first netlink message sent.
    pub fn netlink_type(&self) -> u16 {
        match self.memory(self.args[1], 6)[..] {
            [_, _, _, _, low, high] => u16::from_le_bytes([low, high]),
            _ => 0,
        }
    }

    /// Whether the data sent starts with a netlink header. No other message of ours starts with
    /// bytes that match its length.
    pub fn is_netlink(&self) -> bool {
        let header = self.memory(self.args[1], 4);
        let length = header.try_into().map_or(0, u32::from_ne_bytes);
        (16..=self.args[2]).contains(&length.into())
    }

    /// Whether the call may change the kernel or the disk. A kill at any point between two such
    /// calls has the same effect.
    pub fn changes(&self) -> bool {
        match self.call {
            libc::SYS_openat => self.args[2] & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0,
            old_calls::SYS_open => self.args[1] & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0,
            libc::SYS_sendto => !is_question(self.netlink_type()),
            libc::SYS_write | libc::SYS_writev | libc::SYS_pwrite64 => {
                !self.descriptor(0).starts_with("pipe:")
            }
            call => known(call).is_some_and(|(_, _, changes)| changes),
        }
    }
}

/// Runs the call; `decide` is called at each stop.
pub fn trace(call: &Call, decide: impl FnMut(&Stop) -> Then + Send) -> Traced {
    // ptrace and wait work per thread: this thread's only children are those of the call, and no
    // other code waits for them.
    std::thread::scope(|scope| scope.spawn(|| run(call, decide)).join().unwrap())
}

#[allow(clippy::zombie_processes)] // `follow` waits for it and for all that it starts
fn run(call: &Call, decide: impl FnMut(&Stop) -> Then) -> Traced {
    let mut child = start(call);
    let mut stdin = child.stdin.take().unwrap();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = stdin.write_all(&call.stdin); // it may be killed before it reads
        });
        let printed = scope.spawn(move || read(&mut stdout));
        let told = scope.spawn(move || read(&mut stderr));
        let root = Pid::from_raw(child.id().cast_signed());
        let mut tracer = Tracer {
            root,
            program: call.program.to_str().unwrap(),
            decide,
            calls: 0,
            killed: false,
            places: BTreeMap::from([(root, Place::Outside)]),
            processes: BTreeSet::from([root]),
            own: BTreeMap::new(),
        };
        let status = tracer.follow();
        Traced {
            calls: tracer.calls,
            killed: tracer.killed,
            outcome: Outcome {
                status: status.code().unwrap_or(-1),
                stdout: printed.join().unwrap(),
                stderr: told.join().unwrap(),
            },
        }
    })
}

fn read(pipe: &mut impl std::io::Read) -> String {
    let mut bytes = vec![];
    pipe.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Starts a process that stops itself, so that tracing starts there.
fn start(call: &Call) -> Child {
    let mut command = Command::new(located("sh"));
    command
        .args(["-c", "kill -STOP $$; exec \"$@\"", "sh"])
        .args(&call.wrapper)
        .arg(&call.program)
        .args(&call.args);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).envs(&call.env);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The position of a task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before the exec of the program under test.
    Outside,
    /// At the end of the execve that has started it.
    Starting,
    /// Between two system calls.
    Between,
    /// In a system call.
    Inside(Entered),
}

/// A system call that a task is in. Its exit no longer has its arguments everywhere.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entered {
    number: usize,
    call: i64,
    args: [u64; 6],
    /// The tracer's return value if it overrides the kernel's.
    answer: Option<i64>,
}

struct Tracer<'a, D> {
    root: Pid,
    program: &'a str,
    decide: D,
    calls: usize,
    killed: bool,
    places: BTreeMap<Pid, Place>,
    processes: BTreeSet<Pid>,
    own: BTreeMap<Pid, bool>,
}

impl<D: FnMut(&Stop) -> Then> Tracer<'_, D> {
    fn follow(&mut self) -> ExitStatus {
        waitpid(self.root, Some(WaitPidFlag::WUNTRACED)).unwrap();
        let births = Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK;
        let others = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL;
        ptrace::seize(self.root, births | others).unwrap();
        kill(self.root, Signal::SIGCONT).unwrap();
        let mut status = ExitStatus::from_raw(0);
        loop {
            // Ignore the children of other threads, which run other tests.
            match waitpid(Pid::from_raw(-1), Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
                Err(Errno::EINTR) => (),
                Err(Errno::ECHILD) => return status,
                Err(e) => panic!("wait for a traced process: {e}"),
                Ok(WaitStatus::Exited(task, code)) if task == self.root => {
                    status = ExitStatus::from_raw(code << 8)
                }
                Ok(WaitStatus::Signaled(task, signal, _)) if task == self.root => {
                    status = ExitStatus::from_raw(signal as i32);
                }
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => (),
                Ok(stopped) => self.on_stop(stopped),
            }
        }
    }

    fn on_stop(&mut self, stopped: WaitStatus) {
        let Some(task) = stopped.pid() else { return };
        let mut signal = None;
        match stopped {
            WaitStatus::PtraceSyscall(_) => self.on_syscall(task),
            WaitStatus::PtraceEvent(_, _, event) if event == Event::PTRACE_EVENT_EXEC as i32 => {
                self.on_exec(task)
            }
            WaitStatus::PtraceEvent(_, _, event) if event != Event::PTRACE_EVENT_STOP as i32 => {
                self.on_birth(task, event)
            }
            WaitStatus::Stopped(_, of) => signal = Some(of),
            _ => (), // a new task's first stop, or a group stop
        }
        // The task may have been killed meanwhile.
        let _ = if self.place(task) == Place::Outside {
            ptrace::cont(task, signal)
        } else {
            ptrace::syscall(task, signal)
        };
    }

    /// The first stop of a task may come before or after the event of its creation; it starts in
    /// its parent's position.
    fn place(&mut self, task: Pid) -> Place {
        let begun = self.places.values().any(|place| *place != Place::Outside);
        *self.places.entry(task).or_insert(if begun { Place::Between } else { Place::Outside })
    }

    /// Read from /proc once per task.
    fn is_own(&mut self, task: Pid) -> bool {
        let root = format!("Tgid:\t{}", self.root);
        *self.own.entry(task).or_insert_with(|| {
            let status =
                std::fs::read_to_string(format!("/proc/{task}/status")).unwrap_or_default();
            status.lines().any(|line| line == root)
        })
    }

    fn on_birth(&mut self, parent: Pid, event: i32) {
        if event != Event::PTRACE_EVENT_CLONE as i32
            && let Ok(born) = ptrace::getevent(parent)
        {
            self.processes.insert(Pid::from_raw(born as i32));
        }
    }

    fn on_exec(&mut self, task: Pid) {
        let line = std::fs::read(format!("/proc/{task}/cmdline")).unwrap_or_default();
        let is_it = line.split(|byte| *byte == 0).next() == Some(self.program.as_bytes());
        if is_it && self.place(task) == Place::Outside {
            // The execve that started the program is not one of its calls.
            self.places.insert(task, Place::Starting);
        }
    }

    fn on_syscall(&mut self, task: Pid) {
        let (Ok(is_entry), Ok(registers)) = (is_entry(task), Registers::of(task)) else {
            return; // killed meanwhile
        };
        match self.place(task) {
            // A new task first returns from the clone that created it.
            Place::Between | Place::Outside if !is_entry => (),
            Place::Between | Place::Outside => self.on_entry(task, registers),
            Place::Starting => drop(self.places.insert(task, Place::Between)),
            Place::Inside(entered) => self.on_exit(task, registers, entered),
        }
    }

    fn on_entry(&mut self, task: Pid, mut registers: Registers) {
        self.calls += 1;
        let mut entered = Entered {
            number: self.calls,
            call: registers.call(),
            args: registers.args(),
            answer: None,
        };
        let then = self.ask(task, entered, None);
        // The task may have been killed meanwhile.
        match then {
            Then::Answer(answer) => {
                let _ = registers.skip();
                entered.answer = Some(answer);
            }
            Then::Kill | Then::KillProgram => {
                let _ = registers.skip();
                self.kill(matches!(then, Then::Kill));
            }
            Then::Go => (),
        }
        self.places.insert(task, Place::Inside(entered));
    }

    fn on_exit(&mut self, task: Pid, mut registers: Registers, entered: Entered) {
        self.places.insert(task, Place::Between);
        let answer = entered.answer.unwrap_or(registers.answer());
        let then = self.ask(task, entered, Some(answer));
        if let Then::Kill | Then::KillProgram = then {
            return self.kill(matches!(then, Then::Kill));
        }
        registers.set_answer(if let Then::Answer(other) = then { other } else { answer });
        let _ = registers.write(); // it may have been killed meanwhile
    }

    fn ask(&mut self, task: Pid, entered: Entered, result: Option<i64>) -> Then {
        let Entered { number, call, args, .. } = entered;
        let is_own = self.is_own(task);
        (self.decide)(&Stop { number, call, args, result, is_own, task })
    }

    fn kill(&mut self, all: bool) {
        self.killed = true;
        for process in self.processes.iter().filter(|process| all || **process == self.root) {
            let _ = kill(*process, Signal::SIGKILL); // it may have ended
        }
    }
}

/// Whether a netlink message of this type only reads: every fourth type of rtnetlink (RTM_GET…),
/// NFT_MSG_GET…, and IPCTNL_MSG_CT_GET.
fn is_question(kind: u16) -> bool {
    const CONNTRACK: u16 = 1;
    const NFTABLES: u16 = 10;
    match (kind >> 8, kind & 0xff) {
        (0, message) => message >= 16 && message % 4 == 2,
        (CONNTRACK, message) => message == 1,
        (NFTABLES, message) => [1, 4, 7, 10, 13, 16, 19, 22].contains(&message),
        _ => false,
    }
}

/// What a system call is about, by the numbers of its arguments.
#[derive(Clone, Copy)]
enum Object {
    Nothing,
    Path(usize),
    Paths(usize, usize),
    /// That of the first argument.
    Descriptor,
    Message,
}

/// The name of a system call that our programs make, its object, and whether each such call may change something.
fn known(call: i64) -> Option<(&'static str, Object, bool)> {
    use self::Object::*;
    mod numbers {
        pub use super::old_calls::*;
        pub use libc::*;
    }
    macro_rules! of {
        ($($object:expr, $changes:literal: $($number:ident)*;)*) => {
            match call {
                $($(numbers::$number => Some((stringify!($number), $object, $changes)),)*)*
                _ => None,
            }
        };
    }
    of! {
        Path(0), true: SYS_unlink SYS_mkdir SYS_rename SYS_execve;
        Path(0), false: SYS_open;
        Path(1), true: SYS_unlinkat SYS_mkdirat;
        Path(1), false: SYS_openat SYS_newfstatat;
        Paths(0, 1), true: SYS_link;
        Paths(1, 3), true: SYS_renameat SYS_renameat2 SYS_linkat;
        Descriptor, true: SYS_ioctl SYS_ftruncate;
        Descriptor, false: SYS_read SYS_write SYS_flock;
        Message, false: SYS_sendto;
        Nothing, true: SYS_rmdir SYS_symlink SYS_symlinkat SYS_truncate SYS_chmod SYS_fchmod SYS_fchmodat SYS_mount SYS_umount2
            SYS_sendmsg SYS_sendmmsg SYS_fsync SYS_fdatasync SYS_kill SYS_setxattr SYS_utimensat SYS_fallocate;
        Nothing, false: SYS_writev SYS_pwrite64 SYS_close SYS_lseek SYS_fcntl SYS_fstat SYS_statx SYS_statfs SYS_fstatfs
            SYS_getdents64 SYS_readlink SYS_pipe2 SYS_dup2 SYS_poll SYS_socket SYS_bind SYS_connect SYS_setsockopt
            SYS_getsockname SYS_recvfrom SYS_recvmsg SYS_setns SYS_unshare SYS_clone SYS_clone3 SYS_wait4 SYS_exit
            SYS_exit_group SYS_mmap SYS_munmap SYS_mprotect SYS_brk SYS_madvise SYS_futex SYS_rt_sigaction
            SYS_rt_sigprocmask SYS_sigaltstack SYS_getrandom SYS_prctl SYS_prlimit64;
    }
}
