//! The text of OpenMetrics.

use std::fmt::{Display, Write as _};

/// The text that grows. Writing to a String cannot fail.
#[derive(Default)]
pub struct Page(String);

impl Page {
    /// Begins a family: what a metric is. Its samples follow.
    pub fn family(&mut self, name: &str, kind: &str, about: &str) {
        let _ = write!(self.0, "# TYPE cni_multi_{name} {kind}\n# HELP cni_multi_{name} {about}\n");
    }

    /// Adds a value.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
        let labels: Vec<String> = labels.iter().map(label).collect();
        let set =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "cni_multi_{name}{set} {value}");
    }

    /// The whole text.
    pub fn finish(self) -> String {
        self.0 + "# EOF\n"
    }
}

/// The value of a label as the format has it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
