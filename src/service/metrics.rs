//! A daemon's counters, in the Prometheus text format; and the text of OpenMetrics.

use std::fmt::{Display, Write as _};

/// The type of a family's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A value that only grows; its name ends in `_total`.
    Counter,
    /// A value that goes up and down.
    Gauge,
}

impl Kind {
    /// Its word, and the end of names.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Kind::Counter => ("counter", "_total"),
            Kind::Gauge => ("gauge", ""),
        }
    }
}

/// The values of one name, distinguished by a label.
#[derive(Debug)]
struct Values {
    kind: Kind,
    name: &'static str,
    about: &'static str,
    label: Option<Label>,
    values: Vec<u64>,
}

/// A label: its name, and its value for each of a family's values.
pub type Label = (&'static str, Vec<&'static str>);

/// A family of values that is [registered](Registry).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family(usize);

/// All values of a daemon, in the order in which they were registered.
#[derive(Debug)]
pub struct Registry {
    prefix: &'static str,
    families: Vec<Values>,
}

impl Registry {
    /// Creates an empty registry. Every name will begin with the prefix.
    pub fn new(prefix: &'static str) -> Registry {
        Registry { prefix, families: vec![] }
    }

    /// Registers a counter, or one for each value of a label.
    pub fn counter(
        &mut self,
        name: &'static str,
        about: &'static str,
        label: Option<Label>,
    ) -> Family {
        self.register(Values::zero(Kind::Counter, name, about, label))
    }

    /// Registers a gauge, or one for each value of a label.
    pub fn gauge(
        &mut self,
        name: &'static str,
        about: &'static str,
        label: Option<Label>,
    ) -> Family {
        self.register(Values::zero(Kind::Gauge, name, about, label))
    }

    fn register(&mut self, values: Values) -> Family {
        self.families.push(values);
        Family(self.families.len() - 1)
    }

    /// Increments the counter for the label's value at this index; 0 without a label.
    pub fn count(&mut self, family: Family, index: usize) {
        self.families[family.0].values[index] += 1;
    }

    /// Sets the gauge for the label's value at this index; 0 without a label.
    pub fn set(&mut self, family: Family, index: usize, value: u64) {
        self.families[family.0].values[index] = value;
    }

    /// Formats all values.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for family in &self.families {
            family.write(self.prefix, &mut text);
        }
        text
    }
}

impl Values {
    fn zero(kind: Kind, name: &'static str, about: &'static str, label: Option<Label>) -> Values {
        let count = label.as_ref().map_or(1, |(_, values)| values.len());
        Values { kind, name, about, label, values: vec![0; count] }
    }

    /// Writing to a String cannot fail.
    fn write(&self, prefix: &str, text: &mut String) {
        let (kind, suffix) = self.kind.words();
        let name = format!("{prefix}_{}{suffix}", self.name);
        let _ = write!(text, "# HELP {name} {}\n# TYPE {name} {kind}\n", self.about);
        for (index, value) in self.values.iter().enumerate() {
            let label = match &self.label {
                Some((label, of)) => format!("{{{label}=\"{}\"}}", of[index]),
                None => String::new(),
            };
            let _ = writeln!(text, "{name}{label} {value}");
        }
    }
}

/// The text of OpenMetrics that grows. Writing to a String cannot fail.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_written_in_their_order_with_their_labels() {
        let mut registry = Registry::new("cni_x");
        let open = registry.gauge("open", "Open now.", None);
        let ends = registry.counter("ends", "Ended.", Some(("by", vec!["add", "del"])));
        registry.set(open, 0, 3);
        registry.count(ends, 1);
        registry.count(ends, 1);
        let expected = "# HELP cni_x_open Open now.\n# TYPE cni_x_open gauge\ncni_x_open 3\n\
                        # HELP cni_x_ends_total Ended.\n# TYPE cni_x_ends_total counter\n\
                        cni_x_ends_total{by=\"add\"} 0\ncni_x_ends_total{by=\"del\"} 2\n";
        assert_eq!(registry.text(), expected);
    }
}
