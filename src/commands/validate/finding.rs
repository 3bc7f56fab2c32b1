//! One finding, and how it is told: to people with the line it is in, to tools as JSON.

use super::document::Document;
use crate::cni::json::Value;

/// What works, and probably is not what was meant. Every other code is of what fails for certain.
const WARNINGS: [&str; 14] = [
    "bridge-gateway-replaced",
    "bridge-vlan",
    "duplicate-key",
    "duplicate-name",
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
];

/// Longer lines are shown in part.
const WIDTH: usize = 120;

/// What is to be told: plain pieces of text, so that telling costs little code.
#[derive(Clone, Copy, Default)]
pub struct Note<'a> {
    /// What kind of thing; docs/validate.md has them all.
    pub code: &'static str,
    /// The number of the document.
    pub document: usize,
    /// The path of the value in it; empty is the whole.
    pub path: &'a str,
    /// Whether it is about the key, not about its value.
    pub is_key: bool,
    /// What is wrong, without the path.
    pub message: &'a [&'a str],
    /// What was expected in its place; may be empty.
    pub expected: &'a str,
    /// Advice; may be empty.
    pub hint: &'a [&'a str],
}

/// Something to tell about a file.
#[derive(Debug)]
pub struct Finding {
    code: &'static str,
    /// The file's name.
    pub file: String,
    /// Line and column from 1 on; 0 where it is about the file.
    pub place: (usize, usize),
    width: usize,
    path: String,
    message: String,
    expected: String,
    hint: String,
    shown: String,
}

impl Finding {
    /// A finding about a piece of the document's text.
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
            shown: document.line(span.start).to_owned(),
        }
    }

    /// A finding about what is at an offset.
    pub fn at(note: &Note<'_>, document: &Document, offset: usize) -> Finding {
        let (place, shown) = (document.position(offset), document.line(offset).to_owned());
        Finding { place, width: 1, shown, ..Finding::new(note, document) }
    }

    /// A finding about a file as a whole.
    pub fn of_file(code: &'static str, file: String, message: &str) -> Finding {
        let note = Note { code, message: &[message], ..Note::default() };
        Finding { file, place: (0, 0), width: 0, ..Finding::new(&note, &Document::default()) }
    }

    /// Whether something fails for certain.
    pub fn is_error(&self) -> bool {
        !WARNINGS.contains(&self.code)
    }

    fn severity(&self) -> &'static str {
        if self.is_error() { "error" } else { "warning" }
    }

    /// For people: the place as compilers tell it, the line, and what is wrong underlined.
    pub fn tell(&self, out: &mut String) {
        let (line, column) = (self.place.0.to_string(), self.place.1.to_string());
        let is_of_file = self.place.0 == 0;
        let place = if is_of_file { String::new() } else { [":", &line, ":", &column].concat() };
        push(out, &[&self.file, &place, ": ", self.severity(), ": ", &self.message, " [", self.code, "]\n"]);
        if is_of_file {
            return;
        }
        let shown: Vec<char> = self.shown.chars().collect();
        let before = (self.place.1 - 1).min(shown.len());
        let start = if shown.len() <= WIDTH { 0 } else { before.saturating_sub(WIDTH / 3) };
        push(out, &[&"   "[line.len().min(3)..], &line, " | "]);
        out.extend(&shown[start..shown.len().min(start + WIDTH)]);
        push(out, &["\n", &" ".repeat(line.len().max(3)), " | "]);
        // Tabs stay tabs, so that what stands below a letter does so whatever a tab is worth.
        out.extend(shown[start..before].iter().map(|c| if *c == '\t' { '\t' } else { ' ' }));
        out.push_str(&"^".repeat(self.width.clamp(1, WIDTH)));
        if !self.expected.is_empty() {
            push(out, &[" expected ", &self.expected]);
        }
        if !self.hint.is_empty() {
            push(out, &[if self.expected.is_empty() { " " } else { "; " }, &self.hint]);
        }
        out.push('\n');
    }

    /// For tools: an object.
    pub fn write_json(&self, out: &mut String) {
        let numbers = [("line", self.place.0), ("column", self.place.1), ("endColumn", self.place.1 + self.width)];
        for (i, (key, number)) in numbers.into_iter().enumerate() {
            push(out, &[if i == 0 { "{\"" } else { ",\"" }, key, "\":", &number.to_string()]);
        }
        let texts = [
            ("file", self.file.as_str()),
            ("path", &self.path),
            ("severity", self.severity()),
            ("code", self.code),
            ("message", &self.message),
            ("expected", &self.expected),
            ("hint", &self.hint),
        ];
        write_texts(out, &texts);
        out.push('}');
    }
}

/// Adds pieces of text.
pub fn push(out: &mut String, pieces: &[&str]) {
    out.push_str(&pieces.concat());
}

/// Adds members to an object that has one already, or to one that begins with the first of them.
pub fn write_texts(out: &mut String, texts: &[(&str, &str)]) {
    for (key, text) in texts {
        let comma = if out.ends_with('{') { "\"" } else { ",\"" };
        push(out, &[comma, key, "\":", &Value::text(*text).to_text()]);
    }
}
