//! `cni-multi ipam daemon` and `ipam blocks`: the daemon of a node in a cluster, and what the node
//! has borrowed.

use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};

use super::client;
use super::conf::DEFAULT_DATA_DIR;
use super::daemon::{self, Options};
use super::held::{Blocks, Held};
use super::node::CONFIGURATION;
use super::wire::SOCKET;
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::{Result, warn};
use crate::plugin::{IPAM, OperatorCommand};
use crate::steps::allocation::files::{Place, operator};
use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE, Terms};
use crate::terminal::visible::visible;
use crate::terminal::{self, Streams, table};

/// The subcommands of `cni-multi ipam` that this plugin adds.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: IPAM, command_line: command, run, manual };

const DAEMON: &str = "daemon";
const BLOCKS: &str = "blocks";
const METRICS: &str = "metrics";

/// The columns of the `blocks` table.
const COLUMNS: [(&str, &str); 6] = [
    ("NETWORK", "network"),
    ("BLOCK", "block"),
    ("STATE", "state"),
    ("HELD", "held"),
    ("REALM", "realm"),
    ("NAME", "name"),
];

fn manual(verb: &str) -> Manual {
    let examples: Terms = match verb {
        DAEMON => {
            &[("cni-multi ipam daemon", "Run the daemon in the foreground, as its unit does.")]
        }
        METRICS => &[("cni-multi ipam metrics", "Print the daemon's metrics.")],
        _ => &[("cni-multi ipam blocks", "List the blocks that this node has borrowed.")],
    };
    Manual { examples, files: FILES, exit_status: SUCCESS_FAILURE_OR_USAGE, ..Manual::EMPTY }
}

const FILES: Terms = &[
    (CONFIGURATION, "The node's part in a cluster: mode 0600."),
    (SOCKET, "Where the daemon listens."),
    (DEFAULT_DATA_DIR, "Leases and borrowed blocks."),
];

fn command() -> Command {
    Command::new(IPAM)
        .subcommand(daemon_command())
        .subcommand(blocks_command())
        .subcommand(metrics_command())
}

fn daemon_command() -> Command {
    Command::new(DAEMON)
        .about("Run the daemon that borrows blocks of addresses from the cluster's etcd")
        .arg(path("socket", SOCKET, "Where the daemon listens"))
        .arg(path("data-dir", DEFAULT_DATA_DIR, "Directory of leases and blocks"))
        .arg(path("config", CONFIGURATION, "The node's part in the cluster"))
}

fn blocks_command() -> Command {
    let output = Arg::new("output").long("output").short('o').value_name("FORMAT");
    Command::new(BLOCKS)
        .about("List the blocks of addresses that this node has borrowed")
        .arg(path("data-dir", DEFAULT_DATA_DIR, "Directory of leases and blocks"))
        .arg(output.value_parser(["table", "json"]).help("Output format: table or json [table]"))
}

fn metrics_command() -> Command {
    Command::new(METRICS).about("Print the metrics of the daemon, for Prometheus").arg(path(
        "socket",
        SOCKET,
        "Where the daemon listens",
    ))
}

fn path(name: &'static str, default: &'static str, about: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("PATH").default_value(default).help(about)
}

fn run(matches: &ArgMatches, env: &Environment, io: &mut Streams<'_>) -> u8 {
    match matches.subcommand() {
        Some((DAEMON, matches)) => run_daemon(matches, env),
        Some((METRICS, matches)) => {
            report(client::metrics(&value(matches, "socket"), Deadline::default()), io)
        }
        Some((_, matches)) => report(blocks(matches), io),
        None => 2, // clap requires one
    }
}

fn report(done: Result<String>, io: &mut Streams<'_>) -> u8 {
    let Err(error) = done.and_then(|text| terminal::print(io.stdout, &text)) else { return 0 };
    let _ = writeln!(io.stderr, "{}", visible(&error.to_string())); // the status reports it too
    1
}

/// The value of an argument of the subcommand.
fn value(matches: &ArgMatches, name: &str) -> PathBuf {
    matches.get_one::<String>(name).map(PathBuf::from).unwrap_or_default()
}

/// No runtime reads an error object from the daemon, so a panic goes to the log.
fn run_daemon(matches: &ArgMatches, env: &Environment) -> u8 {
    let options = Options {
        socket: value(matches, "socket"),
        data_dir: value(matches, "data-dir"),
        configuration: value(matches, "config"),
    };
    std::panic::set_hook(Box::new(|panic| warn(format_args!("a bug in cni-multi: {panic}"))));
    let Err(error) = daemon::run(&options, |name| env.get(name)) else { return 0 };
    warn(visible(&error.to_string()));
    1
}

fn blocks(matches: &ArgMatches) -> Result<String> {
    let data_dir = value(matches, "data-dir");
    let mut rows = vec![];
    for network in operator::networks(&data_dir) {
        let place = Place::new(&data_dir, &network, Deadline::default()).of_this_boot();
        let Some(blocks) = Blocks::read(place.dir())? else { continue };
        rows.extend(rows_of(network.as_str(), &blocks, &place)?);
    }
    let is_json = matches.get_one::<String>("output").is_some_and(|word| word == "json");
    Ok(table::of_rows(rows, &COLUMNS, is_json))
}

fn rows_of(network: &str, blocks: &Blocks, place: &Place) -> Result<Vec<Value>> {
    let taken = place.taken()?;
    let held = |block: &Held| taken.iter().filter(|ip| block.block.contains(**ip)).count();
    let row = |block: &Held| {
        Value::object([
            ("network", Value::text(network)),
            ("block", Value::text(block.block.prefix().to_string())),
            ("state", Value::text(block.state.to_string())),
            ("held", Value::number(held(block) as u64)),
            ("realm", Value::text(blocks.realm.as_str())),
            ("name", Value::text(block.sticky.clone().unwrap_or_default())),
        ])
    };
    Ok(blocks.blocks.iter().map(row).collect())
}
