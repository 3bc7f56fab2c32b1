//! Output formats: columns for people and JSON for programs, from the same values.

use std::io::{self, IsTerminal as _};

use serde::Serialize;

use super::visible::visible;
use crate::cni::json::{self, Value};

/// The width of the gap between two columns.
const GAP: usize = 2;

/// The members of an object under construction.
pub type Members = Vec<(String, Value)>;

/// The cells of a line.
type Line = Vec<String>;

/// The member that a row shows after its last column.
pub const PROBLEM: &str = "problem";

/// Adds a member.
pub fn put(members: &mut Members, key: &str, value: Value) {
    members.push((key.to_owned(), value));
}

/// Adds a text, unless it is empty.
pub fn put_text(members: &mut Members, key: &str, text: &str) {
    if !text.is_empty() {
        put(members, key, Value::String(text.to_owned()));
    }
}

/// A list of texts.
pub fn texts(items: Vec<String>) -> Value {
    Value::Array(items.into_iter().map(Value::String).collect())
}

/// A table of objects: each column has a header and the member that it shows.
pub fn of_rows(rows: Vec<Value>, columns: &[(&str, &str)], as_json: bool) -> String {
    if as_json {
        return json(&rows);
    }
    let mut lines: Vec<Line> =
        vec![columns.iter().map(|(header, _)| (*header).to_owned()).collect()];
    for row in rows {
        let mut line: Line = columns.iter().map(|(_, key)| cell(key, row.get(key))).collect();
        line.extend(row.get(PROBLEM).map(|problem| cell(PROBLEM, Some(problem))));
        lines.push(line);
    }
    aligned(&lines)
}

/// A row with only a problem in it.
pub fn row_of_problem(problem: &str) -> Value {
    let mut row = Members::new();
    put_text(&mut row, PROBLEM, problem);
    Value::Object(row)
}

/// Formats one object: a line for each member, nested ones as `member.key`.
pub fn of_object(object: Value, as_json: bool) -> String {
    if as_json {
        return json(&object);
    }
    let mut lines = vec![];
    flatten("", &object, &mut lines);
    aligned(&lines)
}

fn flatten(path: &str, value: &Value, lines: &mut Vec<Line>) {
    let Value::Object(members) = value else {
        return lines.push(vec![path.to_owned(), cell(path, Some(value))]);
    };
    for (key, value) in members {
        let dot = if path.is_empty() { "" } else { "." };
        flatten(&format!("{path}{dot}{key}"), value, lines);
    }
}

/// Formats a value for people: lists without brackets, a dash for nothing.
fn cell(key: &str, value: Option<&Value>) -> String {
    let text = match value {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) => {
            let cells: Vec<String> = items.iter().map(|item| cell(key, Some(item))).collect();
            cells.join(",")
        }
        Some(Value::Number(seconds)) if key.ends_with("Seconds") => {
            age_text(seconds.as_u64().unwrap_or_default())
        }
        Some(other) => other.to_text(),
    };
    let text = visible(&text);
    if text.is_empty() { "-".to_owned() } else { text }
}

/// Aligns the cells: every cell except the last of a line is as wide as the widest of its column.
fn aligned(lines: &[Line]) -> String {
    let width = |cell: &str| cell.chars().count();
    let mut widths = vec![];
    for line in lines {
        for (column, cell) in line.iter().enumerate().take(line.len() - 1) {
            if column == widths.len() {
                widths.push(0);
            }
            widths[column] = width(cell).max(widths[column]);
        }
    }
    let mut text = String::new();
    for line in lines {
        for (column, cell) in line.iter().enumerate() {
            text.push_str(cell);
            if column + 1 < line.len() {
                text.push_str(&" ".repeat(widths[column] + GAP - width(cell)));
            }
        }
        text.push('\n');
    }
    text
}

/// Formats an age in the largest unit that it fills.
fn age_text(seconds: u64) -> String {
    let (size, unit) = match seconds {
        0..60 => (1, 's'),
        60..3600 => (60, 'm'),
        3600..86400 => (3600, 'h'),
        _ => (86400, 'd'),
    };
    format!("{}{unit}", seconds / size)
}

/// The value for stdout: indented for a person at a terminal, else on one line.
pub fn json(value: &impl Serialize) -> String {
    if io::stdout().is_terminal() {
        json::plain_indented_text(value) + "\n"
    } else {
        json_line(value)
    }
}

/// The value on one line.
pub fn json_line(value: &impl Serialize) -> String {
    json::plain_text(value) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        Value::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn ages_are_told_in_the_largest_unit_that_is_full() {
        let cases = [
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3599, "59m"),
            (3600, "1h"),
            (86399, "23h"),
            (200_000, "2d"),
        ];
        for (seconds, text) in cases {
            assert_eq!(age_text(seconds), text);
        }
    }

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows = vec![
            value(
                r#"{"network":"lab","addresses":["fd00:1234:5678:9abc:def0:1234:5678:9abc/64","10.0.0.1/8"],"ageSeconds":3}"#,
            ),
            value(r#"{"addresses":["ä"],"ageSeconds":1036800,"problem":"torn\nfile"}"#),
            value(r#"{"network":"","addresses":[],"ageSeconds":0}"#),
        ];
        let columns = [("NETWORK", "network"), ("ADDRESSES", "addresses"), ("AGE", "ageSeconds")];
        assert_eq!(
            of_rows(rows, &columns, false),
            concat!(
                "NETWORK  ADDRESSES                                              AGE\n",
                "lab      fd00:1234:5678:9abc:def0:1234:5678:9abc/64,10.0.0.1/8  3s\n",
                "-        ä                                                      12d  torn\\nfile\n",
                "-        -                                                      0s\n",
            )
        );
    }

    #[test]
    fn an_object_is_told_member_by_member() {
        let object =
            value(r#"{"network":"lab","kernel":{"up":true,"ips":[]},"list":[{"a":1},{"b":"c"}]}"#);
        let lines = "network     lab\nkernel.up   true\nkernel.ips  -\nlist        {\"a\":1},{\"b\":\"c\"}\n";
        assert_eq!(of_object(object, false), lines);
    }
}
