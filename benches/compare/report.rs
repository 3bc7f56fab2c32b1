//! The report, as text, Markdown and JSON.

use serde_json::{Value, json};

use crate::budget::Budget;
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

impl Report<'_> {
    pub fn text(&self) -> String {
        self.with_closing(aligned)
    }

    /// Everything, for a file of its own.
    pub fn markdown(&self) -> String {
        self.with_closing(piped)
    }

    fn with_closing(&self, text: fn(&[Vec<String>]) -> String) -> String {
        let tables: Vec<String> = self.all_tables().map(|table| text(&table)).collect();
        format!("{}\n{}\n", tables.join("\n"), self.closing())
    }

    /// The tables that have rows.
    fn all_tables(&self) -> impl Iterator<Item = Table> {
        let book = self.book;
        let tables = [
            self.run_table(),
            tables::calls(book),
            tables::left(book),
            tables::packets(book),
            tables::crowds(book),
            tables::density(book, self.densities),
            tables::memory(book),
            self.size_table(),
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
    pub fn closing(&self) -> String {
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

    /// What was measured, and on which machine.
    pub fn run_table(&self) -> Table {
        let runs = self.runs.to_string();
        let mut rows = vec![
            ["machine", &self.machine],
            ["runs of each case and side", &runs],
            ["ours", &self.ours],
        ];
        rows.extend(self.reference.as_ref().map(|reference| ["reference", reference]));
        let left_out = self.left_out_names();
        rows.extend(left_out.iter().map(|group| ["left out", group]));
        let rows = rows.iter().map(|row| row.map(str::to_owned).to_vec()).collect();
        tables::with_headings(&["what", "value"], rows)
    }

    fn left_out_names(&self) -> Vec<String> {
        self.left_out.iter().map(|LeftOut { group, lack }| format!("{group} ({lack})")).collect()
    }

    pub fn size_table(&self) -> Table {
        let row = |(side, size): &(Side, Size)| {
            vec![side.name().to_owned(), size.bytes.to_string(), size.plugins.to_string()]
        };
        let rows = self.sizes.iter().map(row).collect();
        tables::with_headings(&["side", "bytes", "plugins"], rows)
    }

    pub fn budget_table(&self) -> Table {
        let figure = |value: f64| format!("{value:.2}");
        let row = |budget: &Budget| {
            vec![
                budget.name.clone(),
                figure(budget.limit),
                budget.unit.to_owned(),
                budget.measured.map(figure).unwrap_or_default(),
                budget.verdict().to_owned(),
            ]
        };
        let rows = self.budgets.iter().map(row).collect();
        tables::with_headings(&["budget", "limit", "unit", "measured", "verdict"], rows)
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
