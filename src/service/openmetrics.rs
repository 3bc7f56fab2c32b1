//! The text of OpenMetrics.

use std::fmt::{Display, Write as _};

/// The text that grows. Writing to a String cannot fail.
pub struct Page {
    prefix: &'static str,
    text: String,
}

impl Page {
    /// An empty page. Every name will begin with the prefix.
    pub fn new(prefix: &'static str) -> Page {
        Page { prefix, text: String::new() }
    }

    /// Begins a family: what a metric is. Its samples follow.
    pub fn family(&mut self, name: &str, kind: &str, about: &str) {
        let prefix = self.prefix;
        let _ =
            write!(self.text, "# TYPE {prefix}_{name} {kind}\n# HELP {prefix}_{name} {about}\n");
    }

    /// Adds a value.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
        let labels: Vec<String> = labels.iter().map(label).collect();
        let set =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{}_{name}{set} {value}", self.prefix);
    }

    /// The whole text.
    pub fn finish(self) -> String {
        self.text + "# EOF\n"
    }
}

/// The value of a label as the format has it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
