//! `cni-multi doctor`: looks for what is wrong on this machine.

mod selftest;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::cni::env::Environment;
use crate::error::{Error, Result};
use crate::plugin::Entry;
use crate::terminal::Streams;
use crate::terminal::manual::Manual;
use crate::terminal::visible::visible;

/// Its page of the manual.
pub const MANUAL: Manual = Manual {
    description: &[
        "The namespaces are those of a host, of a machine outside and of containers. Two containers \
         ping each other, a published port is reached from outside, a rate is measured, an ADD fails \
         and another is killed; then each plugin is attached, checked with packets and detached. \
         Nothing of it reaches the machine's own network, but for modules that the kernel loads: \
         those of dummy and ifb make dummy0, ifb0 and ifb1 there.",
        "Where reference plugins are installed, a chain is run by both, side by side.",
    ],
    examples: &[
        ("cni-multi doctor --selftest", "Try every plugin on this kernel."),
        ("cni-multi doctor --selftest -o json", "The same, for a program."),
    ],
    exit_status: &[
        ("0", "Everything works that this kernel has."),
        ("1", "A check failed, or the kernel refuses namespaces."),
        ("2", "The command line is invalid."),
    ],
    files: &[("/opt/cni/bin", "Where reference plugins may be.")],
    environment: &[
        ("CNI_PATH", "Directories in which reference plugins are looked for first."),
        ("NO_COLOR", "No colour, if it is not empty."),
    ],
    see_also: &["namespaces(7)", "cni-multi-validate(1)"],
};

/// The command line.
pub fn command() -> Command {
    let selftest = Arg::new("selftest").long("selftest").action(ArgAction::SetTrue).required(true);
    let output = Arg::new("output").long("output").short('o').value_name("FORMAT");
    Command::new("doctor")
        .about("Try every plugin in throw-away namespaces")
        .arg(selftest.help("Attach, check with packets and detach each plugin; leaves nothing"))
        .arg(output.help("Output format: text or json [text]"))
}

/// Runs the command. Exit status 0: everything works that this kernel has; 1: something failed; 2:
/// the command line is wrong.
pub fn run(
    matches: &ArgMatches,
    plugins: &'static [Entry],
    env: &Environment,
    io: &mut Streams<'_>,
) -> u8 {
    let as_json = match wants_json(matches) {
        Ok(as_json) => as_json,
        Err(error) => return complain(&error, io, 2),
    };
    match selftest::run(plugins, env, as_json, io.stdout) {
        Ok(passed) => u8::from(!passed),
        Err(error) => complain(&error, io, 1),
    }
}

fn wants_json(matches: &ArgMatches) -> Result<bool> {
    match matches.get_one::<String>("output").map(String::as_str) {
        None | Some("text") => Ok(false),
        Some("json") => Ok(true),
        Some(_) => Err(Error::config("--output", "expected text or json")),
    }
}

fn complain(error: &Error, io: &mut Streams<'_>, status: u8) -> u8 {
    let details = error.details();
    let _ = writeln!(io.stderr, "{}", visible(&error.msg)); // the status says it too
    if !details.is_empty() {
        let _ = writeln!(io.stderr, "{}", visible(&details));
    }
    status
}
