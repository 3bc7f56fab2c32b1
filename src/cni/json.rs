//! JSON text as Go's reader takes it: keys keep their order and their duplicates, invalid UTF-8 is
//! replaced.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor,
};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Number;

use crate::error::{Code, Error, Result};

/// How many values a document may have, those in lists and objects included. It bounds the memory
/// that a document takes to half a gigabyte; a GC of 200 000 attachments, which libcni lists twice,
/// has less than a third of them.
pub const MOST_VALUES: usize = 4 << 20;

/// A JSON value. Objects are lists of pairs: which of two equal keys counts is decided where they
/// are decoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// `null`, which Go takes as "not given".
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number; integers to 64 bits are exact.
    Number(Number),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Value>),
    /// An object, in the order of the text.
    Object(Vec<(String, Value)>),
}

/// Why a text is no JSON, and where.
#[derive(Debug)]
pub struct SyntaxError {
    /// What is wrong, without the place.
    pub problem: String,
    /// From 1 on; 0 where the document as a whole is refused.
    pub line: usize,
    /// The byte, from 1 on; 0 is the end of the line before.
    pub column: usize,
}

impl Value {
    /// Reads one JSON value; anything after it is an error, and so is a document of more than
    /// [`MOST_VALUES`]. Code 6.
    pub fn parse(text: &[u8]) -> Result<Value> {
        serde_json::from_str(&String::from_utf8_lossy(text))
            .map_err(|e| Error::new(Code::DECODE, e.to_string()))
    }

    /// As [`Value::parse`], with the place where a text stops being JSON.
    pub fn read(text: &str) -> Result<Value, SyntaxError> {
        serde_json::from_str(text).map_err(|e| {
            let text = e.to_string();
            let place = format!(" at line {} column {}", e.line(), e.column());
            let problem = text.strip_suffix(&place).unwrap_or(&text).to_owned();
            SyntaxError { problem, line: e.line(), column: e.column() }
        })
    }

    /// The member `key`, matched without case; of several the last counts, and `null` counts as not
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

    /// The number, if it is a whole one that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        if let Value::Number(number) = self { number.as_u64() } else { None }
    }

    /// The items, if it is an array; else none.
    pub fn items(&self) -> &[Value] {
        if let Value::Array(items) = self { items } else { &[] }
    }

    /// Sets the member `key` of an object, in place of every spelling of it.
    pub fn set(&mut self, key: &str, value: Value) {
        if let Value::Object(pairs) = self {
            pairs.retain(|(k, _)| !k.eq_ignore_ascii_case(key));
            pairs.push((key.to_owned(), value));
        }
    }

    /// Removes every spelling of the member `key` of an object.
    pub fn remove(&mut self, key: &str) {
        if let Value::Object(pairs) = self {
            pairs.retain(|(k, _)| !k.eq_ignore_ascii_case(key));
        }
    }

    /// The kind of value, as messages name it.
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
    pub fn object(members: Vec<(&str, Value)>) -> Value {
        Value::Object(members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    /// The value on many lines, indented by two blanks.
    pub fn to_indented_text(&self) -> String {
        let mut text = String::new();
        self.indent(&mut text, "\n");
        text
    }

    fn indent(&self, out: &mut String, line: &str) {
        let deeper = format!("{line}  ");
        match self {
            Value::Array(items) if !items.is_empty() => {
                for (i, item) in items.iter().enumerate() {
                    out.push_str(if i == 0 { "[" } else { "," });
                    out.push_str(&deeper);
                    item.indent(out, &deeper);
                }
                out.push_str(line);
                out.push(']');
            }
            Value::Object(pairs) if !pairs.is_empty() => {
                for (i, (key, value)) in pairs.iter().enumerate() {
                    out.push_str(if i == 0 { "{" } else { "," });
                    out.push_str(&deeper);
                    out.push_str(&Value::text(key.as_str()).to_text());
                    out.push_str(": ");
                    value.indent(out, &deeper);
                }
                out.push_str(line);
                out.push('}');
            }
            plain => out.push_str(&plain.to_text()),
        }
    }

    /// The value as compact text.
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // strings, numbers and lists of them always serialise
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
        Counted(&Cell::new(MOST_VALUES)).deserialize(deserializer)
    }
}

/// Reads a value, and takes it and those in it off the number that may come.
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

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Number(value) => value.serialize(serializer),
            Value::String(value) => serializer.serialize_str(value),
            Value::Array(list) => serializer.collect_seq(list),
            Value::Object(pairs) => {
                let mut map = serializer.serialize_map(Some(pairs.len()))?;
                for (key, value) in pairs {
                    map.serialize_entry(key, value)?;
                }
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_back_as_it_was() {
        let text = r#"{"b":1,"a":[true,null,"x",-2,18446744073709551615,1.5],"B":{"c":{}}}"#;
        assert_eq!(Value::parse(text.as_bytes()).unwrap().to_text(), text);
    }

    #[test]
    fn text_can_be_indented() {
        let text = r#"{"a":[],"b":{},"c":[1,{"d":"e\"","f":null}]}"#;
        let value = Value::parse(text.as_bytes()).unwrap();
        let indented = value.to_indented_text();
        let expected = "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": [\n    1,\n    {\n      \"d\": \"e\\\"\",\n      \"f\": null\n    }\n  ]\n}";
        assert_eq!(indented, expected);
        assert_eq!(Value::parse(indented.as_bytes()).unwrap(), value);
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
