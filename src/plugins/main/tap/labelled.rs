//! Creates a tap in another SELinux context. A process changes its context when it executes a
//! program (see /proc/[pid]/attr/exec in proc(5)), so this binary executes itself to create the
//! interface.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use clap::{Arg, ArgAction, ArgMatches};

use crate::cni::env::Environment;
use crate::error::{Code, Error, Result};
use crate::net::tuntap::{self, TapSpec};
use crate::plugin::OperatorCommand;
use crate::terminal::Streams;
use crate::terminal::manual::Manual;

/// The name of the internal command that the second execution runs; hidden from the help.
const NAME: &str = "create-tap";
/// The internal command.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: NAME, command_line: command, run, manual: |_| Manual::EMPTY };
/// The directory that exists on a host with SELinux.
const SELINUX: &str = "/sys/fs/selinux";
/// The file that sets the context of the next program this thread executes.
const NEXT_CONTEXT: &str = "/proc/thread-self/attr/exec";

/// Creates the tap in the namespace of this thread. The context stays set for every program that
/// the thread executes, and the thread ends soon.
pub fn create_tap(spec: &TapSpec, context: &str) -> Result<()> {
    let set = match fs::exists(SELINUX).unwrap_or(false) {
        true => fs::write(NEXT_CONTEXT, context),
        false => Err(io::Error::other("the host runs no SELinux")),
    };
    set.map_err(|e| {
        Error::config("selinuxContext", format_args!("{context:?} is refused: {e}"))
            .with_details("expected a context of this host's policy; without SELinux there is none")
    })?;
    let output = Command::new("/proc/self/exe")
        .arg0("cni-multi")
        .args([NAME.to_owned(), format!("--name={}", spec.name)])
        .args(spec.owner.map(|owner| format!("--owner={owner}")))
        .args(spec.group.map(|group| format!("--group={group}")))
        .args(spec.multi_queue.then_some("--multi-queue"))
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Error::io("execute this program in another SELinux context", &e))?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    Err(Error::new(Code::KERNEL, reason.trim_end())
        .with_details(format_args!("in SELinux context {context:?}")))
}

/// The command line of [`create_tap`]'s second execution.
fn command() -> clap::Command {
    let id = |name| Arg::new(name).long(name).value_parser(clap::value_parser!(u32));
    clap::Command::new(NAME)
        .hide(true)
        .arg(Arg::new("name").long("name").required(true))
        .args([id("owner"), id("group")])
        .arg(Arg::new("multi-queue").long("multi-queue").action(ArgAction::SetTrue))
}

/// The second execution: creates the tap. Returns the exit status and prints the reason to stderr.
fn run(matches: &ArgMatches, _: &Environment, io: &mut Streams<'_>) -> u8 {
    let spec = TapSpec {
        name: matches.get_one::<String>("name").cloned().unwrap_or_default(),
        owner: matches.get_one("owner").copied(),
        group: matches.get_one("group").copied(),
        multi_queue: matches.get_flag("multi-queue"),
    };
    match tuntap::create_tap(&spec) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(io.stderr, "{error}"); // the status reports it too
            1
        }
    }
}
