//! JSON objects out of the server's bytes, in which they follow each other without a separator, and
//! values of columns (RFC 7047, section 5.1), both ways.

use crate::cni::json::Value;
use crate::error::{Code, Error, Result};

/// The longest object: a node with its most ports has a tenth of this.
const LIMIT: usize = 32 * 1024 * 1024;

/// The bytes that have arrived, and how far they are understood.
#[derive(Debug, Default)]
pub struct Values {
    bytes: Vec<u8>,
    /// The bytes that were looked at.
    seen: usize,
    /// The brackets that are open there.
    depth: usize,
    is_text: bool,
    is_escaped: bool,
}

impl Values {
    /// Takes bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole object; None if more bytes are needed.
    pub fn next_whole(&mut self) -> Result<Option<Vec<u8>>, String> {
        while let Some(byte) = self.bytes.get(self.seen) {
            self.seen += 1;
            if self.ends_with(*byte)? {
                let rest = self.bytes.split_off(self.seen);
                self.seen = 0;
                return Ok(Some(std::mem::replace(&mut self.bytes, rest)));
            }
        }
        match self.bytes.len() > LIMIT {
            true => Err(format!("an object of more than {LIMIT} bytes")),
            false => Ok(None),
        }
    }

    /// Whether an object ends with this byte.
    fn ends_with(&mut self, byte: u8) -> Result<bool, String> {
        if self.is_text {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.is_text = false,
                _ => (),
            }
            return Ok(false);
        }
        match byte {
            b'{' | b'[' if self.depth > 0 || byte == b'{' => self.depth += 1,
            _ if self.depth == 0 && byte.is_ascii_whitespace() => (),
            _ if self.depth == 0 => return Err("something else than JSON objects".to_owned()),
            b'"' => self.is_text = true,
            b'}' | b']' => self.depth -= 1,
            _ => (),
        }
        Ok(self.depth == 0 && byte == b'}')
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    /// All objects of these bytes, which arrive in pieces of this length.
    fn split(text: &str, piece: usize) -> Result<Vec<String>, String> {
        let (mut values, mut found) = (Values::default(), vec![]);
        for bytes in text.as_bytes().chunks(piece) {
            values.push(bytes);
            while let Some(value) = values.next_whole()? {
                found.push(String::from_utf8(value).unwrap());
            }
        }
        Ok(found)
    }

    #[test]
    fn objects_are_found_in_pieces_of_any_length() {
        let texts = [r#"{"a":"}\"]"}"#, r#"{"b":[{"c":"\\"}]}"#, "\n {}", r#"{"é":1}"#];
        let text = texts.concat();
        for piece in 1..=text.len() {
            assert_eq!(split(&text, piece).unwrap(), texts, "{piece}");
        }
    }

    #[test]
    fn what_begins_no_object_is_refused_at_once() {
        for text in ["[1]", "HTTP/1.1 400", "}", "\"", "null", "{}x"] {
            assert!(split(text, 1).is_err(), "{text}");
        }
    }

    #[test]
    fn an_object_without_an_end_is_refused() {
        let mut values = Values::default();
        values.push(b"{\"a\":\"");
        for _ in 0..=LIMIT / 1_000_000 {
            assert_eq!(values.next_whole(), Ok(None));
            values.push(&[b'x'; 1_000_000]);
        }
        assert_eq!(values.next_whole().unwrap_err(), "an object of more than 33554432 bytes");
    }
}
