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
        let whole = Spot::whole(self.documents.len() - 1);
        let document = &self.documents[whole.document];
        if let Some((offset, problem)) = problem {
            self.findings.push(syntax_error(document, offset, &problem));
            return None;
        }
        if document.value.kind() != "object" {
            self.tell_wrong_type(&whole, &describe(&document.value), "an object");
            return None;
        }
        for path in document.duplicates() {
            let message = &["duplicate key"];
            let spot = whole.at(&path);
            let note = Note::new("duplicate-key", &spot, message).of_key();
            self.tell(note.hint(&["the last one counts"]));
        }
        Some(whole.document)
    }
}

/// The finding about a text that stops being JSON at this offset.
fn syntax_error(document: &Document, offset: usize, problem: &str) -> Finding {
    let (problem, hint): (_, &[&str]) = if document.text.trim_ascii().is_empty() {
        ("the file is empty", &[])
    } else if document.text.starts_with(BYTE_ORDER_MARK) {
        ("the file begins with a byte order mark", &["save it without one"])
    } else {
        (problem, &[])
    };
    let whole = Spot::default();
    Finding::at(&Note::new("syntax", &whole, &[problem]).hint(hint), document, offset)
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
