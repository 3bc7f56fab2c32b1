//! The operations of a transaction (RFC 7047, section 5.2).

use super::datum::Uuid;
use super::shape::{array, unexpected};
use crate::cni::json::Value;
use crate::error::Result;

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
