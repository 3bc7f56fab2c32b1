//! Files: their texts, and JSON errors in them.

use std::path::{Path, PathBuf};

use super::checker::Checker;
use super::document::{Document, Spot};
use super::finding::{Finding, Note};
use super::picks::{self, Pick};
use super::reader::{Typo, typos};
use crate::cni::decode::describe;
use crate::error::{Error, Result};
use crate::plain_file;
use crate::runtime::directory::file_names;

/// The file name shown for stdin.
pub const STDIN: &str = "<stdin>";

/// The byte order mark as a unit of UTF-16.
const BYTE_ORDER_MARK: u16 = 0xfeff;

impl Checker<'_> {
    /// The bytes of a file, if it is readable.
    pub fn read_file(&mut self, file: &Path) -> Option<Vec<u8>> {
        let read = bytes_of(file);
        self.files += usize::from(read.is_err()); // the others are counted with their documents
        read.map_err(|error| self.tell_of_file("unreadable", file, &error.msg)).ok()
    }

    /// The document of a text, if it is an object.
    pub fn read(&mut self, file: String, bytes: &[u8]) -> Option<usize> {
        self.files += 1;
        let extension = picks::extension(Path::new(&file));
        let wide = of_utf16(bytes);
        let text = wide.as_ref().map_or(bytes, String::as_bytes);
        let (mut read, problem) = Document::parse(file, text);
        let has_plugins = read.member("plugins").is_some();
        read.is_in_directory = read.file != STDIN;
        read.is_list = extension.map_or(has_plugins, |extension| extension == "conflist");
        self.documents.push(read);
        let document = self.documents.len() - 1;
        if wide.is_some() {
            let problem = "the file is in UTF-16".to_owned();
            let remedy = "save it as UTF-8".to_owned();
            self.tell_typo(document, &Typo { span: 0..1, problem, remedy });
            return None;
        }
        if let Some((offset, problem)) = problem {
            // The parser's problem if there are no typing errors.
            let text = &self.documents[document].text;
            let mut found = typos(text);
            if found.is_empty() {
                let is_empty = text.trim_ascii().is_empty();
                let problem = if is_empty { "the file is empty".to_owned() } else { problem };
                found.push(Typo { span: offset..offset, problem, remedy: String::new() });
            }
            found.iter().for_each(|typo| self.tell_typo(document, typo));
            return None;
        }
        let whole = Spot::whole(document);
        let value = &self.documents[document].value;
        if value.kind() != "object" {
            self.tell_wrong_type(&whole, &describe(value), "an object");
            return None;
        }
        for path in self.documents[document].duplicates() {
            let spot = whole.at(&path);
            let note = Note::new("duplicate-key", &spot, &["duplicate key"]).of_key();
            self.tell(note.hint(&["the last one counts"]));
        }
        Some(document)
    }

    fn tell_typo(&mut self, document: usize, typo: &Typo) {
        let Typo { span, problem, remedy } = typo;
        let spot = Spot::whole(document);
        let (problem, remedy) = ([problem.as_str()], [remedy.as_str()]);
        let note = Note::new("syntax", &spot, &problem).hint(&remedy);
        self.findings.push(Finding::at(&note, &self.documents[document], span.clone()));
    }

    /// Checks every file of a directory.
    pub fn check_dir(&mut self, dir: &Path) -> Result<Vec<Pick>> {
        let files = files_of(dir).map_err(|e| e.context(dir.display()))?;
        let first = self.networks.len();
        let mut read = vec![];
        for (number, file) in files.iter().enumerate() {
            self.progress.count(number, files.len());
            let name = file.to_string_lossy().into_owned();
            let lower = name.to_ascii_lowercase();
            if picks::extension(file).is_some() {
                let bytes = self.read_file(file);
                let network = bytes.and_then(|bytes| self.check(name, &bytes));
                read.push((file.clone(), network));
            } else if lower.contains(".conf") || lower.contains(".json") {
                self.tell_of_file("not-read", file, "no runtime reads a file of this name");
            }
        }
        if read.is_empty() {
            self.tell_of_file("no-files", dir, "there is no network configuration");
        }
        self.check_names(first);
        Ok(picks::of_dir(dir, &read, &self.networks))
    }
}

/// The text of a file in UTF-16, as some editors save it: it begins with a byte order mark, or its
/// first letter has a zero byte.
fn of_utf16(bytes: &[u8]) -> Option<String> {
    let to_unit = match bytes.first_chunk()? {
        [0xff, 0xfe] => u16::from_le_bytes,
        [0xfe, 0xff] => u16::from_be_bytes,
        [1..=u8::MAX, 0] => u16::from_le_bytes,
        [0, 1..=u8::MAX] => u16::from_be_bytes,
        _ => return None,
    };
    let units = bytes.chunks_exact(2).map(|unit| to_unit([unit[0], unit[1]]));
    let letters = char::decode_utf16(units.filter(|unit| *unit != BYTE_ORDER_MARK));
    Some(letters.map(|letter| letter.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
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
