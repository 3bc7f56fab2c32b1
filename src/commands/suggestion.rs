//! The word that was probably meant in a wrong command line.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::terminal::nearest::nearest;

/// Adds the nearest command, option or value to a mistake in `words`, which begin with the program. The
/// mistake then ends with a question for it.
pub fn add(mistake: &mut clap::Error, root: &Command, words: &[OsString]) {
    let command = innermost(root, words);
    let (wrong, suggested, candidates) = match mistake.kind() {
        ErrorKind::InvalidSubcommand => {
            (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand, names(command))
        }
        ErrorKind::UnknownArgument => {
            (ContextKind::InvalidArg, ContextKind::SuggestedArg, options(command))
        }
        ErrorKind::InvalidValue => {
            (ContextKind::InvalidValue, ContextKind::SuggestedValue, values(mistake))
        }
        _ => return,
    };
    let Some(ContextValue::String(word)) = mistake.get(wrong) else { return };
    let of_others = elsewhere(word).filter(|(known, _)| candidates.iter().any(|it| it == known));
    let near = of_others.map(|(_, said)| said).next();
    let near = near.or_else(|| nearest(word, candidates.iter().map(String::as_str)));
    if let Some(near) = near {
        let near = near.to_owned();
        mistake.insert(suggested, ContextValue::Strings(vec![near]));
    }
}

/// Words of other programs' command lines; each with the command or option that is theirs here, and how
/// it is typed.
const ELSEWHERE: [(&str, &str, &str); 10] = [
    ("attach", "add", "add"),
    ("connect", "add", "add"),
    ("delete", "del", "del"),
    ("describe", "inspect", "inspect"),
    ("detach", "del", "del"),
    ("disconnect", "del", "del"),
    ("prune", "gc", "gc"),
    ("remove", "del", "del"),
    ("show", "inspect", "inspect"),
    ("--json", "--output", "--output json"),
];

/// What a word of another program may be here.
fn elsewhere(word: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = ELSEWHERE.iter().filter(move |(theirs, ..)| *theirs == word);
    all.map(|(_, known, said)| (*known, *said))
}

/// The command that the words lead to.
fn innermost<'a>(root: &'a Command, words: &[OsString]) -> &'a Command {
    let words = words.iter().skip(1);
    words.fold(root, |command, word| command.find_subcommand(word).unwrap_or(command))
}

fn names(command: &Command) -> Vec<String> {
    command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect()
}

fn options(command: &Command) -> Vec<String> {
    let longs = command.get_arguments().filter_map(|arg| arg.get_long());
    // clap adds these two itself, and later.
    let version = command.get_version().map(|_| "version");
    longs.chain(["help"]).chain(version).map(|long| ["--", long].concat()).collect()
}

/// The values that the option takes.
fn values(mistake: &clap::Error) -> Vec<String> {
    match mistake.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) => values.clone(),
        _ => vec![],
    }
}
