//! Creates a tap in another SELinux context. A process changes its context when it executes a
//! program (see /proc/[pid]/attr/exec in proc(5)), so this binary executes itself to create the
//! interface.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

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
    set_next_context(context).map_err(|e| refused(context, &e))?;
    let again = execute_again(spec);
    let output =
        again.map_err(|e| Error::io("execute this program in another SELinux context", &e))?;
    if output.status.success() { Ok(()) } else { Err(uncreated(&output.stderr, context)) }
}

fn uncreated(stderr: &[u8], context: &str) -> Error {
    let reason = String::from_utf8_lossy(stderr);
    Error::new(Code::KERNEL, reason.trim_end())
        .with_details(format_args!("in SELinux context {context:?}"))
}

fn set_next_context(context: &str) -> io::Result<()> {
    if !fs::exists(SELINUX).unwrap_or(false) {
        return Err(io::Error::other("the host runs no SELinux"));
    }
    fs::write(NEXT_CONTEXT, context)
}

fn refused(context: &str, error: &io::Error) -> Error {
    Error::config("selinuxContext", format_args!("{context:?} is refused: {error}"))
        .with_details("expected a context of this host's policy; without SELinux there is none")
}

fn execute_again(spec: &TapSpec) -> io::Result<Output> {
    Command::new("/proc/self/exe")
        .arg0("cni-multi")
        .args(arguments(spec))
        .stdin(Stdio::null())
        .output()
}

fn arguments(spec: &TapSpec) -> Vec<OsString> {
    let mut arguments = vec![NAME.to_owned(), format!("--name={}", spec.name)];
    arguments.extend(spec.owner.map(|owner| format!("--owner={owner}")));
    arguments.extend(spec.group.map(|group| format!("--group={group}")));
    arguments.extend(spec.multi_queue.then(|| "--multi-queue".to_owned()));
    arguments.into_iter().map(OsString::from).collect()
}

/// The command line of [`create_tap`]'s second execution.
fn command() -> clap::Command {
    clap::Command::new(NAME)
        .hide(true)
        .arg(Arg::new("name").long("name").required(true))
        .arg(id("owner"))
        .arg(id("group"))
        .arg(Arg::new("multi-queue").long("multi-queue").action(ArgAction::SetTrue))
}

fn id(name: &'static str) -> Arg {
    Arg::new(name).long(name).value_parser(clap::value_parser!(u32))
}

/// The tap that the [`arguments`] describe.
fn spec_of(matches: &ArgMatches) -> TapSpec {
    TapSpec {
        name: matches.get_one::<String>("name").cloned().unwrap_or_default(),
        owner: matches.get_one("owner").copied(),
        group: matches.get_one("group").copied(),
        multi_queue: matches.get_flag("multi-queue"),
    }
}

/// The second execution: creates the tap. Returns the exit status and prints the reason to stderr.
fn run(matches: &ArgMatches, _: &Environment, io: &mut Streams<'_>) -> u8 {
    match tuntap::create_tap(&spec_of(matches)) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(io.stderr, "{error}"); // the status reports it too
            1
        }
    }
}
