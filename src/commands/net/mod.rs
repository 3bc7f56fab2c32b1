//! `cni-multi net …`: operates networks by hand, with cnitool's arguments, variables and container
//! ids.
//!
//! [`operator`] parses the command line, with [`capability`] and the modules it calls for
//! capability arguments; each command that displays something has its own file and prints with
//! [`table`].

mod attached;
mod bandwidth;
mod capability;
mod check;
mod del;
mod exec;
mod gc;
mod inspect;
mod list;
pub mod manual;
mod namespaces;
mod network;
mod on_firewalld;
mod operator;
mod ps;
pub mod publish;
mod subject;
mod sync;
mod timings;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use self::operator::Operator;
use crate::cni::answer::ErrorObject;
use crate::cni::attachment::NetworkName;
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::cni::version;
use crate::error::{Error, Result};
use crate::plugin::Entry;
use crate::runtime::chain::OnFailure;
use crate::terminal::table;
use crate::terminal::visible::visible;
use crate::terminal::{self, Streams};
use crate::timing;

/// Each command with its purpose and its arguments; `?` follows an optional one.
const COMMANDS: [(&str, &str, &str); 10] = [
    (
        "add",
        "Attach a namespace and print the result; a failure is undone",
        "network netns ifname container-id args publish ip mac bandwidth capability-args conf-dir plugin-path cache-dir \
         no-undo trace timings output",
    ),
    (
        "check",
        "Verify an attachment",
        "network container ifname container-id args publish ip mac bandwidth capability-args conf-dir plugin-path cache-dir \
         trace timings output",
    ),
    (
        "del",
        "Detach a namespace",
        "network container ifname container-id args publish ip mac bandwidth capability-args conf-dir plugin-path cache-dir \
         trace timings output",
    ),
    (
        "exec",
        "Run a command in a temporary namespace that is attached to a network",
        "network command ifname container-id args publish ip mac bandwidth capability-args conf-dir plugin-path \
         cache-dir trace timings",
    ),
    (
        "gc",
        "Detach attachments without a namespace, in one network or in all",
        "network? conf-dir plugin-path cache-dir unrecorded leave dry-run output",
    ),
    (
        "sync",
        "Repair running attachments whose rules, links or routes of the host are gone",
        "network? conf-dir plugin-path cache-dir dry-run on output",
    ),
    (
        "status",
        "Ask the plugins whether they can serve an add",
        "network conf-dir plugin-path cache-dir output",
    ),
    ("list", "List networks, their plugins and their files", "conf-dir output"),
    ("ps", "List attachments", "network? container-id no-trunc conf-dir cache-dir output"),
    (
        "inspect",
        "Show the record of an attachment, and its state in the kernel",
        "subject container? ifname container-id conf-dir cache-dir output",
    ),
];

/// Commands with a second name.
const ALIASES: [(&str, &str); 2] = [("del", "rm"), ("list", "ls")];

/// Every argument with its short form, the name of its value (empty for a flag), and its purpose.
const ARGUMENTS: [(&str, &str, &str, &str); 25] = [
    ("network", "", "NETWORK", "Name of the network, as in its configuration"),
    ("netns", "", "NETNS", "Namespace: a path, or a name from `ip netns`"),
    (
        "container",
        "",
        "NETNS|CONTAINER",
        "Container: name or path of its namespace, one of its processes, id or its beginning, or namespace/pod",
    ),
    ("subject", "", "NETWORK|NETNS|CONTAINER", "Network, or a container of any network"),
    ("command", "", "COMMAND", "Command with its arguments, after `--`"),
    ("ifname", "i", "NAME", "Name of the interface in the namespace [CNI_IFNAME, else eth0]"),
    ("container-id", "", "ID", "Id of the container [derived from the path of the namespace]"),
    ("args", "", "K=V;K=V", "Arguments for plugins [CNI_ARGS]"),
    (
        "publish",
        "p",
        "[ADDR:]HOST:CONTAINER[/PROTO]",
        "Forward a port of the host, or a range, to the container",
    ),
    ("ip", "", "ADDR[/PREFIX]", "Request this address"),
    ("mac", "", "MAC", "Request this hardware address"),
    (
        "bandwidth",
        "",
        "ingress=RATE,egress=RATE",
        "Limit the bandwidth, in bits per second: 500k, 10M, 1G",
    ),
    ("capability-args", "", "JSON", "Arguments by capability, as a JSON object [CAP_ARGS]"),
    (
        "conf-dir",
        "",
        "DIR",
        "Directory of network configurations [NETCONFPATH, else /etc/cni/net.d]",
    ),
    (
        "plugin-path",
        "",
        "DIRS",
        "Plugin directories, colon-separated [CNI_PATH, else the directory of this binary]",
    ),
    ("cache-dir", "", "DIR", "Cache directory, with the results of add [/var/lib/cni]"),
    ("no-undo", "", "", "Keep the changes of a failed add, until del"),
    ("trace", "", "", "Report the input, the answer and the time of each plugin on stderr"),
    ("timings", "", "", "Report on stderr what each plugin's time was spent on"),
    (
        "unrecorded",
        "",
        "",
        "Also remove objects without a record, even of a container that may be alive",
    ),
    ("leave", "", "", "Only remove elements of gone attachments from cni-multi's nftables tables"),
    ("no-trunc", "", "", "Print whole ids"),
    ("dry-run", "", "", "Only print what would be done"),
    ("on", "", "SERVICE", "Repair again after each reload of this service"),
    ("output", "o", "FORMAT", "Output format: table, or json for output and errors [table]"),
];

/// The positional arguments, each with the name that the code reads it by.
const POSITIONAL: [(&str, &str); 4] =
    [("network", "network"), ("netns", "netns"), ("container", "netns"), ("subject", "network")];

/// The arguments that may be repeated; each value counts.
const REPEATED: [&str; 4] = ["publish", "ip", "mac", "bandwidth"];

/// The name of every network in the directory, without duplicates; unreadable files are left out.
pub fn network_names(dir: &Path) -> Vec<NetworkName> {
    network::names(dir).0
}

/// The command line.
pub fn command() -> Command {
    let net = Command::new("net")
        .about("Attach network namespaces to networks, as a runtime does")
        .subcommand_required(true)
        .arg_required_else_help(true);
    COMMANDS.iter().fold(net, |net, (name, about, arguments)| {
        net.subcommand(subcommand(name, arguments).about(*about).visible_aliases(alias(name)))
    })
}

/// The other name of a command, if it has one.
fn alias(name: &str) -> Option<&'static str> {
    ALIASES.iter().find(|(known, _)| *known == name).map(|(_, alias)| *alias)
}

fn subcommand(name: &'static str, arguments: &'static str) -> Command {
    let words = arguments.split(' ');
    words.fold(Command::new(name), |command, word| command.arg(argument(word)))
}

/// The argument of this name.
fn argument(word: &'static str) -> Arg {
    let name = word.trim_end_matches('?');
    let (_, short, value, help) =
        ARGUMENTS.iter().find(|known| known.0 == name).unwrap_or(&ARGUMENTS[0]); // a test covers all
    let arg = Arg::new(name).help(*help);
    if name == "command" {
        return rest_of_line(arg.value_name(*value));
    }
    if let Some((_, id)) = POSITIONAL.iter().find(|(known, _)| *known == name) {
        return arg.id(*id).value_name(*value).required(name == word);
    }
    with_value(arg.long(name).short(short.chars().next()), name, value)
}

/// The argument that takes all words after `--`.
fn rest_of_line(arg: Arg) -> Arg {
    arg.required(true).num_args(1..).last(true).value_parser(value_parser!(OsString))
}

/// The option with a value of this name; a flag if the name is empty.
fn with_value(option: Arg, name: &str, value: &'static str) -> Arg {
    match value {
        "" => option.action(ArgAction::SetTrue),
        value if name == "output" => option.value_name(value).value_parser(["table", "json"]),
        value if name == "on" => option.value_name(value).value_parser(["firewalld"]),
        value if REPEATED.contains(&name) => option.value_name(value).action(ArgAction::Append),
        value => option.value_name(value),
    }
}

/// Runs the command: its output goes to stdout, errors to stderr.
pub fn run(
    matches: &ArgMatches,
    plugins: &'static [Entry],
    env: &Environment,
    io: &mut Streams<'_>,
) -> u8 {
    let Some((verb, matches)) = matches.subcommand() else { return 2 }; // clap requires one
    let operator = Operator { matches, env };
    let (done, status) = match operator.require_readable() {
        Ok(()) => (operate(verb, &operator, plugins, io), status_of_failure(verb)),
        Err(error) => (Err(error), 2),
    };
    let error = match done {
        Ok(status) => return status,
        Err(error) => error,
    };
    let _ = io.stderr.write_all(error_text(&error, operator.wants_json()).as_bytes()); // the status says it too
    status
}

/// The exit status of a command that has failed.
fn status_of_failure(verb: &str) -> u8 {
    if verb == "exec" { exec::FAILED } else { 1 }
}

/// As [`work`], and reports its time if that is wanted.
fn operate(
    verb: &str,
    operator: &Operator<'_>,
    plugins: &'static [Entry],
    io: &mut Streams<'_>,
) -> Result<u8> {
    if !operator.has_flag("timings") {
        return work(verb, operator, plugins, io);
    }
    let (done, accounts) = timing::accounts_of("runtime", || work(verb, operator, plugins, io));
    let _ = io.stderr.write_all(timings::table(&accounts).as_bytes()); // for information only
    done
}

/// Returns the exit status of a command that has succeeded.
fn work(
    verb: &str,
    operator: &Operator<'_>,
    plugins: &'static [Entry],
    io: &mut Streams<'_>,
) -> Result<u8> {
    let text = match verb {
        "list" => list::show(&operator.conf_dir(), operator.wants_json())?,
        "ps" => ps::show(operator)?,
        "inspect" => inspect::show(operator)?,
        "sync" => return sync::run(operator, plugins, io),
        "gc" => return gc::run(operator, plugins, io).map(|()| 0),
        "exec" => return exec::run(operator, plugins, io),
        "add" => return add(operator, plugins, io).map(|()| 0),
        "check" => return check::run(operator, plugins, io),
        "del" => return del::run(operator, plugins, io.stderr).map(|()| 0),
        _ => status(operator, plugins, io.stderr)?,
    };
    terminal::print(io.stdout, &text).map(|()| 0)
}

/// Runs ADD, which is complete when its result is written: if the write fails, the attachment is
/// undone.
fn add(operator: &Operator<'_>, plugins: &'static [Entry], io: &mut Streams<'_>) -> Result<()> {
    let list = network::of(operator)?;
    let at = operator.parameters(NetworkName::parse(&list.name)?, &list)?;
    let on_failure = on_failure(operator);
    let mut runtime = operator.runtime(plugins, io.stderr)?;
    let added = runtime.add(&list, &at, on_failure);
    let result = added
        .map_err(|error| namespaces::with_those_there(runtime.explain(&list, error), &at.netns))?;
    terminal::print(io.stdout, &result.to_text()).map_err(|error| match on_failure {
        OnFailure::Leave => error.with_details("it is attached"),
        OnFailure::Undo => with_undo(error, runtime.del(&list, &at).map(drop)),
    })
}

fn on_failure(operator: &Operator<'_>) -> OnFailure {
    if operator.matches.get_flag("no-undo") { OnFailure::Leave } else { OnFailure::Undo }
}

/// The error, with the outcome of the undo.
fn with_undo(error: Error, undone: Result<()>) -> Error {
    match undone {
        Ok(()) => error.with_details("what was done has been undone"),
        Err(failed) => error.with_details(format_args!("it is attached; undo: {failed}")),
    }
}

/// Asks the plugins of one network whether they can serve an ADD.
fn status(
    operator: &Operator<'_>,
    plugins: &'static [Entry],
    stderr: &mut dyn Write,
) -> Result<String> {
    let list = network::of(operator)?;
    let mut runtime = operator.runtime(plugins, stderr)?;
    runtime.status(&list).map_err(|error| runtime.explain(&list, error))?;
    Ok(if operator.wants_json() { ready(&list.name) } else { String::new() })
}

/// The output of a successful STATUS as JSON.
fn ready(network: &str) -> String {
    table::json(&Value::object([("network", Value::text(network)), ("ready", Value::Bool(true))]))
}

/// The message, and the details on a second line; or the specification's error object on one line,
/// since plugins may have written to stderr before.
fn error_text(error: &Error, as_json: bool) -> String {
    if as_json {
        table::json_line(&ErrorObject::of(error, version::CURRENT))
    } else {
        plain_text(error)
    }
}

/// A remark on a line of its own; an object with `-o json`, so that each line of stderr is JSON.
fn note_text(note: &str, as_json: bool) -> String {
    if as_json {
        table::json_line(&Value::object([("note", Value::text(note))]))
    } else {
        visible(note) + "\n"
    }
}

fn plain_text(error: &Error) -> String {
    let details = error.details();
    let end = if details.is_empty() { "" } else { "\n" };
    format!("{}\n{}{end}", visible(&error.msg), visible(&details))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_is_known_and_used() {
        let known: Vec<&str> = ARGUMENTS.iter().map(|argument| argument.0).collect();
        let used: Vec<&str> =
            COMMANDS.iter().flat_map(|(.., arguments)| arguments.split(' ')).collect();
        assert!(used.iter().all(|word| known.contains(&word.trim_end_matches('?'))), "{used:?}");
        assert!(
            known.iter().all(|name| used.iter().any(|word| word.trim_end_matches('?') == *name)),
            "{known:?}"
        );
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
