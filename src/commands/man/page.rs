//! The page of a command: what its command line describes, and the sections of its [`Manual`].

use std::fmt::Display;

use clap::{Arg, Command};

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

/// A page that is being written.
pub struct Roff(String);

impl Roff {
    /// Begins the page `name` of a section of the manual.
    pub fn page(name: &str, section: u8) -> Roff {
        let version = env!("CARGO_PKG_VERSION");
        let mut page = Roff(String::new());
        // No hyphenation, and the left margin only: commands and keys must not be broken.
        page.line(format_args!(".TH \"{name}\" \"{section}\" \"\" \"cni-multi {version}\""));
        page.line(".nh");
        page.line(".ad l");
        page
    }

    fn line(&mut self, line: impl Display) {
        self.0 += &format!("{line}\n");
    }

    /// Begins a section.
    pub fn section(&mut self, title: &str) {
        self.line(format_args!(".SH {title}"));
    }

    /// Begins a part of a section.
    pub fn part(&mut self, title: &str) {
        self.line(format_args!(".SS {}", escaped(title)));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.line(".PP");
        self.text(text);
    }

    /// Text of the current paragraph.
    pub fn text(&mut self, text: &str) {
        text.lines().for_each(|line| self.line(escaped(line)));
    }

    /// A command line, as it is typed.
    pub fn command(&mut self, text: &str) {
        self.line(".PP\n.nf");
        self.line(bold(text));
        self.line(".fi");
    }

    /// A term and its explanation, indented by `level`; the term is marked up already.
    pub fn item(&mut self, marked: &str, text: &str) {
        self.line(".TP");
        self.line(marked);
        self.text(text);
    }

    /// Begins items that belong to the item before.
    pub fn indent(&mut self) {
        self.line(".RS");
    }

    /// Ends them.
    pub fn outdent(&mut self) {
        self.line(".RE");
    }

    /// The page.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// The text in bold.
pub fn bold(text: &str) -> String {
    ["\\fB", &escaped(text), "\\fR"].concat()
}

/// The text in italics.
pub fn italic(text: &str) -> String {
    ["\\fI", &escaped(text), "\\fR"].concat()
}

/// The text without meaning for roff: `-` would become a hyphen, and a line that begins with `.` or
/// `'` a request.
pub fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    let text = text.replace('`', "\\(ga").replace('^', "\\(ha").replace('~', "\\(ti");
    if text.starts_with('.') { ["\\&", &text].concat() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keeps_its_letters() {
        assert_eq!(
            escaped(".a-b 'c' \\ `d` ^~"),
            "\\&.a\\-b \\(aqc\\(aq \\e \\(gad\\(ga \\(ha\\(ti"
        );
    }
}
