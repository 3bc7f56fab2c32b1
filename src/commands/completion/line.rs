//! A command line that is being typed, and what may follow.

use clap::{Arg, ArgAction, Command};

use super::values::{self, Place};
use crate::cni::env::Environment;
use crate::plugin::Entry;

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
    plugins: &'static [Entry],
    env: &'a Environment,
}

impl<'a> Line<'a> {
    /// Reads the words, the first of which is the program.
    pub fn read(
        command: &'a Command,
        words: &'a [String],
        plugins: &'static [Entry],
        env: &'a Environment,
    ) -> Line<'a> {
        let (word, before) = words.split_last().map_or(("", &[][..]), |(last, rest)| (last, rest));
        let mut line = Line {
            command,
            typed: vec![],
            positional: 0,
            pending: None,
            is_closed: false,
            word,
            plugins,
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

    /// The values of an argument that begin with `begun`, each after `prefix`.
    fn values(&self, arg: &Arg, index: usize, prefix: &str, begun: &str) -> Vec<String> {
        let place = Place { command: self.command, begun, plugins: self.plugins, line: self };
        let values = place.values(arg, index).into_iter();
        values.filter_map(|value| value.line(prefix, begun)).collect()
    }

    /// The value of an option on the line, else of the variable; may be empty.
    pub fn setting(&self, option: &str, variable: &str) -> String {
        let typed = self.typed.iter().rfind(|(arg, _)| arg.get_long() == Some(option));
        typed.map_or_else(|| self.env.get(variable), |(_, value)| (*value).to_owned())
    }

    /// The name of the innermost command.
    pub fn verb(&self) -> &str {
        self.command.get_name()
    }
}

/// A word with its purpose, if it begins so.
fn offer(word: &str, begun: &str, about: Option<String>) -> Option<String> {
    let value = values::Value::Word { word: word.to_owned(), about: about.unwrap_or_default() };
    value.line("", begun)
}
