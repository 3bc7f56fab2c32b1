//! `cni-multi ipam metrics`: the metrics of the daemon.

use clap::{ArgMatches, Command};

use super::super::client;
use super::super::wire::SOCKET;
use super::arguments::{path, value};
use crate::deadline::Deadline;
use crate::error::Result;
use crate::terminal::manual::Terms;

/// For the manual.
pub const EXAMPLES: Terms = &[("cni-multi ipam metrics", "Print the daemon's metrics.")];

/// The command line.
pub fn command(command: Command) -> Command {
    command.about("Print the metrics of the daemon, for Prometheus").arg(path(
        "socket",
        SOCKET,
        "Where the daemon listens",
    ))
}

/// The daemon's page.
pub fn run(matches: &ArgMatches) -> Result<String> {
    client::metrics(&value(matches, "socket"), Deadline::default())
}
