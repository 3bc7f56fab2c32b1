//! Dispatch by argv: a plugin selected by argv[0], `cni-multi <plugin>`, or the operator's
//! commands.

use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::cni::version;
use crate::commands::{
    cnitool, completion, doctor, example, install, ipam, man, metrics, net, plugin_help, schema,
    suggestion, validate,
};
use crate::error::{Code, Error};
use crate::plugin::{Entry, IPAM, OperatorCommand};
use crate::registry::{self, PLUGINS};
use crate::runner::{self, log};
use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE};
use crate::terminal::nearest::nearest;
use crate::terminal::visible::visible;
use crate::terminal::{self, Streams, table};

/// The binary's own name. Called by it, or by a name that begins with it, the process runs the
/// operator's command line.
const NAME: &str = "cni-multi";

/// Everything a process starts with.
pub struct Invocation<'a> {
    /// argv.
    pub args: Vec<OsString>,
    /// The environment.
    pub env: Environment,
    /// stdin, stdout, stderr.
    pub io: Streams<'a>,
}

/// Runs the plugin or command that argv selects; returns the exit status.
///
/// A runtime calls a plugin by name and without arguments, so that case comes first and costs
/// nothing else.
pub fn run(mut invocation: Invocation<'_>) -> u8 {
    let called = invocation.args.first().map(basename).unwrap_or_default();
    if let Some(entry) = registry::find(&called) {
        return run_plugin(entry, 1, invocation);
    }
    if called == cnitool::NAME {
        return run_cnitool(0, invocation);
    }
    if called.starts_with(NAME) {
        return run_first_argument(invocation);
    }
    match linked_plugin(&invocation.args) {
        Some(entry) => run_plugin(entry, 1, invocation),
        None => unknown_plugin(&called, &mut invocation),
    }
}

/// The plugin that the invoked path leads to, of an unknown name: an alias, or a link that others
/// have made. Without a directory the path is not known.
fn linked_plugin(args: &[OsString]) -> Option<&'static Entry> {
    let path = Path::new(args.first()?);
    let has_directory = path.parent().is_some_and(|parent| !parent.as_os_str().is_empty());
    has_directory.then(|| Entry::of_link(PLUGINS, path)).flatten()
}

/// Runs the plugin or command that the first argument names.
fn run_first_argument(invocation: Invocation<'_>) -> u8 {
    let first = invocation.args.get(1).map(|arg| arg.to_string_lossy().into_owned());
    if let Some(entry) = first.as_deref().and_then(registry::find) {
        return run_plugin(entry, 2, invocation);
    }
    match first.as_deref() {
        Some(cnitool::NAME) => run_cnitool(1, invocation),
        Some(completion::QUERY) => complete(2, invocation),
        first => operate(invocation, first),
    }
}

/// Runs cnitool; its name is the argument at `index`.
fn run_cnitool(index: usize, mut invocation: Invocation<'_>) -> u8 {
    if invocation.args.get(index + 1).is_some_and(|word| word == completion::QUERY) {
        return complete(index + 2, invocation);
    }
    let args = &invocation.args[index..];
    cnitool::run(args, PLUGINS, &invocation.env, &mut invocation.io)
}

/// Answers the completion script of a shell; `--` and the words of the line start at `index`.
fn complete(index: usize, mut invocation: Invocation<'_>) -> u8 {
    let words = invocation.args.get(index + 1..).unwrap_or_default();
    completion::answer(words, commands, PLUGINS, &invocation.env, &mut invocation.io)
}

/// Runs the plugin, or its own command; `word` is the argument after the plugin's name.
fn run_plugin(entry: &'static Entry, word: usize, mut invocation: Invocation<'_>) -> u8 {
    let typed = invocation.args.get(word);
    if !is_command(entry, typed, &invocation.env) {
        if asks_for_help(typed, &invocation.env) {
            return print(&plugin_help::text(PLUGINS, entry), &mut invocation.io);
        }
        return runner::run(entry, PLUGINS, &invocation.env, &mut invocation.io);
    }
    if word == 1 {
        invocation.args.splice(..1, [NAME.into(), entry.name.into()]);
    }
    operate(invocation, Some(entry.name))
}

/// The last element of argv[0]; matched exactly, so `xbridge` is not `bridge`.
fn basename(argv0: &OsString) -> String {
    Path::new(argv0).file_name().unwrap_or(argv0).to_string_lossy().into_owned()
}

/// Whether argv means the plugin's own command. The name alone is the plugin, as a runtime calls
/// it, and so is the name with a word unknown to the command while CNI_COMMAND is set.
fn is_command(entry: &Entry, word: Option<&OsString>, env: &Environment) -> bool {
    let Some(word) = word else { return false }; // as a runtime calls it
    let Some(command) = entry.own_command() else { return false };
    command.knows(&word.to_string_lossy()) || env.get("CNI_COMMAND").is_empty()
}

/// Whether a person asks for a plugin's help; a plugin of a runtime ignores its arguments.
fn asks_for_help(word: Option<&OsString>, env: &Environment) -> bool {
    let is_word = |word: &OsString| plugin_help::WORDS.iter().any(|known| word == known);
    env.get("CNI_COMMAND").is_empty() && word.is_some_and(is_word)
}

/// The operator commands that plugins define, but for those of `ipam`.
fn commands_of_plugins() -> impl Iterator<Item = &'static OperatorCommand> {
    PLUGINS.iter().flat_map(|entry| entry.commands).filter(|command| command.name != IPAM)
}

/// Reports an unknown plugin, never a silent success: to a runtime, which sets CNI_COMMAND, as an
/// error object, and to a person in words.
fn unknown_plugin(name: &str, invocation: &mut Invocation<'_>) -> u8 {
    let Invocation { env, io, .. } = invocation;
    if env.get("CNI_COMMAND").is_empty() {
        let _ = writeln!(io.stderr, "{}", visible(&unknown_word(name))); // the status says it too
        return 2;
    }
    let object = runner::error_object(&no_such_plugin(name), version::CURRENT);
    let _ = io.stdout.write_all(object.as_bytes()); // the exit status says it too
    1
}

/// The answer to a word that is neither a plugin nor a command.
fn unknown_word(word: &str) -> String {
    let commands = commands();
    let names = commands.get_subcommands().map(Command::get_name);
    let known = names.chain(PLUGINS.iter().map(|entry| entry.name));
    match nearest(word, known) {
        Some(near) => format!("no command or plugin is named {word:?}; did you mean {near:?}?"),
        None => format!(
            "no command or plugin is named {word:?}; `{NAME} help` lists the commands, `{NAME} list` the plugins"
        ),
    }
}

fn no_such_plugin(name: &str) -> Error {
    let names: Vec<&str> = PLUGINS.iter().map(|entry| entry.name).collect();
    Error::new(Code::INVALID_ENVIRONMENT, format!("unknown plugin {name:?}"))
        .with_details(format_args!("this cni-multi has {}", names.join(", ")))
}

/// The operator's command line.
fn operate(mut invocation: Invocation<'_>, first: Option<&str>) -> u8 {
    let commands = commands();
    if let Some(word) = first.filter(|word| !is_known(word, &commands)) {
        return unknown_plugin(word, &mut invocation);
    }
    match commands.try_get_matches_from(&invocation.args) {
        Ok(matches) => dispatch(&matches, &mut invocation),
        Err(mut asked) => {
            suggestion::add(&mut asked, &self::commands(), &invocation.args);
            print_advice(&asked, &mut invocation.io)
        }
    }
}

fn is_known(word: &str, commands: &Command) -> bool {
    word.starts_with('-') || word == "help" || commands.find_subcommand(word).is_some()
}

/// Prints the help that was asked for, or the mistake in the command line.
fn print_advice(asked: &clap::Error, io: &mut Streams<'_>) -> u8 {
    let is_mistake = asked.use_stderr();
    io.print_advice(asked, is_mistake);
    u8::from(is_mistake) * 2
}

/// The whole command line, as the binary parses it and the manual describes it.
pub fn commands() -> Command {
    let version = format!("{} (plugins: {})", env!("CARGO_PKG_VERSION"), runner::plugin_version());
    Command::new(NAME)
        .version(version)
        .about("Every CNI plugin in one binary")
        .after_help(
            "Called by a plugin's name, or as `cni-multi <plugin>`, it is that plugin and speaks the CNI protocol.",
        )
        .subcommand(list_command())
        .subcommand(install::command())
        .subcommand(net::command())
        .subcommand(doctor::command())
        .subcommand(ipam::command(PLUGINS))
        .subcommand(metrics::command())
        .subcommands(commands_of_plugins().map(|command| (command.command_line)()))
        .subcommand(cnitool::command())
        .subcommand(validate::command())
        .subcommand(schema::command())
        .subcommand(example::command())
        .subcommand(completion::command())
        .subcommand(man::command())
}

fn list_command() -> Command {
    let long = Arg::new("long").long("long").action(ArgAction::SetTrue);
    Command::new("list")
        .about("The plugins, one name a line")
        .visible_alias("ls")
        .arg(long.help("With group and purpose"))
}

const MANUAL_PAGES: man::Pages = man::Pages { commands, manuals: manual };

/// The sections of the page about the command that the words lead to.
fn manual(words: &[&str]) -> Manual {
    let verb = words.get(1).copied().unwrap_or_default();
    match words.first().copied().unwrap_or_default() {
        "" => MANUAL,
        "list" => MANUAL_OF_LIST,
        "install" => install::manual::MANUAL,
        "net" => net::manual::of(verb),
        "doctor" => doctor::MANUAL,
        IPAM => ipam::manual_of(verb, PLUGINS),
        "metrics" => metrics::MANUAL,
        "validate" => validate::MANUAL,
        "schema" => schema::MANUAL,
        "example" => example::MANUAL,
        "completion" => completion::MANUAL,
        "man" => man::MANUAL,
        cnitool::NAME => cnitool::manual(verb),
        name => commands_of_plugins()
            .find(|command| command.name == name)
            .map_or(Manual::EMPTY, |command| (command.manual)(verb)),
    }
}

const MANUAL: Manual = Manual {
    description: &[
        "Called by the name of a plugin, or as cni-multi PLUGIN, it is that plugin: a container \
         runtime sets CNI_COMMAND and other variables, and passes a configuration on stdin.",
    ],
    examples: &[
        ("cni-multi install", "Install the plugins into /opt/cni/bin."),
        ("cni-multi validate", "Find mistakes in the networks of this host."),
        ("cni-multi net ps", "List the attachments of containers."),
    ],
    exit_status: SUCCESS_FAILURE_OR_USAGE,
    files: &[
        ("/opt/cni/bin", "The usual directory of plugins."),
        ("/etc/cni/net.d", "Networks, as cni.conflist(5) describes."),
        (log::FILE, "If it exists, each call of a plugin is logged, as with CNI_MULTI_LOG=1."),
    ],
    environment: &[(
        log::VARIABLE,
        "1 logs each call of a plugin to the journal, or without one to stderr; any other value \
         does not, whether or not the file of the log exists.",
    )],
    see_also: &["cni.conflist(5)", "cnitool(1)", "journalctl(1)"],
};

const MANUAL_OF_LIST: Manual = Manual {
    examples: &[("cni-multi list --long", "List the plugins, with group and purpose.")],
    see_also: &["cni.conflist(5)"],
    ..Manual::EMPTY
};

fn dispatch(matches: &ArgMatches, invocation: &mut Invocation<'_>) -> u8 {
    let Invocation { args, env, io } = invocation;
    match matches.subcommand() {
        Some(("list", list)) => print(&plugin_list(list.get_flag("long")), io),
        Some(("install", command)) => install::run(command, called_as(args), PLUGINS, io),
        Some(("net", command)) => net::run(command, PLUGINS, env, io),
        Some(("doctor", command)) => doctor::run(command, PLUGINS, env, io),
        Some((IPAM, command)) => ipam::run(command, PLUGINS, env, io),
        Some(("metrics", command)) => metrics::run(command, PLUGINS, env, io),
        Some(("validate", command)) => validate::run(command, PLUGINS, env, io),
        Some(("completion", command)) => completion::run(command, NAME, io),
        Some(("man", command)) => man::run(command, &MANUAL_PAGES, PLUGINS, io),
        Some(("schema", command)) => schema::run(command, PLUGINS, io),
        Some(("example", command)) => example::run(command, PLUGINS, io),
        Some((name, matches)) => run_command_of_plugin(name, matches, env, io),
        None => print(&overview(), io),
    }
}

/// The path of this binary according to argv.
fn called_as(args: &[OsString]) -> &Path {
    args.first().map_or(Path::new(NAME), Path::new)
}

/// Runs a command that a plugin defines; clap rejects every other name.
fn run_command_of_plugin(
    name: &str,
    matches: &ArgMatches,
    env: &Environment,
    io: &mut Streams<'_>,
) -> u8 {
    let command = commands_of_plugins().find(|command| command.name == name);
    command.map_or(2, |command| (command.run)(matches, env, io))
}

/// Nomad runs every file of the directory and takes the first word that parses as a version.
fn overview() -> String {
    format!("{NAME} {}\n\n{}", env!("CARGO_PKG_VERSION"), commands().render_help())
}

fn plugin_list(long: bool) -> String {
    if long {
        return table::of_rows(PLUGINS.iter().map(row).collect(), &COLUMNS, false);
    }
    PLUGINS.iter().map(short_line).collect()
}

/// The columns of `list --long`.
const COLUMNS: [(&str, &str); 3] =
    [("PLUGIN", "plugin"), ("GROUP", "group"), ("PURPOSE", "purpose")];

fn row(entry: &Entry) -> Value {
    Value::object([
        ("plugin", Value::text(entry.name)),
        ("group", Value::text(entry.kind.as_str())),
        ("purpose", Value::text(entry.about)),
    ])
}

fn short_line(entry: &Entry) -> String {
    [entry.name, "\n"].concat()
}

fn print(text: &str, io: &mut Streams<'_>) -> u8 {
    u8::from(terminal::write(io.stdout, text).is_err())
}
