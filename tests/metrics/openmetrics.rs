//! A parser of OpenMetrics that refuses every text that breaks a rule of the specification.
//!
//! <https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>

use std::collections::{BTreeMap, BTreeSet};

/// The values by name and labels, as written.
pub type Values = BTreeMap<String, f64>;

/// Parses a whole text.
pub fn parse(text: &str) -> Result<Values, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("no # EOF at the end")?;
    let mut exposition = Exposition::default();
    for line in body.split_inclusive('\n') {
        let line = line.strip_suffix('\n').ok_or("a line without its end")?;
        exposition.line(line).map_err(|problem| format!("{problem}: {line:?}"))?;
    }
    Ok(exposition.values)
}

/// Names and values.
type Labels = Vec<(String, String)>;

/// Name, sorted labels and value of a line.
type Parts<'l> = (&'l str, Labels, &'l str);

#[derive(Default)]
struct Exposition {
    /// Every family so far; the last one is being read.
    families: BTreeSet<String>,
    family: Family,
    values: Values,
    /// Name and sorted labels of each value.
    series: BTreeSet<(String, Labels)>,
}

#[derive(Default)]
struct Family {
    name: String,
    kind: String,
    /// The metadata so far.
    told: BTreeSet<String>,
    has_samples: bool,
}

impl Exposition {
    fn line(&mut self, line: &str) -> Result<(), String> {
        match line.strip_prefix("# ") {
            Some(metadata) => self.metadata(metadata),
            None if line.starts_with('#') => Err("a comment".to_owned()),
            None => self.sample(line),
        }
    }

    fn metadata(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.splitn(3, ' ');
        let [what, name, text] = [(); 3].map(|()| words.next().unwrap_or_default());
        if name != self.family.name {
            check_name(name, ":_")?;
            if !self.families.insert(name.to_owned()) {
                return Err("a family in two places".to_owned());
            }
            self.family = Family { name: name.to_owned(), ..Family::default() };
        }
        if self.family.has_samples || !self.family.told.insert(what.to_owned()) {
            return Err("metadata twice, or behind a value".to_owned());
        }
        match what {
            "TYPE" if ["gauge", "counter", "info"].contains(&text) => {
                self.family.kind = text.into()
            }
            "UNIT" if name.ends_with(&["_", text].concat()) => (),
            "HELP" if !text.is_empty() => return check_escapes(text, "\\n"),
            _ => return Err("unknown metadata".to_owned()),
        }
        Ok(())
    }

    fn sample(&mut self, line: &str) -> Result<(), String> {
        let (name, labels, value) = split(line)?;
        let suffix = match self.family.kind.as_str() {
            "counter" => "_total",
            "info" => "_info",
            "gauge" => "",
            _ => return Err("a value without a type".to_owned()),
        };
        if name != [&self.family.name, suffix].concat() {
            return Err("a value of another family".to_owned());
        }
        let number: f64 = value.parse().map_err(|_| "no number".to_owned())?;
        let is_decimal =
            value.bytes().all(|byte| byte.is_ascii_digit() || b".-+eE".contains(&byte));
        let is_allowed = match self.family.kind.as_str() {
            "counter" => number >= 0.0,
            "info" => number == 1.0,
            _ => true,
        };
        if !is_decimal || !is_allowed {
            return Err("a value that the type has not".to_owned());
        }
        self.family.has_samples = true;
        if !self.series.insert((name.to_owned(), labels)) {
            return Err("a value twice".to_owned());
        }
        self.values.insert(line[..line.len() - value.len() - 1].to_owned(), number);
        Ok(())
    }
}

/// The parts of a line without timestamp and exemplar.
fn split(line: &str) -> Result<Parts<'_>, String> {
    let end = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = vec![];
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, behind) = label(rest)?;
            labels.push(label);
            rest = match behind.strip_prefix(',') {
                Some(next) if !next.starts_with('}') => next,
                None if behind.starts_with('}') => behind,
                _ => return Err("labels that do not end".to_owned()),
            };
        }
        rest = &rest[1..];
    }
    labels.sort();
    if labels.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err("a label twice".to_owned());
    }
    Ok((name, labels, rest.strip_prefix(' ').ok_or("no space before the value")?))
}

/// A label with its value, and what follows.
fn label(text: &str) -> Result<((String, String), &str), String> {
    let (name, quoted) = text.split_once("=\"").ok_or("a label without a value")?;
    check_name(name, "_")?;
    let mut is_escaped = false;
    for (at, byte) in quoted.bytes().enumerate() {
        match byte {
            b'"' if !is_escaped => {
                let value = &quoted[..at];
                check_escapes(value, "\\n\"")?;
                return Ok(((name.to_owned(), value.to_owned()), &quoted[at + 1..]));
            }
            _ => is_escaped = byte == b'\\' && !is_escaped,
        }
    }
    Err("a value of a label that does not end".to_owned())
}

fn check_name(name: &str, besides: &str) -> Result<(), String> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || besides.contains(c);
    let is_first = |c: char| is_of_name(c) && !c.is_ascii_digit();
    if !name.starts_with(is_first) || !name.chars().all(is_of_name) || name.starts_with("__") {
        return Err(format!("{name:?} is no name"));
    }
    Ok(())
}

/// Behind each backslash is one of these.
fn check_escapes(text: &str, allowed: &str) -> Result<(), String> {
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\\' && !chars.next().is_some_and(|next| allowed.contains(next)) {
            return Err("an unknown escape".to_owned());
        }
    }
    Ok(())
}
