//! The value, its members and their spellings, and its reading: every member of an object is kept,
//! in the order of the text.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor,
};
use serde_json::Number;

use crate::error::{Code, Error, Result};

/// The maximum number of values in a document, including those in lists and objects. Together with
/// the size limit of the text it bounds the memory of a process: this many numbers in one list took
/// 0.15 GB when measured, half as many lists of one item 0.4 GB, and half as many objects of one
/// member, the worst case, 0.7 GB. A GC of 200 000 attachments, which libcni lists twice, has less
/// than a third of this number.
pub const MOST_VALUES: usize = 4 << 20;

/// A JSON value. An object is a list of pairs: the decoder decides which of two equal keys counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// `null`, which Go takes as "not given".
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number; integers of up to 64 bits are exact.
    Number(Number),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Value>),
    /// An object, in the order of the text.
    Object(Vec<(String, Value)>),
}

/// A JSON syntax error and its place.
#[derive(Debug)]
pub struct SyntaxError {
    /// What is wrong, without the place.
    pub problem: String,
    /// Counted from 1; 0 if the document as a whole is refused.
    pub line: usize,
    /// The byte, counted from 1; 0 is the end of the line before.
    pub column: usize,
}

impl From<serde_json::Error> for SyntaxError {
    fn from(error: serde_json::Error) -> SyntaxError {
        let text = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let problem = text.strip_suffix(&place).unwrap_or(&text).to_owned();
        SyntaxError { problem, line: error.line(), column: error.column() }
    }
}

impl Value {
    /// Reads one JSON value. Anything after it is an error, and so are more than [`MOST_VALUES`]
    /// values. Code 6.
    pub fn parse(text: &[u8]) -> Result<Value> {
        serde_json::from_str(&String::from_utf8_lossy(text))
            .map_err(|e| Error::new(Code::DECODE, e.to_string()))
    }

    /// As [`Value::parse`], but reports the place of a syntax error.
    pub fn read(text: &str) -> Result<Value, SyntaxError> {
        serde_json::from_str(text).map_err(SyntaxError::from)
    }

    /// The object; `null` is one without members. The error says what another value is.
    pub fn into_object(self) -> Result<Value, String> {
        match self {
            Value::Null => Ok(Value::Object(vec![])),
            Value::Object(_) => Ok(self),
            other => Err(format!("expected an object, found {}", other.kind())),
        }
    }

    /// The member `key`, matched without case; the last of several counts, and `null` counts as not
    /// given.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let Value::Object(pairs) = self else { return None };
        pairs
            .iter()
            .rev()
            .find(|(k, v)| k.eq_ignore_ascii_case(key) && *v != Value::Null)
            .map(|(_, v)| v)
    }

    /// The string, if it is one.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::String(text) = self { Some(text) } else { None }
    }

    /// The number, if it is a whole number that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        if let Value::Number(number) = self { number.as_u64() } else { None }
    }

    /// The items of an array; empty for other values.
    pub fn items(&self) -> &[Value] {
        if let Value::Array(items) = self { items } else { &[] }
    }

    /// Sets the member `key` of an object, replacing every spelling of it.
    pub fn set(&mut self, key: &str, value: Value) {
        self.remove(key);
        if let Value::Object(pairs) = self {
            pairs.push((key.to_owned(), value));
        }
    }

    /// Removes every spelling of the member `key` of an object.
    pub fn remove(&mut self, key: &str) {
        if let Value::Object(pairs) = self {
            pairs.retain(|(k, _)| !k.eq_ignore_ascii_case(key));
        }
    }

    /// The kind of value, as error messages name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        }
    }

    /// A string.
    pub fn text(text: impl Into<String>) -> Value {
        Value::String(text.into())
    }

    /// A whole number.
    pub fn number(number: impl Into<Number>) -> Value {
        Value::Number(number.into())
    }

    /// An object of these members.
    pub fn object<K: AsRef<str>>(members: impl IntoIterator<Item = (K, Value)>) -> Value {
        let member = |(key, value): (K, Value)| (key.as_ref().to_owned(), value);
        Value::Object(members.into_iter().map(member).collect())
    }

    /// The value as a Go map has it: the members of every object sorted, and only the last of
    /// several members with one name.
    pub fn sorted(self) -> Value {
        match self {
            Value::Array(items) => Value::Array(items.into_iter().map(Value::sorted).collect()),
            Value::Object(pairs) => {
                let mut members = BTreeMap::new();
                members.extend(pairs.into_iter().map(|(key, value)| (key, value.sorted())));
                Value::Object(members.into_iter().collect())
            }
            scalar => scalar,
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        Counted(&Cell::new(MOST_VALUES)).deserialize(deserializer)
    }
}

/// Reads a value, and subtracts it and the values in it from the number still allowed.
#[derive(Clone, Copy)]
struct Counted<'a>(&'a Cell<usize>);

impl<'de> DeserializeSeed<'de> for Counted<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let too_many = || D::Error::custom(format_args!("more than {MOST_VALUES} values"));
        self.0.set(self.0.get().checked_sub(1).ok_or_else(too_many)?);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counted<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = vec![];
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut pairs = vec![];
        while let Some(key) = members.next_key()? {
            pairs.push((key, members.next_value_seed(self)?));
        }
        Ok(Value::Object(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The right side is what `json.Unmarshal` and `json.Marshal` make of the left.
    #[test]
    fn a_go_map_is_sorted_and_has_the_last_of_equal_keys() {
        let text = r#"{"b":1.0,"a":{"d":[{"z":0,"Z":1}],"c":0},"b":"<"}"#;
        let sorted = Value::parse(text.as_bytes()).unwrap().sorted();
        assert_eq!(sorted.to_text(), r#"{"a":{"c":0,"d":[{"Z":1,"z":0}]},"b":"<"}"#);
    }

    #[test]
    fn the_last_spelling_of_a_key_counts_and_null_does_not() {
        let value = Value::parse(br#"{"Name":"a","name":"b","NAME":"c","name":null}"#).unwrap();
        assert_eq!(value.get("name").and_then(Value::as_str), Some("c"));
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for text in ["", "{", "{} x", "{\"a\":1,}", "// c\n{}", "\u{feff}{}", &"[".repeat(200)] {
            assert_eq!(
                Value::parse(text.as_bytes()).map_err(|e| e.code),
                Err(Code::DECODE),
                "{text}"
            );
        }
    }

    #[test]
    fn document_of_too_many_values_is_refused() {
        let list = |count: usize| Value::parse(format!("[{}0]", "0,".repeat(count - 1)).as_bytes());
        assert_eq!(list(MOST_VALUES - 1).map(|value| value.items().len()), Ok(MOST_VALUES - 1));
        let error = list(MOST_VALUES).unwrap_err();
        assert!(
            error.code == Code::DECODE
                && error.msg.starts_with("more than 4194304 values at line 1"),
            "{error}"
        );
        let objects = format!("[{}{{}}]", "{\"a\":0},".repeat(MOST_VALUES / 2));
        assert!(Value::parse(objects.as_bytes()).unwrap_err().msg.starts_with("more than"));
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        assert_eq!(Value::parse(b"\"a\xffb\"").unwrap(), Value::String("a\u{fffd}b".into()));
    }
}
