//! The arguments of several commands.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches};

use super::super::conf::DEFAULT_DATA_DIR;
use super::super::node::CONFIGURATION;

/// The path of a file or directory.
pub fn path(name: &'static str, default: &'static str, about: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("PATH").default_value(default).help(about)
}

/// `--config`.
pub fn config() -> Arg {
    path("config", CONFIGURATION, "The node's part in the cluster")
}

/// `--data-dir`.
pub fn data_dir() -> Arg {
    path("data-dir", DEFAULT_DATA_DIR, "Directory of leases and blocks")
}

/// `--output`.
pub fn output() -> Arg {
    let output = Arg::new("output").long("output").short('o').value_name("FORMAT");
    output.value_parser(["table", "json"]).help("Output format: table or json [table]")
}

/// A flag.
pub fn flag(name: &'static str, about: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(about)
}

/// The path that was given for an argument, or its default.
pub fn value(matches: &ArgMatches, name: &str) -> PathBuf {
    matches.get_one::<String>(name).map(PathBuf::from).unwrap_or_default()
}

/// Whether the output is JSON.
pub fn is_json(matches: &ArgMatches) -> bool {
    matches.get_one::<String>("output").is_some_and(|word| word == "json")
}
