//! What people read while it runs, and programs at the end.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::cni::json::Value;
use crate::commands::doctor::examination::text_of;
use crate::commands::doctor::need::Lack;
use crate::error::Result;
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
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let (version, machine) = (env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
        let heading = format!(
            "cni-multi {version} on Linux {} {machine}, in namespaces of its own",
            visible(release.trim_end())
        );
        let mut report =
            Report { out, style, as_json, began: Instant::now(), chapter: "", rows: vec![] };
        report.print(&format!("{}\n", style.title(&heading)))?;
        Ok(report)
    }

    /// Begins a chapter.
    pub fn chapter(&mut self, name: &'static str) -> Result<()> {
        self.chapter = name;
        self.print(&format!("\n{}\n", self.style.title(name)))
    }

    /// Runs a check and prints its line; an error is its failure.
    pub fn check(&mut self, claim: &str, check: impl FnOnce() -> Result<String>) -> Result<()> {
        let outcome =
            check().map_or_else(|error| Outcome::Failed(text_of(&error)), Outcome::Passed);
        self.record(claim, outcome)
    }

    fn record(&mut self, claim: &str, outcome: Outcome) -> Result<()> {
        self.print(&self.line(claim, &outcome))?;
        self.enter(claim, outcome);
        Ok(())
    }

    /// Prints and enters the error that ended a chapter early, if there is one.
    pub fn end_chapter(&mut self, ended: Result<()>) -> Result<()> {
        let Err(error) = ended else { return Ok(()) };
        self.check("the rest of this chapter", || Err(error))
    }

    /// Prints and enters a check that cannot be made.
    pub fn miss(&mut self, claim: &str, lack: &Lack) -> Result<()> {
        self.record(claim, Outcome::Missing(lack.to_string()))
    }

    /// Counts an outcome. The caller prints its line.
    pub fn enter(&mut self, claim: &str, outcome: Outcome) {
        self.rows.push(Row { chapter: self.chapter, claim: claim.to_owned(), outcome });
    }

    /// The line of a check.
    pub fn line(&self, claim: &str, outcome: &Outcome) -> String {
        let evidence = visible(outcome.evidence());
        match outcome {
            Outcome::Passed(_) => {
                let gap = EVIDENCE_COLUMN.saturating_sub(claim.chars().count()).max(2);
                let text = format!("{} {claim}{}{evidence}", self.style.good("✓"), " ".repeat(gap));
                format!("  {}\n", text.trim_end())
            }
            Outcome::Failed(_) => {
                format!("  {} {claim}\n      {evidence}\n", self.style.bad("✗"))
            }
            Outcome::Missing(_) => {
                format!("  {} {claim}  {}\n", self.style.warning("–"), self.style.faint(&evidence))
            }
        }
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
            "selftest: {passed} passed, {failed} failed, {missing} missing, in {:.1} s",
            self.began.elapsed().as_secs_f64()
        );
        let style = self.style;
        let coloured = if failed == 0 { style.good(&totals) } else { style.bad(&totals) };
        self.print(&format!("\n{coloured}\n"))?;
        if self.as_json {
            let row = |row: &Row| {
                Value::object([
                    ("chapter", Value::text(row.chapter)),
                    ("check", Value::text(row.claim.as_str())),
                    ("outcome", Value::text(row.outcome.word())),
                    ("evidence", Value::text(row.outcome.evidence())),
                ])
            };
            let rows: Vec<Value> = self.rows.iter().map(row).collect();
            crate::terminal::print(self.out, &table::json(&rows))?;
        }
        Ok(failed == 0)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Code, Error};

    /// What is printed, without the heading and the total, and the verdict.
    fn printed(style: Style, fill: impl FnOnce(&mut Report<'_>) -> Result<()>) -> (String, bool) {
        let mut out = vec![];
        let mut report = Report::begin(&mut out, style, false).unwrap();
        fill(&mut report).unwrap();
        let passed = report.finish().unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        (lines[1..lines.len() - 2].join("\n"), passed)
    }

    #[test]
    fn a_check_that_passes_shows_its_evidence() {
        let (text, passed) =
            printed(Style::PLAIN, |report| report.check("it works", || Ok("1 ms".to_owned())));
        assert_eq!((text, passed), (format!("  ✓ it works{}1 ms", " ".repeat(54)), true));
    }

    #[test]
    fn an_error_is_a_failure_with_its_details() {
        let error = || Error::new(Code::BUG, "no").with_details("because\x1b[31m");
        let (text, passed) =
            printed(Style::PLAIN, |report| report.check("it works", || Err(error())));
        assert_eq!((text.as_str(), passed), ("  ✗ it works\n      no; because\\u{1b}[31m", false));
        let (text, passed) = printed(Style::PLAIN, |report| report.end_chapter(Err(error())));
        assert!(text.contains("✗ the rest of this chapter") && !passed, "{text}");
    }

    #[test]
    fn what_is_missing_is_no_failure() {
        let (_, passed) = printed(Style::PLAIN, |report| {
            report.enter("vrf", Outcome::Missing("modprobe vrf".to_owned()));
            Ok(())
        });
        assert!(passed);
    }

    #[test]
    fn durations_have_three_digits() {
        let shown = [5, 1234, 45_678, 123_456].map(|micros| millis(Duration::from_micros(micros)));
        assert_eq!(shown, ["0.01 ms", "1.2 ms", "45.7 ms", "123 ms"]);
    }
}
