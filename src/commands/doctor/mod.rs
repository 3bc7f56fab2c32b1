//! `cni-multi doctor`: looks for what is wrong on this machine.

mod examination;
mod explain;
mod need;
mod selftest;

use std::io::Write;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command};
use nix::unistd::geteuid;

pub use self::examination::{Counts, FAULTS};
use self::examination::{Format, Request};
use super::{ipam, path_of_runtimes};
use crate::cni::env::Environment;
use crate::error::{Error, Result};
use crate::plugin::OperatorCommand;
use crate::registry::PLUGINS;
use crate::terminal::arguments::{flag, option, output, positional, text};
use crate::terminal::manual::Manual;
use crate::terminal::style::Style;
use crate::terminal::{self, Streams};

/// Its page of the manual.
pub const MANUAL: Manual = Manual {
    description: &[
        "Finds out why a container, or this node, has no network: reads configurations, records, \
         leases, links, routes and rules, and prints a finding for each fault, with a code, what \
         was seen and its fix. Nothing stays changed. For a named container it sends packets, which a \
         trace of the kernel and rules of its own follow until it ends. \
         --bundle writes the findings with versions, configurations, \
         records, links, addresses, routes and rules into a new file that only its owner can \
         read. A \
         container is called by the name or the path of its namespace, a process in it, its id or \
         the beginning of that, or namespace/pod. --explain says what a code means.",
        "With --selftest it tries every plugin. The namespaces are those of a host, of a machine \
         outside and of containers. Two containers ping each other, a published port is reached \
         from outside, a rate is measured, an ADD fails and another is killed; then each plugin is \
         attached, checked with packets and detached. Nothing of it reaches the machine's own \
         network, but for modules that the kernel loads: those of dummy and ifb make dummy0, ifb0 \
         and ifb1 there.",
    ],
    examples: &[
        ("cni-multi doctor", "Examine this node and all of its attachments."),
        ("cni-multi doctor red", "Examine the node and one container, and follow packets."),
        ("cni-multi doctor red --no-packets", "The same without a packet."),
        (
            "cni-multi doctor red --bundle red.txt",
            "Write it with all facts into a file, for an issue.",
        ),
        ("cni-multi doctor --explain D331", "Say what a code means, its cause and its fix."),
        ("cni-multi doctor --selftest", "Try every plugin on this kernel."),
        ("cni-multi doctor --selftest -o json", "The same, for a program."),
    ],
    exit_status: &[
        ("0", "There are no findings; with --selftest, everything works that this kernel has."),
        ("1", "There are findings; with --selftest, a check failed."),
        ("2", "The command line is invalid, or nothing could be examined."),
    ],
    files: &[
        ("/etc/cni/net.d", "Networks, as cni.conflist(5) describes."),
        ("/var/lib/cni", "Leases of host-local, and records of attachments."),
        ("/opt/cni/bin", "The plugins."),
    ],
    environment: &[
        ("CNI_PATH", "The directories of plugins, without --plugin-path."),
        ("NETCONFPATH", "The directory of networks, without --conf-dir."),
        ("NO_COLOR", "No colour, if it is not empty."),
    ],
    see_also: &["namespaces(7)", "cni-multi-validate(1)", "cni-multi-net-sync(1)"],
};

/// `cni-multi doctor`.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: "doctor", command_line: command, run, manual: |_| MANUAL };

fn command() -> Command {
    let subject = "The container to examine: a name, a path, a process, an id or a pod [all]";
    let no_packets = "Send no packet to or from a container that is named";
    let selftest = "Attach, check with packets and detach each plugin; leaves nothing";
    let bundle = "Write all that was looked at into a new file, for an issue";
    let explain = "Print the meaning, the cause and the fix of a finding's code";
    Command::new("doctor")
        .about("Find out why a container has no network, or try every plugin")
        .arg(positional("subject", "NETNS|CONTAINER", subject).required(false))
        .args([flag("no-packets", no_packets), flag("selftest", selftest)])
        .arg(option("bundle", "FILE", bundle))
        .arg(option("explain", "CODE", explain).exclusive(true))
        .args(ipam::directories())
        .arg(plugin_dirs())
        .arg(output(["text", "json"], "Output format: text or json [text]"))
        .mut_args(|arg| match arg.get_id().as_str() {
            "subject" | "no-packets" | "bundle" => arg.conflicts_with("selftest"),
            _ => arg,
        })
}

/// The option for the directories of plugins.
pub fn plugin_dirs() -> Arg {
    let help = "Plugin directories, colon-separated [CNI_PATH, else /opt/cni/bin]";
    option("plugin-path", "DIRS", help)
}

/// How many findings of each kind the node and everything attached to it have, without a packet. The
/// command line has [`ipam::directories`] and [`plugin_dirs`].
pub fn count(matches: &ArgMatches, env: &Environment) -> Result<Counts> {
    examination::count(&whole_node(matches, env)?)
}

/// Runs the command. Exit status 0: no findings; 1: findings; 2: the command line is wrong, or
/// nothing could be examined. Of the selftest: 0: everything works that this kernel has; 1:
/// something failed.
fn run(matches: &ArgMatches, env: &Environment, io: &mut Streams<'_>) -> u8 {
    let as_json = text(matches, "output") == "json";
    let is_selftest = matches.get_flag("selftest");
    let done = if let Some(code) = matches.get_one::<String>("explain") {
        explain::explain(code).and_then(|text| terminal::print(io.stdout, &text)).map(|()| 0)
    } else if is_selftest {
        selftest::run(env, as_json, io.stdout).map(|passed| u8::from(!passed))
    } else if geteuid().is_root() {
        let format = if as_json { Format::Json } else { Format::Text(Style::of_stdout(env)) };
        examine(matches, env, format, io.stdout)
    } else {
        let _ = writeln!(io.stderr, "doctor looks into namespaces and rules: run it as root"); // the status says it too
        return 2;
    };
    done.unwrap_or_else(|error| {
        io.complain_in_two_lines(&error);
        if is_selftest { 1 } else { 2 }
    })
}

/// Returns the exit status of an examination that could be carried out.
fn examine(
    matches: &ArgMatches,
    env: &Environment,
    format: Format,
    stdout: &mut dyn Write,
) -> Result<u8> {
    let subject = matches.get_one::<String>("subject").map_or("", String::as_str);
    if subject.is_empty() && matches.contains_id("subject") {
        return Err(Error::config("NETNS|CONTAINER", "empty, expected a name"));
    }
    let request = Request {
        no_packets: matches.get_flag("no-packets"),
        subject: subject.to_owned(),
        bundle: matches.get_one::<String>("bundle").map(PathBuf::from),
        ..whole_node(matches, env)?
    };
    let (text, is_healthy) = examination::run(&request, format)?;
    terminal::print(stdout, &text)?;
    Ok(u8::from(!is_healthy))
}

/// Everything is examined, and no packet is sent.
fn whole_node<'a>(matches: &ArgMatches, env: &'a Environment) -> Result<Request<'a>> {
    let host = ipam::host(matches, env);
    Ok(Request {
        no_packets: true,
        plugins: PLUGINS,
        env,
        conf_dir: host.conf_dir,
        cache: host.cache,
        plugin_path: path_of_runtimes(text(matches, "plugin-path"), env)?,
        subject: String::new(),
        bundle: None,
    })
}
