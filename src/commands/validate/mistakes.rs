//! All mistakes of one plugin, although its checks report one at a time.

use super::checker::Checker;
use super::cidrs;
use super::document::{Spot, item};
use super::finding::Note;
use super::network::Plugin;
use super::paths::{last_item, parent, put, remove, split_at_item, touches};
use crate::cni::json::Value;
use crate::error::{Code, Error, Expected, Kind, Mistake, Problem, Result};

/// The maximum number of mistakes reported for one plugin.
const ROUNDS: usize = 64;

/// The number of missing keys to fill in before giving up on a plugin's verdict about another key.
const FEW: usize = 4;

/// The single range of host-local, and the list of ranges that it is in place of.
const IN_PLACE_OF: (&str, &str) = ("ipam.subnet", "ipam.ranges");

impl Checker<'_> {
    /// Every mistake that `check` finds: removes the value of each mistake and calls `check` again.
    /// Later mistakes at the same place, such as that the value is missing, are consequences.
    pub fn mistakes(&mut self, rest: &mut Rest, check: &dyn Fn(&Value) -> Result<()>) {
        for _ in 0..ROUNDS {
            let Err(error) = check(&rest.value) else { return };
            let path = rest.in_file(place(&error)).unwrap_or_else(|| place(&error).to_owned());
            let gone = match rest.cause_of(&path) {
                Some(cause) => rest.take_out_above(&cause),
                None => {
                    self.tell_mistake(&rest.spot.at(&path), &error, narrowed(&error, check));
                    // A missing value is filled in, so that later keys are checked.
                    if !rest.take_out(&path) && !path.is_empty() {
                        put(&mut rest.value, place(&error), Value::text("x"));
                    }
                    path
                }
            };
            if gone.is_empty() {
                return;
            }
            rest.removed.push(gone);
        }
    }

    /// Reports the error about the value here, with `expected` if that is more exact than what the
    /// error has. An error without a mistake concerns the whole object.
    pub fn tell_mistake(&mut self, spot: &Spot, error: &Error, expected: Option<Expected>) {
        let mistake = error.mistake.as_ref();
        let expected = expected.or(mistake.map(|mistake| mistake.expected.clone()));
        let expected = expected.map(|expected| expected.to_string()).unwrap_or_default();
        let mut hint = if mistake.is_some() { error.advice.clone() } else { error.details() };
        if hint.is_empty() && expected.is_empty() {
            // The text may be an invalid subnet.
            let text = self.documents[spot.document].string_at(&spot.path);
            hint = text.map(|text| cidrs::advice(&spot.path, &text)).unwrap_or_default();
        }
        let code = if error.code == Code::DECODE { "wrong-type" } else { "invalid-value" };
        self.tell(Note::new(code, spot, &[&problem(error)]).expecting(&expected).hint(&[&hint]));
    }
}

/// What is wrong, without the place.
pub fn problem(error: &Error) -> String {
    let mistake = error.mistake.as_ref();
    mistake.map_or_else(|| error.msg.clone(), |mistake| mistake.problem.to_string())
}

/// The place of the mistake; the whole object if it has none.
pub fn place(error: &Error) -> &str {
    error.mistake.as_ref().map_or("", |mistake| &mistake.path)
}

/// The plugin's range if it is narrower than its type's: found by the error for the greatest number
/// of the type.
fn narrowed(error: &Error, check: &dyn Fn(&Value) -> Result<()>) -> Option<Expected> {
    let Mistake { path, problem, expected, capability: _ } = error.mistake.as_ref()?;
    let Expected::Kind(Kind::Natural(greatest)) = expected else { return None };
    let narrower = expected_of(path, Value::number(*greatest), check)?;
    Some(match (&narrower, problem) {
        (Expected::Ranges(_), Problem::Found(_)) => {
            Expected::from(format_args!("an integer from {narrower}"))
        }
        _ => narrower,
    })
}

/// What the plugin expects instead of this value, and nothing else.
fn expected_of(path: &str, value: Value, check: &dyn Fn(&Value) -> Result<()>) -> Option<Expected> {
    let mut document = Value::Object(vec![]);
    put(&mut document, path, value);
    for _ in 0..FEW {
        let error = check(&document).err()?;
        match &error.mistake {
            Some(mistake) if mistake.path == path => {
                return Some(mistake.expected.clone()).filter(|it| *it != Expected::Unsaid);
            }
            _ => put(&mut document, place(&error), Value::text("x")),
        }
    }
    None
}

/// A plugin's object without the values found wrong, and their paths.
pub struct Rest {
    /// The remaining object.
    pub value: Value,
    /// The whole object's place in the file.
    spot: Spot,
    removed: Vec<String>,
    /// The removed items: the path of the list, and the index.
    items: Vec<(String, usize)>,
}

impl Rest {
    /// The rest of the plugin's object, from which nothing is removed yet.
    pub fn of(plugin: &Plugin) -> Rest {
        let spot = plugin.spot.clone();
        Rest { value: plugin.value.clone(), spot, removed: vec![], items: vec![] }
    }

    /// The removed value that a mistake at this path of the file is a consequence of.
    fn cause_of(&self, path: &str) -> Option<String> {
        let causes = self
            .removed
            .iter()
            .filter(|gone| touches(gone, path) || (gone.as_str(), path) == IN_PLACE_OF);
        causes.min_by_key(|gone| gone.len()).cloned()
    }

    /// Removes the parent of a value, or the next one above that can be removed, because the
    /// removal of the value did not help; returns its path.
    fn take_out_above(&mut self, path: &str) -> String {
        let mut gone = parent(path);
        while !self.take_out(gone) && !gone.is_empty() {
            gone = parent(gone);
        }
        gone.to_owned()
    }

    /// Removes the value at this path of the file; false if there is none.
    fn take_out(&mut self, path: &str) -> bool {
        let Some(current) = self.in_rest(path) else { return false };
        let taken = remove(&mut self.value, &current);
        if let Some((list, index)) = last_item(path).filter(|_| taken) {
            self.items.push((list.to_owned(), index));
        }
        taken
    }

    /// The path in the file for a path in the remaining object.
    fn in_file(&self, path: &str) -> Option<String> {
        let mut in_file = String::new();
        let mut rest = path;
        while rest.contains('[') {
            let (head, index, more) = split_at_item(rest)?;
            in_file.push_str(head);
            let index = (0..).filter(|index| self.has(&in_file, *index)).nth(index)?;
            in_file = item(&in_file, index);
            rest = more;
        }
        Some(in_file + rest)
    }

    /// The path in the remaining object for a path in the file; None if an item of it has been
    /// removed.
    fn in_rest(&self, path: &str) -> Option<String> {
        let mut in_rest = String::new();
        let mut rest = path;
        while rest.contains('[') {
            let (head, index, more) = split_at_item(rest)?;
            let list = &path[..path.len() - rest.len() + head.len()];
            if !self.has(list, index) {
                return None;
            }
            in_rest.push_str(head);
            let index = (0..index).filter(|before| self.has(list, *before)).count();
            in_rest = item(&in_rest, index);
            rest = more;
        }
        Some(in_rest + rest)
    }

    /// Whether the item of the file's list has not been removed.
    fn has(&self, list: &str, index: usize) -> bool {
        !self.items.iter().any(|(other, gone)| other == list && *gone == index)
    }
}
