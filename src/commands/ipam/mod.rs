//! `cni-multi ipam …`: which container holds which address, whatever plugin has allocated it.
//!
//! A plugin with leases has a [`LeaseStore`](crate::plugin::leases::LeaseStore) in its line of the
//! registry; [`networks`] finds the stores of this host, [`owners`] decides which owners are alive.

mod held;
mod import;
mod ip_pools;
pub mod networks;
pub mod owners;

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};

use self::networks::Host;
use super::{CONF_DIR, path_of_runtimes, typed_or_variable};
use crate::cni::attachment::NetworkName;
use crate::cni::env::Environment;
use crate::error::{Error, Result};
use crate::plugin::{IPAM, OperatorCommand};
use crate::registry::PLUGINS;
use crate::runtime::cache::{self, Cache};
use crate::terminal::arguments::{flag, has_flag, option, output, positional, text};
use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE, Terms, examples_of};
use crate::terminal::{self, Streams};

/// `cni-multi ipam`, with the subcommands that plugins add.
pub const COMMAND: OperatorCommand = OperatorCommand {
    name: IPAM,
    command_line: command,
    run,
    manual: |verb| {
        let added = of_plugins().find(|added| !verb.is_empty() && added.knows(verb));
        added.map_or_else(|| manual(verb), |added| (added.manual)(verb))
    },
};

fn command() -> Command {
    let network = || {
        positional("network", "NETWORK", "Name of the network, as in its configuration")
            .required(false)
    };
    let ls = Command::new("ls")
        .visible_alias("list")
        .about("List the addresses that are held, and how full the ranges are")
        .arg(network())
        .args(directories())
        .arg(output(["table", "json"], "Output format: table or json [table]"));
    let free = Command::new("free")
        .about("Free an address that a container left behind")
        .arg(network().required(true))
        .arg(positional("address", "ADDRESS", "The address"))
        .args(directories())
        .arg(flag("force", "Also if nothing shows whether the container is alive"));
    let export = Command::new("export")
        .about("Print leases as JSON, for import on another machine")
        .arg(network())
        .args(directories());
    let whereabouts = "FILE is of whereabouts: what attachments of this machine hold";
    let import = Command::new("import")
        .about("Take over the leases of another machine: all of them or none")
        .allow_missing_positional(true)
        .arg(network())
        .arg(positional("file", "FILE|-", "What export printed; - for stdin"))
        .args(directories())
        .args([flag("dry-run", "Only print what would be done"), flag("whereabouts", whereabouts)]);
    let added = of_plugins()
        .flat_map(|added| (added.command_line)().get_subcommands().cloned().collect::<Vec<_>>());
    Command::new(IPAM)
        .about("List, free and move the addresses of containers")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([ls, free, export, import])
        .subcommands(added)
}

/// The subcommands that plugins add.
fn of_plugins() -> impl Iterator<Item = &'static OperatorCommand> {
    PLUGINS.iter().flat_map(|entry| entry.commands).filter(|command| command.name == IPAM)
}

/// Where configurations and records are.
pub fn directories() -> [Arg; 2] {
    let conf = "Directory of network configurations [NETCONFPATH, else /etc/cni/net.d]";
    let cache = "Cache directory, with the results of add [/var/lib/cni]";
    [option("conf-dir", "DIR", conf), option("cache-dir", "DIR", cache)]
}

/// The host that the options and variables describe.
pub fn host<'a>(matches: &ArgMatches, env: &'a Environment) -> Host<'a> {
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
        plugins: PLUGINS,
        env,
        plugin_dirs: std::env::split_paths(&path).collect(),
    }
}

/// Runs a subcommand: exit status 0, 1 for a failure or a refusal, 2 for an argument that is not
/// what it should be.
fn run(matches: &ArgMatches, env: &Environment, io: &mut Streams<'_>) -> u8 {
    let whole = matches;
    let Some((verb, matches)) = whole.subcommand() else { return 2 }; // clap requires one
    if let Some(added) = of_plugins().find(|added| added.knows(verb)) {
        return (added.run)(whole, env, io);
    }
    let request = match Request::read(matches) {
        Ok(request) => request,
        Err(error) => {
            io.complain_in_two_lines(&error);
            return 2;
        }
    };
    let host = host(matches, env);
    let done = match verb {
        "free" => held::free(&host, &request),
        "export" => import::export(&host, &request),
        "import" => import::import(&host, &request, io.stdin),
        _ => held::list(&host, &request),
    };
    let Err(error) = done.and_then(|text| terminal::print(io.stdout, &text)) else { return 0 };
    io.complain_in_two_lines(&error);
    1
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
        let flag = |name| has_flag(matches, name);
        let network = matches.get_one::<String>("network").map(|name| NetworkName::parse(name));
        let address = match text(matches, "address") {
            "" => None,
            typed => Some(typed.parse().map_err(|_| {
                Error::config("ADDRESS", format_args!("{typed:?} is not an IP address"))
            })?),
        };
        Ok(Request {
            network: network.transpose()?,
            address,
            file: text(matches, "file").to_owned(),
            as_json: text(matches, "output") == "json",
            is_forced: flag("force"),
            is_dry_run: flag("dry-run"),
            is_of_whereabouts: flag("whereabouts"),
        })
    }
}

/// The sections of the page about a command of `ipam`, or about `ipam` itself for an empty name.
fn manual(verb: &str) -> Manual {
    Manual {
        description: description(verb),
        examples: examples_of(verb, OF_ALL, OF_VERBS),
        exit_status: SUCCESS_FAILURE_OR_USAGE,
        files: FILES,
        environment: &[("NETCONFPATH", "The directory of networks, without --conf-dir.")],
        see_also: &["cni.conflist(5)", "cni-multi-net-gc(1)"],
    }
}

fn description(verb: &str) -> &'static [&'static str] {
    match verb {
        "ls" => {
            &["NAMESPACE is gone if the container's namespace is, and unknown if nothing shows \
             whether it is."]
        }
        "free" => {
            &["The address of a container that is alive is refused, also with --force: detach the \
             container."]
        }
        "export" => &["Leases that a server has granted, those of dhcp, are left out."],
        "import" => &[
            "Each network must be configured here, with ranges that contain the addresses. A lease \
             that is here already stays; an address with another owner here is an error. After \
             an error no lease has changed. On a node of a cluster, the daemon first claims the \
             addresses in etcd.",
            "With --whereabouts, FILE is the output of kubectl get \
             ippools.whereabouts.cni.cncf.io -A -o json. Leases of containers without a record of \
             an attachment here are left out, and counted.",
        ],
        _ => &[],
    }
}

/// Examples of the page about all subcommands.
const OF_ALL: Terms = &[("cni-multi ipam ls", "List the addresses of all networks.")];

/// Examples of each subcommand.
const OF_VERBS: Terms = &[
    ("cni-multi ipam ls pods", "List the addresses of one network."),
    ("cni-multi ipam ls -o json", "The same of all networks, for a program."),
    ("cni-multi ipam free pods 10.88.0.7", "Free an address."),
    ("cni-multi ipam export >leases.json", "Write the leases of all networks."),
    ("cni-multi ipam import --dry-run leases.json", "Check whether they can be imported."),
    ("cni-multi ipam import pods leases.json", "Import those of one network."),
    (
        "cni-multi ipam import --whereabouts ippools.json",
        "Take over what attachments of this machine hold in whereabouts.",
    ),
];

const FILES: Terms = &[
    ("/etc/cni/net.d", "Networks, as cni.conflist(5) describes."),
    ("/var/lib/cni/networks", "The leases of host-local."),
    ("/var/lib/cni/results", "The records of attachments, in libcni's format."),
];

#[cfg(test)]
mod tests {

    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
