//! Files: their texts, and JSON errors in them.

use std::path::{Path, PathBuf};

use super::checker::{Checker, NOTHING};
use super::document::Document;
use super::finding::{Finding, Note};
use super::picks;
use crate::error::{Error, Result};
use crate::plain_file;
use crate::runtime::directory::file_names;

/// The file name shown for stdin.
pub const STDIN: &str = "<stdin>";

/// The byte order mark (BOM) that some editors write before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl Checker<'_> {
    /// The bytes of a file, if it is readable.
    pub fn read_file(&mut self, file: &Path) -> Option<Vec<u8>> {
        bytes_of(file).map_err(|error| self.tell_of_file("unreadable", file, &error.msg)).ok()
    }

    /// The document of a text, if it is an object.
    pub fn read(&mut self, file: String, bytes: &[u8]) -> Option<usize> {
        let extension = picks::extension(Path::new(&file));
        let (mut read, problem) = Document::parse(file, bytes);
        read.is_list =
            extension.map_or(read.member("plugins").is_some(), |extension| extension == "conflist");
        let kind = read.value.kind();
        let is_empty = read.text.trim_ascii().is_empty();
        self.documents.push(read);
        let document = self.documents.len() - 1;
        if let Some((offset, problem)) = problem {
            let is_marked = bytes.starts_with(BYTE_ORDER_MARK);
            let (problem, hint): (_, &[&str]) = match () {
                () if is_empty => ("the file is empty", &[]),
                () if is_marked => {
                    ("the file begins with a byte order mark", &["save it without one"])
                }
                () => (problem.as_str(), &[]),
            };
            let note = Note { code: "syntax", document, message: &[problem], hint, ..NOTHING };
            self.findings.push(Finding::at(&note, &self.documents[document], offset));
            return None;
        }
        if kind != "object" {
            let found = self.documents[document].value.clone();
            self.tell_wrong_type(document, "", &found, "an object");
            return None;
        }
        for path in self.documents[document].duplicates() {
            let (path, hint): (&str, &[&str]) = (&path, &["the last one counts"]);
            let message = &["the key stands more than once"];
            self.tell(Note {
                code: "duplicate-key",
                document,
                path,
                is_key: true,
                message,
                hint,
                ..NOTHING
            });
        }
        Some(document)
    }
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
