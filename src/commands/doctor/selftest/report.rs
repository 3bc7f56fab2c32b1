//! What people read while it runs, and programs at the end.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::cni::json::Value;
use crate::error::{Error, Result, warn};
use crate::terminal::style::Style;
use crate::terminal::table;
use crate::terminal::visible::visible;

/// The column in which evidence begins.
const EVIDENCE_COLUMN: usize = 62;

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds; what was measured.
    Passed(String),
    /// It does not.
    Failed(String),
    /// What it needs is not here: a feature of the kernel, most often.
    Missing(String),
}

impl Outcome {
    fn word(&self) -> &'static str {
        match self {
            Outcome::Passed(_) => "passed",
            Outcome::Failed(_) => "failed",
            Outcome::Missing(_) => "missing",
        }
    }

    fn evidence(&self) -> &str {
        match self {
            Outcome::Passed(text) | Outcome::Failed(text) | Outcome::Missing(text) => text,
        }
    }
}

/// One check.
struct Row {
    chapter: &'static str,
    claim: String,
    outcome: Outcome,
}

/// The output of the selftest.
pub struct Report<'a> {
    out: &'a mut dyn Write,
    style: Style,
    as_json: bool,
    began: Instant,
    chapter: &'static str,
    rows: Vec<Row>,
}

impl<'a> Report<'a> {
    /// Begins with a heading.
    pub fn begin(out: &'a mut dyn Write, style: Style, as_json: bool) -> Result<Report<'a>> {
        let mut report =
            Report { out, style, as_json, began: Instant::now(), chapter: "", rows: vec![] };
        report.print(&format!("{}\n", style.title(&heading())))?;
        Ok(report)
    }

    /// Begins a chapter.
    pub fn chapter(&mut self, name: &'static str) -> Result<()> {
        self.chapter = name;
        self.print(&format!("\n{}\n", self.style.title(name)))
    }

    /// Runs a check and prints its line; an error is its failure. Whether it passed.
    pub fn check(&mut self, claim: &str, check: impl FnOnce() -> Result<String>) -> Result<bool> {
        let outcome =
            check().map_or_else(|error| Outcome::Failed(text_of(&error)), Outcome::Passed);
        self.print(&self.line(claim, &outcome))?;
        Ok(self.enter(claim, outcome))
    }

    /// Enters an outcome whose line is printed by the caller; whether it passed.
    pub fn enter(&mut self, claim: &str, outcome: Outcome) -> bool {
        let passed = matches!(outcome, Outcome::Passed(_));
        self.rows.push(Row { chapter: self.chapter, claim: claim.to_owned(), outcome });
        passed
    }

    /// The line of a check.
    pub fn line(&self, claim: &str, outcome: &Outcome) -> String {
        let evidence = visible(outcome.evidence());
        match outcome {
            Outcome::Passed(_) => format!("  {}\n", self.passed(claim, &evidence)),
            Outcome::Failed(_) => {
                format!("  {} {claim}\n      {evidence}\n", self.style.bad("✗"))
            }
            Outcome::Missing(_) => {
                format!("  {} {claim}  {}\n", self.style.warning("–"), self.style.faint(&evidence))
            }
        }
    }

    fn passed(&self, claim: &str, evidence: &str) -> String {
        let gap = EVIDENCE_COLUMN.saturating_sub(claim.chars().count()).max(2);
        let text = format!("{} {claim}{}{evidence}", self.style.good("✓"), " ".repeat(gap));
        text.trim_end().to_owned()
    }

    /// Prints text for people.
    pub fn print(&mut self, text: &str) -> Result<()> {
        if self.as_json { Ok(()) } else { crate::terminal::print(self.out, text) }
    }

    /// How colours are shown.
    pub fn style(&self) -> Style {
        self.style
    }

    /// Ends with a line of totals, or prints everything as JSON; whether nothing failed.
    pub fn finish(mut self) -> Result<bool> {
        let count = |word: &str| self.rows.iter().filter(|row| row.outcome.word() == word).count();
        let (passed, failed, missing) = (count("passed"), count("failed"), count("missing"));
        let totals = format!(
            "selftest: {passed} passed, {failed} failed, {missing} missing, in {}",
            seconds(self.began.elapsed())
        );
        let style = self.style;
        let coloured = if failed == 0 { style.good(&totals) } else { style.bad(&totals) };
        self.print(&format!("\n{coloured}\n"))?;
        if self.as_json {
            let rows: Vec<Value> = self.rows.iter().map(value_of).collect();
            crate::terminal::print(self.out, &table::json(&rows))?;
        }
        Ok(failed == 0)
    }
}

fn heading() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (version, machine) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
    format!(
        "cni-multi {version} on Linux {} {machine}, in namespaces of its own: nothing outside changes",
        visible(release.trim_end())
    )
}

fn value_of(row: &Row) -> Value {
    Value::object([
        ("chapter", Value::text(row.chapter)),
        ("check", Value::text(row.claim.as_str())),
        ("outcome", Value::text(row.outcome.word())),
        ("evidence", Value::text(row.outcome.evidence())),
    ])
}

/// Message and details of an error.
pub fn text_of(error: &Error) -> String {
    match error.details() {
        details if details.is_empty() => error.msg.clone(),
        details => format!("{}; {details}", error.msg),
    }
}

/// The error that prevents all further checks; the exit status for it.
pub fn give_up(error: &Error) -> u8 {
    warn(text_of(error));
    1
}

/// A duration with three digits.
pub fn millis(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1000.0;
    let digits = if millis < 1.0 {
        2
    } else if millis < 100.0 {
        1
    } else {
        0
    };
    format!("{millis:.digits$} ms")
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
