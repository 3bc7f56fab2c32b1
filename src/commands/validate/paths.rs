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
