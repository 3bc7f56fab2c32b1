//! All mistakes of one plugin, although its checks report one at a time.

use super::checker::{Checker, NOTHING};
use super::finding::{Note, push};
use super::network::Plugin;
use super::paths::{parent, put, remove, touches};
use crate::cni::json::Value;
use crate::error::{Code, Error, Expected, Kind, Mistake, Problem, Result};

/// The maximum number of mistakes reported for one plugin.
const ROUNDS: usize = 64;

/// The number of missing keys to fill in before giving up on a plugin's verdict about another key.
const FEW: usize = 4;

impl Checker<'_> {
    /// Every mistake that `check` finds: removes the value of each mistake and calls `check` again.
    /// Later mistakes at the same place, such as that the value is missing, are consequences.
    pub fn mistakes(
        &mut self,
        plugin: &Plugin,
        rest: &mut Rest,
        check: &dyn Fn(&Value) -> Result<()>,
    ) {
        for _ in 0..ROUNDS {
            let Err(error) = check(&rest.value) else { return };
            let current = place(&error);
            let path = rest.as_written(current);
            let follows = rest
                .removed
                .iter()
                .filter(|gone| touches(gone, &path))
                .min_by_key(|gone| gone.len());
            let is_new = follows.is_none();
            // If the removal did not help, remove the parent as well.
            let mut gone = follows.map_or(path.as_str(), |gone| parent(gone)).to_owned();
            if is_new {
                self.tell_mistake(plugin, &path, &error, narrowed(&error, check));
            }
            let mut taken = rest.take_out(&gone);
            if is_new && !taken && !path.is_empty() {
                put(&mut rest.value, current, Value::text("x")); // fill in what is missing, so that later keys are checked
            }
            while !gone.is_empty() && !taken && !is_new {
                gone.truncate(parent(&gone).len());
                taken = rest.take_out(&gone);
            }
            if gone.is_empty() {
                return;
            }
            rest.removed.push(gone);
        }
    }

    /// Reports the error about the value at this path of the plugin, with `expected` if that is
    /// more exact than what the error has. An error without a mistake concerns the whole object.
    pub fn tell_mistake(
        &mut self,
        plugin: &Plugin,
        path: &str,
        error: &Error,
        expected: Option<Expected>,
    ) {
        let (problem, said) = match &error.mistake {
            Some(mistake) => (mistake.problem.to_string(), mistake.expected.clone()),
            None => (error.msg.clone(), Expected::Unsaid),
        };
        self.tell(Note {
            code: if error.code == Code::DECODE { "wrong-type" } else { "invalid-value" },
            document: plugin.document,
            path: &plugin.at(path),
            message: &[&problem],
            expected: &expected.unwrap_or(said).to_string(),
            hint: &[error.advice()],
            ..NOTHING
        });
    }
}

/// The place of the mistake; the whole object if it has none.
fn place(error: &Error) -> &str {
    error.mistake.as_ref().map_or("", |mistake| &mistake.path)
}

/// The plugin's range if it is narrower than its type's: found by the error for the greatest number
/// of the type.
fn narrowed(error: &Error, check: &dyn Fn(&Value) -> Result<()>) -> Option<Expected> {
    let Mistake { path, problem, expected } = error.mistake.as_ref()?;
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
    removed: Vec<String>,
    /// The removed items: the path of the list, and the index.
    items: Vec<(String, usize)>,
}

impl Rest {
    /// A rest from which nothing is removed yet.
    pub fn new(value: Value) -> Rest {
        Rest { value, removed: vec![], items: vec![] }
    }

    /// The path in the file for a path in the remaining object.
    fn as_written(&self, path: &str) -> String {
        self.renumbered(path, false).unwrap_or_else(|| path.to_owned())
    }

    /// Removes the value at this path of the file; false if there is none.
    fn take_out(&mut self, path: &str) -> bool {
        let Some(current) = self.renumbered(path, true) else { return false };
        let taken = remove(&mut self.value, &current);
        if let (true, Some((list, index))) =
            (taken, path.strip_suffix(']').and_then(|path| path.rsplit_once('[')))
        {
            self.items.extend(index.parse().map(|index| (list.to_owned(), index)));
        }
        taken
    }

    /// Translates the indices of a path from the file to the remaining object, or back. None if an
    /// item of the path has been removed.
    fn renumbered(&self, path: &str, is_of_file: bool) -> Option<String> {
        let mut of_file = String::new();
        let mut other = String::new();
        let mut rest = path;
        while let Some((head, more)) = rest.split_once('[') {
            let (index, more) = more.split_once(']')?;
            let index: usize = index.parse().ok()?;
            of_file.push_str(head);
            let is_left =
                |at: &usize| !self.items.iter().any(|(list, gone)| *list == of_file && gone == at);
            let (before, after) = match is_of_file {
                true if !is_left(&index) => return None,
                true => (index, (0..index).filter(is_left).count()),
                false => (0..).filter(is_left).nth(index).map(|index| (index, index))?,
            };
            push(&mut of_file, &["[", &before.to_string(), "]"]);
            push(&mut other, &[head, "[", &after.to_string(), "]"]);
            rest = more;
        }
        other.push_str(rest);
        Some(other)
    }
}
