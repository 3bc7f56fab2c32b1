//! Arguments of command lines: how they are declared, and read.

use clap::{Arg, ArgAction, ArgMatches};

/// A required argument without a name.
pub fn positional(id: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(id).value_name(value).required(true).help(help)
}

/// `--name`.
pub fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// `--name VALUE`.
pub fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

/// `--output` with these two formats.
pub fn output(formats: [&'static str; 2], help: &'static str) -> Arg {
    option("output", "FORMAT", help).short('o').value_parser(formats)
}

/// The value of an argument; empty if it is not given, or unknown to the command.
pub fn text<'a>(matches: &'a ArgMatches, name: &str) -> &'a str {
    matches.try_get_one::<String>(name).ok().flatten().map_or("", String::as_str)
}

/// Whether a flag is given; false if it is unknown to the command.
pub fn has_flag(matches: &ArgMatches, name: &str) -> bool {
    matches.try_get_one::<bool>(name).ok().flatten() == Some(&true)
}
