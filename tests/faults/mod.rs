//! Nothing leaks, whatever happens: faults at every step of every plugin.

mod contention;
pub mod dhcp;
mod error;
mod kill;
mod life;
mod lives;
mod orphan;
mod power_loss;
pub mod subject;

use std::io::Write as _;

/// A line of a table of docs/reliability.md: to stderr, and to the file that `CNI_FAULT_TABLE`
/// names. Lines begin with their order.
fn tell(line: &str) {
    eprintln!("{line}");
    if let Some(table) = std::env::var_os("CNI_FAULT_TABLE") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(table).unwrap();
        writeln!(file, "{line}").unwrap();
    }
}
