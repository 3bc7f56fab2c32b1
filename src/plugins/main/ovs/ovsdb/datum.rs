//! The values of columns (RFC 7047, section 5.1), both ways.

use crate::cni::json::Value;
use crate::error::{Code, Error, Result};

/// The name of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uuid(String);

impl Uuid {
    /// Decodes `["uuid", "…"]`.
    pub fn of(value: &Value) -> Result<Uuid> {
        let is_uuid = |text: &str| {
            text.len() == 36 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        };
        match value.items() {
            [kind, Value::String(uuid)] if kind.as_str() == Some("uuid") && is_uuid(uuid) => {
                Ok(Uuid(uuid.clone()))
            }
            _ => Err(unexpected("a UUID", value)),
        }
    }

    /// Encodes it.
    pub fn to_value(&self) -> Value {
        array([Value::text("uuid"), Value::text(&*self.0)])
    }
}

/// A row that the same transaction inserts.
pub fn named_uuid(name: &str) -> Value {
    array([Value::text("named-uuid"), Value::text(name)])
}

/// The members of a set. A set of one is written as its member.
pub fn members(value: &Value) -> &[Value] {
    match value.items() {
        [kind, Value::Array(members)] if kind.as_str() == Some("set") => members,
        _ => std::slice::from_ref(value),
    }
}

/// Encodes a set.
pub fn set(members: impl IntoIterator<Item = Value>) -> Value {
    array([Value::text("set"), Value::Array(members.into_iter().collect())])
}

/// The pairs of a map of texts.
pub fn pairs(value: &Value) -> Result<Vec<(&str, &str)>> {
    let found = match value.items() {
        [kind, Value::Array(pairs)] if kind.as_str() == Some("map") => {
            let texts = pairs.iter().map(|pair| match pair.items() {
                [key, value] => Some((key.as_str()?, value.as_str()?)),
                _ => None,
            });
            texts.collect()
        }
        _ => None,
    };
    found.ok_or_else(|| unexpected("a map of texts", value))
}

/// Encodes a map of texts.
pub fn map<'t>(pairs: impl IntoIterator<Item = (&'t str, &'t str)>) -> Value {
    let pair = |(key, value)| array([Value::text(key), Value::text(value)]);
    array([Value::text("map"), Value::Array(pairs.into_iter().map(pair).collect())])
}

/// The text in a column, or in a set of at most one.
pub fn text(value: &Value) -> Result<Option<&str>> {
    match members(value) {
        [] => Ok(None),
        [Value::String(text)] => Ok(Some(text)),
        _ => Err(unexpected("a text", value)),
    }
}

/// The VLANs in a column, sorted.
pub fn vlans(value: &Value) -> Result<Vec<u16>> {
    let vlan = |id: &Value| id.as_u64().and_then(|id| u16::try_from(id).ok());
    let all: Option<Vec<u16>> = members(value).iter().map(vlan).collect();
    let mut all = all.ok_or_else(|| unexpected("VLANs", value))?;
    all.sort_unstable();
    Ok(all)
}

/// A list.
pub fn array<const N: usize>(items: [Value; N]) -> Value {
    Value::Array(items.into())
}

/// The error for an answer whose shape differs from RFC 7047.
pub fn unexpected(what: &str, found: &Value) -> Error {
    let mut text = found.to_text();
    let end = (0..=text.len().min(120)).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
    Error::new(Code::HOST_PROGRAM, format!("OVSDB answered with something else than {what}"))
        .with_details(text)
}
