//! The tables of a report. A cell has no unit: the column's heading has it, or a cell beside it.

use crate::names::{self, Side};
use crate::schedule::{Book, Measured, Row};

/// A table's rows, the headings first; no rows if nothing of it was measured.
pub type Table = Vec<Vec<String>>;

const CALLS: [&str; 20] = [
    "case",
    "operation",
    "ours ms",
    "ours p10 ms",
    "reference ms",
    "reference p10 ms",
    "floor ms",
    "wall ratio",
    "CPU ratio",
    "ours faults",
    "reference faults",
    "floor faults",
    "ours RSS MiB",
    "reference RSS MiB",
    "ours processes",
    "reference processes",
    "ours threads",
    "reference threads",
    "ours failed",
    "reference failed",
];
/// Further columns of the same, where instructions were counted.
const INSTRUCTIONS: [&str; 3] =
    ["ours instructions", "reference instructions", "floor instructions"];

/// Whether a row has a table of its own, and is not in that of calls.
fn have(book: &Book, row: &Row) -> bool {
    let is_packet = names::WAYS.iter().any(|way| way.operations().contains(&row.1));
    let is_special =
        |m: &Measured| !m.members.is_empty() || !m.memory.is_empty() || m.left.is_some();
    is_packet || book.sides(row).into_iter().flatten().any(is_special)
}

/// What calls cost: all rows that have no table of their own.
pub fn calls(book: &Book) -> Table {
    let rows: Vec<&Row> = book.rows.iter().filter(|row| !have(book, row)).collect();
    let mut cells = rows.iter().flat_map(|row| book.sides(row)).flatten();
    let counted = cells.any(|cell| cell.instructions.is_some());
    let headings = [&CALLS[..], if counted { &INSTRUCTIONS } else { &[] }].concat();
    with_headings(&headings, rows.into_iter().map(|row| call_row(book, row, counted)).collect())
}

fn call_row(book: &Book, row: &Row, counted: bool) -> Vec<String> {
    let all @ [ours, reference, floor] = book.sides(row);
    let both = [ours, reference];
    let of = |sides: &[Option<&Measured>], figure: &dyn Fn(&Measured) -> Option<String>| {
        sides.iter().map(|cell| or_empty(cell.and_then(figure))).collect::<Vec<String>>()
    };
    let wall = |cell, portion| of(&[cell], &|m| m.wall(portion).map(milliseconds));
    let ratio = |figure: &dyn Fn(&Measured) -> Option<f64>| {
        let of_reference = reference.and_then(figure).filter(|figure| *figure > 0.0); // some cases start no process
        let ratio = ours.and_then(figure).zip(of_reference).map(|(a, b)| format!("{:.2}", a / b));
        vec![or_empty(ratio)]
    };
    let mut cells = [
        vec![row.0.clone(), row.1.to_owned()],
        wall(ours, 0.5),
        wall(ours, 0.1),
        wall(reference, 0.5),
        wall(reference, 0.1),
        wall(floor, 0.5),
        ratio(&|m| m.wall(0.5)),
        ratio(&|m| m.cpu(0.5)),
        of(&all, &|m| m.faults().map(|faults| format!("{faults:.0}"))),
        #[allow(clippy::cast_precision_loss)] // sizes of processes
        of(&both, &|m| m.trace.map(|trace| format!("{:.1}", trace.peak_kib as f64 / 1024.0))),
        of(&both, &|m| m.trace.map(|trace| trace.processes.to_string())),
        of(&both, &|m| m.trace.map(|trace| trace.threads.to_string())),
        of(&both, &|m| Some(m.failures.to_string())),
    ]
    .concat();
    if counted {
        cells.extend(of(&all, &|m| m.instructions.map(|count| count.to_string())));
    }
    cells
}

/// What operations have left on the host: all of it, then what of each kind.
pub fn left(book: &Book) -> Table {
    let mut rows = vec![];
    for row in &book.rows {
        for side in [Side::Ours, Side::Reference] {
            let left = book.get(&row.0, row.1, side).and_then(|cell| cell.left.as_ref());
            let Some(left) = left else { continue };
            let all = ("all", left.values().sum());
            let kinds = left.iter().map(|(kind, count)| (*kind, *count));
            rows.extend(std::iter::once(all).chain(kinds).map(|(kind, count): (&str, usize)| {
                [&row.0, row.1, side.name(), kind, &count.to_string()].map(str::to_owned).to_vec()
            }));
        }
    }
    with_headings(&["case", "operation", "side", "kind", "left"], rows)
}

/// What goes through a host costs.
pub fn packets(book: &Book) -> Table {
    let row = |row: &Row| {
        let (unit, figure) = names::WAYS.iter().find_map(|way| figure_of(way, row.1))?;
        let [ours, reference, _] = book.sides(row).map(|cell| cell?.wall(0.5));
        let ratio = ours.zip(reference).map(|(ours, reference)| format!("{:.2}", ours / reference));
        let cells = [ours.map(figure), reference.map(figure), ratio].map(or_empty);
        Some([vec![row.0.clone(), row.1.to_owned(), unit.to_owned()], cells.to_vec()].concat())
    };
    let headings = ["host with", "traffic", "unit", "ours", "reference", "time ratio"];
    with_headings(&headings, rows(book, row))
}

/// A unit, and how a time is shown in it.
type Shown = (&'static str, fn(f64) -> String);

/// How the operation's time is shown, if it is of this way.
fn figure_of(way: &names::Way, operation: &str) -> Option<Shown> {
    let [datagram, connection, stream] = way.operations();
    match operation {
        _ if operation == datagram => Some(("ns", each_datagram)),
        _ if operation == connection => Some(("per second", connections_per_second)),
        _ if operation == stream => Some(("Gbit/s", gigabits_per_second)),
        _ => None,
    }
}

#[allow(clippy::cast_precision_loss)] // thousands
fn each_datagram(microseconds: f64) -> String {
    format!("{:.0}", microseconds * 1e3 / names::DATAGRAMS_OF_A_RUN as f64)
}

#[allow(clippy::cast_precision_loss)] // hundreds
fn connections_per_second(microseconds: f64) -> String {
    format!("{:.0}", names::CONNECTIONS_OF_A_RUN as f64 * 1e6 / microseconds)
}

#[allow(clippy::cast_precision_loss)] // millions
fn gigabits_per_second(microseconds: f64) -> String {
    format!("{:.1}", names::OCTETS_OF_A_STREAM as f64 * 8.0 / microseconds / 1e3)
}

/// Crowds with a duration for each container.
pub fn crowds(book: &Book) -> Table {
    let headings = [
        "crowd",
        "operation",
        "ours p50 ms",
        "ours p99 ms",
        "reference p50 ms",
        "reference p99 ms",
        "ours per second",
        "reference per second",
        "rate ratio",
        "ours requests of nftables",
        "retries at most",
    ];
    with_headings(&headings, rows(book, |row| crowd_row(book, row)))
}

fn crowd_row(book: &Book, row: &Row) -> Option<Vec<String>> {
    let [ours, reference, _] = book.sides(row);
    if ours.or(reference)?.members.is_empty() {
        return None;
    }
    let time = |cell: Option<&Measured>, portion| cell?.of_member(portion).map(milliseconds);
    let rates = [ours, reference].map(|cell| cell.and_then(per_second));
    let ratio = rates[0].zip(rates[1]).map(|(a, b)| format!("{:.1}", a / b));
    let cells = [
        time(ours, 0.5),
        time(ours, 0.99),
        time(reference, 0.5),
        time(reference, 0.99),
        rates[0].map(|rate| format!("{rate:.1}")),
        rates[1].map(|rate| format!("{rate:.1}")),
        ratio,
        ours.and_then(requests).map(|count| format!("{count:.1}")),
        retries(book, row).map(|count| format!("{count:.2}")),
    ];
    // The chain's name would be in each row.
    let crowd = row.0.replacen(&format!("{}, ", names::CHAIN), "", 1);
    Some([vec![crowd, row.1.to_owned()], cells.map(or_empty).to_vec()].concat())
}

/// How many members of a crowd were done in a second.
#[allow(clippy::cast_precision_loss)] // hundreds
fn per_second(crowd: &Measured) -> Option<f64> {
    let seconds: f64 = crowd.samples.iter().map(|sample| sample.wall.as_secs_f64()).sum();
    (seconds > 0.0).then(|| crowd.members.len() as f64 / seconds)
}

/// Requests to nf_tables that a member has sent.
#[allow(clippy::cast_precision_loss)] // thousands
fn requests(crowd: &Measured) -> Option<f64> {
    (crowd.requests > 0).then(|| crowd.requests as f64 / crowd.members.len() as f64)
}

/// How often a member of this crowd of ours has sent a transaction again, at most: half of the
/// requests that it has sent beyond those of a member that was alone. Each try sends at least two,
/// one for the generation of the ruleset and one with the transaction.
pub fn retries(book: &Book, (case, operation): &Row) -> Option<f64> {
    let of = |case: &str| requests(book.get(case, operation, Side::Ours)?);
    Some((of(case)? - of(&names::crowd_of_networks(1))?) / 2.0)
}

/// One more container on a host with few and with many.
pub fn density(book: &Book, [few, many]: [usize; 2]) -> Table {
    let mut rows = vec![];
    for operation in ["ADD", "DEL"] {
        let of = |count| book.get(&names::density(count), operation, Side::Ours);
        let (Some(first), Some(last)) = (of(few), of(many)) else { continue };
        let cpu = |m: &Measured| m.cpu(0.5);
        #[allow(clippy::cast_precision_loss)] // thousands
        let octets = |m: &Measured| m.octets.map(|octets| octets as f64);
        let row = |cost: [&str; 2], [first, last]: [Option<f64>; 2], text: fn(f64) -> String| {
            let ratio = first.zip(last).map(|(first, last)| format!("{:.2}", last / first));
            let cells = [first.map(text), last.map(text), ratio].map(or_empty);
            [[operation, cost[0], cost[1]].map(str::to_owned), cells].concat()
        };
        rows.push(row(["CPU", "ms"], [first, last].map(cpu), milliseconds));
        let number = |n| format!("{n:.0}");
        rows.push(row(["octets over sockets", "octets"], [first, last].map(octets), number));
    }
    let [few, many] = [few, many].map(|count| format!("beside {count}"));
    with_headings(&["operation", "cost", "unit", &few, &many, "growth"], rows)
}

/// The kernel's memory for a container.
pub fn memory(book: &Book) -> Table {
    let row = |row: &Row| {
        let [ours, reference, _] = book.sides(row).map(|cell| cell?.memory());
        ours.or(reference)?;
        let ratio = ours.zip(reference).map(|(ours, reference)| format!("{:.2}", ours / reference));
        let text = |kib: f64| format!("{kib:.1}");
        let cells = [ours.map(text), reference.map(text), ratio].map(or_empty);
        Some([vec![row.0.clone(), row.1.to_owned()], cells.to_vec()].concat())
    };
    with_headings(&["case", "memory", "ours KiB", "reference KiB", "ratio"], rows(book, row))
}

/// The rows that decide, by these columns. `decides` gets a row's cells in the order of `columns`.
pub fn excerpt(table: &Table, columns: &[&str], decides: impl Fn(&[String]) -> bool) -> Table {
    let Some((headings, rows)) = table.split_first() else { return vec![] };
    let at = |column: &&str| headings.iter().position(|heading| heading == column);
    let places: Vec<usize> = columns.iter().filter_map(at).collect();
    let picked = |row: &Vec<String>| places.iter().map(|at| row[*at].clone()).collect();
    let rows = rows.iter().map(picked).filter(|row: &Vec<String>| decides(row)).collect();
    with_headings(columns, rows)
}

/// As text with commas between cells, and quotes where a cell has one.
pub fn csv(table: &Table) -> String {
    let cell = |text: &String| match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.clone(),
    };
    let line = |row: &Vec<String>| row.iter().map(cell).collect::<Vec<_>>().join(",") + "\n";
    table.iter().map(line).collect()
}

/// The number without its unit.
pub fn milliseconds(microseconds: f64) -> String {
    let decimals = if microseconds >= 100_000.0 { 0 } else { 2 };
    format!("{:.decimals$}", microseconds / 1e3)
}

fn rows(book: &Book, row: impl Fn(&Row) -> Option<Vec<String>>) -> Table {
    book.rows.iter().filter_map(row).collect()
}

pub fn with_headings(headings: &[&str], rows: Table) -> Table {
    if rows.is_empty() {
        return rows;
    }
    [vec![headings.iter().map(ToString::to_string).collect()], rows].concat()
}

fn or_empty(figure: Option<String>) -> String {
    figure.unwrap_or_default()
}
