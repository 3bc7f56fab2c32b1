//! The word that was probably meant in a wrong command line.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::terminal::nearest::nearest;

/// Adds the nearest command, option or value to a mistake in `words`, which begin with the program. The
/// mistake then ends with a question for it.
pub fn add(mistake: &mut clap::Error, root: &Command, words: &[OsString]) {
    // The command that the words lead to.
    let command = words
        .iter()
        .skip(1)
        .fold(root, |command, word| command.find_subcommand(word).unwrap_or(command));
    let (wrong, suggested, candidates): (_, _, Vec<String>) = match mistake.kind() {
        ErrorKind::InvalidSubcommand => {
            let names = command.get_subcommands().map(|sub| sub.get_name().to_owned());
            (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand, names.collect())
        }
        ErrorKind::UnknownArgument => {
            let longs = command.get_arguments().filter_map(|arg| arg.get_long());
            // clap adds these two itself, and later.
            let version = command.get_version().map(|_| "version");
            let longs = longs.chain(["help"]).chain(version).map(|long| ["--", long].concat());
            (ContextKind::InvalidArg, ContextKind::SuggestedArg, longs.collect())
        }
        ErrorKind::InvalidValue => {
            let values = match mistake.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(values)) => values.clone(),
                _ => vec![],
            };
            (ContextKind::InvalidValue, ContextKind::SuggestedValue, values)
        }
        _ => return,
    };
    let Some(ContextValue::String(word)) = mistake.get(wrong) else { return };
    let of_others = ELSEWHERE.iter().find(|(theirs, known, _)| {
        theirs == word && candidates.iter().any(|candidate| candidate == known)
    });
    let near = of_others.map(|(.., said)| *said);
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
