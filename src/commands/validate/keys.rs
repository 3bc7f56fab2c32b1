//! The keys of an object, compared with those that some code reads.

use super::checker::{Checker, Note, did_you_mean};
use super::document::Spot;
use crate::cni::decode::Shape;
use crate::terminal::nearest::nearest;

/// The keys that every plugin may have. A single plugin's file also has `name` and `cniVersion`.
const PLUGIN_KEYS: [&str; 7] =
    ["cniVersion", "name", "type", "capabilities", "args", "runtimeConfig", "prevResult"];

/// The keys of a list, case-sensitive: libcni reads them without a decoder.
const LIST_KEYS: [&str; 7] = [
    "cniVersion",
    "cniVersions",
    "name",
    "disableCheck",
    "disableGC",
    "loadOnlyInlinedPlugins",
    "plugins",
];

/// The keys that runtimes add for themselves.
const NOTES_OF_RUNTIMES: [&str; 5] =
    ["nerdctlID", "nerdctlLabels", "ipRange", "podman_labels", "args"];

/// The start of the keys that the specification reserves for itself.
pub const SPECIFICATION: &str = "cni.dev/";

/// The objects in which unknown keys are not mistakes.
const FREE: [&str; 2] = ["args", "runtimeConfig"];

/// The keys that an object may have.
pub struct KnownKeys<'a> {
    keys: Vec<&'static str>,
    /// The name of what reads them.
    of: &'a str,
    /// Whether the case of a key is significant.
    has_case: bool,
    /// Whether other keys are mistakes, even if they are no probable misspellings.
    is_complete: bool,
}

impl KnownKeys<'static> {
    /// The keys of a list.
    pub fn of_list() -> KnownKeys<'static> {
        let keys = LIST_KEYS.to_vec();
        KnownKeys { keys, of: "a list of plugins", has_case: true, is_complete: true }
    }
}

impl<'a> KnownKeys<'a> {
    /// The keys of the object at this path of a plugin's object, of which the plugin `of` reads
    /// some.
    pub fn of_plugin(path: &str, read: &[&'static str], of: &'a str) -> KnownKeys<'a> {
        let mut keys = read.to_vec();
        match path {
            "" => keys.extend(PLUGIN_KEYS),
            "ipam" => keys.push("type"),
            _ => (),
        }
        let is_complete = !FREE.iter().any(|free| path.starts_with(free));
        KnownKeys { keys, of, has_case: false, is_complete }
    }

    fn has(&self, key: &str) -> bool {
        self.keys.iter().any(|known| match self.has_case {
            true => *known == key,
            false => known.eq_ignore_ascii_case(key),
        })
    }
}

impl Checker<'_> {
    /// Reports keys of the object here that are not known.
    pub fn check_keys(&mut self, spot: &Spot, known: &KnownKeys<'_>) {
        for key in self.keys(spot) {
            let is_foreign =
                NOTES_OF_RUNTIMES.contains(&key.as_str()) || key.starts_with(SPECIFICATION);
            if known.has(&key) || is_foreign {
                continue;
            }
            let near = nearest(&key, known.keys.iter().copied());
            if near.is_some() || known.is_complete {
                let hint = near.map(did_you_mean).unwrap_or_default();
                let spot = spot.at(&key);
                let message = &["not a key of ", known.of];
                self.tell(Note::new("unknown-key", &spot, message).of_key().hint(&hint));
            }
        }
    }
}

/// Adds the keys that are not known yet.
pub fn add_keys(known: &mut Vec<&'static str>, keys: &[&'static str]) {
    for key in keys {
        if !known.contains(key) {
            known.push(key);
        }
    }
}

/// The decoded structs, each with every key that some type reads there.
pub struct ReadKeys(pub Vec<(String, Vec<&'static str>)>);

impl ReadKeys {
    /// The keys in what an observer has seen.
    pub fn of(shapes: Vec<(String, Shape)>) -> ReadKeys {
        let mut read = ReadKeys(vec![]);
        for (path, shape) in shapes {
            let Shape::Keys(keys) = shape else { continue };
            match read.0.iter_mut().find(|(other, _)| *other == path) {
                Some((_, known)) => add_keys(known, keys),
                None => read.0.push((path, keys.to_vec())),
            }
        }
        read
    }

    /// The keys that are read at this path.
    pub fn at(&self, path: &str) -> &[&'static str] {
        self.0.iter().find(|(other, _)| other == path).map_or(&[], |(_, keys)| keys)
    }
}
