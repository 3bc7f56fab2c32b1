//! Starts a process and measures its cost.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Result;
use crate::namespaces::SCRATCH;

/// What to run: program, arguments, environment and standard input.
#[derive(Clone)]
pub struct Invocation {
    pub program: PathBuf,
    pub args: Vec<String>,
    pub env: Vec<(String, String)>,
    pub stdin: String,
}

impl Invocation {
    pub fn new(program: impl Into<PathBuf>) -> Invocation {
        Invocation { program: program.into(), args: vec![], env: vec![], stdin: String::new() }
    }

    /// The same call, wrapped in another program (`perf stat … --`).
    pub fn under(&self, wrapper: &[String]) -> Invocation {
        let mut args = wrapper[1..].to_vec();
        args.push(self.program.to_string_lossy().into_owned());
        args.extend(self.args.iter().cloned());
        Invocation { program: PathBuf::from(&wrapper[0]), args, ..self.clone() }
    }

    /// The plugin and the command, for messages.
    pub fn describe(&self) -> String {
        let command =
            self.env.iter().find(|(name, _)| name == "CNI_COMMAND").map_or("", |(_, value)| value);
        format!("{} {command}", self.program.display())
    }
}

/// The cost of a process, including every child it waited for.
#[derive(Clone, Copy, Default)]
pub struct Sample {
    pub wall: Duration,
    pub cpu: Duration,
    /// Page faults that needed no disk.
    pub faults: u64,
}

impl std::ops::AddAssign for Sample {
    fn add_assign(&mut self, other: Sample) {
        self.wall += other.wall;
        self.cpu += other.cpu;
        self.faults += other.faults;
    }
}

/// How a process ended.
pub struct Ended {
    pub pid: libc::pid_t,
    pub success: bool,
    pub cpu: Duration,
    pub faults: u64,
}

/// An invocation with everything allocated in advance, so that the timing covers only the process
/// itself.
pub struct Prepared {
    program: CString,
    argv: Vec<CString>,
    envp: Vec<CString>,
    stdin: CString,
    stdout: CString,
    stderr: CString,
    what: String,
}

impl Prepared {
    /// Prepares the invocation; `slot` separates the files of processes that run at the same time.
    pub fn new(invocation: &Invocation, slot: usize) -> Result<Prepared> {
        let file = |kind: &str| format!("{SCRATCH}/{slot}.{kind}");
        std::fs::write(file("stdin"), &invocation.stdin)
            .map_err(|e| format!("write {:?}: {e}", file("stdin")))?;
        let program = text(invocation.program.to_string_lossy().as_ref())?;
        let mut argv = vec![program.clone()];
        for arg in &invocation.args {
            argv.push(text(arg)?);
        }
        let mut envp = vec![];
        if invocation.env.iter().all(|(name, _)| name != "PATH") {
            envp.push(text(&format!("PATH={}", std::env::var("PATH").unwrap_or_default()))?);
        }
        for (name, value) in &invocation.env {
            envp.push(text(&format!("{name}={value}"))?);
        }
        Ok(Prepared {
            program,
            argv,
            envp,
            stdin: text(&file("stdin"))?,
            stdout: text(&file("stdout"))?,
            stderr: text(&file("stderr"))?,
            what: invocation.describe(),
        })
    }

    /// Runs the process to its end, timed from just before the spawn to just after the wait.
    pub fn run(&self) -> Result<(Sample, String)> {
        let actions = self.redirections()?;
        let started = Instant::now();
        let pid = self.spawn_with(&actions)?;
        let ended = wait(pid)?;
        let wall = started.elapsed();
        Ok((Sample { wall, cpu: ended.cpu, faults: ended.faults }, self.output(ended.success)?))
    }

    /// Starts the process without waiting for it.
    pub fn spawn(&self) -> Result<libc::pid_t> {
        self.spawn_with(&self.redirections()?)
    }

    /// The stdout of the process, or why it failed.
    pub fn output(&self, success: bool) -> Result<String> {
        let read = |path: &CString| {
            std::fs::read_to_string(path.to_string_lossy().as_ref()).unwrap_or_default()
        };
        let stdout = read(&self.stdout);
        if success {
            Ok(stdout)
        } else {
            Err(format!("{} failed: {stdout} {}", self.what, read(&self.stderr)))
        }
    }

    /// What the process has written to stderr.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(self.stderr.to_string_lossy().as_ref()).unwrap_or_default()
    }

    fn redirections(&self) -> Result<FileActions> {
        let mut actions = FileActions::new()?;
        actions.open(0, &self.stdin, libc::O_RDONLY)?;
        actions.open(1, &self.stdout, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC)?;
        actions.open(2, &self.stderr, libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC)?;
        Ok(actions)
    }

    /// Spawns the process. glibc and musl use vfork here, so the benchmark's own size does not
    /// count.
    fn spawn_with(&self, actions: &FileActions) -> Result<libc::pid_t> {
        let argv = pointers(&self.argv);
        let envp = pointers(&self.envp);
        let mut pid = 0;
        // SAFETY: every pointer is to a value that lives until the call returns, both arrays end
        // with null.
        let code = unsafe {
            libc::posix_spawn(
                &raw mut pid,
                self.program.as_ptr(),
                &raw const actions.0,
                std::ptr::null(),
                argv.as_ptr(),
                envp.as_ptr(),
            )
        };
        if code == 0 {
            Ok(pid)
        } else {
            Err(format!("start {}: {}", self.what, std::io::Error::from_raw_os_error(code)))
        }
    }
}

/// Waits for one process (-1: the first to end) and reads its resource usage, including the
/// children that it waited for.
pub fn wait(pid: libc::pid_t) -> Result<Ended> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to locals of the right type.
    let pid = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
    if pid < 0 {
        return Err(format!("wait for a child: {}", std::io::Error::last_os_error()));
    }
    // SAFETY: all zeroes is a valid rusage, and wait4 has succeeded in filling it.
    let usage = unsafe { usage.assume_init() };
    let success = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
    let cpu = duration(usage.ru_utime) + duration(usage.ru_stime);
    Ok(Ended { pid, success, cpu, faults: usage.ru_minflt.unsigned_abs() })
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_micros(time.tv_sec.unsigned_abs() * 1_000_000 + time.tv_usec.unsigned_abs())
}

fn text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|e| format!("{text:?}: {e}"))
}

fn pointers(strings: &[CString]) -> Vec<*mut libc::c_char> {
    strings
        .iter()
        .map(|s| s.as_ptr().cast_mut())
        .chain(std::iter::once(std::ptr::null_mut()))
        .collect()
}

/// The redirections of a spawn.
struct FileActions(libc::posix_spawn_file_actions_t);

impl FileActions {
    fn new() -> Result<FileActions> {
        let mut actions = std::mem::MaybeUninit::uninit();
        // SAFETY: the pointer is to a local of the right type.
        let code = unsafe { libc::posix_spawn_file_actions_init(actions.as_mut_ptr()) };
        check(code, "prepare a spawn")?;
        // SAFETY: init has succeeded, so the value is set up.
        Ok(FileActions(unsafe { actions.assume_init() }))
    }

    fn open(&mut self, fd: i32, path: &CString, flags: i32) -> Result<()> {
        // SAFETY: the value is set up, and the path is copied during the call.
        let code = unsafe {
            libc::posix_spawn_file_actions_addopen(&raw mut self.0, fd, path.as_ptr(), flags, 0o600)
        };
        check(code, "redirect a spawn")
    }
}

impl Drop for FileActions {
    fn drop(&mut self) {
        // SAFETY: the value is set up and is not used again.
        unsafe { libc::posix_spawn_file_actions_destroy(&raw mut self.0) };
    }
}

fn check(code: i32, what: &str) -> Result<()> {
    if code == 0 {
        Ok(())
    } else {
        Err(format!("{what}: {}", std::io::Error::from_raw_os_error(code)))
    }
}

/// The first file of this name in PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| Path::is_file(file))
}
