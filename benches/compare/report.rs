//! The report, as text, Markdown and JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::budget::Budget;
use crate::host_state::Left;
use crate::names::Side;
use crate::schedule::{Book, Measured, Row};
use crate::size::Size;

/// A group that the machine cannot run, and what it lacks.
pub struct LeftOut {
    pub group: &'static str,
    pub lack: String,
}

/// The content of a report.
pub struct Report<'a> {
    pub machine: String,
    pub ours: String,
    pub reference: Option<String>,
    pub left_out: Vec<LeftOut>,
    pub book: &'a Book,
    pub sizes: Vec<(Side, Size)>,
    pub budgets: Vec<Budget>,
}

const COST_HEADINGS: [&str; 10] = [
    "case",
    "ours p50 (p10)",
    "reference p50 (p10)",
    "floor p50",
    "wall",
    "CPU",
    "faults ours / ref / floor",
    "RSS MiB ours / ref",
    "processes ours / ref",
    "threads ours / ref",
];
const CROWD_HEADINGS: [&str; 6] = [
    "crowd",
    "ours p50 / p99",
    "reference p50 / p99",
    "ours per second",
    "reference per second",
    "rate",
];
const BUDGET_HEADINGS: [&str; 4] = ["budget", "limit", "measured", ""];

impl Report<'_> {
    pub fn text(&self) -> String {
        let mut out = String::new();
        for line in self.preamble() {
            let _ = writeln!(out, "{line}"); // writing to a String cannot fail
        }
        out + "\n"
            + &aligned(&self.cost_table())
            + "\n"
            + &self.crowds(aligned)
            + &aligned(&self.budget_table())
            + "\n"
            + &self.closing()
            + "\n"
    }

    pub fn markdown(&self) -> String {
        let mut out = self.preamble().join("  \n");
        out.push_str("\n\n");
        out + &piped(&self.cost_table())
            + "\n"
            + &self.crowds(piped)
            + &piped(&self.budget_table())
            + "\n"
            + &self.closing()
            + "\n"
    }

    pub fn json(&self) -> Value {
        let rows = self.book.rows.iter().map(|row| self.json_row(row)).collect::<Vec<_>>();
        let budgets = self
            .budgets
            .iter()
            .map(|b| json!({"name": b.name, "limit": b.limit, "unit": b.unit, "measured": b.measured, "verdict": b.verdict()}));
        let sizes = self
            .sizes
            .iter()
            .map(|(side, size)| json!({"side": side.name(), "bytes": size.bytes, "plugins": size.plugins}));
        json!({
            "machine": self.machine,
            "ours": self.ours,
            "reference": self.reference,
            "left_out": self.left_out_names(),
            "cases": rows,
            "sizes": sizes.collect::<Vec<_>>(),
            "budgets": budgets.collect::<Vec<_>>(),
        })
    }

    /// The last line: which budgets are met.
    fn closing(&self) -> String {
        let named = |verdict: &str| -> Vec<&str> {
            self.budgets
                .iter()
                .filter(|b| b.verdict() == verdict)
                .map(|b| b.name.as_str())
                .collect()
        };
        let (missed, unknown) = (named("MISSED"), named("not measured"));
        let list = |label: &str, names: &[&str]| {
            if names.is_empty() {
                String::new()
            } else {
                format!("; {label}: {}", names.join(", "))
            }
        };
        let met = self.budgets.len() - missed.len() - unknown.len();
        format!(
            "budgets met: {met} of {}{}{}",
            self.budgets.len(),
            list("MISSED", &missed),
            list("not measured", &unknown)
        )
    }

    fn preamble(&self) -> Vec<String> {
        let mut lines = vec![self.machine.clone(), format!("ours: {}", self.ours)];
        lines.extend(self.reference.as_ref().map(|reference| format!("reference: {reference}")));
        if !self.left_out.is_empty() {
            lines.push(format!("left out: {}", self.left_out_names().join(", ")));
        }
        for (side, size) in &self.sizes {
            lines.push(format!(
                "size, {}: {} bytes for {} plugins",
                side.name(),
                size.bytes,
                size.plugins
            ));
        }
        lines
    }

    fn left_out_names(&self) -> Vec<String> {
        self.left_out.iter().map(|LeftOut { group, lack }| format!("{group} ({lack})")).collect()
    }

    fn cost_table(&self) -> Vec<Vec<String>> {
        let instructions = self
            .book
            .rows
            .iter()
            .any(|row| self.cells(row).iter().flatten().any(|m| m.instructions.is_some()));
        let mut headings: Vec<String> = COST_HEADINGS.iter().map(ToString::to_string).collect();
        headings.extend(instructions.then(|| "instructions ours / ref / floor".to_owned()));
        let mut rows = vec![headings];
        rows.extend(self.book.rows.iter().map(|row| self.cost_row(row, instructions)));
        rows
    }

    /// The table of crowds with a duration per container, formatted by `layout`; empty if there is
    /// none.
    fn crowds(&self, layout: fn(&[Vec<String>]) -> String) -> String {
        let rows: Vec<_> = self.book.rows.iter().filter_map(|row| self.crowd_row(row)).collect();
        if rows.is_empty() {
            return String::new();
        }
        let headings = CROWD_HEADINGS.iter().map(ToString::to_string).collect();
        layout(&[vec![headings], rows].concat()) + "\n"
    }

    fn crowd_row(&self, row: &Row) -> Option<Vec<String>> {
        let [ours, reference, _] = self.cells(row);
        if ours.or(reference)?.members.is_empty() {
            return None;
        }
        let rates = [ours, reference].map(|cell| cell.and_then(per_second));
        let text = |figure: Option<String>| figure.unwrap_or_else(|| "–".to_owned());
        let [ours_rate, reference_rate] = rates.map(|rate| text(rate.map(|r| format!("{r:.1}"))));
        let ratio = rates[0].zip(rates[1]).map(|(a, b)| format!("{:.1}×", a / b));
        let times = [ours, reference].map(|cell| text(cell.and_then(both_percentiles)));
        let [ours, reference] = times;
        Some(vec![title(row), ours, reference, ours_rate, reference_rate, text(ratio)])
    }

    /// The figures of ours, the reference and the floor, where measured.
    fn cells(&self, (case, operation): &Row) -> [Option<&Measured>; 3] {
        [Side::Ours, Side::Reference, Side::Floor].map(|side| self.book.get(case, operation, side))
    }

    fn cost_row(&self, row: &Row, instructions: bool) -> Vec<String> {
        let [ours, reference, floor] = self.cells(row);
        let pair = |figure: &dyn Fn(&Measured) -> Option<String>| {
            let one =
                |cell: Option<&Measured>| cell.and_then(figure).unwrap_or_else(|| "–".to_owned());
            format!("{} / {}", one(ours), one(reference))
        };
        let ratio = |figure: &dyn Fn(&Measured) -> Option<f64>| {
            ours.and_then(figure)
                .zip(reference.and_then(figure).filter(|figure| *figure > 0.0)) // some cases start no process
                .map_or("–".to_owned(), |(a, b)| format!("{:.2}×", a / b))
        };
        let mut cells = vec![
            title(row),
            ours.map_or("–".to_owned(), main_figure),
            reference.map_or("–".to_owned(), main_figure),
            floor.and_then(|m| m.wall(0.5)).map_or("–".to_owned(), milliseconds),
            ratio(&|m| m.wall(0.5)),
            ratio(&|m| m.cpu(0.5)),
            format!(
                "{} / {}",
                pair(&|m| m.faults().map(|faults| format!("{faults:.0}"))),
                floor.and_then(Measured::faults).map_or("–".to_owned(), |f| format!("{f:.0}")),
            ),
            #[allow(clippy::cast_precision_loss)] // sizes of processes
            pair(&|m| m.trace.map(|trace| format!("{:.1}", trace.peak_kib as f64 / 1024.0))),
            pair(&|m| m.trace.map(|trace| trace.processes.to_string())),
            pair(&|m| m.trace.map(|trace| trace.threads.to_string())),
        ];
        if instructions {
            let count = |m: &Measured| m.instructions.map(|count| count.to_string());
            let floor = floor.and_then(count).unwrap_or_else(|| "–".to_owned());
            cells.push(format!("{} / {floor}", pair(&count)));
        }
        cells
    }

    fn budget_table(&self) -> Vec<Vec<String>> {
        let mut rows = vec![BUDGET_HEADINGS.iter().map(ToString::to_string).collect()];
        for budget in &self.budgets {
            let figure = |value: f64| format!("{value:.2} {}", budget.unit).trim_end().to_owned();
            let measured = budget.measured.map_or("–".to_owned(), figure);
            rows.push(vec![
                budget.name.clone(),
                figure(budget.limit),
                measured,
                budget.verdict().to_owned(),
            ]);
        }
        rows
    }

    fn json_row(&self, row: &Row) -> Value {
        let side = |cell: Option<&Measured>| {
            cell.map(|m| {
                json!({
                    "runs": m.samples.len(),
                    "wall_us": {"p10": m.wall(0.1), "p50": m.wall(0.5), "p90": m.wall(0.9)},
                    "cpu_us": {"p10": m.cpu(0.1), "p50": m.cpu(0.5), "p90": m.cpu(0.9)},
                    "octets": m.octets,
                    "faults": m.faults(),
                    "peak_rss_kib": m.trace.map(|trace| trace.peak_kib),
                    "processes": m.trace.map(|trace| trace.processes),
                    "threads": m.trace.map(|trace| trace.threads),
                    "instructions": m.instructions,
                    "member_us": {"p50": m.of_member(0.5), "p99": m.of_member(0.99)},
                    "failures": m.failures,
                    "left": m.left,
                })
            })
        };
        let [ours, reference, floor] = self.cells(row).map(side);
        json!({"case": row.0, "operation": row.1, "ours": ours, "reference": reference, "floor": floor})
    }
}

/// How many members of a crowd were done in a second.
#[allow(clippy::cast_precision_loss)] // hundreds
fn per_second(crowd: &Measured) -> Option<f64> {
    let seconds: f64 = crowd.samples.iter().map(|sample| sample.wall.as_secs_f64()).sum();
    (seconds > 0.0).then(|| crowd.members.len() as f64 / seconds)
}

fn both_percentiles(crowd: &Measured) -> Option<String> {
    let [half, most] = [0.5, 0.99].map(|portion| crowd.of_member(portion).map(milliseconds));
    Some(format!("{} / {}", half?, most?))
}

fn title((case, operation): &Row) -> String {
    format!("{case} {operation}").trim_end().to_owned()
}

/// What is left where that was counted, else the times.
fn main_figure(measured: &Measured) -> String {
    measured.left.as_ref().map_or_else(|| both_times(measured), left_behind)
}

/// The number of things, and how many of each kind.
fn left_behind(left: &Left) -> String {
    let kinds: Vec<String> = left.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    let total = left.values().sum::<usize>();
    if kinds.is_empty() {
        format!("{total} left")
    } else {
        format!("{total} left ({})", kinds.join(", "))
    }
}

fn both_times(measured: &Measured) -> String {
    let text = |portion| measured.wall(portion).map_or("–".to_owned(), milliseconds);
    let failed = if measured.failures > 0 {
        format!(", {} failed", measured.failures)
    } else {
        String::new()
    };
    format!("{} ({}){failed}", text(0.5), text(0.1))
}

pub fn milliseconds(microseconds: f64) -> String {
    if microseconds >= 100_000.0 {
        format!("{:.0} ms", microseconds / 1e3)
    } else {
        format!("{:.2} ms", microseconds / 1e3)
    }
}

/// Columns padded to the same width.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// A Markdown table.
pub fn piped(rows: &[Vec<String>]) -> String {
    let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | "));
    let Some((headings, rest)) = rows.split_first() else { return String::new() };
    line(headings)
        + &format!("|{}\n", "---|".repeat(headings.len()))
        + &rest.iter().map(line).collect::<String>()
}
