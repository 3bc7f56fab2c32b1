//! One finding, and how it is told: to people with the line it is in, to tools as JSON.

use std::fmt::Write as _;
use std::ops::Range;

use super::document::Document;
use crate::cni::json::Value;

/// What works, and probably is not what was meant. Every other code is of what fails for certain.
const WARNINGS: [&str; 14] = [
    "bridge-gateway-replaced",
    "bridge-vlan",
    "duplicate-key",
    "duplicate-name",
    "missing-capability",
    "no-files",
    "no-version",
    "not-on-path",
    "not-read",
    "order",
    "overlap",
    "reserved-key",
    "unknown-key",
    "unused-capability",
];

/// Something to tell about a file.
#[derive(Debug)]
pub struct Finding {
    /// What kind of thing; docs/validate.md has them all.
    pub code: &'static str,
    /// The file's name.
    pub file: String,
    line: usize,
    column: usize,
    end_column: usize,
    path: String,
    message: String,
    /// What was expected in its place; may be empty.
    pub expected: String,
    /// Advice; may be empty.
    pub hint: String,
    shown: String,
}

/// Longer lines are shown in part.
const WIDTH: usize = 120;

impl Finding {
    /// A finding about a piece of the document's text.
    pub fn new(code: &'static str, document: &Document, span: Range<usize>, path: &str, message: String) -> Finding {
        let (line, column) = document.position(span.start);
        let width =
            document.text.get(span.clone()).and_then(|text| text.lines().next()).unwrap_or_default().chars().count();
        Finding {
            code,
            file: document.file.clone(),
            line,
            column,
            end_column: column + width.max(1),
            path: path.to_owned(),
            message,
            expected: String::new(),
            hint: String::new(),
            shown: document.line(span.start).to_owned(),
        }
    }

    /// A finding about a file as a whole.
    pub fn of_file(code: &'static str, file: String, message: String) -> Finding {
        let document = Document::parse(file, b"").0;
        Finding { line: 0, column: 0, end_column: 0, ..Finding::new(code, &document, 0..0, "", message) }
    }

    /// Whether something fails for certain.
    pub fn is_error(&self) -> bool {
        !WARNINGS.contains(&self.code)
    }

    fn severity(&self) -> &'static str {
        if self.is_error() { "error" } else { "warning" }
    }

    /// What findings are sorted by within a file.
    pub fn place(&self) -> (usize, usize) {
        (self.line, self.column)
    }

    /// For people: the place as compilers tell it, the line, and what is wrong underlined.
    pub fn to_text(&self) -> String {
        let (severity, Finding { file, line, column, code, message, .. }) = (self.severity(), self);
        let mut text = match line {
            0 => format!("{file}: {severity}: {message} [{code}]\n"),
            _ => format!("{file}:{line}:{column}: {severity}: {message} [{code}]\n"),
        };
        let aside = match (self.hint.as_str(), self.expected.as_str()) {
            ("", "") => String::new(),
            ("", expected) => format!(" expected {expected}"),
            (hint, "") => format!(" {hint}"),
            (hint, expected) => format!(" expected {expected}; {hint}"),
        };
        if *line == 0 {
            if !aside.is_empty() {
                let _ = writeln!(text, " {aside}"); // writing to a String cannot fail
            }
            return text;
        }
        let (shown, indent) = self.window();
        let number = format!("{line:>3}");
        let carets = "^".repeat((self.end_column - column).min(WIDTH));
        // Tabs stay tabs, so that what stands below a letter does so whatever a tab is worth.
        let indent: String = indent.chars().map(|c| if c == '\t' { c } else { ' ' }).collect();
        let margin = " ".repeat(number.len());
        let _ = writeln!(text, "{number} | {shown}\n{margin} | {indent}{carets}{aside}"); // as above
        text
    }

    /// The line, or the part of it around the finding, and what of that stands before the finding.
    fn window(&self) -> (String, String) {
        let chars: Vec<char> = self.shown.chars().collect();
        let before = (self.column - 1).min(chars.len());
        let start = if chars.len() <= WIDTH { 0 } else { before.saturating_sub(WIDTH / 3) };
        let end = chars.len().min(start + WIDTH);
        (chars[start..end].iter().collect(), chars[start..before].iter().collect())
    }

    /// For tools.
    pub fn to_value(&self) -> Value {
        let number = |number: usize| Value::Number(number.into());
        Value::object(vec![
            ("file", Value::text(&self.file)),
            ("line", number(self.line)),
            ("column", number(self.column)),
            ("endColumn", number(self.end_column)),
            ("path", Value::text(&self.path)),
            ("severity", Value::text(self.severity())),
            ("code", Value::text(self.code)),
            ("message", Value::text(&self.message)),
            ("expected", Value::text(&self.expected)),
            ("hint", Value::text(&self.hint)),
        ])
    }
}
