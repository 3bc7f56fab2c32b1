//! `cni-multi dhcp …`: runs the DHCP daemon, and queries its leases and metrics.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::daemon;
use super::daemon::flags::{Flags, Refused, usage};
use super::wire::DEFAULT_SOCKET;
use super::wire::{Peer, Request};
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::{Result, warn};
use crate::plugin::OperatorCommand;
use crate::terminal::arguments::{option, output, positional, text};
use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE, Terms, examples_of};
use crate::terminal::table;
use crate::terminal::visible::visible;
use crate::terminal::{self, Streams};

/// The plugin's name, which the command has too.
pub const NAME: &str = "dhcp";

/// `cni-multi dhcp` with a subcommand.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: NAME, command_line: command, run, manual };

/// The sections of the pages.
fn manual(verb: &str) -> Manual {
    Manual { examples: examples_of(verb, OF_ALL, OF_VERBS), ..MANUAL }
}

/// Examples of the page about all subcommands.
const OF_ALL: Terms = &[("cni-multi dhcp leases", "List the leases of the running daemon.")];

/// Examples of each subcommand.
const OF_VERBS: Terms = &[
    ("cni-multi dhcp daemon", "Run the daemon in the foreground, as its unit does."),
    ("cni-multi dhcp leases -o json", "List the leases, as JSON."),
    ("cni-multi dhcp release 4f1c/pods/eth0", "Release a lease by its key."),
    ("cni-multi dhcp metrics", "Print the counters."),
];

const MANUAL: Manual = Manual {
    exit_status: SUCCESS_FAILURE_OR_USAGE,
    files: &[(DEFAULT_SOCKET, "Where the daemon listens.")],
    see_also: &["cni.conflist(5)", "systemctl(1)"],
    ..Manual::EMPTY
};

/// The subcommand that the reference's `dhcp` has too.
const DAEMON: &str = "daemon";

/// The columns of the `leases` table.
const COLUMNS: [(&str, &str); 7] = [
    ("KEY", "key"),
    ("STATE", "state"),
    ("ADDRESS", "address"),
    ("SERVER", "server"),
    ("RENEWAL", "renewSeconds"),
    ("EXPIRY", "expireSeconds"),
    ("NAMESPACE", "namespace"),
];

/// Builds the command line.
fn command() -> Command {
    let flags = Arg::new("flags")
        .value_name("FLAGS")
        .action(ArgAction::Append)
        .trailing_var_arg(true)
        .allow_hyphen_values(true)
        .help("Those of the reference's daemon; -help lists them");
    let key = positional("key", "KEY", "CONTAINER/NETWORK/INTERFACE, as leases prints it");
    let socket = option("socketpath", "PATH", "Where the daemon listens");
    let socket = socket.default_value(DEFAULT_SOCKET);
    let daemon = Command::new(DAEMON)
        .about("Run the daemon that the dhcp plugin asks")
        .disable_help_flag(true)
        .arg(flags);
    let leases = Command::new("leases")
        .about("The leases of the daemon")
        .arg(&socket)
        .arg(output(["table", "json"], "table, or json [table]"));
    let release = Command::new("release")
        .about("Give a lease back and take the address off the interface")
        .arg(key)
        .arg(&socket);
    let metrics =
        Command::new("metrics").about("Counters of the daemon, for Prometheus").arg(&socket);
    Command::new(NAME)
        .about("Keep the leases of containers, and look at them")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([daemon, leases, release, metrics])
}

/// Runs a subcommand and returns the exit status.
fn run(matches: &ArgMatches, env: &Environment, io: &mut Streams<'_>) -> u8 {
    let done = match matches.subcommand() {
        Some((DAEMON, matches)) => {
            let flags: Vec<String> =
                matches.get_many("flags").into_iter().flatten().cloned().collect();
            return run_daemon(&flags, env, io);
        }
        Some((verb, matches)) => operate(verb, matches),
        None => return 2, // clap requires one
    };
    let printed = done.and_then(|text| terminal::print(io.stdout, &text));
    let Err(error) = printed else { return 0 };
    let _ = writeln!(io.stderr, "{}", visible(&error.to_string())); // the status reports it too
    1
}

/// What a subcommand prints.
fn operate(verb: &str, matches: &ArgMatches) -> Result<String> {
    let peer = Peer { socket: text(matches, "socketpath").into(), deadline: Deadline::default() };
    match verb {
        "leases" => {
            let leases: Value = peer.ask(&Request::Leases)?;
            Ok(table::of_rows(leases.items().to_vec(), &COLUMNS, text(matches, "output") == "json"))
        }
        "release" => {
            peer.ask::<()>(&Request::Release { key: text(matches, "key").to_owned() })?;
            Ok(String::new())
        }
        _ => peer.ask(&Request::Metrics),
    }
}

/// Runs the daemon, with flags as Go's flag package reads them.
fn run_daemon(flags: &[String], env: &Environment, io: &mut Streams<'_>) -> u8 {
    let flags = match Flags::parse(flags) {
        Ok(flags) => flags,
        Err(refused) => {
            // as in the reference: the usage, and 2 for an invalid command line
            let (mistake, status) = match refused {
                Refused::Help => (String::new(), 0),
                Refused::Mistake(mistake) => (mistake + "\n", 2),
            };
            let _ = write!(io.stderr, "{mistake}{}", usage()); // the status reports it too
            return status;
        }
    };
    // No runtime reads an error object from the daemon, so a panic goes to the log.
    std::panic::set_hook(Box::new(|panic| warn(format_args!("a bug in cni-multi: {panic}"))));
    let Err(error) = daemon::run(flags, |name| env.get(name)) else { return 0 };
    warn(visible(&error.to_string()));
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
        assert!(["daemon", "leases", "help", "-h"].iter().all(|word| COMMAND.knows(word)));
        assert!(!COMMAND.knows("x"));
    }
}
