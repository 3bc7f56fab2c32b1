//! Dispatch by argv: a plugin selected by argv[0], `cni-multi <plugin>`, or the operator's
//! commands.

use std::ffi::OsString;
use std::path::Path;

use clap::{ArgMatches, Command};

use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::cni::version;
use crate::commands::{
    cnitool, completion, doctor, example, install, ipam, man, metrics, net, plugin_help, schema,
    validate,
};
use crate::error::{Code, Error};
use crate::plugin::{Entry, IPAM, OperatorCommand};
use crate::registry::{self, PLUGINS};
use crate::runner::{self, log};
use crate::terminal::arguments::flag;
use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE};
use crate::terminal::nearest::nearest;
use crate::terminal::visible::visible;
use crate::terminal::{Streams, table};

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
    // Matched exactly, so `xbridge` is not `bridge`.
    let path = invocation.args.first().map_or(Path::new(""), Path::new);
    let called = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    if let Some(entry) = registry::find(&called) {
        return run_plugin(entry, 1, invocation);
    }
    if called == cnitool::NAME {
        return run_cnitool(0, invocation);
    }
    if called.starts_with(NAME) {
        return run_first_argument(invocation);
    }
    // An alias, or a link that others have made, leads to a plugin. Without a directory the path is
    // not known.
    let has_directory = path.parent().is_some_and(|parent| !parent.as_os_str().is_empty());
    match has_directory.then(|| Entry::of_link(PLUGINS, path)).flatten() {
        Some(entry) => run_plugin(entry, 1, invocation),
        None => unknown_plugin(&called, &mut invocation),
    }
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
    cnitool::run(args, &invocation.env, &mut invocation.io)
}

/// Answers the completion script of a shell; `--` and the words of the line start at `index`.
fn complete(index: usize, mut invocation: Invocation<'_>) -> u8 {
    let words = invocation.args.get(index + 1..).unwrap_or_default();
    let commands =
        |program: &str| if program == cnitool::NAME { cnitool::command() } else { commands() };
    completion::answer(words, commands, &invocation.env, &mut invocation.io)
}

/// Runs the plugin, or its own command; `word` is the argument after the plugin's name. The name
/// alone is the plugin, as a runtime calls it, and so is the name with a word unknown to the command
/// while CNI_COMMAND is set. A plugin of a runtime ignores its arguments.
fn run_plugin(entry: &'static Entry, word: usize, mut invocation: Invocation<'_>) -> u8 {
    if let Some(typed) = invocation.args.get(word) {
        let is_person = invocation.env.get("CNI_COMMAND").is_empty();
        let command = entry.own_command();
        if command.is_some_and(|command| is_person || command.knows(&typed.to_string_lossy())) {
            if word == 1 {
                invocation.args.splice(..1, [NAME.into(), entry.name.into()]);
            }
            return operate(invocation, Some(entry.name));
        }
        if is_person && plugin_help::WORDS.iter().any(|known| typed == known) {
            return invocation.io.print(&plugin_help::text(entry));
        }
    }
    runner::run(entry, PLUGINS, &invocation.env, &mut invocation.io)
}

/// Reports the name of no plugin and no command, never a silent success: to a runtime, which sets CNI_COMMAND, as an
/// error object, and to a person in words.
fn unknown_plugin(name: &str, invocation: &mut Invocation<'_>) -> u8 {
    let Invocation { env, io, .. } = invocation;
    let plugins: Vec<&str> = PLUGINS.iter().map(|entry| entry.name).collect();
    if !env.get("CNI_COMMAND").is_empty() {
        let error = Error::new(Code::INVALID_ENVIRONMENT, format!("unknown plugin {name:?}"))
            .with_details(format_args!("this cni-multi has {}", plugins.join(", ")));
        let object = runner::error_object(&error, version::CURRENT);
        let _ = io.stdout.write_all(object.as_bytes()); // the exit status says it too
        return 1;
    }
    let commands = commands();
    let known = commands.get_subcommands().map(Command::get_name).chain(plugins);
    let next = match nearest(name, known) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("`{NAME} help` lists the commands, `{NAME} list` the plugins"),
    };
    let text = format!("no command or plugin is named {name:?}; {next}");
    let _ = writeln!(io.stderr, "{}", visible(&text)); // the status says it too
    2
}

/// The operator's command line.
fn operate(mut invocation: Invocation<'_>, first: Option<&str>) -> u8 {
    let commands = commands();
    let is_known = |word: &str| {
        word.starts_with('-') || word == "help" || commands.find_subcommand(word).is_some()
    };
    if let Some(word) = first.filter(|word| !is_known(word)) {
        return unknown_plugin(word, &mut invocation);
    }
    let Invocation { args, env, io } = &mut invocation;
    let matches = match commands.try_get_matches_from(&*args) {
        Ok(matches) => matches,
        Err(mut asked) => {
            plugin_help::suggest(&mut asked, &self::commands(), args);
            let is_mistake = asked.use_stderr();
            io.print_advice(&asked, is_mistake);
            return u8::from(is_mistake) * 2;
        }
    };
    let Some((name, matches)) = matches.subcommand() else {
        // Nomad runs every file of the directory and takes the first word that parses as a version.
        let help = self::commands().render_help();
        return io.print(&format!("{NAME} {}\n\n{help}", env!("CARGO_PKG_VERSION")));
    };
    // clap rejects every other name.
    command_of_name(name).map_or(2, |command| (command.run)(matches, env, io))
}

/// The commands that work on this host.
static ON_HOST: [OperatorCommand; 6] =
    [LIST, install::COMMAND, net::COMMAND, doctor::COMMAND, ipam::COMMAND, metrics::COMMAND];

/// The commands about configurations and about the command line itself.
static ON_FILES: [OperatorCommand; 5] = [
    validate::COMMAND,
    schema::COMMAND,
    example::COMMAND,
    OperatorCommand {
        name: "completion",
        command_line: completion::command,
        run: |matches, _, io| completion::run(matches, NAME, io),
        manual: |_| completion::MANUAL,
    },
    OperatorCommand {
        name: "man",
        command_line: man::command,
        run: |matches, _, io| man::run(matches, &MANUAL_PAGES, io),
        manual: |_| man::MANUAL,
    },
];

/// The operator commands that plugins define, but for those of `ipam`.
fn commands_of_plugins() -> impl Iterator<Item = &'static OperatorCommand> {
    PLUGINS.iter().flat_map(|entry| entry.commands).filter(|command| command.name != IPAM)
}

fn command_of_name(name: &str) -> Option<&'static OperatorCommand> {
    let mut all = ON_HOST.iter().chain(commands_of_plugins()).chain(&ON_FILES);
    all.find(|command| command.name == name)
}

/// The whole command line, as the binary parses it and the manual describes it.
pub fn commands() -> Command {
    let line = |command: &OperatorCommand| (command.command_line)();
    let version = format!("{} (plugins: {})", env!("CARGO_PKG_VERSION"), runner::plugin_version());
    Command::new(NAME)
        .version(version)
        .about("Every CNI plugin in one binary")
        .after_help(
            "Called by a plugin's name, or as `cni-multi <plugin>`, it is that plugin and speaks the CNI protocol.",
        )
        .subcommands(ON_HOST.iter().chain(commands_of_plugins()).map(line))
        .subcommand(cnitool::command())
        .subcommands(ON_FILES.iter().map(line))
}

const MANUAL_PAGES: man::Pages = man::Pages { commands, manuals: manual };

/// The sections of the page about the command that the words lead to.
fn manual(words: &[&str]) -> Manual {
    let verb = words.get(1).copied().unwrap_or_default();
    match words.first().copied().unwrap_or_default() {
        "" => MANUAL,
        cnitool::NAME => cnitool::manual(verb),
        name => command_of_name(name).map_or(Manual::EMPTY, |command| (command.manual)(verb)),
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

/// `cni-multi list`.
const LIST: OperatorCommand = OperatorCommand {
    name: "list",
    command_line: || {
        Command::new("list")
            .about("The plugins, one name a line")
            .visible_alias("ls")
            .arg(flag("long", "With group and purpose"))
    },
    run: list,
    manual: |_| Manual {
        examples: &[("cni-multi list --long", "List the plugins, with group and purpose.")],
        see_also: &["cni.conflist(5)"],
        ..Manual::EMPTY
    },
};

fn list(matches: &ArgMatches, _: &Environment, io: &mut Streams<'_>) -> u8 {
    const COLUMNS: [(&str, &str); 3] =
        [("PLUGIN", "plugin"), ("GROUP", "group"), ("PURPOSE", "purpose")];
    if !matches.get_flag("long") {
        let lines: String = PLUGINS.iter().map(|entry| [entry.name, "\n"].concat()).collect();
        return io.print(&lines);
    }
    let row = |entry: &Entry| {
        Value::object([
            ("plugin", Value::text(entry.name)),
            ("group", Value::text(entry.kind.as_str())),
            ("purpose", Value::text(entry.about)),
        ])
    };
    io.print(&table::of_rows(PLUGINS.iter().map(row).collect(), &COLUMNS, false))
}
