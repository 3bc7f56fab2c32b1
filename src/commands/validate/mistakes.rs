//! All mistakes of one plugin, although its checks report one at a time: a trial of ADD's checks on the
//! plugin's object, without doing anything, is repeated without what was found wrong.

use std::rc::Rc;

use super::checker::{Checker, Note, Plugin, is_true};
use super::document::{Spot, item};
use super::hosts::advice_on_subnet;
use crate::cni::attachment::NetworkName;
use crate::cni::conf::Config;
use crate::cni::decode::{Observer, Shape};
use crate::cni::json::Value;
use crate::cni::version;
use crate::error::{Code, Error, Expected, Kind, Mistake, Problem, Result};
use crate::plugin::{Context, Entry};
use crate::registry::PLUGINS;

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
            hint = text.map(|text| advice_on_subnet(&spot.path, &text)).unwrap_or_default();
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

/// The values that runtimes supply by capabilities when configurations leave them out.
const SUPPLIED: [(&str, &str); 2] =
    [("ipRanges", "[[{\"subnet\":\"192.0.2.0/24\"}]]"), ("deviceID", "\"0000:00:00.0\"")];

/// A network in which plugins' objects are tried.
pub struct Trial<'a> {
    network: &'a str,
    version: &'a str,
    observer: Rc<Observer>,
}

impl<'a> Trial<'a> {
    /// A trial in the network of this name; an empty version stands for the newest.
    pub fn new(network: &'a str, version: &'a str) -> Trial<'a> {
        let version = if version.is_empty() { version::CURRENT } else { version };
        Trial { network, version, observer: Rc::default() }
    }

    /// Adds what a runtime adds to a plugin's object.
    pub fn prepare(&self, value: &mut Value, is_first: bool) {
        if value.get("runtimeConfig").is_none() {
            value.set("runtimeConfig", Value::Object(vec![])); // so that reads of it are observed
        }
        if !is_first {
            value.set("prevResult", self.result());
        }
    }

    /// Decodes and checks a plugin's object as ADD does, without doing anything.
    pub fn run(&self, entry: &Entry, mut value: Value) -> Result<()> {
        let name = NetworkName::parse(self.network).or_else(|_| NetworkName::parse("network"))?; // the fallback is valid
        value.set("name", Value::text(name.as_str()));
        value.set("cniVersion", Value::text(self.version));
        let version = self.version.to_owned();
        let observer = Some(Rc::clone(&self.observer));
        let config = Config { text: vec![], value, name, version, observer };
        let env = [("CNI_IFNAME".into(), "eth0".into())].into_iter().collect();
        entry.validate(&Context::new(PLUGINS, &config, &env, "", vec![]))
    }

    /// Tries an object of a file: as it is, and with what a runtime may supply.
    pub fn run_completed(&self, entry: &Entry, value: &Value) -> Result<()> {
        let Err(error) = self.run(entry, value.clone()) else { return Ok(()) };
        let Some(completed) = supplied(value) else { return Err(error) };
        self.run(entry, completed).map_err(|other| match &other.mistake {
            Some(mistake) if mistake.path.starts_with("runtimeConfig") => error,
            _ => other,
        })
    }

    /// What the plugins expected at each place since the last call.
    pub fn observed(&self) -> Vec<(String, Shape)> {
        self.observer.take()
    }

    /// A result as a plugin may get it from the plugins before it.
    pub fn result(&self) -> Value {
        let address = || Value::text("192.0.2.2/24");
        let ip = Value::object([("version", Value::text("4")), ("address", address())]);
        Value::object([
            ("cniVersion", Value::text(self.version)),
            ("ips", Value::Array(vec![ip])),
            ("ip4", Value::object([("ip", address())])),
        ])
    }
}

/// The object with the values that a runtime supplies by its declared capabilities; None if it
/// declares none of those.
fn supplied(value: &Value) -> Option<Value> {
    let Some(Value::Object(declared)) = value.get("capabilities") else { return None };
    let mut completed = value.clone();
    let mut is_any = false;
    for (capability, text) in SUPPLIED {
        if declared.iter().any(|(key, value)| key == capability && is_true(Some(value))) {
            let path = ["runtimeConfig.", capability].concat();
            put(&mut completed, &path, Value::parse(text.as_bytes()).ok()?);
            is_any = true;
        }
    }
    is_any.then_some(completed)
}

/// Whether the two paths are equal or one contains the other.
pub fn touches(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The path without its last step.
pub fn parent(path: &str) -> &str {
    path.bytes().rposition(|byte| b".[".contains(&byte)).map_or("", |end| &path[..end])
}

/// Removes the member or item at this path; false if there is none.
pub fn remove(value: &mut Value, path: &str) -> bool {
    if path.is_empty() {
        return std::mem::take(value).kind() != "null";
    }
    let step = path.strip_prefix('.').unwrap_or(path);
    match value {
        Value::Array(items) => {
            let Some((index, rest)) = first_item(step) else { return false };
            if index < items.len() && rest.is_empty() {
                items.remove(index);
                return true;
            }
            items.get_mut(index).is_some_and(|item| remove(item, rest))
        }
        // The member in every spelling of its key.
        Value::Object(pairs) => {
            let mut taken = false;
            pairs.retain_mut(|(key, value)| match step.split_at_checked(key.len()) {
                Some((head, rest)) if head.eq_ignore_ascii_case(key) => {
                    taken |= rest.is_empty() || rest.starts_with(['.', '[']) && remove(value, rest);
                    !rest.is_empty()
                }
                _ => true,
            });
            taken
        }
        _ => false,
    }
}

/// Splits `[2].x` into 2 and `.x`.
fn first_item(path: &str) -> Option<(usize, &str)> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    Some((index.parse().ok()?, rest))
}

/// Splits `a.b[2].c` into `a.b`, 2 and `.c`.
pub fn split_at_item(path: &str) -> Option<(&str, usize, &str)> {
    let (list, item) = path.split_at(path.find('[')?);
    let (index, rest) = first_item(item)?;
    Some((list, index, rest))
}

/// Splits `a[1].b[2]` into `a[1].b` and 2.
pub fn last_item(path: &str) -> Option<(&str, usize)> {
    let (list, index) = path.strip_suffix(']')?.rsplit_once('[')?;
    Some((list, index.parse().ok()?))
}

/// Sets the member at this path. Missing objects on the way are created, missing lists are not.
pub fn put(value: &mut Value, path: &str, new: Value) {
    let path = path.strip_prefix('.').unwrap_or(path);
    let (key, rest) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
    match value {
        Value::Array(items) => {
            let Some((index, rest)) = first_item(path) else { return };
            match items.get_mut(index) {
                Some(item) if rest.is_empty() => *item = new,
                Some(item) => put(item, rest, new),
                None => (),
            }
        }
        Value::Object(_) if key.is_empty() => (), // an item, and there is no list
        Value::Object(pairs) if !rest.is_empty() => {
            let found = pairs.iter().position(|(name, _)| name.eq_ignore_ascii_case(key));
            let index = found.unwrap_or(pairs.len());
            if index == pairs.len() {
                pairs.push((key.to_owned(), Value::Object(vec![])));
            }
            put(&mut pairs[index].1, rest, new);
        }
        other => other.set(key, new),
    }
}
