//! The rows of the fault tables in docs/reliability.md.

use std::fs::OpenOptions;
use std::io::Write as _;

/// One row. `tests/faults/run` replaces the page's row of the same network and operation with it.
pub struct Row<'a> {
    pub network: &'a str,
    /// The plugin or `net`, and the command.
    pub operation: &'a str,
    /// The number of system calls of the operation.
    pub calls: usize,
    /// The number of system calls at which a fault was injected.
    pub points: usize,
    /// The number of faults after which something was wrong.
    pub failures: usize,
}

impl Row<'_> {
    /// Writes the row to stderr and to the file named by `CNI_FAULT_TABLE`.
    pub fn tell(&self) {
        let Row { network, operation, calls, points, failures } = self;
        let line = format!("| {network} | {operation} | {calls} | {points} | {failures} |");
        eprintln!("{line}");
        if let Some(table) = std::env::var_os("CNI_FAULT_TABLE") {
            let mut file = OpenOptions::new().create(true).append(true).open(table).unwrap();
            writeln!(file, "{line}").unwrap();
        }
    }
}
