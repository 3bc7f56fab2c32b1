//! A client of OVSDB, the database of Open vSwitch (RFC 7047): one transaction at a time, without a
//! schema and without a monitor. Its operations are those of section 5.2.

mod connection;
pub mod values;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;

use self::connection::Connection;
use self::values::{Uuid, array};
use crate::cni::json::Value;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};

pub use self::connection::Address;
pub use self::values::unexpected;

/// The database's name.
const NAME: &str = "Open_vSwitch";

/// A connection to the database.
pub struct Database {
    address: String,
    connection: RefCell<Connection>,
    requests: Cell<u64>,
}

impl Database {
    /// Connects. Code 11 where no server listens: it may be starting.
    pub fn connect(address: &Address, deadline: Deadline) -> Result<Database> {
        let connection = Connection::open(address, deadline).map_err(|e| {
            Error::io(format_args!("failed to connect to ovsdb socket {address}: error"), &e)
                .with_code(Code::TRY_AGAIN)
                .with_details("is ovsdb-server running, and is this its socket?")
        })?;
        Ok(Database::of(address.to_string(), connection))
    }

    /// Talks over an existing connection.
    pub fn over(socket: OwnedFd, deadline: Deadline) -> Database {
        Database::of("a socket".to_owned(), Connection::over(socket, deadline))
    }

    fn of(address: String, connection: Connection) -> Database {
        Database { address, connection: RefCell::new(connection), requests: Cell::new(0) }
    }

    /// Runs the operations as one transaction: all of them or none.
    pub fn transact(&self, operations: Vec<Value>) -> Result<Outcome> {
        let (id, count) = (self.requests.get() + 1, operations.len());
        self.requests.set(id);
        let mut params = vec![Value::text(NAME)];
        params.extend(operations);
        let request = Value::object([
            ("method", Value::text("transact")),
            ("id", Value::number(id)),
            ("params", Value::Array(params)),
        ]);
        let reply = self.connection.borrow_mut().exchange(&request, id);
        let outcome = reply.and_then(|reply| outcome(reply, count).map_err(connection::malformed));
        outcome.map_err(|e| {
            // A server that stops, hangs or restarts may answer the next call; one that sends
            // something else is no OVSDB.
            let code = match e.kind() {
                io::ErrorKind::InvalidData => Code::HOST_PROGRAM,
                _ => Code::TRY_AGAIN,
            };
            Error::io(format_args!("ask OVSDB at {}", self.address), &e).with_code(code)
        })
    }

    /// As [`Database::transact`], but a refusal is an error.
    pub fn read(&self, operations: Vec<Value>) -> Result<Vec<Value>> {
        match self.transact(operations)? {
            Outcome::Done(results) => Ok(results),
            Outcome::Refused(refusal) => Err(refusal.into_error("read OVSDB")),
        }
    }
}

/// A condition on a column.
pub fn condition(column: &str, function: &str, value: Value) -> Value {
    array([Value::text(column), Value::text(function), value])
}

/// Reads these columns of the rows that meet the condition.
pub fn select(table: &str, condition: Value, columns: &[&str]) -> Value {
    let columns = columns.iter().map(|column| Value::text(*column)).collect();
    operation("select", table, [("where", array([condition])), ("columns", Value::Array(columns))])
}

/// Inserts a row, which the other operations of the transaction know by a name.
pub fn insert(table: &str, name: &str, row: Vec<(&str, Value)>) -> Value {
    operation("insert", table, [("uuid-name", Value::text(name)), ("row", Value::object(row))])
}

/// Inserts a value into a set, or deletes it from there, in the rows that meet the condition.
pub fn mutate(table: &str, condition: Value, mutation: Value) -> Value {
    operation("mutate", table, [("where", array([condition])), ("mutations", array([mutation]))])
}

/// Requires a column of a row to have this value, or else nothing is changed.
pub fn require(table: &str, row: &Uuid, column: &str, value: Value) -> Value {
    let is_row = condition("_uuid", "==", row.to_value());
    let mut wait = operation(
        "wait",
        table,
        [("where", array([is_row])), ("columns", array([Value::text(column)]))],
    );
    wait.set("timeout", Value::number(0));
    wait.set("until", Value::text("=="));
    wait.set("rows", array([Value::object([(column, value)])]));
    wait
}

fn operation<const N: usize>(name: &str, table: &str, rest: [(&str, Value); N]) -> Value {
    let begin = [("op", Value::text(name)), ("table", Value::text(table))];
    Value::object(begin.into_iter().chain(rest))
}

/// The rows that `select` has found.
pub fn rows(result: &Value) -> Result<&[Value]> {
    match result.get("rows") {
        Some(Value::Array(rows)) => Ok(rows),
        _ => Err(unexpected("rows", result)),
    }
}

/// The number of rows that `mutate` has changed.
pub fn count(result: &Value) -> Result<u64> {
    result.get("count").and_then(Value::as_u64).ok_or_else(|| unexpected("a count", result))
}

/// A column of a row that `select` has found.
pub fn column<'v>(row: &'v Value, name: &str) -> Result<&'v Value> {
    row.get(name).ok_or_else(|| unexpected(name, row))
}

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
pub fn outcome(mut answer: Value, count: usize) -> Result<Outcome, String> {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
