//! The tables of packets, crowds and full hosts. The report's own table has what a call costs.

use crate::names::{self, Side};
use crate::report::{milliseconds, title};
use crate::schedule::{Book, Measured, Row};

/// A table's rows, the headings first; no rows if nothing of it was measured.
pub type Table = Vec<Vec<String>>;

/// Whether one of these tables has the row.
pub fn have(book: &Book, row: &Row) -> bool {
    let is_packet = names::WAYS.iter().any(|way| way.operations().contains(&row.1));
    let is_special = |m: &Measured| !m.members.is_empty() || !m.memory.is_empty();
    is_packet || book.sides(row).into_iter().flatten().any(is_special)
}

/// What goes through a host costs.
pub fn packets(book: &Book) -> Table {
    let row = |row: &Row| {
        let figure = names::WAYS.iter().find_map(|way| figure_of(way, row.1))?;
        let [ours, reference, _] = book.sides(row).map(|cell| cell?.wall(0.5));
        let ratio =
            ours.zip(reference).map(|(ours, reference)| format!("{:.2}×", ours / reference));
        let cells = [ours.map(figure), reference.map(figure), ratio];
        Some([vec![format!("{}: {}", row.0, row.1)], cells.map(or_dash).to_vec()].concat())
    };
    with_headings(&["on a host with", "ours", "reference", "time"], rows(book, row))
}

/// How the operation's time is shown, if it is of this way.
fn figure_of(way: &names::Way, operation: &str) -> Option<fn(f64) -> String> {
    let [datagram, connection, stream] = way.operations();
    match operation {
        _ if operation == datagram => Some(each_datagram),
        _ if operation == connection => Some(connections_per_second),
        _ if operation == stream => Some(gigabits_per_second),
        _ => None,
    }
}

#[allow(clippy::cast_precision_loss)] // thousands
fn each_datagram(microseconds: f64) -> String {
    format!("{:.0} ns", microseconds * 1e3 / names::DATAGRAMS_OF_A_RUN as f64)
}

#[allow(clippy::cast_precision_loss)] // hundreds
fn connections_per_second(microseconds: f64) -> String {
    format!("{:.0} per second", names::CONNECTIONS_OF_A_RUN as f64 * 1e6 / microseconds)
}

#[allow(clippy::cast_precision_loss)] // millions
fn gigabits_per_second(microseconds: f64) -> String {
    format!("{:.1} Gbit/s", names::OCTETS_OF_A_STREAM as f64 * 8.0 / microseconds / 1e3)
}

/// Crowds with a duration for each container.
pub fn crowds(book: &Book) -> Table {
    let headings = [
        "crowd",
        "ours p50 / p99",
        "reference p50 / p99",
        "ours per second",
        "reference per second",
        "rate",
        "requests of nftables, ours",
        "retries, at most",
    ];
    with_headings(&headings, rows(book, |row| crowd_row(book, row)))
}

fn crowd_row(book: &Book, row: &Row) -> Option<Vec<String>> {
    let [ours, reference, _] = book.sides(row);
    if ours.or(reference)?.members.is_empty() {
        return None;
    }
    let rates = [ours, reference].map(|cell| cell.and_then(per_second));
    let ratio = rates[0].zip(rates[1]).map(|(a, b)| format!("{:.1}×", a / b));
    let times = [ours, reference].map(|cell| or_dash(cell.and_then(both_percentiles)));
    let rates = rates.map(|rate| or_dash(rate.map(|rate| format!("{rate:.1}"))));
    let requests = or_dash(ours.and_then(requests).map(|count| format!("{count:.1}")));
    let retries = or_dash(retries(book, row).map(|count| format!("{count:.2}")));
    let cells = vec![or_dash(ratio), requests, retries];
    Some([vec![crowd_title(row)], times.to_vec(), rates.to_vec(), cells].concat())
}

/// The chain's name would be in each row.
fn crowd_title(row: &Row) -> String {
    title(row).replacen(&format!("{}, ", names::CHAIN), "", 1)
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
        let row = |what: &str, [first, last]: [Option<f64>; 2], text: fn(f64) -> String| {
            let ratio = first.zip(last).map(|(first, last)| format!("{:.2}×", last / first));
            let cells = [first.map(text), last.map(text), ratio].map(or_dash);
            [vec![format!("{operation}, {what}")], cells.to_vec()].concat()
        };
        rows.push(row("CPU", [first, last].map(cpu), milliseconds));
        rows.push(row("octets over sockets", [first, last].map(octets), |n| format!("{n:.0}")));
    }
    let beside = |count: usize| format!("beside {count}");
    with_headings(&["one more container, the five", &beside(few), &beside(many), "growth"], rows)
}

/// The kernel's memory for a container.
pub fn memory(book: &Book) -> Table {
    let row = |row: &Row| {
        let [ours, reference, _] = book.sides(row).map(|cell| cell?.memory());
        ours.or(reference)?;
        let ratio =
            ours.zip(reference).map(|(ours, reference)| format!("{:.2}×", ours / reference));
        let text = |kib: f64| format!("{kib:.1} KiB");
        let cells = [ours.map(text), reference.map(text), ratio];
        Some([vec![format!("{}: {}", row.0, row.1)], cells.map(or_dash).to_vec()].concat())
    };
    with_headings(&["memory of the kernel", "ours", "reference", "ratio"], rows(book, row))
}

fn rows(book: &Book, row: impl Fn(&Row) -> Option<Vec<String>>) -> Table {
    book.rows.iter().filter_map(row).collect()
}

fn with_headings(headings: &[&str], rows: Table) -> Table {
    if rows.is_empty() {
        return rows;
    }
    [vec![headings.iter().map(ToString::to_string).collect()], rows].concat()
}

fn or_dash(figure: Option<String>) -> String {
    figure.unwrap_or_else(|| "–".to_owned())
}
