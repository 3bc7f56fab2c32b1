//! Access to values by their paths in a document: `ipam.ranges[0][1].subnet`.

use crate::cni::json::Value;

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
        Value::Array(items) => remove_item(items, step),
        Value::Object(pairs) => remove_member(pairs, step),
        _ => false,
    }
}

fn remove_item(items: &mut Vec<Value>, path: &str) -> bool {
    let Some((index, rest)) = first_item(path) else { return false };
    if index < items.len() && rest.is_empty() {
        items.remove(index);
        return true;
    }
    items.get_mut(index).is_some_and(|item| remove(item, rest))
}

/// Removes the member in every spelling of its key.
fn remove_member(pairs: &mut Vec<(String, Value)>, path: &str) -> bool {
    let mut taken = false;
    pairs.retain_mut(|(key, value)| {
        let Some(rest) = behind_key(path, key) else { return true };
        taken |= rest.is_empty() || rest.starts_with(['.', '[']) && remove(value, rest);
        !rest.is_empty()
    });
    taken
}

/// The rest of a path that begins with this key.
fn behind_key<'p>(path: &'p str, key: &str) -> Option<&'p str> {
    let (head, rest) = path.split_at_checked(key.len())?;
    head.eq_ignore_ascii_case(key).then_some(rest)
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
        Value::Array(items) => put_item(items, path, new),
        Value::Object(_) if key.is_empty() => (), // an item, and there is no list
        Value::Object(pairs) if !rest.is_empty() => put(member(pairs, key), rest, new),
        other => other.set(key, new),
    }
}

fn put_item(items: &mut [Value], path: &str, new: Value) {
    let Some((index, rest)) = first_item(path) else { return };
    match items.get_mut(index) {
        Some(item) if rest.is_empty() => *item = new,
        Some(item) => put(item, rest, new),
        None => (),
    }
}

/// The member of this name; an empty object if there was none.
fn member<'a>(pairs: &'a mut Vec<(String, Value)>, key: &str) -> &'a mut Value {
    let found = pairs.iter().position(|(name, _)| name.eq_ignore_ascii_case(key));
    let index = found.unwrap_or(pairs.len());
    if index == pairs.len() {
        pairs.push((key.to_owned(), Value::Object(vec![])));
    }
    &mut pairs[index].1
}
