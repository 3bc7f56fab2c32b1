//! The rows of the tables in docs/evidence.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write as _;

use crate::support::extent::is_long;

/// A row of the sweeps of kills and errors: the network; the plugin or `net`, and the command; the number of its system
/// calls, of those at which a fault was injected, and of faults after which something was wrong.
pub fn tell_points(
    table: &str,
    [network, operation]: [&str; 2],
    [calls, points, failures]: [usize; 3],
) {
    tell(table, &[&network, &operation, &calls, &points, &failures]);
}

/// Writes the row to stderr and to the table's file in the directory named by `CNI_EVIDENCE`, from
/// which `tests/faults/run` takes it. Returns it.
pub fn tell(table: &str, cells: &[&dyn Display]) -> String {
    let cell = |cell: &&dyn Display| match cell.to_string() {
        text if text.contains(',') => format!("\"{text}\""),
        text => text,
    };
    let line = cells.iter().map(cell).collect::<Vec<_>>().join(",");
    eprintln!("{line}");
    if let Some(dir) = std::env::var_os("CNI_EVIDENCE") {
        let path = std::path::Path::new(&dir).join(table).with_extension("csv");
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap(); // one write: tests run in parallel
    }
    line
}

/// The form of the tests, in tables that have rows of both.
pub fn form() -> &'static str {
    if is_long() { "long" } else { "ordinary" }
}
