//! `ipam daemon`, and `ipam metrics`, which asks it.

use clap::{ArgMatches, Command};

use super::super::client;
use super::super::daemon::{self, Options};
use super::super::wire::SOCKET;
use super::{config, data_dir, path, value};
use crate::cni::env::Environment;
use crate::deadline::Deadline;
use crate::error::{Result, warn};
use crate::terminal::Streams;
use crate::terminal::manual::Terms;
use crate::terminal::visible::visible;

/// For the manual.
pub const EXAMPLES: Terms =
    &[("cni-multi ipam daemon", "Run the daemon in the foreground, as its unit does.")];

/// For the manual of the metrics.
pub const METRICS: Terms = &[("cni-multi ipam metrics", "Print the daemon's metrics.")];

/// The command line.
pub fn command(daemon: Command) -> Command {
    daemon.about("Run the daemon that borrows blocks of addresses from the cluster's store").args([
        path("socket", SOCKET, "Where the daemon listens"),
        data_dir(),
        config(),
    ])
}

/// No runtime reads an error object from the daemon, so a panic goes to the log.
pub fn run(matches: &ArgMatches, env: &Environment) -> u8 {
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

/// The command line of the metrics.
pub fn metrics_command(command: Command) -> Command {
    let socket = path("socket", SOCKET, "Where the daemon listens");
    command.about("Print the metrics of the daemon, for Prometheus").arg(socket)
}

/// The daemon's page.
pub fn metrics(matches: &ArgMatches, _: &mut Streams<'_>) -> Result<String> {
    client::metrics(&value(matches, "socket"), Deadline::default())
}
