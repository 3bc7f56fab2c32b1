//! The report, as text, Markdown and JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::budget::Budget;
use crate::host_state::Left;
use crate::names::Side;
use crate::schedule::{Book, Measured, Row};
use crate::size::Size;
use crate::tables::{self, Table};

/// A group that the machine cannot run, and what it lacks.
pub struct LeftOut {
    pub group: &'static str,
    pub lack: String,
}

/// The content of a report.
pub struct Report<'a> {
    pub machine: String,
    pub runs: usize,
    pub ours: String,
    pub reference: Option<String>,
    pub left_out: Vec<LeftOut>,
    pub book: &'a Book,
    /// The numbers of containers beside which one more was measured.
    pub densities: [usize; 2],
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
const BUDGET_HEADINGS: [&str; 4] = ["budget", "limit", "measured", ""];

impl Report<'_> {
    pub fn text(&self) -> String {
        let mut out = String::new();
        for line in self.preamble() {
            let _ = writeln!(out, "{line}"); // writing to a String cannot fail
        }
        out + "\n"
            + &self.all_tables().map(|table| aligned(&table)).collect::<Vec<_>>().join("\n")
            + "\n"
            + &self.closing()
            + "\n"
    }

    /// The costs of calls, and the budgets.
    pub fn markdown(&self) -> String {
        let tables = [self.cost_table(), self.budget_table()];
        self.in_markdown(tables) + "\n" + &self.closing() + "\n"
    }

    /// Everything, for a file of its own.
    pub fn whole_markdown(&self) -> String {
        self.in_markdown(self.all_tables()) + "\n" + &self.closing() + "\n"
    }

    /// A part of the page with these tables; `None` if nothing of it was measured.
    fn part(&self, tables: impl IntoIterator<Item = Table>) -> Option<String> {
        let tables: Vec<Table> = tables.into_iter().filter(|table| !table.is_empty()).collect();
        (!tables.is_empty()).then(|| format!("{}\n\n{}", self.machine, joined(tables)))
    }

    /// The costs of calls alone.
    pub fn costs(&self) -> Option<String> {
        self.part([self.cost_table()])
    }

    /// The table of packets alone.
    pub fn packets(&self) -> Option<String> {
        self.part([tables::packets(self.book)])
    }

    /// The table of crowds alone.
    pub fn crowds(&self) -> Option<String> {
        self.part([tables::crowds(self.book)])
    }

    /// The tables of full hosts alone.
    pub fn density(&self) -> Option<String> {
        self.part([tables::density(self.book, self.densities), tables::memory(self.book)])
    }

    fn in_markdown(&self, tables: impl IntoIterator<Item = Table>) -> String {
        format!("{}\n\n{}", self.preamble().join("  \n"), joined(tables))
    }

    /// The tables that have rows.
    fn all_tables(&self) -> impl Iterator<Item = Table> {
        let book = self.book;
        let tables = [
            self.cost_table(),
            tables::packets(book),
            tables::crowds(book),
            tables::density(book, self.densities),
            tables::memory(book),
            self.budget_table(),
        ];
        tables.into_iter().filter(|table| !table.is_empty())
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
            "runs": self.runs,
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
        let runs =
            format!("{}, {} runs of each case and side, alternating", self.machine, self.runs);
        let mut lines = vec![runs, format!("ours: {}", self.ours)];
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

    /// The costs of calls: of all rows that have no table of their own.
    fn cost_table(&self) -> Table {
        let calls = self.book.rows.iter().filter(|row| !tables::have(self.book, row));
        let calls: Vec<&Row> = calls.collect();
        if calls.is_empty() {
            return vec![];
        }
        let of = |row: &&Row| self.book.sides(row).into_iter().flatten();
        let instructions = calls.iter().flat_map(of).any(|cell| cell.instructions.is_some());
        let mut headings: Vec<String> = COST_HEADINGS.iter().map(ToString::to_string).collect();
        headings.extend(instructions.then(|| "instructions ours / ref / floor".to_owned()));
        let mut rows = vec![headings];
        rows.extend(calls.into_iter().map(|row| self.cost_row(row, instructions)));
        rows
    }

    fn cost_row(&self, row: &Row, instructions: bool) -> Vec<String> {
        let [ours, reference, floor] = self.book.sides(row);
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
                    "requests_of_nftables": m.requests,
                    "kernel_memory_kib": m.memory(),
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
        let [ours, reference, floor] = self.book.sides(row).map(side);
        json!({"case": row.0, "operation": row.1, "ours": ours, "reference": reference, "floor": floor})
    }
}

pub fn title((case, operation): &Row) -> String {
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

fn joined(tables: impl IntoIterator<Item = Table>) -> String {
    tables.into_iter().map(|table| piped(&table)).collect::<Vec<_>>().join("\n")
}

/// A Markdown table.
pub fn piped(rows: &[Vec<String>]) -> String {
    let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | "));
    let Some((headings, rest)) = rows.split_first() else { return String::new() };
    line(headings)
        + &format!("|{}\n", "---|".repeat(headings.len()))
        + &rest.iter().map(line).collect::<String>()
}
