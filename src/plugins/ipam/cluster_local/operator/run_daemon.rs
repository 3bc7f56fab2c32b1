//! `ipam daemon`.

use clap::{ArgMatches, Command};

use super::super::daemon::{self, Options};
use super::super::wire::SOCKET;
use super::arguments::{config, data_dir, path, value};
use crate::cni::env::Environment;
use crate::error::warn;
use crate::terminal::manual::Terms;
use crate::terminal::visible::visible;

/// For the manual.
pub const EXAMPLES: Terms =
    &[("cni-multi ipam daemon", "Run the daemon in the foreground, as its unit does.")];

/// The command line.
pub fn command(daemon: Command) -> Command {
    daemon
        .about("Run the daemon that borrows blocks of addresses from the cluster's etcd")
        .arg(path("socket", SOCKET, "Where the daemon listens"))
        .arg(data_dir())
        .arg(config())
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
