//! `cnitool`: the command line of libcni's own tool, for scripts written for it.
//!
//! Commands, arguments, variables, container ids and cache match the original's. So do its quirks:
//! a failed `add` is not undone, and `gc` treats every attachment of the network as stale.
//! `cni-multi net` is the better tool for people.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command};

use super::{CNITOOL, CONF_DIR, completion, plugin_help, plugin_path};
use crate::cni::attachment::{IfName, Key, NetworkName};
use crate::cni::env::Environment;
use crate::error::{Code, Error, Result};
use crate::registry::PLUGINS;
use crate::runtime::chain::{OnFailure, Runtime};
use crate::runtime::check::Until;
use crate::runtime::directory;
use crate::runtime::parameters::{self, Parameters};
use crate::terminal::arguments::text;
use crate::terminal::manual::{Manual, Terms, examples_of};
use crate::terminal::{self, Streams};

/// The name of a link to this binary, or the first argument.
pub const NAME: &str = CNITOOL;

const ABOUT: &str = "CNI Tool for managing network interfaces in a network namespace";

/// The commands, each with a network and a namespace, which `gc` and `status` require and do not
/// use.
const COMMANDS: [(&str, &str); 5] = [
    ("add", "Attach a network namespace to a network and print the result"),
    ("check", "Verify an attachment"),
    ("del", "Detach a network namespace from a network"),
    ("gc", "Detach every attachment of a network, and remove what is left of it"),
    ("status", "Ask the plugins of a network whether they can serve an add"),
];

/// The sections of the page about a command, or about `cnitool` itself for an empty name.
pub fn manual(verb: &str) -> Manual {
    if verb == "completion" {
        let examples = &[("source <(cnitool completion bash)", "In bash: until the shell ends.")];
        return Manual { examples, ..completion::MANUAL };
    }
    Manual { examples: examples_of(verb, OF_ALL, OF_VERBS), ..MANUAL }
}

const OF_ALL: Terms = &[("cnitool add pods /run/netns/blue", "Attach a namespace.")];

const OF_VERBS: Terms = &[
    ("cnitool add pods /run/netns/blue -i eth1", "Attach it by a second interface."),
    ("cnitool check pods /run/netns/blue", "Compare the attachment with the kernel."),
    ("cnitool del pods /run/netns/blue", "Detach it."),
    ("cnitool gc pods /run/netns/blue", "Detach every attachment; the namespace is ignored."),
    ("cnitool status pods /run/netns/blue", "Ask the plugins; the namespace is ignored."),
];

const MANUAL: Manual = Manual {
    description: &["The arguments, variables and files are those of libcni's tool of this name."],
    examples: &[],
    exit_status: &[
        ("0", "Success."),
        ("1", "The operation failed, or the command line is invalid."),
    ],
    files: &[
        ("/etc/cni/net.d", "Networks, as cni.conflist(5) describes."),
        ("/var/lib/cni/results", "The records of attachments, in libcni's format."),
    ],
    environment: &[
        ("NETCONFPATH", "The directory of networks."),
        ("CNI_PATH", "The directories of plugins."),
        ("CNI_IFNAME", "The name of the interface, without -i."),
        ("CNI_ARGS", "Arguments for plugins."),
        ("CAP_ARGS", "Arguments by capability."),
    ],
    see_also: &["cni-multi-net(1)", "cni.conflist(5)"],
};

/// The command line.
pub fn command() -> Command {
    let operation = |(name, about): (&'static str, &'static str)| {
        // The network and the namespace, for completion; their number is checked later, in
        // cnitool's order.
        let arguments = Arg::new("arguments").value_names(["NETWORK", "NETNS"]).num_args(0..);
        let ifname = Arg::new("ifname").short('i').long("ifname").value_name("NAME");
        Command::new(name)
            .about(about)
            .override_usage(usage(name))
            .arg(arguments.hide(true))
            .arg(ifname.help("Interface name (defaults to env var CNI_IFNAME or 'eth0')"))
    };
    Command::new(NAME)
        .about(ABOUT)
        .arg_required_else_help(true)
        .subcommands(COMMANDS.map(operation))
        .subcommand(completion::command())
}

fn usage(name: &str) -> String {
    format!("{NAME} {name} <network-name> <netns> [flags]")
}

/// Runs the command, with `args` starting at its name: the result goes to stdout; an error goes to
/// stderr, with exit status 1.
pub fn run(args: &[OsString], env: &Environment, io: &mut Streams<'_>) -> u8 {
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(mut said) => {
            plugin_help::suggest(&mut said, &command(), args);
            // Requested help is a success; a mistake has the exit status 1 here, not clap's 2.
            use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand};
            let is_mistake =
                !matches!(said.kind(), DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand);
            io.print_advice(&said, is_mistake);
            return u8::from(is_mistake);
        }
    };
    let Some((verb, arguments)) = matches.subcommand() else { return 0 }; // clap printed the help
    let invocation = Invocation { verb, arguments, env };
    let done = invocation.run(io.stderr);
    let Err(error) = done.and_then(|text| terminal::print(io.stdout, &text)) else { return 0 };
    io.complain(&error);
    1
}

/// A parsed cnitool command line.
struct Invocation<'a> {
    verb: &'a str,
    arguments: &'a ArgMatches,
    env: &'a Environment,
}

impl Invocation<'_> {
    /// Returns the output. Mistakes are checked in cnitool's order.
    fn run(&self, stderr: &mut dyn Write) -> Result<String> {
        if self.verb == "completion" {
            return Ok(completion::script(text(self.arguments, "shell"), NAME));
        }
        let positional: Vec<&String> =
            self.arguments.get_many("arguments").into_iter().flatten().collect();
        let [network, netns, ..] = positional.as_slice() else {
            let count = positional.len();
            let msg = format!("requires at least 2 arg(s), only received {count}");
            return Err(Error::new(Code::INVALID_ENVIRONMENT, msg)
                .with_details(format_args!("usage: {}", usage(self.verb))));
        };
        let list = directory::find(Path::new(&self.variable("NETCONFPATH", CONF_DIR)), network)?;
        let at = self.parameters(network, netns)?;
        let path = plugin_path("", self.env)?;
        let mut runtime = Runtime { path, ..Runtime::of(PLUGINS, self.env, stderr) };
        match self.verb {
            "add" => return Ok(runtime.add(&list, &at, OnFailure::Leave)?.to_text()),
            "check" => drop(runtime.check(&list, &at, Until::OneFails)?.finish()?),
            "del" => drop(runtime.del(&list, &at)?),
            "gc" => runtime.gc(&list, None)?,
            "status" => runtime.status(&list)?,
            other => return Err(Error::new(Code::BUG, format!("{NAME} has no command {other:?}"))),
        }
        Ok(String::new())
    }

    fn parameters(&self, network: &str, netns: &str) -> Result<Parameters> {
        let capability_args = parameters::parse_capability_args(&self.env.get("CAP_ARGS"))?;
        let args = parameters::parse_args(&self.env.get("CNI_ARGS"))?;
        let ifname = match text(self.arguments, "ifname") {
            "" => IfName::parse(&self.variable("CNI_IFNAME", "eth0"))?,
            name => IfName::parse(name)?,
        };
        let netns = parameters::absolute(Path::new(netns))?;
        let network = NetworkName::parse(network)?;
        let container_id = parameters::container_id(&netns)?;
        Ok(Parameters { key: Key { network, container_id, ifname }, netns, args, capability_args })
    }

    fn variable(&self, name: &str, default: &str) -> String {
        Some(self.env.get(name)).filter(|text| !text.is_empty()).unwrap_or(default.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
