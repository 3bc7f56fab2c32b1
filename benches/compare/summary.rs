//! The six figures of the README.

use crate::Result;
use crate::cases::Bench;
use crate::names::{self, Side};
use crate::report::{Report, piped};
use crate::schedule::Measured;
use crate::tables;

/// Reads a figure of one side from a report, which may lack it.
type Read = Box<dyn Fn(&Report, Side) -> Option<String>>;

/// A row of the table.
struct Figure {
    label: String,
    read: Read,
}

/// The table of the six figures; an error that names those without a measurement.
pub fn table(bench: &Bench, report: &Report) -> Result<String> {
    let headings = ["", "cni-multi", "containernetworking/plugins"].map(str::to_owned).to_vec();
    let (mut rows, mut absent) = (vec![headings], vec![]);
    for figure in figures(bench) {
        let read = |side| (figure.read)(report, side);
        match (read(Side::Ours), read(Side::Reference)) {
            (Some(ours), Some(reference)) => rows.push(vec![figure.label, ours, reference]),
            _ => absent.push(figure.label),
        }
    }
    if absent.is_empty() {
        Ok(piped(&rows))
    } else {
        Err(format!("the README's figures need all groups; not measured: {}", absent.join(", ")))
    }
}

fn figures(bench: &Bench) -> Vec<Figure> {
    let [.., leases] = bench.lease_counts();
    let containers = bench.full_host();
    let chain = "ADD of bridge, portmap, firewall, tuning, bandwidth";
    vec![
        cell(chain.to_owned(), names::CHAIN.to_owned(), "ADD", |m| m.wall(0.5).map(milliseconds)),
        cell("processes that this ADD starts".to_owned(), names::CHAIN.to_owned(), "ADD", |m| {
            m.trace.map(|trace| trace.processes.to_string())
        }),
        cell(
            format!("ADD of host-local among {leases} leases"),
            names::leases(leases),
            "ADD",
            |m| m.wall(0.5).map(milliseconds),
        ),
        Figure { label: "size on disk".to_owned(), read: Box::new(size) },
        cell(
            format!(
                "objects left after `kill -9` at {} moments of this ADD, then DEL and GC",
                bench.kills()
            ),
            names::killed(bench.kills()),
            "ADD",
            |m| m.left.as_ref().map(|left| left.values().sum::<usize>().to_string()),
        ),
        cell(
            format!("new connections per second to a published port, {containers} containers"),
            names::full_host(containers),
            names::CONNECTIONS,
            |m| m.wall(0.5).map(per_second),
        ),
    ]
}

/// A figure of one cell of the book.
fn cell(
    label: String,
    case: String,
    operation: &'static str,
    figure: fn(&Measured) -> Option<String>,
) -> Figure {
    let read = move |report: &Report, side| figure(report.book.get(&case, operation, side)?);
    Figure { label, read: Box::new(read) }
}

fn milliseconds(microseconds: f64) -> String {
    format!("{} ms", tables::milliseconds(microseconds))
}

#[allow(clippy::cast_precision_loss)] // sizes of files
fn size(report: &Report, side: Side) -> Option<String> {
    let (_, size) = report.sizes.iter().find(|(of, _)| *of == side)?;
    Some(format!("{:.1} MB, {} plugins", size.bytes as f64 / 1e6, size.plugins))
}

/// Connections of a run per second of a run, from the microseconds of the run; three digits count.
#[allow(clippy::cast_precision_loss)] // hundreds
fn per_second(microseconds: f64) -> String {
    let rate = names::CONNECTIONS_OF_A_RUN as f64 * 1e6 / microseconds;
    let digit = 10_f64.powf((rate.log10().floor() - 2.0).max(0.0));
    format!("{:.0}", (rate / digit).round() * digit)
}
