//! Counts the processes and threads that a call starts, and their peak memory, with ptrace.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use cni_multi::sys::process::Ended;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::Result;
use crate::namespaces::SCRATCH;
use crate::process::Invocation;
use crate::tracer::{self, Trace};

/// Runs the call under trace; returns its stdout if it succeeded.
pub fn run(invocation: &Invocation) -> Result<(Trace, String)> {
    let root = start(invocation)?;
    let (trace, ended) = tracer::follow(root).map_err(|e| format!("trace a process: {e}"))?;
    let stdout = std::fs::read_to_string(format!("{SCRATCH}/traced.stdout")).unwrap_or_default();
    if ended == Ended::Exited(0) {
        Ok((trace, stdout))
    } else {
        Err(format!("{} failed under trace: {stdout}", invocation.describe()))
    }
}

/// Starts the program, stopped at its first instruction.
pub fn start(invocation: &Invocation) -> Result<Pid> {
    let open = |kind: &str| format!("{SCRATCH}/traced.{kind}");
    let create =
        |kind: &str| File::create(open(kind)).map_err(|e| format!("create {:?}: {e}", open(kind)));
    std::fs::write(open("stdin"), &invocation.stdin)
        .map_err(|e| format!("write {:?}: {e}", open("stdin")))?;
    let stdin = File::open(open("stdin")).map_err(|e| format!("open {:?}: {e}", open("stdin")))?;
    let mut command = Command::new(&invocation.program);
    command
        .args(&invocation.args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.envs(invocation.env.iter().map(|(name, value)| (name, value)));
    command.stdin(stdin).stdout(create("stdout")?).stderr(Stdio::null());
    // SAFETY: the closure makes system calls and nothing else.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    let child = command.spawn().map_err(|e| format!("start {}: {e}", invocation.describe()))?;
    let id = i32::try_from(child.id()).map_err(|e| format!("process id: {e}"))?;
    Ok(Pid::from_raw(id))
}
