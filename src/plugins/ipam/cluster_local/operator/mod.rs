//! The subcommands of `cni-multi ipam` for a node of a cluster: the daemon, and one file for each
//! command of an operator.
//!
//! The commands ask the store themselves, with the configuration of the node: they work while no
//! daemon does.

mod blocks;
mod join;
mod reclaim;
mod recover;

pub use self::join::claim;

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};

use super::client;
use super::conf::DEFAULT_DATA_DIR;
use super::daemon;
use super::daemon::identity::{self, Journal};
use super::node::CONFIGURATION;
use super::store::settings::Settings;
use super::store::{Outcome, Store};
use super::wire::{DAEMON, SOCKET};
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result, warn};
use crate::plugin::{IPAM, OperatorCommand};
use crate::terminal::arguments::{option, text};
use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE, Terms};
use crate::terminal::visible::visible;
use crate::terminal::{self, Streams, table};

/// The subcommands of `cni-multi ipam` that this plugin adds.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: IPAM, command_line: command, run, manual };

/// A subcommand.
struct Verb {
    name: &'static str,
    about: &'static str,
    arguments: fn() -> Vec<Arg>,
    run: fn(&ArgMatches, &mut Streams<'_>) -> Result<String>,
    examples: Terms,
}

/// The subcommands beside the daemon.
const VERBS: [&Verb; 5] = [&blocks::VERB, &reclaim::VERB, &recover::VERB, &join::VERB, &METRICS];

const METRICS: Verb = Verb {
    name: "metrics",
    about: "Print the metrics of the daemon, for Prometheus",
    arguments: || vec![socket()],
    run: |matches, _| client::metrics(&value(matches, "socket"), Deadline::default()),
    examples: &[("cni-multi ipam metrics", "Print the daemon's metrics.")],
};

const DAEMON_EXAMPLES: Terms =
    &[("cni-multi ipam daemon", "Run the daemon in the foreground, as its unit does.")];

const FILES: Terms = &[
    (CONFIGURATION, "The node's part in a cluster: mode 0600."),
    (SOCKET, "Where the daemon listens."),
    (DEFAULT_DATA_DIR, "Leases and borrowed blocks."),
];

fn manual(verb: &str) -> Manual {
    let examples = find(verb).map_or(DAEMON_EXAMPLES, |verb| verb.examples);
    Manual { examples, files: FILES, exit_status: SUCCESS_FAILURE_OR_USAGE, ..Manual::EMPTY }
}

fn find(verb: &str) -> Option<&'static Verb> {
    VERBS.into_iter().find(|known| known.name == verb)
}

fn command() -> Command {
    let daemon = Command::new("daemon")
        .about("Run the daemon that borrows blocks of addresses from the cluster's store")
        .args([socket(), data_dir(), config()]);
    let command = |verb: &Verb| Command::new(verb.name).about(verb.about).args((verb.arguments)());
    Command::new(IPAM).subcommand(daemon).subcommands(VERBS.into_iter().map(command))
}

fn run(matches: &ArgMatches, env: &Environment, io: &mut Streams<'_>) -> u8 {
    let Some((name, matches)) = matches.subcommand() else { return 2 }; // clap requires one
    let done = match find(name) {
        Some(verb) => {
            let done = (verb.run)(matches, io).and_then(|text| terminal::print(io.stdout, &text));
            done.map_err(|error| io.complain_in_two_lines(&error))
        }
        None => {
            // No runtime reads an error object from the daemon, so a panic goes to the log.
            std::panic::set_hook(Box::new(|panic| {
                warn(format_args!("a bug in cni-multi: {panic}"))
            }));
            let [socket, data_dir, configuration] =
                ["socket", "data-dir", "config"].map(|name| value(matches, name));
            let done = daemon::run(&socket, &data_dir, &configuration, |name| env.get(name));
            done.map_err(|error| warn(visible(&error.to_string())))
        }
    };
    u8::from(done.is_err())
}

/// `--socket`.
fn socket() -> Arg {
    path("socket", SOCKET, "Where the daemon listens")
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
    })?;
    let store = settings.open(Box::new(warn))?;
    Ok((settings, store))
}

/// A table of rows with these members as columns.
fn table(rows: Vec<Value>, members: &[&str], as_json: bool) -> String {
    let header = |member: &&str| member.trim_end_matches("Id").to_ascii_uppercase();
    let headers: Vec<String> = members.iter().map(header).collect();
    let columns: Vec<_> = headers.iter().map(String::as_str).zip(members.iter().copied()).collect();
    table::of_rows(rows, &columns, as_json)
}

/// What a read returns.
fn read<T>(outcome: Outcome<T>) -> Result<T> {
    outcome.value().map_err(|reason| unusable(&reason))
}

fn unusable(reason: &str) -> Error {
    Error::new(Code::TRY_AGAIN, format!("the cluster's store cannot be used: {reason}"))
        .with_details("check the endpoints and the credentials in the node's configuration")
}

/// The daemon's journal: no daemon runs until it is dropped. Several commands may share it.
pub fn without_daemon(data_dir: &Path) -> Result<Journal> {
    let dir = identity::directory(data_dir);
    let advice =
        "stop the daemon first: `systemctl stop cni-multi-ipam.socket cni-multi-ipam.service`";
    let left_behind = || {
        Journal::left_behind(&DAEMON, &dir).map_err(|error| match error.code {
            Code::CONFLICT => Error::new(error.code, error.msg.as_str()).with_details(advice),
            _ => error,
        })
    };
    if let Some(journal) = left_behind()? {
        return Ok(journal);
    }
    drop(Journal::open(&DAEMON, &dir)?); // no daemon has ever run here: makes the directory
    left_behind()?.ok_or_else(|| Error::new(Code::BUG, "the journal of the daemon is gone"))
}
