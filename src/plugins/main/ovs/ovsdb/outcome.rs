//! The answer to a transaction.

use crate::cni::json::Value;
use crate::error::{Code, Error};

/// How a transaction has ended.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// It was committed: one result for each operation.
    Done(Vec<Value>),
    /// Nothing was changed.
    Refused(Refusal),
}

/// Why the database has refused a transaction.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of error, such as `constraint violation`.
    pub error: String,
    /// The details, perhaps empty.
    pub details: String,
}

impl Refusal {
    /// Whether a `wait` has found another value than it was to find.
    pub fn is_of_wait(&self) -> bool {
        self.error == "timed out"
    }

    /// As an error of what was attempted.
    pub fn into_error(self, what: &str) -> Error {
        let code = match self.error.as_str() {
            "constraint violation" => Code::CONFLICT,
            _ => Code::HOST_PROGRAM,
        };
        let separator = if self.details.is_empty() { "" } else { ": " };
        Error::new(code, format!("{what}: {}{separator}{}", self.error, self.details))
    }
}

/// Decodes the answer to a transaction of `count` operations.
///
/// An error of an operation stands in its place, with nulls behind it; an error of the commit stands
/// behind the results. A server that cannot read the request answers with `error`.
pub fn of(mut answer: Value, count: usize) -> Result<Outcome, String> {
    let refused = |error: &Value| {
        let text = |key| error.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Outcome::Refused(match error {
            Value::String(error) => Refusal { error: error.clone(), details: String::new() },
            _ => Refusal { error: text("error"), details: text("details") },
        })
    };
    if let Some(error) = answer.get("error") {
        return Ok(refused(error));
    }
    let results = match &mut answer {
        Value::Object(members) => members.iter_mut().rev().find(|(key, _)| key == "result"),
        _ => None,
    };
    let Some((_, Value::Array(results))) = results else {
        return Err("there are no results".to_owned());
    };
    if let Some(error) = results.iter().find(|result| result.get("error").is_some()) {
        return Ok(refused(error));
    }
    match results.len() == count && !results.contains(&Value::Null) {
        true => Ok(Outcome::Done(std::mem::take(results))),
        false => Err(format!("there are {} results of {count} operations", results.len())),
    }
}
