//! One finding and its output: for people with the source line, for tools as JSON.

use serde::{Serialize, Serializer};

use super::document::Document;
use crate::terminal::visible::{push_visible, visible};

/// The codes of findings that work but probably are not what was meant. Every other code is a
/// certain failure.
const WARNINGS: [&str; 16] = [
    "bridge-gateway-replaced",
    "bridge-vlan",
    "duplicate-key",
    "duplicate-name",
    "long-name",
    "missing-capability",
    "no-files",
    "no-version",
    "not-on-path",
    "not-read",
    "order",
    "overlap",
    "reserved-key",
    "unknown-key",
    "unused-capability",
    "unused-version",
];

/// The maximum width of a line; longer lines are shortened.
const WIDTH: usize = 120;

/// The content of a finding: plain pieces of text, which keeps the code at each report small.
#[derive(Clone, Copy, Default)]
pub struct Note<'a> {
    /// What kind of thing; docs/validate.md has them all.
    pub code: &'static str,
    /// The number of the document.
    pub document: usize,
    /// The path of the value in it; empty is the whole.
    pub path: &'a str,
    /// Whether it concerns the key rather than its value.
    pub is_key: bool,
    /// What is wrong, without the path.
    pub message: &'a [&'a str],
    /// What was expected instead; may be empty.
    pub expected: &'a str,
    /// Advice; may be empty.
    pub hint: &'a [&'a str],
}

/// A finding about a file.
#[derive(Debug)]
pub struct Finding {
    code: &'static str,
    /// The file's name.
    pub file: String,
    /// Line and column, counted from 1; 0 for the file as a whole.
    pub place: (usize, usize),
    width: usize,
    path: String,
    message: String,
    expected: String,
    hint: String,
    shown: Shown,
}

/// A source line as shown, with the markers below it.
#[derive(Debug, Default)]
struct Shown {
    line: String,
    padding: String,
    carets: usize,
}

impl Shown {
    fn new(document: &Document, offset: usize, width: usize) -> Shown {
        let (before, behind) = document.line(offset);
        // A minified file may be a single line of any length: examine no more of it than is shown.
        let length = before.chars().chain(behind.chars()).take(WIDTH + 1).count();
        let context = if length <= WIDTH { WIDTH } else { WIDTH / 3 };
        let start =
            before.char_indices().rev().take(context).last().map_or(before.len(), |(at, _)| at);
        let before = &before[start..];
        let mut shown = Shown::default();
        for letter in before.chars() {
            // Keep tabs, so that the markers align under their letters with any tab width.
            if letter == '\t' {
                shown.line.push(letter);
                shown.padding.push(letter);
            } else {
                shown.padding.push_str(&" ".repeat(push_visible(&mut shown.line, letter)));
            }
        }
        for (i, letter) in behind.chars().take(WIDTH - before.chars().count()).enumerate() {
            let columns = push_visible(&mut shown.line, letter);
            shown.carets += if i < width { columns } else { 0 };
        }
        shown.carets = shown.carets.max(1);
        shown
    }
}

impl Finding {
    /// A finding about a part of the document's text.
    pub fn new(note: &Note<'_>, document: &Document) -> Finding {
        let place = document.find(note.path);
        let span = match (place.is_exact, note.is_key, place.key) {
            (true, false, key) => document.on_one_line(place.value, key),
            (_, _, Some(key)) => key,
            (_, _, None) => place.value.start..place.value.start + 1,
        };
        let width = document.text.get(span.clone()).map_or(1, |text| text.chars().count());
        let colon = if note.path.is_empty() { "" } else { ": " };
        Finding {
            code: note.code,
            file: document.file.clone(),
            place: document.position(span.start),
            width,
            path: note.path.to_owned(),
            message: [note.path, colon, &note.message.concat()].concat(),
            expected: note.expected.to_owned(),
            hint: note.hint.concat(),
            shown: Shown::new(document, span.start, width),
        }
    }

    /// A finding about the text at an offset.
    pub fn at(note: &Note<'_>, document: &Document, offset: usize) -> Finding {
        let place = document.position(offset);
        let shown = Shown::new(document, offset, 1);
        Finding { place, width: 1, shown, ..Finding::new(note, document) }
    }

    /// A finding about a file as a whole.
    pub fn of_file(code: &'static str, file: String, message: &str) -> Finding {
        let note = Note { code, message: &[message], ..Note::default() };
        Finding { file, place: (0, 0), width: 0, ..Finding::new(&note, &Document::default()) }
    }

    /// Whether it is a certain failure.
    pub fn is_error(&self) -> bool {
        !WARNINGS.contains(&self.code)
    }

    fn severity(&self) -> &'static str {
        if self.is_error() { "error" } else { "warning" }
    }

    /// Writes the finding for people: the place in the format of compilers, the line, and the wrong
    /// part underlined.
    pub fn tell(&self, out: &mut String) {
        let line = self.place.0.to_string();
        let column = self.place.1.to_string();
        let is_of_file = self.place.0 == 0;
        let place = if is_of_file { String::new() } else { [":", &line, ":", &column].concat() };
        let file = visible(&self.file);
        let message = visible(&self.message);
        push(out, &[&file, &place, ": ", self.severity(), ": ", &message, " [", self.code, "]\n"]);
        if is_of_file {
            return;
        }
        push(out, &[&"   "[line.len().min(3)..], &line, " | ", &self.shown.line, "\n"]);
        push(
            out,
            &[
                &" ".repeat(line.len().max(3)),
                " | ",
                &self.shown.padding,
                &"^".repeat(self.shown.carets),
            ],
        );
        if !self.expected.is_empty() {
            push(out, &[" expected ", &visible(&self.expected)]);
        }
        if !self.hint.is_empty() {
            push(out, &[if self.expected.is_empty() { " " } else { "; " }, &visible(&self.hint)]);
        }
        out.push('\n');
    }
}

/// A finding for tools.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    line: usize,
    column: usize,
    end_column: usize,
    file: &'a str,
    path: &'a str,
    severity: &'a str,
    code: &'a str,
    message: &'a str,
    expected: &'a str,
    hint: &'a str,
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let object = Object {
            line: self.place.0,
            column: self.place.1,
            end_column: self.place.1 + self.width,
            file: &self.file,
            path: &self.path,
            severity: self.severity(),
            code: self.code,
            message: &self.message,
            expected: &self.expected,
            hint: &self.hint,
        };
        object.serialize(serializer)
    }
}

/// Adds pieces of text.
pub fn push(out: &mut String, pieces: &[&str]) {
    out.push_str(&pieces.concat());
}
