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
            Some(option) => self.take_value(option, word),
            None if self.is_closed || !word.starts_with('-') || word == "-" => self.take_name(word),
            None if word == "--" => self.is_closed = true,
            None => self.take_option(word),
        }
    }

    fn take_value(&mut self, option: &'a Arg, value: &'a str) {
        self.typed.push((option, value));
        self.pending = None;
    }

    /// Takes a subcommand, or a positional argument.
    fn take_name(&mut self, word: &str) {
        match self.command.find_subcommand(word) {
            Some(command) if !self.is_closed && self.positional == 0 => self.command = command,
            _ => self.positional += 1,
        }
    }

    fn take_option(&mut self, word: &'a str) {
        let (name, value) = word.split_once('=').map_or((word, None), |(n, v)| (n, Some(v)));
        let Some(option) = self.option(name) else { return };
        match value {
            Some(value) => self.take_value(option, value),
            None if option.get_action().takes_values() => self.pending = Some(option),
            None => self.take_value(option, ""),
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
        match self.word.split_once('=') {
            Some((name, value)) => self.values_joined(name, value),
            None => self.options(),
        }
    }

    /// The values for `--option=value`, as whole words.
    fn values_joined(&self, name: &str, value: &str) -> Vec<String> {
        let Some(option) = self.option(name).filter(|arg| arg.get_action().takes_values()) else {
            return vec![];
        };
        self.values(option, 0, &[name, "="].concat(), value)
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
        if let Some((arg, index)) = self.next_positional() {
            offers.extend(self.values(arg, index, "", self.word));
        }
        offers
    }

    /// The next positional argument, with the index of its value: the last one may take several.
    fn next_positional(&self) -> Option<(&'a Arg, usize)> {
        let all: Vec<&Arg> = self.command.get_positionals().collect();
        let last = all.len().checked_sub(1)?;
        let takes_more = all[last].get_num_args().is_some_and(|count| count.max_values() > 1);
        let is_there = self.positional <= last || takes_more;
        is_there.then(|| (all[self.positional.min(last)], self.positional.saturating_sub(last)))
    }

    /// The options that can still be typed.
    fn options(&self) -> Vec<String> {
        let options = self.command.get_arguments().filter(|arg| !arg.is_hide_set());
        options.filter(|arg| self.is_left(arg)).filter_map(|arg| self.option_offer(arg)).collect()
    }

    /// Whether the option has not been typed, or may be repeated.
    fn is_left(&self, arg: &Arg) -> bool {
        matches!(arg.get_action(), ArgAction::Append)
            || !self.typed.iter().any(|(typed, _)| typed.get_id() == arg.get_id())
    }

    /// The long form, or the short form of an option that has no other.
    fn option_offer(&self, arg: &Arg) -> Option<String> {
        let name = match (arg.get_long(), arg.get_short()) {
            (Some(long), _) => ["--", long].concat(),
            (None, short) => ["-", &short?.to_string()].concat(),
        };
        offer(&name, self.word, arg.get_help().map(ToString::to_string))
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
