//! The fields of a line. Text of others adds no line and no field, whatever it contains.

use std::net::IpAddr;

use crate::sys::journald::Entry;
use crate::terminal::visible::push_visible;

/// The limits in octets: all fields together fit into PIPE_BUF, so lines of several processes in one
/// pipe do not mix.
const LONGEST_NAME: usize = 200;
const LONGEST_MESSAGE: usize = 800;

/// The addresses that a line names at most.
const MOST_ADDRESSES: usize = 8;

/// Names with their values, in the order of the line. A value is visible text.
#[derive(Debug, Default)]
pub struct Fields(Vec<(&'static str, String)>);

impl Fields {
    /// Adds a field, unless the value is empty.
    pub fn add(&mut self, name: &'static str, value: &str) {
        self.add_at_most(name, value, LONGEST_NAME);
    }

    /// Adds the message of an error.
    pub fn add_message(&mut self, text: &str) {
        self.add_at_most("msg", text, LONGEST_MESSAGE);
    }

    /// Adds each address as a field of its own.
    pub fn add_addresses(&mut self, addresses: &[IpAddr]) {
        for address in addresses.iter().take(MOST_ADDRESSES) {
            self.add("ip", &address.to_string());
        }
    }

    fn add_at_most(&mut self, name: &'static str, value: &str, longest: usize) {
        if !value.is_empty() {
            self.0.push((name, harmless(value, longest)));
        }
    }

    /// `name=value` of each field, in one line; the addresses are one field.
    pub fn to_line(&self) -> String {
        let mut line = String::new();
        let mut last = "";
        for (name, value) in &self.0 {
            if *name == last {
                line.push(',');
            } else {
                line.push_str(if line.is_empty() { "" } else { " " });
                line.push_str(name);
                line.push('=');
            }
            push_word(&mut line, value);
            last = name;
        }
        line
    }

    /// The entry of the journal: the line, and each field by itself.
    pub fn to_entry(&self, priority: &str) -> Entry {
        let mut entry = Entry::default();
        entry.add("MESSAGE", &self.to_line());
        entry.add("PRIORITY", priority);
        entry.add("SYSLOG_IDENTIFIER", "cni-multi");
        for (name, value) in &self.0 {
            entry.add(journal_name(name), value);
        }
        entry
    }
}

/// The name in the journal; where CNI has a variable with the value, it is the variable's.
fn journal_name(name: &str) -> &'static str {
    match name {
        "plugin" => "CNI_PLUGIN",
        "op" => "CNI_COMMAND",
        "net" => "CNI_NETWORK",
        "id" => "CNI_CONTAINERID",
        "if" => "CNI_IFNAME",
        "ms" => "CNI_MS",
        "code" => "CNI_CODE",
        "ip" => "CNI_IP",
        "traceparent" => "TRACEPARENT",
        _ => "CNI_MSG",
    }
}

/// Text of others without control characters, cut at a length.
fn harmless(text: &str, longest: usize) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        if out.len() >= longest {
            out.push('…');
            break;
        }
        push_visible(&mut out, letter);
    }
    out
}

/// Appends a value; in quotes if a reader could take it for more than one.
fn push_word(line: &mut String, value: &str) {
    let is_plain = |letter: char| letter.is_ascii_graphic() && !r#""=\,"#.contains(letter);
    if value.chars().all(is_plain) {
        return line.push_str(value);
    }
    line.push('"');
    for letter in value.chars() {
        if matches!(letter, '"' | '\\') {
            line.push('\\');
        }
        line.push(letter);
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PIPE_BUF of pipe(7).
    const PIPE_BUF: usize = 4096;

    #[test]
    fn a_hostile_value_stays_one_value() {
        for (value, word) in [
            ("a b", r#""a b""#),
            ("c1 code=0", r#""c1 code=0""#),
            ("a\nplugin=x", r#""a\\nplugin=x""#),
            ("a\u{1b}[31m", r#""a\\u{1b}[31m""#),
            ("a\u{202e}b\u{2028}", r#""a\\u{202e}b\\u{2028}""#),
            ("\"quoted\\", r#""\"quoted\\""#),
            ("a,b", r#""a,b""#),
        ] {
            let mut fields = Fields::default();
            fields.add("id", value);
            assert_eq!(fields.to_line(), format!("id={word}"));
        }
    }

    #[test]
    fn a_line_fits_into_a_pipe_at_once() {
        for letter in ["\\", "\"", "\u{e0001}", "\u{202e}", "\n", "ü"] {
            let mut fields = Fields::default();
            for name in ["plugin", "op", "net", "id", "if", "ms", "code"] {
                fields.add(name, &letter.repeat(if name.len() > 3 { 20 } else { 100_000 }));
            }
            fields.add_addresses(&["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap(); 99]);
            fields.add_message(&letter.repeat(100_000));
            let line = fields.to_line();
            assert!(line.len() < PIPE_BUF, "{letter:?}: {}", line.len());
        }
    }
}
