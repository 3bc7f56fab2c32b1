//! What is wrong with a value that could not be decoded, in JSON's words.

use std::fmt;

use serde::de::{self, Unexpected};

use super::Path;
use crate::cni::json::Value;
use crate::error::{Code, Error};

/// A value that could not be decoded: the error, and whether it names its place yet.
#[derive(Debug)]
pub struct Mistake {
    pub error: Error,
    placed: bool,
    /// The reference plugin's sentence, where it has one.
    sentence: Option<String>,
}

impl Mistake {
    pub fn new(code: Code, problem: impl Into<String>) -> Mistake {
        Mistake { error: Error::new(code, problem), placed: false, sentence: None }
    }

    /// The innermost place that sees the mistake names its path. One function for all types that
    /// are decoded.
    #[cold]
    #[inline(never)]
    pub fn at(self, path: Path<'_>) -> Mistake {
        match path {
            _ if self.placed => self,
            Path::Root(_) => Mistake { placed: true, ..self },
            path => {
                let error = self.error.at(path);
                let error = self.sentence.into_iter().fold(error, Error::saying);
                Mistake { error, placed: true, sentence: None }
            }
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error.msg)
    }
}

impl std::error::Error for Mistake {}

impl de::Error for Mistake {
    fn custom<T: fmt::Display>(problem: T) -> Mistake {
        let (own, sentence) = (format!("{problem}"), format!("{problem:#}"));
        let sentence = Some(sentence).filter(|sentence| *sentence != own); // see UnknownWord
        Mistake { sentence, ..Mistake::new(Code::INVALID_CONFIG, own) }
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Mistake {
        Mistake::new(
            Code::DECODE,
            format!("expected {}, found {}", Expectation(expected), Kind(found)),
        )
    }

    fn missing_field(field: &'static str) -> Mistake {
        Mistake::new(Code::INVALID_CONFIG, format!("{field:?} is missing"))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Mistake {
        Mistake::new(
            Code::INVALID_CONFIG,
            format!("{} is out of range, expected {}", Found(found), Expectation(expected)),
        )
    }
}

/// The value as the user wrote it: `5000`, not "integer `5000`".
struct Found<'a>(Unexpected<'a>);

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Unexpected::Signed(number) => write!(f, "{number}"),
            Unexpected::Unsigned(number) => write!(f, "{number}"),
            other => write!(f, "{other}"),
        }
    }
}

/// What stands there in place of what was expected, in JSON's words.
struct Kind<'a>(Unexpected<'a>);

impl fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Unexpected::Bool(value) => write!(f, "boolean {value}"),
            Unexpected::Signed(number) => write!(f, "integer {number}"),
            Unexpected::Unsigned(number) => write!(f, "integer {number}"),
            Unexpected::Float(number) => write!(f, "number {number}"),
            Unexpected::Seq => f.write_str("a list"),
            Unexpected::Map => f.write_str("an object"),
            Unexpected::Unit => f.write_str("null"),
            other => write!(f, "{other}"),
        }
    }
}

/// Rust's names of integer types as ranges.
struct Expectation<'a>(&'a dyn de::Expected);

impl fmt::Display for Expectation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.to_string().as_str() {
            "u8" => f.write_str("an integer from 0 to 255"),
            "u16" => f.write_str("an integer from 0 to 65535"),
            "u32" => f.write_str("an integer from 0 to 4294967295"),
            "u64" => f.write_str("an integer from 0 to 18446744073709551615"),
            "i64" => f.write_str("an integer"),
            "a sequence" => f.write_str("a list"),
            other => f.write_str(other),
        }
    }
}

/// What a value is, in the words of messages: `a list`, `string "x"`.
pub fn describe(value: &Value) -> String {
    Kind(unexpected(value)).to_string()
}

pub fn unexpected(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Null => Unexpected::Unit,
        Value::Bool(value) => Unexpected::Bool(*value),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => Unexpected::Unsigned(value),
            (_, Some(value)) => Unexpected::Signed(value),
            _ => Unexpected::Float(number.as_f64().unwrap_or_default()),
        },
        Value::String(value) => Unexpected::Str(value),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    }
}
