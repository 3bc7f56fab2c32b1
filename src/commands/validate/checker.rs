//! The state shared by the checks of files, plugins and programs: what has been read, and the
//! findings.

use std::path::Path;

use super::document::Document;
use super::finding::{Finding, Note};
use super::network::{Network, Plugin};
use crate::cni::decode::describe;
use crate::cni::json::Value;
use crate::plugin::Entry;
use crate::runtime::chain::Runtime;

/// Everything checked so far.
pub struct Checker<'a> {
    /// The runtime that looks up plugins.
    pub runtime: Runtime<'a>,
    /// Every file.
    pub documents: Vec<Document>,
    /// Every network.
    pub networks: Vec<Network>,
    /// The findings so far.
    pub findings: Vec<Finding>,
    /// The plugins that were looked up, and the versions of those that reported them.
    pub asked: Vec<(String, Option<String>)>,
}

impl<'a> Checker<'a> {
    /// Creates a checker that looks up plugins as this runtime does.
    pub fn new(runtime: Runtime<'a>) -> Checker<'a> {
        Checker { runtime, documents: vec![], networks: vec![], findings: vec![], asked: vec![] }
    }

    /// Every finding, sorted by place.
    pub fn into_findings(mut self) -> Vec<Finding> {
        self.findings.sort_by(|a, b| (&a.file, a.place).cmp(&(&b.file, b.place)));
        self.findings
    }

    pub fn own(&self, kind: &str) -> Option<&'static Entry> {
        self.runtime.plugins.iter().find(|entry| entry.name == kind)
    }

    pub fn keys(&self, document: usize, path: &str) -> Vec<String> {
        self.documents[document].keys(path).into_iter().map(str::to_owned).collect()
    }

    /// The place of a plugin's value, as `file:line`.
    pub fn place(&self, plugin: &Plugin, path: &str) -> String {
        let document = &self.documents[plugin.document];
        [&document.file, ":", &document.position(document.find(path).value.start).0.to_string()]
            .concat()
    }

    pub fn errors(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_error()).count()
    }

    /// Records a finding.
    #[inline(never)]
    pub fn tell(&mut self, note: Note<'_>) {
        self.findings.push(Finding::new(&note, &self.documents[note.document]));
    }

    pub fn tell_wrong_type(&mut self, document: usize, path: &str, found: &Value, expected: &str) {
        let found = &describe(found);
        self.tell(Note {
            code: "wrong-type",
            document,
            path,
            message: &["found ", found],
            expected,
            ..NOTHING
        });
    }

    pub fn tell_of_file(&mut self, code: &'static str, file: &Path, message: &str) {
        self.findings.push(Finding::of_file(code, file.to_string_lossy().into_owned(), message));
    }
}

/// The empty note, for fields that a finding does not set.
pub const NOTHING: Note<'static> =
    Note { code: "", document: 0, path: "", is_key: false, message: &[], expected: "", hint: &[] };

pub fn did_you_mean(near: &str) -> [&str; 3] {
    ["did you mean \"", near, "\"?"]
}

/// Whether a key has the value `true`.
pub fn is_true(value: Option<&Value>) -> bool {
    matches!(value, Some(Value::Bool(true)))
}
