//! Every mistake of one plugin, though its checks tell one at a time.

use super::checker::{Checker, NOTHING};
use super::finding::Note;

use super::network::Plugin;
use crate::cni::attachment::NetworkName;
use crate::cni::conf::Config;
use crate::cni::decode::Observer;
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::plugin::{Context, Entry};
use std::rc::Rc;

/// More mistakes of one plugin are not looked for.
const ROUNDS: usize = 64;

impl Checker<'_> {
    /// Every mistake that `check` finds: where one is, its value is taken out and it is asked again. What it then says of
    /// the same place, such as that it is missing, follows from that.
    pub fn mistakes(&mut self, plugin: &Plugin, rest: &mut Rest, check: &dyn Fn(&Value) -> Result<()>) {
        for _ in 0..ROUNDS {
            let Err(error) = check(&rest.value) else { return };
            let is_path = |head: &str| !head.contains(' ') && head.starts_with(|c: char| c.is_ascii_lowercase());
            let (path, problem) = match error.msg.split_once(": ") {
                Some((path, problem)) if is_path(path) => (path, problem),
                _ => ("", error.msg.as_str()),
            };
            let follows = rest.removed.iter().filter(|gone| touches(gone, path)).min_by_key(|gone| gone.len());
            let is_new = follows.is_none();
            // Where taking it out has not helped, what stands above goes as well.
            let mut gone = follows.map_or(path, |gone| parent(gone)).to_owned();
            if is_new {
                self.tell_mistake(plugin, path, problem, &error);
            }
            while !gone.is_empty() && !take_out(&mut rest.value, &gone) && !is_new {
                gone.truncate(parent(&gone).len());
            }
            if gone.is_empty() {
                return;
            }
            rest.removed.push(gone);
        }
    }

    fn tell_mistake(&mut self, plugin: &Plugin, path: &str, problem: &str, error: &Error) {
        let (message, expected) = match problem.strip_prefix("expected ").and_then(|rest| rest.split_once(", found ")) {
            Some((expected, found)) => (["found ", found], expected),
            None => {
                let (problem, expected) = problem.rsplit_once(", expected ").unwrap_or((problem, ""));
                ([problem, ""], expected)
            }
        };
        let code = if error.code == Code::DECODE { "wrong-type" } else { "invalid-value" };
        let (document, path, hint) = (plugin.document, &plugin.at(path), &[error.details.as_str()]);
        self.tell(Note { code, document, path, message: &message, expected, hint, ..NOTHING });
    }
}

/// A plugin's object without the values that were found wrong, and their paths.
pub struct Rest {
    /// What is left.
    pub value: Value,
    /// The paths.
    pub removed: Vec<String>,
}

/// Decodes and checks a plugin's object as ADD does, without doing anything.
pub fn try_out(
    entry: &Entry,
    plugins: &'static [Entry],
    mut value: Value,
    network: &str,
    version: &str,
    observer: &Rc<Observer>,
) -> Result<()> {
    let name = NetworkName::parse(network).or_else(|_| NetworkName::parse("network"))?; // the second one is a name
    value.set("name", Value::text(name.as_str()));
    value.set("cniVersion", Value::text(version));
    let (text, version, observer) = (vec![], version.to_owned(), Some(Rc::clone(observer)));
    let config = Config { text, value, name, version, observer };
    let env = [("CNI_IFNAME".into(), "eth0".into())].into_iter().collect();
    entry.validate(&Context::new(plugins, &config, &env, "", vec![]))
}

/// Whether one path is the other or leads to it.
fn touches(one: &str, other: &str) -> bool {
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The path without its last step.
fn parent(path: &str) -> &str {
    path.bytes().rposition(|byte| b".[".contains(&byte)).map_or("", |end| &path[..end])
}

/// Makes the value at this path null; false where there is none.
fn take_out(value: &mut Value, path: &str) -> bool {
    if path.is_empty() {
        return std::mem::take(value).kind() != "null";
    }
    let step = path.strip_prefix('.').unwrap_or(path);
    match value {
        Value::Array(items) => {
            let Some((index, rest)) = step.strip_prefix('[').and_then(|step| step.split_once(']')) else {
                return false;
            };
            let item = index.parse().ok().and_then(|index: usize| items.get_mut(index));
            item.is_some_and(|item| take_out(item, rest))
        }
        Value::Object(pairs) => {
            let mut taken = false;
            for (key, value) in pairs {
                let (Some(head), Some(rest)) = (step.get(..key.len()), step.get(key.len()..)) else { continue };
                if head.eq_ignore_ascii_case(key) && (rest.is_empty() || rest.starts_with(['.', '['])) {
                    taken |= take_out(value, rest);
                }
            }
            taken
        }
        _ => false,
    }
}
