//! `cni-multi completion SHELL`: prints the script with which a shell completes command lines.
//!
//! The scripts are small: at each completion they run the hidden command `complete` with the words
//! of the line, and [`answer`] answers from the description of the command line that parses it, with
//! the networks, namespaces and containers of this host. So there is no second list of commands.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::cni::env::Environment;
use crate::commands::net::network;
use crate::commands::{CNITOOL, CONF_DIR};
use crate::net::private::NETNS_DIR;
use crate::plugin::Entry;
use crate::registry::PLUGINS;
use crate::runtime::cache::{self, Cache};
use crate::runtime::directory;
use crate::runtime::parameters::Parameters;
use crate::terminal::Streams;
use crate::terminal::arguments::{positional, text};
use crate::terminal::manual::Manual;

/// The hidden command that the scripts run, followed by `--` and the words of the line.
pub const QUERY: &str = "complete";

/// The shells, each with its script.
const SCRIPTS: [(&str, &str); 3] = [
    ("bash", include_str!("complete.bash")),
    ("fish", include_str!("complete.fish")),
    ("zsh", include_str!("complete.zsh")),
];

/// The sections of its page.
pub const MANUAL: Manual = Manual {
    description: &[
        "The script runs the program again at each completion, which offers commands, options and \
         plugins, and the networks, namespaces and containers of this host, as far as the user may \
         read them.",
    ],
    examples: &[
        (
            "source <(cni-multi completion bash)",
            "In bash, and in zsh after compinit: until the shell ends.",
        ),
        (
            "cni-multi completion bash >/usr/local/share/bash-completion/completions/cni-multi",
            "In bash, for all users, with the package bash-completion.",
        ),
        (
            "cni-multi completion zsh >/usr/local/share/zsh/site-functions/_cni-multi",
            "In zsh, for all users.",
        ),
        ("cni-multi completion fish >~/.config/fish/completions/cni-multi.fish", "In fish."),
    ],
    files: &[
        ("/etc/cni/net.d", "Networks that are offered, without --conf-dir."),
        ("/run/netns", "Namespaces that are offered."),
        ("/var/lib/cni/results", "Containers that are offered, without --cache-dir."),
    ],
    environment: &[("NETCONFPATH", "The directory of networks, without --conf-dir.")],
    see_also: &["bash(1)", "zshcompsys(1)", "fish-completions(1)"],
    ..Manual::EMPTY
};

/// The command line.
pub fn command() -> Command {
    let shells = SCRIPTS.map(|(shell, _)| shell);
    Command::new("completion")
        .about("Print the completion script for a shell")
        .arg(positional("shell", "SHELL", "The shell").value_parser(shells))
}

/// Runs the command; the script completes the program `name`.
pub fn run(matches: &ArgMatches, name: &str, io: &mut Streams<'_>) -> u8 {
    io.print(&script(text(matches, "shell"), name))
}

/// The script of a shell for the program `name`.
pub fn script(shell: &str, name: &str) -> String {
    let script = SCRIPTS.iter().find(|known| known.0 == shell).map_or("", |known| known.1);
    script.replace("@NAME@", name).replace("@FUNCTION@", &name.replace('-', "_"))
}

/// Prints the completions of the last of `words`. The first word is the program, and its command line
/// is one of `commands`. Each completion is a line with its purpose after a tab; a line `:files` or
/// `:directories` leaves the completion to the shell. Always succeeds:
/// a shell that completes has no place for an error.
pub fn answer(
    words: &[OsString],
    commands: fn(&str) -> Command,
    env: &Environment,
    io: &mut Streams<'_>,
) -> u8 {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let program = words.first().map_or("", |path| path.rsplit('/').next().unwrap_or_default());
    let mut command = commands(program);
    command.build();
    let offers = Line::read(&command, &words, env).offers();
    io.print(&offers.concat()); // the shell may have closed the pipe
    0
}

/// A command line up to the word that is being completed.
pub struct Line<'a> {
    /// The innermost command.
    command: &'a Command,
    /// The options before the word, with their values.
    typed: Vec<(&'a Arg, &'a str)>,
    /// The number of positional arguments before the word.
    positional: usize,
    /// The option that takes the word as its value.
    pending: Option<&'a Arg>,
    /// Whether `--` has been typed: no options follow.
    is_closed: bool,
    /// The word that is being completed; may be empty.
    word: &'a str,
    env: &'a Environment,
}

impl<'a> Line<'a> {
    /// Reads the words, the first of which is the program.
    pub fn read(command: &'a Command, words: &'a [String], env: &'a Environment) -> Line<'a> {
        let (word, before) = words.split_last().map_or(("", &[][..]), |(last, rest)| (last, rest));
        let mut line = Line {
            command,
            typed: vec![],
            positional: 0,
            pending: None,
            is_closed: false,
            word,
            env,
        };
        before.iter().skip(1).for_each(|word| line.take(word));
        line.word = if line.pending.is_some() && word == "=" { "" } else { word };
        line
    }

    /// Takes a complete word.
    fn take(&mut self, word: &'a str) {
        match self.pending {
            Some(_) if word == "=" => (), // bash splits --option=value into three words
            Some(option) => {
                self.typed.push((option, word));
                self.pending = None;
            }
            None if self.is_closed || !word.starts_with('-') || word == "-" => {
                match self.command.find_subcommand(word) {
                    Some(command) if !self.is_closed && self.positional == 0 => {
                        self.command = command;
                    }
                    _ => self.positional += 1,
                }
            }
            None if word == "--" => self.is_closed = true,
            None => {
                let (name, value) = word.split_once('=').unwrap_or((word, ""));
                let Some(option) = self.option(name) else { return };
                if option.get_action().takes_values() && !word.contains('=') {
                    self.pending = Some(option);
                } else {
                    self.typed.push((option, value));
                }
            }
        }
    }

    /// The option that is called so, with its dashes.
    fn option(&self, name: &str) -> Option<&'a Arg> {
        self.command.get_arguments().find(|arg| match name.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long),
            None => arg.get_short().is_some_and(|short| name[1..] == *short.to_string()),
        })
    }

    /// What may be typed for the word, each in a line.
    pub fn offers(&self) -> Vec<String> {
        if let Some(option) = self.pending {
            return self.values(option, 0, "", self.word);
        }
        if self.is_closed || !self.word.starts_with('-') {
            return self.names();
        }
        let Some((name, value)) = self.word.split_once('=') else { return self.options() };
        match self.option(name).filter(|arg| arg.get_action().takes_values()) {
            // As whole words.
            Some(option) => self.values(option, 0, &[name, "="].concat(), value),
            None => vec![],
        }
    }

    /// The subcommands, or the values of the next positional argument.
    fn names(&self) -> Vec<String> {
        let shown = self.command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut offers: Vec<String> = vec![];
        if self.positional == 0 && !self.is_closed {
            offers.extend(shown.filter_map(|command| {
                offer(command.get_name(), self.word, command.get_about().map(ToString::to_string))
            }));
        }
        // The last positional argument may take several values.
        let all: Vec<&Arg> = self.command.get_positionals().collect();
        let Some(last) = all.len().checked_sub(1) else { return offers };
        let takes_more = all[last].get_num_args().is_some_and(|count| count.max_values() > 1);
        if self.positional <= last || takes_more {
            let (arg, index) =
                (all[self.positional.min(last)], self.positional.saturating_sub(last));
            offers.extend(self.values(arg, index, "", self.word));
        }
        offers
    }

    /// The options that have not been typed, or may be repeated: the long form, or the short form of
    /// an option that has no other.
    fn options(&self) -> Vec<String> {
        let mut offers = vec![];
        for arg in self.command.get_arguments().filter(|arg| !arg.is_hide_set()) {
            let is_typed = self.typed.iter().any(|(typed, _)| typed.get_id() == arg.get_id());
            if is_typed && !matches!(arg.get_action(), ArgAction::Append) {
                continue;
            }
            let name = match (arg.get_long(), arg.get_short()) {
                (Some(long), _) => ["--", long].concat(),
                (None, Some(short)) => format!("-{short}"),
                (None, None) => continue,
            };
            offers.extend(offer(&name, self.word, arg.get_help().map(ToString::to_string)));
        }
        offers
    }

    /// The values of an argument that begin with `begun`, each after `prefix`; `index` counts those of
    /// one that takes several.
    fn values(&self, arg: &Arg, index: usize, prefix: &str, begun: &str) -> Vec<String> {
        let words = arg.get_possible_values();
        let names = arg.get_value_names().unwrap_or_default();
        let name = names.get(index).map_or("", |name| name.as_str());
        let kinds = name.split('|').filter(|kind| *kind != "DIR" || name == "DIR"); // among files
        let values: Vec<Value> = if words.is_empty() {
            kinds.flat_map(|kind| self.of_kind(kind, begun)).collect()
        } else {
            words.iter().map(|word| Value::of(word.get_name())).collect()
        };
        values.into_iter().filter_map(|value| value.line(prefix, begun)).collect()
    }

    /// The values that the name of an argument's value stands for.
    fn of_kind(&self, kind: &str, begun: &str) -> Vec<Value> {
        match kind {
            "NETWORK" => {
                let typed = self.setting("conf-dir", "NETCONFPATH");
                let dir = PathBuf::from(if typed.is_empty() { CONF_DIR } else { &typed });
                network::names(&dir).0.iter().map(|name| Value::of(name.as_str())).collect()
            }
            "NETNS" => self.namespaces(begun),
            "ID" | "CONTAINER" => {
                let attached = self.attached().into_iter();
                distinct(attached.map(|at| at.key.container_id.as_str().to_owned()))
            }
            "PLUGIN" => {
                let value = |entry: &Entry| Value::Word {
                    word: entry.name.into(),
                    about: entry.about.into(),
                };
                PLUGINS.iter().map(value).collect()
            }
            "FORMAT" => {
                let is_text = ["validate", "doctor"].contains(&self.command.get_name());
                vec![Value::of("json"), Value::of(if is_text { "text" } else { "table" })]
            }
            "FILE" => vec![Value::Files],
            "DIR" | "DIRS" => vec![Value::Directories],
            _ => vec![],
        }
    }

    /// The namespaces of `ip netns` by name, or by path where a path is begun or only a path is
    /// accepted; and those of attachments elsewhere, to detach and examine them.
    fn namespaces(&self, begun: &str) -> Vec<Value> {
        let program = self.command.get_bin_name();
        let is_of_cnitool = program.is_some_and(|name| name.contains(CNITOOL));
        let is_path = begun.contains('/') || is_of_cnitool;
        let names = directory::file_names(NETNS_DIR.as_ref()).unwrap_or_default();
        let names = names.iter().filter_map(|name| name.to_str());
        let prefix = if is_path { [NETNS_DIR, "/"].concat() } else { String::new() };
        let mut values: Vec<Value> =
            names.map(|name| Value::of([prefix.as_str(), name].concat())).collect();
        if ["check", "del", "doctor", "inspect"].contains(&self.command.get_name()) {
            let attached = self.attached().into_iter().map(|at| at.netns);
            values.extend(distinct(attached.filter(|netns| !netns.starts_with(NETNS_DIR))));
        }
        let is_begun =
            |value: &Value| matches!(value, Value::Word { word, .. } if word.starts_with(begun));
        if is_path && !values.iter().any(is_begun) {
            values.push(Value::Files);
        }
        values
    }

    /// The recorded attachments, as far as they can be read.
    fn attached(&self) -> Vec<Parameters> {
        let typed = self.setting("cache-dir", "");
        let cache = Cache::new(if typed.is_empty() { cache::DEFAULT_DIR } else { &typed });
        let found = cache.all().unwrap_or_default().into_iter();
        found.filter_map(|found| found.record.ok()?.at).collect()
    }

    /// The value of an option on the line, else of the variable; may be empty.
    fn setting(&self, option: &str, variable: &str) -> String {
        let typed = self.typed.iter().rfind(|(arg, _)| arg.get_long() == Some(option));
        typed.map_or_else(|| self.env.get(variable), |(_, value)| (*value).to_owned())
    }
}

/// What may be typed.
enum Value {
    /// A word, with its purpose.
    Word {
        /// The word.
        word: String,
        /// Its purpose; may be empty.
        about: String,
    },
    /// The files that the shell finds.
    Files,
    /// The directories that the shell finds.
    Directories,
}

impl Value {
    fn of(word: impl Into<String>) -> Value {
        Value::Word { word: word.into(), about: String::new() }
    }

    /// The line for the script, if the word begins with `begun`. A shell gets no word that it would
    /// have to quote, and none that it would take for another kind of line.
    fn line(self, prefix: &str, begun: &str) -> Option<String> {
        match self {
            Value::Files => Some(":files\n".to_owned()),
            Value::Directories => Some(":directories\n".to_owned()),
            Value::Word { word, about } => {
                let tab = if about.is_empty() { "" } else { "\t" };
                let is_plain =
                    |byte: u8| byte.is_ascii_alphanumeric() || b"_./@%+,:=-".contains(&byte);
                let is_offered =
                    word.starts_with(begun) && !word.starts_with(':') && word.bytes().all(is_plain);
                is_offered.then(|| [prefix, &word, tab, &about, "\n"].concat())
            }
        }
    }
}

/// A word with its purpose, if it begins so.
fn offer(word: &str, begun: &str, about: Option<String>) -> Option<String> {
    let value = Value::Word { word: word.to_owned(), about: about.unwrap_or_default() };
    value.line("", begun)
}

/// The words, each once.
fn distinct(words: impl Iterator<Item = String>) -> Vec<Value> {
    let mut words: Vec<String> = words.collect();
    words.sort_unstable();
    words.dedup();
    words.into_iter().map(Value::of).collect()
}
