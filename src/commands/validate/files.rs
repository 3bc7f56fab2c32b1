//! Files: their texts, JSON errors in them, and the objects of Kubernetes in them, as `kubectl get
//! net-attach-def -o json` prints them: `spec.config` of each NetworkAttachmentDefinition is the text of
//! a configuration, which Multus runs.

use std::path::{Path, PathBuf};

use super::checker::{Checker, Finding, Note};
use super::document::{Document, Spot, item};
use super::mistakes::put;
use super::picks::{self, Pick};
use super::reader::{Typo, typos};
use super::together::text;
use crate::cni::decode::describe;
use crate::cni::json::Value;
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
                let document = bytes.and_then(|bytes| self.read(name, &bytes));
                let network = document.map(|document| self.check_whole(document));
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

/// The kind of the objects.
const KIND: &str = "NetworkAttachmentDefinition";

/// The annotation of objects to whose first plugin Multus adds a device.
const RESOURCE: &str = "k8s.v1.cni.cncf.io/resourceName";

/// The keys of that device.
const KEYS_OF_DEVICE: [&str; 2] = ["deviceID", "pciBusID"];

impl Checker<'_> {
    /// Checks a text that no runtime reads from a directory: a configuration, or objects of
    /// Kubernetes that have one each.
    pub fn check_text(&mut self, file: String, bytes: &[u8]) {
        let Some(document) = self.read(file, bytes) else { return };
        let Some(objects) = objects(&self.documents[document].value) else {
            self.check_whole(document);
            return;
        };
        let files = self.files;
        let whole = Spot::whole(document);
        for (path, object) in objects {
            self.check_object_at(&whole.at(&path), &object);
        }
        self.files = files; // the objects are in one
    }

    fn check_object_at(&mut self, spot: &Spot, object: &Value) {
        let name = name_of(object);
        if text(object, "kind") != KIND {
            let message = &[text(object, "kind"), " \"", &name, "\" has no network configuration"];
            self.tell(Note::new("not-read", spot, message));
            return;
        }
        let config = object.get("spec").and_then(|spec| spec.get("config")).unwrap_or(&Value::Null);
        match config {
            Value::String(config) if !config.is_empty() => {
                self.check_definition(spot, &name, config, object);
            }
            Value::String(_) | Value::Null => {
                let message = &["\"", &name, "\" has no spec.config"];
                let note = Note::new("not-read", spot, message);
                self.tell(note.hint(&["Multus takes a node's network of this name"]));
            }
            other => {
                let found = [describe(other).as_str(), " in \"", &name, "\""].concat();
                self.tell_wrong_type(&spot.at("spec.config"), &found, "a configuration as text");
            }
        }
    }

    /// Checks the configuration as Multus completes it. Places are within it.
    fn check_definition(&mut self, spot: &Spot, name: &str, config: &str, object: &Value) {
        let file = [&self.documents[spot.document].file, "[", name, "]"].concat();
        let Some(document) = self.read(file, config.as_bytes()) else { return };
        let Document { value, is_in_directory, .. } = &mut self.documents[document];
        *is_in_directory = false;
        let metadata = object.get("metadata").unwrap_or(&Value::Null);
        if text(value, "name").is_empty()
            && value.get("name").is_none_or(|it| it.kind() == "string")
        {
            value.set("name", Value::text(text(metadata, "name")));
        }
        let annotations = metadata.get("annotations");
        if annotations.is_some_and(|all| !text(all, RESOURCE).is_empty()) {
            // Multus adds a device to the first plugin.
            let first = if value.get("plugins").is_some() { "plugins[0]." } else { "" };
            for key in KEYS_OF_DEVICE {
                put(value, &[first, key].concat(), Value::text("0000:00:00.0"));
            }
        }
        let bytes = value.to_text().into_bytes();
        self.check_document(document, bytes);
    }
}

/// The objects of a List, each with its path, or the only one; None for another document.
fn objects(value: &Value) -> Option<Vec<(String, Value)>> {
    match (text(value, "kind"), value.get("items")) {
        (KIND, _) => Some(vec![(String::new(), value.clone())]),
        (kind, Some(Value::Array(items))) if kind.ends_with("List") => {
            let items = items.iter().enumerate();
            Some(items.map(|(number, object)| (item("items", number), object.clone())).collect())
        }
        _ => None,
    }
}

/// `namespace/name` of an object.
fn name_of(object: &Value) -> String {
    let metadata = object.get("metadata").unwrap_or(&Value::Null);
    let names = ["namespace", "name"].map(|key| text(metadata, key));
    names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join("/")
}
