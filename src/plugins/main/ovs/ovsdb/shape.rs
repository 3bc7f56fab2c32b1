//! The shape of JSON values: lists that are sent, and the error for what arrives in another shape.

use crate::cni::json::Value;
use crate::error::{Code, Error};

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
