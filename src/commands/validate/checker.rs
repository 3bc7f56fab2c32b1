//! The state shared by the checks of files, plugins and programs: what has been read, the networks
//! in it, and the findings.

use std::ops::Range;
use std::path::Path;

use serde::{Serialize, Serializer};

use super::document::{Document, Spot};
use super::faults::FAULTS;
use crate::cni::json::Value;
use crate::commands::fault::{Fault, Severity};
use crate::plugin::Entry;
use crate::runtime::chain::Runtime;
use crate::terminal::progress::Progress;
use crate::terminal::style::Style;
use crate::terminal::visible::{push_visible, visible};

/// Everything checked so far.
pub struct Checker<'a> {
    /// The runtime that looks up plugins.
    pub runtime: Runtime<'a>,
    /// The number of files so far, with the unreadable ones.
    pub files: usize,
    /// Every file that was read.
    pub documents: Vec<Document>,
    /// Every network.
    pub networks: Vec<Network>,
    /// The findings so far.
    pub findings: Vec<Finding>,
    /// The plugins that were looked up, and the versions of those that reported them.
    pub asked: Vec<(String, Option<Vec<String>>)>,
    /// Shows a person how many files are checked.
    pub progress: Progress,
}

impl<'a> Checker<'a> {
    /// Creates a checker that looks up plugins as this runtime does.
    pub fn new(runtime: Runtime<'a>) -> Checker<'a> {
        Checker {
            runtime,
            files: 0,
            documents: vec![],
            networks: vec![],
            findings: vec![],
            asked: vec![],
            progress: Progress::default(),
        }
    }

    /// Every finding, sorted by place.
    pub fn into_findings(mut self) -> Vec<Finding> {
        self.progress.clear();
        self.findings.sort_by(|a, b| (&a.file, a.place).cmp(&(&b.file, b.place)));
        self.findings
    }

    /// The plugin of this name, or of an alias of this name, if it is compiled in.
    pub fn own(&self, kind: &str) -> Option<&'static Entry> {
        Entry::named(self.runtime.plugins, kind, &self.runtime.directories())
    }

    /// The keys of the object here.
    pub fn keys(&self, spot: &Spot) -> Vec<String> {
        self.documents[spot.document].keys(&spot.path).into_iter().map(str::to_owned).collect()
    }

    /// The place of a value, as `file:line`.
    pub fn place(&self, spot: &Spot) -> String {
        let document = &self.documents[spot.document];
        [&document.file, ":", &document.line_of(&spot.path).to_string()].concat()
    }

    /// The number of errors so far.
    pub fn errors(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_error()).count()
    }

    /// Records a finding.
    #[inline(never)]
    pub fn tell(&mut self, note: Note<'_>) {
        self.findings.push(Finding::new(&note, &self.documents[note.spot.document]));
    }

    /// Reports a value of another type; `found` describes it.
    pub fn tell_wrong_type(&mut self, spot: &Spot, found: &str, expected: &str) {
        self.tell(Note::new("wrong-type", spot, &["found ", found]).expecting(expected));
    }

    /// Reports a file as a whole.
    pub fn tell_of_file(&mut self, code: &'static str, file: &Path, message: &str) {
        self.findings.push(Finding::of_file(code, file.to_string_lossy().into_owned(), message));
    }
}

/// The question for the word that was probably meant.
pub fn did_you_mean(near: &str) -> [&str; 3] {
    ["did you mean \"", near, "\"?"]
}

/// Whether a key has the value `true`.
pub fn is_true(value: Option<&Value>) -> bool {
    matches!(value, Some(Value::Bool(true)))
}

/// A network, as far as it could be read.
pub struct Network {
    /// Its `name`.
    pub name: String,
    /// The version that its plugins are called with; empty if there is no valid one.
    pub version: String,
    /// The document that holds it.
    pub document: usize,
    /// Its plugins, in order.
    pub plugins: Vec<Plugin>,
    /// Whether libcni would load it.
    pub loads: bool,
    /// Whether all of its plugins exist and support its version, as CRI-O requires.
    pub is_served: bool,
}

impl Network {
    /// A network of which nothing is known yet.
    pub fn new(document: usize) -> Network {
        let name = String::new();
        let version = String::new();
        Network { name, version, document, plugins: vec![], loads: true, is_served: true }
    }
}

/// A plugin of a network.
pub struct Plugin {
    /// Its place.
    pub spot: Spot,
    /// Its object, with the own name of each plugin where the file has an alias.
    pub value: Value,
    /// Whether it is the first of its network.
    pub is_first: bool,
}

impl Plugin {
    /// The string at `key`, empty if there is none.
    pub fn text(&self, key: &str) -> &str {
        self.value.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// A member of `ipam`.
    pub fn ipam(&self, key: &str) -> Option<&Value> {
        self.value.get("ipam")?.get(key)
    }

    /// The string at this key of `ipam`, empty if there is none.
    pub fn ipam_text(&self, key: &str) -> &str {
        self.ipam(key).and_then(Value::as_str).unwrap_or_default()
    }

    /// A member of `args.cni`.
    pub fn arg(&self, key: &str) -> Option<&Value> {
        self.value.get("args")?.get("cni")?.get(key)
    }

    /// The place of the value at this path below.
    pub fn at(&self, path: &str) -> Spot {
        self.spot.at(path)
    }
}

/// The maximum width of a line; longer lines are shortened.
const WIDTH: usize = 120;

/// The content of a finding: plain pieces of text, which keeps the code at each report small.
#[derive(Clone, Copy)]
pub struct Note<'a> {
    /// What kind of thing; docs/validate.md has them all.
    code: &'static str,
    /// What it concerns.
    pub spot: &'a Spot,
    /// Whether it concerns the key rather than its value.
    is_key: bool,
    /// What is wrong, without the path.
    message: &'a [&'a str],
    /// What was expected instead; may be empty.
    expected: &'a str,
    /// Advice; may be empty.
    hint: &'a [&'a str],
}

impl<'a> Note<'a> {
    /// A note about the value here.
    pub fn new(code: &'static str, spot: &'a Spot, message: &'a [&'a str]) -> Note<'a> {
        Note { code, spot, is_key: false, message, expected: "", hint: &[] }
    }

    /// The same about the value's key.
    #[must_use]
    pub fn of_key(self) -> Note<'a> {
        Note { is_key: true, ..self }
    }

    /// The same with what was expected.
    #[must_use]
    pub fn expecting(self, expected: &'a str) -> Note<'a> {
        Note { expected, ..self }
    }

    /// The same with advice.
    #[must_use]
    pub fn hint(self, hint: &'a [&'a str]) -> Note<'a> {
        Note { hint, ..self }
    }

    /// The message, with the path.
    fn text(&self) -> String {
        let colon = if self.spot.path.is_empty() { "" } else { ": " };
        [&self.spot.path, colon, &self.message.concat()].concat()
    }
}

/// A finding about a file.
#[derive(Debug)]
pub struct Finding {
    /// What kind of mistake; docs/validate.md has them all.
    pub code: &'static str,
    /// The file's name.
    pub file: String,
    /// Line and column, counted from 1; 0 for the file as a whole.
    pub place: (usize, usize),
    width: usize,
    path: String,
    /// What is wrong, with the path.
    pub message: String,
    /// What was expected instead; may be empty.
    pub expected: String,
    /// Advice; may be empty.
    pub hint: String,
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
    /// The line at this offset, of which the next `width` letters are marked.
    fn new(document: &Document, offset: usize, width: usize) -> Shown {
        let (before, after) = document.line(offset);
        // All of the line if it is short enough. A minified file may be a single line of any length:
        // no more of it is examined than is shown.
        let length = before.chars().chain(after.chars()).take(WIDTH + 1).count();
        let context = if length <= WIDTH { WIDTH } else { WIDTH / 3 };
        let start = before.char_indices().rev().take(context).last();
        let before = &before[start.map_or(before.len(), |(at, _)| at)..];
        let mut shown = Shown::default();
        for letter in before.chars() {
            // Tabs are kept, so that the markers align under their letters with any tab width.
            if letter == '\t' {
                shown.line.push(letter);
                shown.padding.push(letter);
            } else {
                shown.padding.push_str(&" ".repeat(push_visible(&mut shown.line, letter)));
            }
        }
        for (i, letter) in after.chars().take(WIDTH - before.chars().count()).enumerate() {
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
        let span = document.span(&note.spot.path, note.is_key);
        let width = document.text.get(span.clone()).map_or(1, |text| text.chars().count());
        Finding {
            code: note.code,
            file: document.file.clone(),
            place: document.position(span.start),
            width,
            path: note.spot.path.clone(),
            message: note.text(),
            expected: note.expected.to_owned(),
            hint: note.hint.concat(),
            shown: Shown::new(document, span.start, width),
        }
    }

    /// A finding about a part of the text, or about one place if that is empty.
    pub fn at(note: &Note<'_>, document: &Document, span: Range<usize>) -> Finding {
        let place = document.position(span.start);
        let width = document.text.get(span.clone()).map_or(1, |text| text.chars().count().max(1));
        let shown = Shown::new(document, span.start, width);
        Finding { place, width, shown, ..Finding::new(note, document) }
    }

    /// A finding about a file as a whole.
    pub fn of_file(code: &'static str, file: String, message: &str) -> Finding {
        let finding =
            Finding::new(&Note::new(code, &Spot::default(), &[message]), &Document::default());
        Finding { file, place: (0, 0), width: 0, ..finding }
    }

    /// Its kind.
    pub fn fault(&self) -> Option<&'static Fault> {
        FAULTS.iter().find(|fault| fault.code == self.code)
    }

    /// Whether it is a certain failure.
    pub fn is_error(&self) -> bool {
        self.severity() == Severity::Error
    }

    fn severity(&self) -> Severity {
        self.fault().map_or(Severity::Error, |fault| fault.severity)
    }

    /// Writes the finding for people: the place in the format of compilers, the line, and the wrong
    /// part underlined.
    pub fn tell(&self, out: &mut String, style: Style) {
        let coloured =
            |text: &str| if self.is_error() { style.bad(text) } else { style.warning(text) };
        let (number, column) = self.place;
        let place = if number == 0 { String::new() } else { format!(":{number}:{column}") };
        let texts = [&self.file, &self.message, &self.expected, &self.hint];
        let [file, message, expected, hint] = texts.map(|text| visible(text));
        let severity = coloured(self.severity().word());
        push(out, &[&file, &place, ": ", &severity, ": ", &message, " [", self.code, "]\n"]);
        if number == 0 {
            return;
        }
        let Shown { line, padding, carets } = &self.shown;
        let number = format!("{number:>3}");
        let blank = " ".repeat(number.len());
        let markers = coloured(&"^".repeat(*carets));
        push(out, &[&number, " | ", line, "\n", &blank, " | ", padding, &markers]);
        if !expected.is_empty() {
            push(out, &[" expected ", &expected]);
        }
        if !hint.is_empty() {
            push(out, &[if expected.is_empty() { " " } else { "; " }, &hint]);
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
            severity: self.severity().word(),
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
