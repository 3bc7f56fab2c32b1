//! The subcommands of `cni-multi ipam` for a node of a cluster: the daemon, and one file for each
//! command of an operator.
//!
//! The commands ask etcd themselves, with the configuration of the node: they work while no daemon
//! does.

mod arguments;
mod blocks;
mod conflicts;
mod holders;
pub mod import;
mod isolate;
mod join;
mod metrics;
mod plan;
mod reclaim;
mod recover;
mod run_daemon;
mod session;

use clap::{ArgMatches, Command};

use super::conf::DEFAULT_DATA_DIR;
use super::node::CONFIGURATION;
use super::wire::SOCKET;
use crate::cni::env::Environment;
use crate::error::{Error, Result};
use crate::plugin::{IPAM, OperatorCommand};
use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE, Terms};
use crate::terminal::visible::visible;
use crate::terminal::{self, Streams};

/// The subcommands of `cni-multi ipam` that this plugin adds.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: IPAM, command_line: command, run, manual };

/// A subcommand.
struct Verb {
    name: &'static str,
    command: fn(Command) -> Command,
    run: fn(&ArgMatches) -> Result<String>,
    examples: Terms,
}

/// The subcommands beside the daemon.
const VERBS: [Verb; 7] = [
    Verb { name: "blocks", command: blocks::command, run: blocks::run, examples: blocks::EXAMPLES },
    Verb {
        name: "conflicts",
        command: conflicts::command,
        run: conflicts::run,
        examples: conflicts::EXAMPLES,
    },
    Verb {
        name: "reclaim",
        command: reclaim::command,
        run: reclaim::run,
        examples: reclaim::EXAMPLES,
    },
    Verb {
        name: "recover",
        command: recover::command,
        run: recover::run,
        examples: recover::EXAMPLES,
    },
    Verb {
        name: "metrics",
        command: metrics::command,
        run: metrics::run,
        examples: metrics::EXAMPLES,
    },
    Verb {
        name: "isolate",
        command: isolate::command,
        run: isolate::run,
        examples: isolate::EXAMPLES,
    },
    Verb { name: "join", command: join::command, run: join::run, examples: join::EXAMPLES },
];

const DAEMON: &str = "daemon";

const FILES: Terms = &[
    (CONFIGURATION, "The node's part in a cluster: mode 0600."),
    (SOCKET, "Where the daemon listens."),
    (DEFAULT_DATA_DIR, "Leases and borrowed blocks."),
];

fn manual(verb: &str) -> Manual {
    let examples = find(verb).map_or(run_daemon::EXAMPLES, |verb| verb.examples);
    Manual { examples, files: FILES, exit_status: SUCCESS_FAILURE_OR_USAGE, ..Manual::EMPTY }
}

fn find(verb: &str) -> Option<&'static Verb> {
    VERBS.iter().find(|known| known.name == verb)
}

fn command() -> Command {
    let daemon = run_daemon::command(Command::new(DAEMON));
    let verbs = VERBS.iter().map(|verb| (verb.command)(Command::new(verb.name)));
    Command::new(IPAM).subcommand(daemon).subcommands(verbs)
}

fn run(matches: &ArgMatches, env: &Environment, io: &mut Streams<'_>) -> u8 {
    let Some((name, matches)) = matches.subcommand() else { return 2 }; // clap requires one
    match find(name) {
        Some(verb) => report((verb.run)(matches), io),
        None => run_daemon::run(matches, env),
    }
}

fn report(done: Result<String>, io: &mut Streams<'_>) -> u8 {
    let Err(error) = done.and_then(|text| terminal::print(io.stdout, &text)) else { return 0 };
    complain(&error, io);
    1
}

/// The message on one line and what to do on the next.
fn complain(error: &Error, io: &mut Streams<'_>) {
    let _ = writeln!(io.stderr, "{}", visible(&error.msg)); // the status reports it too
    let details = error.details();
    if !details.is_empty() {
        let _ = writeln!(io.stderr, "{}", visible(&details));
    }
}
