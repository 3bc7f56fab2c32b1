//! `cni-multi ipam …`: which container holds which address, whatever plugin has allocated it.
//!
//! A plugin with leases has a [`LeaseStore`](crate::plugin::leases::LeaseStore) in its line of the
//! registry; [`networks`] finds the stores of this host, [`owners`] decides which owners are alive,
//! and each command has its own file.

mod document;
mod export;
mod free;
mod import;
mod ip_pools;
mod ls;
pub mod manual;
pub mod networks;
pub mod owners;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};

use self::networks::Host;
use super::{CONF_DIR, path_of_runtimes, typed_or_variable};
use crate::cni::attachment::NetworkName;
use crate::cni::env::Environment;
use crate::error::{Error, Result};
use crate::plugin::{Entry, IPAM, OperatorCommand};
use crate::runtime::cache::{self, Cache};
use crate::terminal::manual::Manual;
use crate::terminal::visible::visible;
use crate::terminal::{self, Streams};

/// The command line.
pub fn command(plugins: &'static [Entry]) -> Command {
    Command::new(IPAM)
        .about("List, free and move the addresses of containers")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(ls_command())
        .subcommand(free_command())
        .subcommand(export_command())
        .subcommand(import_command())
        .subcommands(of_plugins(plugins).flat_map(|added| {
            (added.command_line)().get_subcommands().cloned().collect::<Vec<_>>()
        }))
}

/// The subcommands that plugins add.
fn of_plugins(plugins: &'static [Entry]) -> impl Iterator<Item = &'static OperatorCommand> {
    plugins.iter().flat_map(|entry| entry.commands).filter(|command| command.name == IPAM)
}

/// The sections of the page about a subcommand.
pub fn manual_of(verb: &str, plugins: &'static [Entry]) -> Manual {
    let added = of_plugins(plugins).find(|added| !verb.is_empty() && added.knows(verb));
    added.map_or_else(|| manual::of(verb), |added| (added.manual)(verb))
}

fn ls_command() -> Command {
    let output = Arg::new("output").long("output").short('o').value_name("FORMAT");
    Command::new("ls")
        .visible_alias("list")
        .about("List the addresses that are held, and how full the ranges are")
        .arg(network())
        .args(directories())
        .arg(output.value_parser(["table", "json"]).help("Output format: table or json [table]"))
}

fn free_command() -> Command {
    let force = Arg::new("force").long("force").action(ArgAction::SetTrue);
    Command::new("free")
        .about("Free an address that a container left behind")
        .arg(network().required(true))
        .arg(Arg::new("address").value_name("ADDRESS").required(true).help("The address"))
        .args(directories())
        .arg(force.help("Also if nothing shows whether the container is alive"))
}

fn export_command() -> Command {
    Command::new("export")
        .about("Print leases as JSON, for import on another machine")
        .arg(network())
        .args(directories())
}

fn import_command() -> Command {
    let file = Arg::new("file").value_name("FILE|-").required(true);
    let dry_run = Arg::new("dry-run").long("dry-run").action(ArgAction::SetTrue);
    let whereabouts = Arg::new("whereabouts").long("whereabouts").action(ArgAction::SetTrue);
    Command::new("import")
        .about("Take over the leases of another machine: all of them or none")
        .allow_missing_positional(true)
        .arg(network())
        .arg(file.help("What export printed; - for stdin"))
        .args(directories())
        .arg(dry_run.help("Only print what would be done"))
        .arg(whereabouts.help("FILE is of whereabouts: what attachments of this machine hold"))
}

fn network() -> Arg {
    Arg::new("network").value_name("NETWORK").help("Name of the network, as in its configuration")
}

/// Where configurations and records are.
pub fn directories() -> [Arg; 2] {
    let conf = Arg::new("conf-dir").long("conf-dir").value_name("DIR");
    let cache = Arg::new("cache-dir").long("cache-dir").value_name("DIR");
    [
        conf.help("Directory of network configurations [NETCONFPATH, else /etc/cni/net.d]"),
        cache.help("Cache directory, with the results of add [/var/lib/cni]"),
    ]
}

/// The host that the options and variables describe.
pub fn host<'a>(matches: &ArgMatches, plugins: &'static [Entry], env: &'a Environment) -> Host<'a> {
    let conf_dir = typed_or_variable(text(matches, "conf-dir"), "NETCONFPATH", env);
    let conf_dir = if conf_dir.is_empty() { CONF_DIR } else { &conf_dir };
    let cache = match text(matches, "cache-dir") {
        "" => cache::DEFAULT_DIR,
        dir => dir,
    };
    // Without the path of this binary there are no aliases.
    let path = path_of_runtimes("", env).unwrap_or_default();
    Host {
        conf_dir: PathBuf::from(conf_dir),
        cache: Cache::new(cache),
        plugins,
        env,
        plugin_dirs: std::env::split_paths(&path).collect(),
    }
}

/// The value of an argument; empty if it is not given, or unknown to the command.
fn text<'a>(matches: &'a ArgMatches, name: &str) -> &'a str {
    matches.try_get_one::<String>(name).ok().flatten().map_or("", String::as_str)
}

/// Runs a subcommand: exit status 0, 1 for a failure or a refusal, 2 for an argument that is not
/// what it should be.
pub fn run(
    matches: &ArgMatches,
    plugins: &'static [Entry],
    env: &Environment,
    io: &mut Streams<'_>,
) -> u8 {
    let whole = matches;
    let Some((verb, matches)) = whole.subcommand() else { return 2 }; // clap requires one
    if let Some(added) = of_plugins(plugins).find(|added| added.knows(verb)) {
        return (added.run)(whole, env, io);
    }
    let request = match Request::read(matches) {
        Ok(request) => request,
        Err(error) => return complain(&error, io, 2),
    };
    let host = host(matches, plugins, env);
    let done = match verb {
        "free" => free::free(&host, &request),
        "export" => export::export(&host, &request),
        "import" => import::import(&host, &request, io.stdin),
        _ => ls::list(&host, &request),
    };
    match done.and_then(|text| terminal::print(io.stdout, &text)) {
        Ok(()) => 0,
        Err(error) => complain(&error, io, 1),
    }
}

/// What was typed.
struct Request {
    /// None for all networks.
    network: Option<NetworkName>,
    /// Given for `free`.
    address: Option<IpAddr>,
    /// Given for `import`; `-` is stdin.
    file: String,
    as_json: bool,
    is_forced: bool,
    is_dry_run: bool,
    /// Whether `file` is of whereabouts.
    is_of_whereabouts: bool,
}

impl Request {
    fn read(matches: &ArgMatches) -> Result<Request> {
        let flag = |name| matches.try_get_one::<bool>(name).ok().flatten() == Some(&true);
        Ok(Request {
            network: matches
                .get_one::<String>("network")
                .map(|n| NetworkName::parse(n))
                .transpose()?,
            address: address(text(matches, "address"))?,
            file: text(matches, "file").to_owned(),
            as_json: text(matches, "output") == "json",
            is_forced: flag("force"),
            is_dry_run: flag("dry-run"),
            is_of_whereabouts: flag("whereabouts"),
        })
    }
}

/// The address; None for an empty text, which means that none was typed.
fn address(text: &str) -> Result<Option<IpAddr>> {
    let no_address = |_| Error::config("ADDRESS", format_args!("{text:?} is not an IP address"));
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(no_address) }
}

fn complain(error: &Error, io: &mut Streams<'_>, status: u8) -> u8 {
    let _ = writeln!(io.stderr, "{}", visible(&error.msg)); // the status says it too
    let details = error.details();
    if !details.is_empty() {
        let _ = writeln!(io.stderr, "{}", visible(&details));
    }
    status
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command(&[]).debug_assert();
    }
}
