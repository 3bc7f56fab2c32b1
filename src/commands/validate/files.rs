//! Files: their texts, and JSON errors in them.

use std::path::{Path, PathBuf};

use super::checker::Checker;
use super::document::{Document, Spot};
use super::finding::{Finding, Note};
use super::picks;
use crate::cni::decode::describe;
use crate::error::{Error, Result};
use crate::plain_file;
use crate::runtime::directory::file_names;

/// The file name shown for stdin.
pub const STDIN: &str = "<stdin>";

/// The byte order mark (BOM) that some editors write before a text.
const BYTE_ORDER_MARK: char = '\u{feff}';

impl Checker<'_> {
    /// The bytes of a file, if it is readable.
    pub fn read_file(&mut self, file: &Path) -> Option<Vec<u8>> {
        bytes_of(file).map_err(|error| self.tell_of_file("unreadable", file, &error.msg)).ok()
    }

    /// The document of a text, if it is an object.
    pub fn read(&mut self, file: String, bytes: &[u8]) -> Option<usize> {
        let extension = picks::extension(Path::new(&file));
        let (mut read, problem) = Document::parse(file, bytes);
        let has_plugins = read.member("plugins").is_some();
        read.is_list = extension.map_or(has_plugins, |extension| extension == "conflist");
        self.documents.push(read);
        let document = self.documents.len() - 1;
        if let Some((offset, problem)) = problem {
            self.findings.push(syntax_error(&self.documents[document], offset, &problem));
            return None;
        }
        self.check_object(document)
    }

    /// Checks that a document is an object with distinct keys; None if it is no object.
    fn check_object(&mut self, document: usize) -> Option<usize> {
        let whole = Spot::whole(document);
        let value = &self.documents[document].value;
        if value.kind() != "object" {
            self.tell_wrong_type(&whole, &describe(value), "an object");
            return None;
        }
        for path in self.documents[document].duplicates() {
            self.tell_duplicate(&whole.at(&path));
        }
        Some(document)
    }

    fn tell_duplicate(&mut self, spot: &Spot) {
        let note = Note::new("duplicate-key", spot, &["duplicate key"]).of_key();
        self.tell(note.hint(&["the last one counts"]));
    }
}

/// The finding about a text that stops being JSON at this offset.
fn syntax_error(document: &Document, offset: usize, problem: &str) -> Finding {
    let whole = Spot::default();
    let problem = &[problem];
    let note = if document.text.trim_ascii().is_empty() {
        Note::new("syntax", &whole, &["the file is empty"])
    } else if document.text.starts_with(BYTE_ORDER_MARK) {
        let message = &["the file begins with a byte order mark"];
        Note::new("syntax", &whole, message).hint(&["save it without one"])
    } else {
        Note::new("syntax", &whole, problem)
    };
    Finding::at(&note, document, offset)
}

/// The bytes of a file.
pub fn bytes_of(file: &Path) -> Result<Vec<u8>> {
    plain_file::read_configuration(file).map_err(|e| Error::io("open", &e))
}

/// The files of a directory, by name.
pub fn files_of(dir: &Path) -> Result<Vec<PathBuf>> {
    let names = file_names(dir).map_err(|e| Error::io("open", &e))?;
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}
