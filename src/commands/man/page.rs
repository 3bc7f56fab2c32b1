//! The page of a command: what its command line describes, and the sections of its [`Manual`].

use clap::{Arg, Command};

use super::roff::{Roff, bold, italic};
use crate::terminal::manual::{Manual, Terms};

/// The page of a built command, which the manual calls `name`; `parent` is the page above.
pub fn of(command: &Command, name: &str, parent: Option<&str>, manual: &Manual) -> String {
    let mut page = Roff::page(name, 1);
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    page.section("NAME");
    page.text(&[name, " - ", &about].concat());
    page.section("SYNOPSIS");
    let usage = command.clone().render_usage().to_string();
    let lines: Vec<&str> = usage.lines().map(str::trim).collect();
    page.command(lines.join(" ").trim_start_matches("Usage: "));
    page.section("DESCRIPTION");
    page.text(&[&about, "."].concat());
    manual.description.iter().for_each(|text| page.paragraph(text));
    page.section("OPTIONS");
    let arguments = command.get_arguments().filter(|arg| !arg.is_hide_set());
    arguments.for_each(|arg| page.item(&names(arg), &purpose(arg)));
    if shown(command).next().is_some() {
        page.section("COMMANDS");
    }
    for sub in shown(command) {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        page.item(&bold(sub.get_name()), &format!("{about}; see {name}-{}(1).", sub.get_name()));
    }
    page.section("EXAMPLES");
    for (command, purpose) in manual.examples {
        page.paragraph(purpose);
        page.command(command);
    }
    terms(&mut page, "EXIT STATUS", manual.exit_status);
    terms(&mut page, "FILES", manual.files);
    terms(&mut page, "ENVIRONMENT", manual.environment);
    let parent = parent.map(|parent| [parent, "(1)"].concat());
    let subs = shown(command).map(|sub| format!("{name}-{}(1)", sub.get_name()));
    let others = manual.see_also.iter().map(|page| (*page).to_owned());
    let pages: Vec<String> = parent.into_iter().chain(subs).chain(others).collect();
    page.section("SEE ALSO");
    page.text(&pages.join(", "));
    page.into_text()
}

/// The subcommands that people call.
pub fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

/// An argument as it is typed.
fn names(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| bold(&format!("-{short}")));
    let long = arg.get_long().map(|long| bold(&["--", long].concat()));
    let aliases = arg.get_visible_aliases().unwrap_or_default().into_iter();
    let aliases = aliases.map(|alias| bold(&["--", alias].concat()));
    let names: Vec<String> = short.into_iter().chain(long).chain(aliases).collect();
    let value = arg.get_value_names().filter(|_| arg.get_action().takes_values());
    let value = value.unwrap_or_default().first().map(|name| italic(name));
    [names.join(", ")]
        .into_iter()
        .chain(value)
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The help of an argument, with its words and its default.
fn purpose(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let words: Vec<String> =
        arg.get_possible_values().iter().map(|word| word.get_name().to_owned()).collect();
    let is_listed = !words.is_empty() && arg.get_action().takes_values();
    let words = if is_listed { format!(": {}", words.join(", ")) } else { String::new() };
    let default = arg.get_default_values().first().filter(|_| arg.get_action().takes_values());
    let default = default.map_or(String::new(), |word| format!(" [{}]", word.to_string_lossy()));
    [help, words, default].concat()
}

fn terms(page: &mut Roff, title: &str, terms: Terms) {
    if terms.is_empty() {
        return;
    }
    page.section(title);
    terms.iter().for_each(|(term, text)| page.item(&bold(term), text));
}
