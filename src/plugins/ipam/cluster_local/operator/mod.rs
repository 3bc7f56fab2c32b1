//! The subcommands of `cni-multi ipam` for a node of a cluster: the daemon, and one file for each
//! command of an operator.
//!
//! The commands ask the store themselves, with the configuration of the node: they work while no
//! daemon does.

mod blocks;
mod join;
mod reclaim;
mod recover;
mod run;

pub use self::join::claim;

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};

use super::conf::DEFAULT_DATA_DIR;
use super::daemon::identity::{self, Journal};
use super::node::CONFIGURATION;
use super::store::settings::Settings;
use super::store::{Outcome, Store};
use super::wire::{DAEMON, SOCKET};
use crate::cni::env::Environment;
use crate::error::{Code, Error, Result, warn};
use crate::plugin::{IPAM, OperatorCommand};
use crate::terminal::arguments::{option, text};
use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE, Terms};
use crate::terminal::{self, Streams};

/// The subcommands of `cni-multi ipam` that this plugin adds.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: IPAM, command_line: command, run, manual };

/// A subcommand.
struct Verb {
    name: &'static str,
    command: fn(Command) -> Command,
    run: fn(&ArgMatches, &mut Streams<'_>) -> Result<String>,
    examples: Terms,
}

/// The subcommands beside the daemon.
#[rustfmt::skip]
const VERBS: [Verb; 5] = [
    Verb { name: "blocks", command: blocks::command, run: blocks::run, examples: blocks::EXAMPLES },
    Verb { name: "reclaim", command: reclaim::command, run: reclaim::run, examples: reclaim::EXAMPLES },
    Verb { name: "recover", command: recover::command, run: recover::run, examples: recover::EXAMPLES },
    Verb { name: "join", command: join::command, run: join::run, examples: join::EXAMPLES },
    Verb { name: "metrics", command: run::metrics_command, run: run::metrics, examples: run::METRICS },
];

const FILES: Terms = &[
    (CONFIGURATION, "The node's part in a cluster: mode 0600."),
    (SOCKET, "Where the daemon listens."),
    (DEFAULT_DATA_DIR, "Leases and borrowed blocks."),
];

fn manual(verb: &str) -> Manual {
    let examples = find(verb).map_or(run::EXAMPLES, |verb| verb.examples);
    Manual { examples, files: FILES, exit_status: SUCCESS_FAILURE_OR_USAGE, ..Manual::EMPTY }
}

fn find(verb: &str) -> Option<&'static Verb> {
    VERBS.iter().find(|known| known.name == verb)
}

fn command() -> Command {
    let daemon = run::command(Command::new("daemon"));
    let verbs = VERBS.iter().map(|verb| (verb.command)(Command::new(verb.name)));
    Command::new(IPAM).subcommand(daemon).subcommands(verbs)
}

fn run(matches: &ArgMatches, env: &Environment, io: &mut Streams<'_>) -> u8 {
    let Some((name, matches)) = matches.subcommand() else { return 2 }; // clap requires one
    let Some(verb) = find(name) else { return run::run(matches, env) };
    let done = (verb.run)(matches, io).and_then(|text| terminal::print(io.stdout, &text));
    let Err(error) = done else { return 0 };
    io.complain_in_two_lines(&error);
    1
}

/// `--config`.
fn config() -> Arg {
    path("config", CONFIGURATION, "The node's part in the cluster")
}

/// `--data-dir`.
fn data_dir() -> Arg {
    path("data-dir", DEFAULT_DATA_DIR, "Directory of leases and blocks")
}

/// `--output`.
fn output() -> Arg {
    terminal::arguments::output(["table", "json"], "Output format: table or json [table]")
}

/// The path of a file or directory.
fn path(name: &'static str, default: &'static str, about: &'static str) -> Arg {
    option(name, "PATH", about).default_value(default)
}

fn value(matches: &ArgMatches, name: &str) -> PathBuf {
    PathBuf::from(text(matches, name))
}

fn is_json(matches: &ArgMatches) -> bool {
    text(matches, "output") == "json"
}

/// The node's settings and its store.
fn open(configuration: &Path) -> Result<(Settings, Box<dyn Store>)> {
    let settings = Settings::load(configuration).map_err(|error| match error.is_not_found() {
        true => error.with_details(
            "the command needs the configuration of a node of the cluster: run it on one, or name \
             the file with --config",
        ),
        false => error,
    });
    let settings = settings?;
    let store = settings.open(Box::new(warn))?;
    Ok((settings, store))
}

/// What a read returns.
fn read<T>(outcome: Outcome<T>) -> Result<T> {
    let reason = match outcome {
        Outcome::Done(value) => return Ok(value),
        Outcome::Lost => "a read compared nothing, and lost".to_owned(),
        Outcome::Busy(_) => "it is busy".to_owned(),
        Outcome::Refused(reason)
        | Outcome::Unauthenticated(reason)
        | Outcome::Unreachable(reason)
        | Outcome::Unknown(reason) => reason,
    };
    Err(unusable(&reason))
}

fn unusable(reason: &str) -> Error {
    Error::new(Code::TRY_AGAIN, format!("the cluster's store cannot be used: {reason}"))
        .with_details("check the endpoints and the credentials in the node's configuration")
}

/// The daemon's journal: no daemon runs until it is dropped. Several commands may share it.
pub fn without_daemon(data_dir: &Path) -> Result<Journal> {
    let dir = identity::directory(data_dir);
    let left_behind = || match Journal::left_behind(&DAEMON, &dir) {
        Err(error) if error.code == Code::CONFLICT => Err(Error::new(
            Code::CONFLICT,
            error.msg.clone(),
        )
        .with_details(
            "stop the daemon first: `systemctl stop cni-multi-ipam.socket cni-multi-ipam.service`",
        )),
        found => found,
    };
    if let Some(journal) = left_behind()? {
        return Ok(journal);
    }
    drop(Journal::open(&DAEMON, &dir)?); // no daemon has ever run here: makes the directory
    left_behind()?.ok_or_else(|| Error::new(Code::BUG, "the journal of the daemon is gone"))
}
