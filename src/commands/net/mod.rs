//! `cni-multi net …`: operates networks by hand, with cnitool's arguments, variables and container
//! ids.
//!
//! [`operator`] reads the command line, with [`capability`] for capability arguments. [`subject`] has
//! check and del, [`attached`] ps and inspect, [`network`] list, [`gc`] gc, [`sync`] sync,
//! [`mod@exec`] exec.

mod attached;
pub mod capability;
mod exec;
mod gc;
pub mod manual;
pub mod network;
mod operator;
mod subject;
mod sync;
mod timings;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use self::operator::Operator;
use crate::cni::attachment::NetworkName;
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::commands::ipam;
use crate::error::{Code, Error, Result};
use crate::net::private::NETNS_DIR;
use crate::plugin::OperatorCommand;
use crate::runtime::chain::OnFailure;
use crate::runtime::living::is_gone;
use crate::runtime::{directory, find};
use crate::terminal::arguments::{self, flag, option, positional};
use crate::terminal::{self, Streams, table};
use crate::timing;

/// `cni-multi net` with a subcommand.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: "net", command_line: command, run, manual: manual::of };

fn command() -> Command {
    let add = Command::new("add")
        .about("Attach a namespace and print the result; a failure is undone")
        .args([
            network(),
            positional("netns", "NETNS", "Namespace: a path, or a name from `ip netns`"),
        ])
        .args(of_attachment())
        .args(directories())
        .arg(flag("no-undo", "Keep the changes of a failed add, until del"))
        .args(traces())
        .arg(output());
    let check = Command::new("check").about("Verify an attachment");
    let del = Command::new("del").about("Detach a namespace").visible_alias("rm");
    let [check, del] = [check, del].map(|command| {
        command
            .args([network(), container()])
            .args(of_attachment())
            .args(directories())
            .args(traces())
            .arg(output())
    });
    let words = Arg::new("command").value_name("COMMAND").required(true).num_args(1..).last(true);
    let exec = Command::new("exec")
        .about("Run a command in a temporary namespace that is attached to a network")
        .arg(network())
        .arg(
            words
                .value_parser(value_parser!(OsString))
                .help("Command with its arguments, after `--`"),
        )
        .args(of_attachment())
        .args(directories())
        .args(traces());
    let dry_run = || flag("dry-run", "Only print what would be done");
    let gc = Command::new("gc")
        .about("Detach attachments without a namespace, in one network or in all")
        .arg(network().required(false))
        .args(directories())
        .args([
            flag(
                "unrecorded",
                "Also remove objects without a record, even of a container that may be alive",
            ),
            flag(
                "leave",
                "Only remove elements of gone attachments from cni-multi's nftables tables",
            ),
            dry_run(),
            output(),
        ]);
    let on = option("on", "SERVICE", "Repair again after each reload of this service");
    let sync = Command::new("sync")
        .about("Repair running attachments whose rules, links or routes of the host are gone")
        .arg(network().required(false))
        .args(directories())
        .args([dry_run(), on.value_parser(["firewalld"]), output()]);
    let status = Command::new("status")
        .about("Ask the plugins whether they can serve an add")
        .arg(network())
        .args(directories())
        .arg(output());
    let [conf_dir, _, cache_dir] = directories();
    let list = Command::new("list")
        .about("List networks, their plugins and their files")
        .visible_alias("ls")
        .args([conf_dir.clone(), output()]);
    let ps = Command::new("ps").about("List attachments").args([
        network().required(false),
        container_id(),
        flag("no-trunc", "Print whole ids"),
        conf_dir.clone(),
        cache_dir.clone(),
        output(),
    ]);
    let subject = "Network, or a container of any network";
    let inspect = Command::new("inspect")
        .about("Show the record of an attachment, and its state in the kernel")
        .args([
            positional("network", "NETWORK|NETNS|CONTAINER", subject),
            container().required(false),
            ifname(),
            container_id(),
            conf_dir,
            cache_dir,
            output(),
        ]);
    Command::new("net")
        .about("Attach network namespaces to networks, as a runtime does")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([add, check, del, exec, gc, sync, status, list, ps, inspect])
}

fn network() -> Arg {
    positional("network", "NETWORK", "Name of the network, as in its configuration")
}

/// A container by any of its names; read as the namespace that it may be.
fn container() -> Arg {
    positional(
        "netns",
        "NETNS|CONTAINER",
        "Container: name or path of its namespace, one of its processes, id or its beginning, or namespace/pod",
    )
}

fn ifname() -> Arg {
    option("ifname", "NAME", "Name of the interface in the namespace [CNI_IFNAME, else eth0]")
        .short('i')
}

fn container_id() -> Arg {
    option("container-id", "ID", "Id of the container [derived from the path of the namespace]")
}

fn output() -> Arg {
    let help = "Output format: table, or json for output and errors [table]";
    arguments::output(["table", "json"], help)
}

/// The options of one attachment.
fn of_attachment() -> [Arg; 8] {
    let publish = "Forward a port of the host, or a range, to the container";
    let bandwidth = "Limit the bandwidth, in bits per second: 500k, 10M, 1G";
    [
        ifname(),
        container_id(),
        option("args", "K=V;K=V", "Arguments for plugins [CNI_ARGS]"),
        option("publish", "[ADDR:]HOST:CONTAINER[/PROTO]", publish)
            .short('p')
            .action(ArgAction::Append),
        option("ip", "ADDR[/PREFIX]", "Request this address").action(ArgAction::Append),
        option("mac", "MAC", "Request this hardware address").action(ArgAction::Append),
        option("bandwidth", "ingress=RATE,egress=RATE", bandwidth).action(ArgAction::Append),
        option("capability-args", "JSON", "Arguments by capability, as a JSON object [CAP_ARGS]"),
    ]
}

/// Where networks, plugins and results are.
fn directories() -> [Arg; 3] {
    let path = "Plugin directories, colon-separated [CNI_PATH, else the directory of this binary]";
    let [conf_dir, cache_dir] = ipam::directories();
    [conf_dir, option("plugin-path", "DIRS", path), cache_dir]
}

fn traces() -> [Arg; 2] {
    [
        flag("trace", "Report the input, the answer and the time of each plugin on stderr"),
        flag("timings", "Report on stderr what each plugin's time was spent on"),
    ]
}

/// Runs the command: its output goes to stdout, errors to stderr.
fn run(matches: &ArgMatches, env: &Environment, io: &mut Streams<'_>) -> u8 {
    let Some((verb, matches)) = matches.subcommand() else { return 2 }; // clap requires one
    let operator = Operator { matches, env };
    if let Err(error) = operator.require_readable() {
        operator.complain(&error, io.stderr);
        return 2;
    }
    let done = if operator.has_flag("timings") {
        let work = || operate(verb, &operator, io);
        let (done, accounts) = timing::accounts_of("runtime", work);
        let _ = io.stderr.write_all(timings::table(&accounts).as_bytes()); // for information only
        done
    } else {
        operate(verb, &operator, io)
    };
    done.unwrap_or_else(|error| {
        operator.complain(&error, io.stderr);
        if verb == "exec" { exec::FAILED } else { 1 }
    })
}

/// Returns the exit status of a command that has succeeded.
fn operate(verb: &str, operator: &Operator<'_>, io: &mut Streams<'_>) -> Result<u8> {
    let text = match verb {
        "list" => network::list(&operator.conf_dir(), operator.wants_json())?,
        "ps" => attached::list(operator)?,
        "inspect" => attached::inspect(operator)?,
        "sync" => return sync::run(operator, io),
        "gc" => return gc::run(operator, io).map(|()| 0),
        "exec" => return exec::run(operator, io),
        "add" => return add(operator, io).map(|()| 0),
        "check" => return subject::check(operator, io),
        "del" => return subject::del(operator, io.stderr).map(|()| 0),
        _ => status(operator, io.stderr)?,
    };
    terminal::print(io.stdout, &text).map(|()| 0)
}

/// Runs ADD, which is complete when its result is written: if the write fails, the attachment is
/// undone.
fn add(operator: &Operator<'_>, io: &mut Streams<'_>) -> Result<()> {
    let list = network::of(operator)?;
    let at = operator.parameters(NetworkName::parse(&list.name)?, &list)?;
    let on_failure = if operator.has_flag("no-undo") { OnFailure::Leave } else { OnFailure::Undo };
    let mut runtime = operator.runtime(io.stderr)?;
    let added = runtime.add(&list, &at, on_failure);
    let result =
        added.map_err(|error| with_namespaces(runtime.explain(&list, error), &at.netns))?;
    terminal::print(io.stdout, &result.to_text()).map_err(|error| match on_failure {
        OnFailure::Leave => error.with_details("it is attached"),
        OnFailure::Undo => match runtime.del(&list, &at) {
            Ok(_) => error.with_details("what was done has been undone"),
            Err(failed) => error.with_details(format_args!("it is attached; undo: {failed}")),
        },
    })
}

/// The error of an ADD. If the reason is a namespace that does not exist, the details list those
/// that do, and say how to make it or which path is that of the process with this number.
fn with_namespaces(error: Error, netns: &str) -> Error {
    if error.code != Code::INVALID_ENVIRONMENT || !is_gone(netns) {
        return error;
    }
    let names = directory::file_names(NETNS_DIR.as_ref()).unwrap_or_default();
    let names: Vec<String> =
        names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect();
    let error =
        error.with_details(format_args!("namespaces in {NETNS_DIR}: {}", find::listed(&names)));
    let Some(name) = find::netns_name(netns) else { return error };
    let of_process = format!("/proc/{name}/ns/net");
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    if is_number && Path::new(&of_process).exists() {
        error.with_details(format_args!("the namespace of process {name} is {of_process}"))
    } else {
        error.with_details(format_args!("`ip netns add {name}` makes it"))
    }
}

/// Asks the plugins of one network whether they can serve an ADD.
fn status(operator: &Operator<'_>, stderr: &mut dyn Write) -> Result<String> {
    let list = network::of(operator)?;
    let mut runtime = operator.runtime(stderr)?;
    runtime.status(&list).map_err(|error| runtime.explain(&list, error))?;
    if !operator.wants_json() {
        return Ok(String::new());
    }
    let network = Value::text(&list.name);
    Ok(table::json(&Value::object([("network", network), ("ready", Value::Bool(true))])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }
}
