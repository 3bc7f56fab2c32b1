//! `cni-multi net …`: networks from the operator's hand, with cnitool's arguments, variables and container ids.
//!
//! [`operator`] reads what was typed, with [`capability`] and its kin for what plugins get by capabilities; the commands
//! that tell something have a file each and print with [`table`].

mod attached;
mod bandwidth;
mod capability;
mod gc;
mod inspect;
mod list;
mod network;
mod operator;
mod progress;
mod ps;
mod publish;
mod table;

use std::io::Write;

use clap::{Arg, ArgAction, ArgMatches, Command};

use self::operator::Operator;
use crate::cni::attachment::NetworkName;
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::cni::version;
use crate::error::{Error, Result};
use crate::plugin::Entry;
use crate::runner::Streams;
use crate::runtime::chain::OnFailure;

/// The command line.
pub fn command() -> Command {
    let no_undo = flag("no-undo", "Leave what a failed add has done, for del");
    let dry_run = flag("dry-run", "Only say what would be detached");
    Command::new("net")
        .about("Attach network namespaces to networks, as a runtime does")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(of_attachment("add", "Attach a namespace and print the result; a failure is undone").arg(no_undo))
        .subcommand(of_attachment("check", "Verify an attachment"))
        .subcommand(of_attachment("del", "Detach"))
        .subcommand(
            of_network("gc", "Detach what has no namespace any more, in one network or all", false)
                .args(plugins())
                .arg(cache_dir())
                .arg(dry_run),
        )
        .subcommand(of_network("status", "Ask whether the network can take attachments", true).args(plugins()))
        .subcommand(told("list", "The networks, their plugins and files").arg(conf_dir()))
        .subcommand(of_network("ps", "Who is attached", false).args([of_container(), cache_dir()]))
        .subcommand(
            of_network("inspect", "All that is known of an attachment, and what the kernel has of it", true).args([
                netns().required(false),
                ifname(),
                of_container(),
                cache_dir(),
            ]),
        )
}

fn of_attachment(name: &'static str, about: &'static str) -> Command {
    of_network(name, about, true).arg(netns()).args(attachment()).args(plugins()).arg(cache_dir())
}

fn of_network(name: &'static str, about: &'static str, is_required: bool) -> Command {
    let network =
        Arg::new("network").value_name("NETWORK").required(is_required).help("The network's name in its configuration");
    told(name, about).args([network, conf_dir()])
}

fn told(name: &'static str, about: &'static str) -> Command {
    let output = option("output", "FORMAT", "json: what is printed, and errors, as JSON [table]").short('o');
    Command::new(name).about(about).arg(output.value_parser(["table", "json"]))
}

fn netns() -> Arg {
    Arg::new("netns").value_name("NETNS").required(true).help("The namespace: a path, or a name that `ip netns` knows")
}

fn conf_dir() -> Arg {
    option("conf-dir", "DIR", "Directory of network configurations [NETCONFPATH, else /etc/cni/net.d]")
}

fn ifname() -> Arg {
    option("ifname", "NAME", "The interface's name in the namespace [CNI_IFNAME, else eth0]").short('i')
}

fn container_id() -> Arg {
    option("container-id", "ID", "The container's id [made from the path of the namespace]")
}

fn of_container() -> Arg {
    container_id().help("Only this container's")
}

fn cache_dir() -> Arg {
    option("cache-dir", "DIR", "Where results are kept [/var/lib/cni]")
}

fn attachment() -> [Arg; 8] {
    [
        ifname(),
        container_id(),
        option("args", "K=V;K=V", "Arguments for plugins [CNI_ARGS]"),
        repeated("publish", "[ADDR:]HOST:CONTAINER[/PROTO]", "Lead a port of the host, or a range, to the container")
            .short('p'),
        repeated("ip", "ADDR[/PREFIX]", "Ask for this address"),
        repeated("mac", "MAC", "Ask for this hardware address"),
        repeated("bandwidth", "ingress=RATE,egress=RATE", "Limit it, in bits a second: 500k, 10M, 1G"),
        option("capability-args", "JSON", "Other arguments by capability, an object [CAP_ARGS]"),
    ]
}

fn plugins() -> [Arg; 1] {
    [option("plugin-path", "DIRS", "Directories of plugins, with : between them [CNI_PATH, else where this binary is]")]
}

fn option(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).help(help)
}

fn repeated(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    option(name, value, help).action(ArgAction::Append)
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

/// Runs it: what was asked for goes to stdout, a failure to stderr.
pub fn run(matches: &ArgMatches, plugins: &'static [Entry], env: &Environment, io: &mut Streams<'_>) -> u8 {
    let Some((verb, matches)) = matches.subcommand() else { return 2 }; // clap has required one
    let operator = Operator { matches, env };
    let Err(error) = operate(verb, &operator, plugins, io) else { return 0 };
    let text = if operator.wants_json() { error_object(&error) } else { error_lines(&error) };
    let _ = io.stderr.write_all(text.as_bytes()); // the status says it too
    1
}

fn operate(verb: &str, operator: &Operator<'_>, plugins: &'static [Entry], io: &mut Streams<'_>) -> Result<()> {
    let text = match verb {
        "list" => list::show(&operator.conf_dir(), operator.wants_json())?,
        "ps" => ps::show(operator)?,
        "inspect" => inspect::show(operator)?,
        "gc" => return gc::run(operator, plugins, io),
        _ => run_plugins(verb, operator, plugins, io.stderr)?,
    };
    table::print(io.stdout, &text)
}

/// A command that is one operation of the protocol, on one network.
fn run_plugins(
    verb: &str,
    operator: &Operator<'_>,
    plugins: &'static [Entry],
    stderr: &mut dyn Write,
) -> Result<String> {
    let name = NetworkName::parse(&operator.argument("network"))?;
    let list = network::find(&operator.conf_dir(), name.as_str())?;
    let mut runtime = operator.runtime(plugins, stderr)?;
    if verb == "status" {
        runtime.status(&list)?;
        let ready = table::object([("network", table::text(name.as_str())), ("ready", Value::Bool(true))]);
        return Ok(if operator.wants_json() { table::json(&ready) } else { String::new() });
    }
    let at = operator.parameters(name, &list)?;
    match verb {
        "add" => {
            let on_failure = if operator.matches.get_flag("no-undo") { OnFailure::Leave } else { OnFailure::Undo };
            return Ok(runtime.add(&list, &at, on_failure)?.to_text());
        }
        "check" => runtime.check(&list, &at)?,
        _ => runtime.del(&list, &at)?,
    }
    Ok(String::new())
}

/// The message, and the details below it.
fn error_lines(error: &Error) -> String {
    [&error.msg, &error.details].into_iter().filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
}

/// The specification's error object, on one line: plugins may have said something on stderr before.
fn error_object(error: &Error) -> String {
    let object = table::object([
        ("cniVersion", table::text(version::CURRENT)),
        ("code", Value::Number(error.code.0.into())),
        ("msg", table::text(&error.msg)),
        ("details", table::text(&error.details)),
    ]);
    object.to_text() + "\n"
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
