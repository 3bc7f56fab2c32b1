//! The state shared by the checks of files, plugins and programs: what has been read, and the
//! findings.

use std::path::Path;

use super::document::{Document, Spot};
use super::finding::{Finding, Note};
use super::network::Network;
use crate::cni::json::Value;
use crate::plugin::Entry;
use crate::runtime::chain::Runtime;
use crate::terminal::progress::Progress;

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
