//! What is printed: columns for people, JSON for programs.

use std::io::Write;

use crate::cni::json::Value;
use crate::error::{Error, Result};

/// Between two columns.
const GAP: usize = 2;

/// Rows below their headers, each column as wide as what is in it. An empty cell is a dash; behind the last column a row
/// may have a remark.
pub struct Table {
    rows: Vec<Vec<String>>,
    columns: usize,
}

impl Table {
    /// A table with nothing but its headers.
    pub fn new(headers: &[&str]) -> Table {
        Table { rows: vec![headers.iter().map(|&header| header.to_owned()).collect()], columns: headers.len() }
    }

    /// A table of rows only.
    pub fn without_headers(columns: usize) -> Table {
        Table { rows: vec![], columns }
    }

    /// Adds a row, and a remark if it is not empty.
    pub fn row(&mut self, cells: &[&str], remark: &str) {
        let shown = |cell: &&str| plain(if cell.is_empty() { "-" } else { cell });
        let mut row: Vec<String> = cells.iter().map(shown).collect();
        row.extend((!remark.is_empty()).then(|| plain(remark)));
        self.rows.push(row);
    }

    /// The lines; none ends in blanks.
    pub fn to_text(&self) -> String {
        let width = |column: usize| {
            let lengths = self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            lengths.max().unwrap_or_default() + GAP
        };
        let widths: Vec<usize> = (0..self.columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            for (column, cell) in row.iter().enumerate() {
                text.push_str(cell);
                if column + 1 < row.len() {
                    let missing = widths.get(column).map_or(0, |width| width - cell.chars().count());
                    text.extend(std::iter::repeat_n(' ', missing));
                }
            }
            text.push('\n');
        }
        text
    }
}

/// Files of others are shown as well, whose texts must not speak to the terminal nor begin lines.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// An object of these members, without those that are `null`.
pub fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    let given = members.into_iter().filter(|(_, value)| *value != Value::Null);
    Value::Object(given.map(|(key, value)| (key.to_owned(), value)).collect())
}

/// A string; `null` where it is empty.
pub fn text(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { Value::String(text.to_owned()) }
}

/// A list of strings.
pub fn texts(items: &[String]) -> Value {
    Value::Array(items.iter().map(|item| Value::String(item.clone())).collect())
}

/// The value as people read it, with a line's end.
pub fn json(value: &Value) -> String {
    value.to_indented_text() + "\n"
}

/// Writes to stdout.
pub fn print(stdout: &mut dyn Write, text: &str) -> Result<()> {
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|e| Error::io("write to stdout", &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let mut table = Table::new(&["NETWORK", "ADDRESSES", "AGE"]);
        table.row(&["lab", "fd00:1234:5678:9abc:def0:1234:5678:9abc/64,10.0.0.1/8", "3s"], "");
        table.row(&["", "ä", "12d"], "torn\nfile");
        assert_eq!(
            table.to_text(),
            concat!(
                "NETWORK  ADDRESSES                                              AGE\n",
                "lab      fd00:1234:5678:9abc:def0:1234:5678:9abc/64,10.0.0.1/8  3s\n",
                "-        ä                                                      12d  torn?file\n"
            )
        );
    }
}
