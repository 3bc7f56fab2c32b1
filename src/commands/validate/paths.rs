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
            let Some((index, rest)) = item_of(step).filter(|(index, _)| *index < items.len())
            else {
                return false;
            };
            if rest.is_empty() {
                items.remove(index);
            }
            rest.is_empty() || remove(&mut items[index], rest)
        }
        Value::Object(pairs) => {
            let mut taken = false;
            pairs.retain_mut(|(key, value)| {
                let (Some(head), Some(rest)) = (step.get(..key.len()), step.get(key.len()..))
                else {
                    return true;
                };
                let is_it = head.eq_ignore_ascii_case(key);
                taken |= is_it
                    && (rest.is_empty() || rest.starts_with(['.', '[']) && remove(value, rest));
                !(is_it && rest.is_empty())
            });
            taken
        }
        _ => false,
    }
}

/// Splits `[2].x` into 2 and `.x`.
fn item_of(step: &str) -> Option<(usize, &str)> {
    let (index, rest) = step.strip_prefix('[')?.split_once(']')?;
    Some((index.parse().ok()?, rest))
}

/// Sets the member at this path. Missing objects on the way are created, missing lists are not.
pub fn put(value: &mut Value, path: &str, new: Value) {
    let path = path.strip_prefix('.').unwrap_or(path);
    let (key, rest) = path.split_at(path.find(['.', '[']).unwrap_or(path.len()));
    match value {
        Value::Array(items) => {
            match item_of(path).map(|(index, rest)| (items.get_mut(index), rest)) {
                Some((Some(item), "")) => *item = new,
                Some((Some(item), rest)) => put(item, rest, new),
                _ => (),
            }
        }
        Value::Object(_) if key.is_empty() => (), // an item, and there is no list
        Value::Object(pairs) if !rest.is_empty() => {
            match pairs.iter_mut().find(|(name, _)| name.eq_ignore_ascii_case(key)) {
                Some((_, inner)) => put(inner, rest, new),
                None => {
                    let mut inner = Value::Object(vec![]);
                    put(&mut inner, rest, new);
                    pairs.push((key.to_owned(), inner));
                }
            }
        }
        other => other.set(key, new),
    }
}
