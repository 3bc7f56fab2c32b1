//! `cnitool`: the command line of libcni's own tool, for scripts written for it.
//!
//! Commands, arguments, variables, container ids and cache match the original's. So do its quirks:
//! a failed `add` is not undone, and `gc` treats every attachment of the network as stale.
//! `cni-multi net` is the better tool for people.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command};

use super::{CONF_DIR, plugin_path};
use crate::cni::attachment::{IfName, Key, NetworkName};
use crate::cni::env::Environment;
use crate::error::{Code, Error, Result};
use crate::plugin::Entry;
use crate::runtime::cache::{self, Cache};
use crate::runtime::chain::{OnFailure, Runtime};
use crate::runtime::directory;
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::{self, Parameters};
use crate::terminal::Streams;
use crate::terminal::visible::visible;

/// The name of a link to this binary, or the first argument.
pub const NAME: &str = "cnitool";

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

/// The completion script for each shell.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", include_str!("../../packaging/completion/cnitool.bash")),
    ("fish", include_str!("../../packaging/completion/cnitool.fish")),
    ("zsh", include_str!("../../packaging/completion/cnitool.zsh")),
];

/// The command line.
pub fn command() -> Command {
    let commands = COMMANDS.map(|(name, about)| {
        let ifname = Arg::new("ifname").short('i').long("ifname").value_name("NAME");
        Command::new(name)
            .about(about)
            .override_usage(format!("{NAME} {name} <network-name> <netns> [flags]"))
            .arg(Arg::new("arguments").num_args(0..).hide(true))
            .arg(ifname.help("Interface name (defaults to env var CNI_IFNAME or 'eth0')"))
    });
    let completion = Command::new("completion")
        .about("Print the completion script for a shell")
        .arg(Arg::new("shell").required(true).value_parser(COMPLETIONS.map(|(shell, _)| shell)));
    Command::new(NAME)
        .about(ABOUT)
        .arg_required_else_help(true)
        .subcommands(commands)
        .subcommand(completion)
}

/// Runs the command, with `args` starting at its name: the result goes to stdout; an error goes to
/// stderr, with exit status 1.
pub fn run(
    args: &[OsString],
    plugins: &'static [Entry],
    env: &Environment,
    io: &mut Streams<'_>,
) -> u8 {
    let matches = match command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(said) => return refuse(&said, io),
    };
    let Some((verb, arguments)) = matches.subcommand() else { return 0 }; // clap printed the help
    let invocation = Invocation { verb, arguments, env };
    let done = invocation.run(plugins, io.stderr).and_then(|text| {
        let written = io.stdout.write_all(text.as_bytes()).and_then(|()| io.stdout.flush());
        written.map_err(|e| Error::io("write to stdout", &e))
    });
    let Err(error) = done else { return 0 };
    let _ = writeln!(io.stderr, "{}", visible(&error.to_string())); // the exit status says it too
    1
}

/// Requested help is a success; a mistake has the exit status 1 here, not clap's 2.
fn refuse(said: &clap::Error, io: &mut Streams<'_>) -> u8 {
    let asked = matches!(
        said.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    let to: &mut dyn Write = if asked { io.stdout } else { io.stderr };
    let _ = write!(to, "{said}"); // unread help is not an error
    u8::from(!asked)
}

/// A parsed cnitool command line.
struct Invocation<'a> {
    verb: &'a str,
    arguments: &'a ArgMatches,
    env: &'a Environment,
}

impl Invocation<'_> {
    /// Returns the output. Mistakes are checked in cnitool's order.
    fn run(&self, plugins: &'static [Entry], stderr: &mut dyn Write) -> Result<String> {
        if self.verb == "completion"
            && let Some(shell) = self.arguments.get_one::<String>("shell")
        {
            return Ok(completion(shell));
        }
        let (network, netns) = self.subject()?;
        let list = directory::find(Path::new(&self.variable("NETCONFPATH", CONF_DIR)), network)?;
        let at = self.parameters(network, netns)?;
        let runtime = Runtime {
            plugins,
            env: self.env,
            path: plugin_path("", self.env)?,
            cache: Cache::new(cache::DEFAULT_DIR),
            stderr,
            handles: Rc::default(),
        };
        self.operate(runtime, &list, &at)
    }

    fn operate(
        &self,
        mut runtime: Runtime<'_>,
        list: &NetworkList,
        at: &Parameters,
    ) -> Result<String> {
        match self.verb {
            "add" => runtime.add(list, at, OnFailure::Leave).map(|result| result.to_text()),
            "check" => runtime.check(list, at).map(nothing),
            "del" => runtime.del(list, at).map(nothing),
            "gc" => runtime.gc(list, None).map(nothing),
            "status" => runtime.status(list).map(nothing),
            other => Err(Error::new(Code::BUG, format!("{NAME} has no command {other:?}"))),
        }
    }

    /// The network and the namespace.
    fn subject(&self) -> Result<(&String, &String)> {
        let positional: Vec<&String> =
            self.arguments.get_many("arguments").into_iter().flatten().collect();
        match positional.as_slice() {
            [network, netns, ..] => Ok((network, netns)),
            few => {
                let msg = format!("requires at least 2 arg(s), only received {}", few.len());
                let usage = format!("usage: {NAME} {} <network-name> <netns> [flags]", self.verb);
                Err(Error::new(Code::INVALID_ENVIRONMENT, msg).with_details(usage))
            }
        }
    }

    fn parameters(&self, network: &str, netns: &str) -> Result<Parameters> {
        let capability_args = parameters::parse_capability_args(&self.env.get("CAP_ARGS"))?;
        let args = parameters::parse_args(&self.env.get("CNI_ARGS"))?;
        let given = self.arguments.get_one::<String>("ifname").filter(|name| !name.is_empty());
        let ifname = given.cloned().unwrap_or_else(|| self.variable("CNI_IFNAME", "eth0"));
        let ifname = IfName::parse(&ifname)?;
        let netns = parameters::absolute(&PathBuf::from(netns))?;
        let key = Key {
            network: NetworkName::parse(network)?,
            container_id: parameters::container_id(&netns)?,
            ifname,
        };
        Ok(Parameters { key, netns, args, capability_args })
    }

    fn variable(&self, name: &str, default: &str) -> String {
        Some(self.env.get(name)).filter(|text| !text.is_empty()).unwrap_or(default.into())
    }
}

fn completion(shell: &str) -> String {
    COMPLETIONS.iter().filter(|(name, _)| *name == shell).map(|(_, script)| *script).collect()
}

/// The output of a command without a result.
fn nothing((): ()) -> String {
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
