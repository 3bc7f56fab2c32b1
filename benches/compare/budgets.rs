//! The budgets of the design, judged by the measurements.

use crate::budget::Budget;
use crate::cases::Bench;
use crate::names::{self, Side};
use crate::schedule::{Book, Measured};
use crate::tables;

/// Judges all budgets; `bytes` is the size of our binary.
pub fn judge(bench: &Bench, book: &Book, bytes: Option<u64>) -> Vec<Budget> {
    let judge = Judge { book };
    let [few_leases, _, many_leases] = bench.lease_counts();
    let [few_mappings, _, many_mappings] = bench.mapping_counts();
    let mut budgets = vec![
        budget("one binary, all plugins", 7.15, "MB", bytes.map(megabytes)),
        budget("VERSION / static C", 1.3, "×", judge.ratio(names::VERSION, "", Side::Floor)),
        budget("VERSION / reference", 0.5, "×", judge.ratio(names::VERSION, "", Side::Reference)),
        budget(
            "bridge+host-local ADD / reference",
            0.35,
            "×",
            judge.ratio(names::BRIDGE, "ADD", Side::Reference),
        ),
        budget(
            "bridge+host-local ADD / C program",
            1.5,
            "×",
            judge.ratio(names::BRIDGE, "ADD", Side::Floor),
        ),
        budget(
            "chain of five ADD / reference",
            0.10,
            "×",
            judge.ratio(names::CHAIN, "ADD", Side::Reference),
        ),
        budget(
            "chain of five DEL / reference",
            0.25,
            "×",
            judge.ratio(names::CHAIN, "DEL", Side::Reference),
        ),
        budget(
            "chain of five DEL in one process / C program's veth",
            1.3,
            "×",
            judge.ratio(names::CNITOOL, "DEL", Side::Floor),
        ),
        budget(
            "processes started, default path",
            0.0,
            "",
            judge.largest(|m| m.trace.map(|t| f64::from(t.processes))),
        ),
        budget(
            "peak RSS of an operation",
            4.0,
            "MiB",
            judge.largest(|m| m.trace.map(|t| mebibytes(t.peak_kib))),
        ),
    ];
    for case in [names::BRIDGE, names::MACVLAN, names::BANDWIDTH] {
        let name = format!("{case} DEL / C program");
        budgets.push(budget(&name, 1.1, "×", judge.ratio(case, "DEL", Side::Floor)));
    }
    for operation in ["ADD", "DEL"] {
        let name = format!("host-local {operation}, {many_leases} / {few_leases} leases");
        budgets.push(budget(
            &name,
            1.5,
            "×",
            judge.growth(&names::leases(few_leases), &names::leases(many_leases), operation),
        ));
    }
    for operation in ["ADD", "50 connections", "DEL"] {
        let name = format!("portmap {operation}, {many_mappings} / {few_mappings} mappings");
        let growth = judge.growth(
            &names::mappings(few_mappings),
            &names::mappings(many_mappings),
            operation,
        );
        budgets.push(budget(&name, 1.5, "×", growth));
    }
    budgets.push(budget(
        "dual stack ADD, more than IPv4 alone",
        1.0,
        "ms",
        judge.dual_stack_extra(),
    ));
    let [first, last] = bench.densities().map(names::density);
    for operation in ["ADD", "DEL"] {
        let [few, many] = bench.densities();
        let cost =
            |what: &str| format!("chain of five {operation}, {what}, {many} / {few} containers");
        let cpu = judge.growth_of(&first, &last, operation, |m| m.cpu(0.5));
        budgets.push(budget(&cost("CPU"), 1.3, "×", cpu));
        #[allow(clippy::cast_precision_loss)] // thousands
        let octets = |m: &Measured| m.octets.map(|octets| octets as f64);
        let octets = judge.growth_of(&first, &last, operation, octets);
        budgets.push(budget(&cost("octets"), 1.3, "×", octets));
    }
    budgets.push(budget("failures in the crowd", 0.0, "", judge.crowd_failures()));
    for operation in ["ADD", "DEL"] {
        let name = format!("chain of five {operation}, 20 at a time, p99 / p50");
        budgets.push(budget(&name, 5.0, "×", judge.spread(&names::crowd_of_chains(20), operation)));
        let name = format!("chain of five {operation}, 20 at a time, retries of nftables");
        let retries = tables::retries(book, &(names::crowd_of_networks(20), operation));
        budgets.push(budget(&name, 1.2, "", retries));
    }
    budgets
}

fn budget(name: &str, limit: f64, unit: &'static str, measured: Option<f64>) -> Budget {
    Budget { name: name.to_owned(), limit, unit, measured }
}

struct Judge<'a> {
    book: &'a Book,
}

impl Judge<'_> {
    fn median(&self, case: &str, operation: &'static str, side: Side) -> Option<f64> {
        self.book.get(case, operation, side)?.wall(0.5)
    }

    fn ratio(&self, case: &str, operation: &'static str, to: Side) -> Option<f64> {
        Some(self.median(case, operation, Side::Ours)? / self.median(case, operation, to)?)
    }

    fn growth(&self, few: &str, many: &str, operation: &'static str) -> Option<f64> {
        Some(self.median(many, operation, Side::Ours)? / self.median(few, operation, Side::Ours)?)
    }

    fn growth_of(
        &self,
        few: &str,
        many: &str,
        operation: &'static str,
        figure: impl Fn(&Measured) -> Option<f64>,
    ) -> Option<f64> {
        let [few, many] =
            [few, many].map(|case| self.book.get(case, operation, Side::Ours).and_then(&figure));
        Some(many? / few?)
    }

    /// The p99 of a crowd's members by their median.
    fn spread(&self, case: &str, operation: &'static str) -> Option<f64> {
        let crowd = self.book.get(case, operation, Side::Ours)?;
        Some(crowd.of_member(0.99)? / crowd.of_member(0.5)?)
    }

    fn dual_stack_extra(&self) -> Option<f64> {
        let more = self.median(names::DUAL, "ADD", Side::Ours)?
            - self.median(names::BRIDGE, "ADD", Side::Ours)?;
        Some(more / 1e3)
    }

    /// The largest figure of ours, except in the case that selects iptables.
    fn largest(&self, figure: impl Fn(&Measured) -> Option<f64>) -> Option<f64> {
        let default_path =
            self.book.of(Side::Ours).filter(|((case, _), _)| case != names::IPTABLES);
        default_path.filter_map(|(_, measured)| figure(measured)).reduce(f64::max)
    }

    #[allow(clippy::cast_precision_loss)] // hundreds at most
    fn crowd_failures(&self) -> Option<f64> {
        let of = |(case, operation)| {
            self.book.get(case, operation, Side::Ours).map(|measured| measured.failures)
        };
        let crowds = [names::CROWD, names::PORT_CROWD]
            .into_iter()
            .flat_map(|case| [(case, "ADD"), (case, "DEL")]);
        crowds.map(of).sum::<Option<usize>>().map(|failures| failures as f64)
    }
}

#[allow(clippy::cast_precision_loss)] // sizes of files
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[allow(clippy::cast_precision_loss)] // sizes of processes
fn mebibytes(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
