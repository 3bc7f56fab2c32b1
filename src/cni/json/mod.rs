//! The one JSON value and its one writer.
//!
//! [`Value`] keeps the duplicate keys that `serde_json`'s own type drops. Go decodes the members
//! one after the other into the same struct: the second of two `"ipam"` objects changes only the
//! members it has, and `"Type"` after `"type"` counts as well. So the type that is decoded
//! ([`super::decode`]) decides which member wins, not the reader of the text. Invalid UTF-8 is
//! replaced, as in Go.
//!
//! All output, of [`Value`] or of a type with `derive(Serialize)`, goes through `serde_json`'s
//! serializer with one formatter, which has Go's floats and indentation, and Go's escapes unless it
//! is [plain](plain_text). [`Value::of`] is such a type as a value, when it has to become part of
//! another document or has to be [sorted](Value::sorted) like a Go map.

mod value;
mod write;

pub use self::value::{MOST_VALUES, SyntaxError, Value};
pub use self::write::{indented_text, plain_indented_text, plain_text, text};
