//! NetworkAttachmentDefinitions, as `kubectl get net-attach-def -o json` prints them: `spec.config` of
//! each is the text of a configuration, which Multus runs.

use super::checker::Checker;
use super::document::{Document, Spot, item};
use super::finding::Note;
use super::paths::put;
use super::together::text;
use crate::cni::decode::describe;
use crate::cni::json::Value;

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
        let (document, _) = Document::parse(file.clone(), bytes); // `check` reports a problem
        let Some(objects) = objects(&document.value) else {
            self.check(file, bytes);
            return;
        };
        let files = self.files + 1;
        self.documents.push(document);
        let whole = Spot::whole(self.documents.len() - 1);
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
