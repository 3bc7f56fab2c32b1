//! The limits of `--guard`: ratios that a regression exceeds and noise does not.
//!
//! Both figures of a ratio are from one run, in which their sides take turns. A time is the tenth
//! percentile of its samples, since other load makes most samples longer and none shorter. Counts do
//! not depend on load.

use std::fmt;

use super::budget::Budget;
use super::names::{self, Side};

/// What an operation costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// User and system time of its processes.
    Cpu,
    /// From its start to its end: the only one that includes waiting.
    Wall,
    Faults,
    /// What goes over sockets: a table dump adds to it with each container of the host.
    Octets,
    /// Those that the plugin starts.
    Processes,
}

impl Cost {
    fn name(self) -> &'static str {
        match self {
            Cost::Cpu => "CPU",
            Cost::Wall => "wall",
            Cost::Faults => "page faults",
            Cost::Octets => "octets",
            Cost::Processes => "processes",
        }
    }
}

/// What ours is divided by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    Reference,
    Floor,
    /// Ours in another case, on an emptier host.
    Ours(String),
    Nothing,
}

/// The most that an operation of ours may cost.
#[derive(Clone)]
pub struct Limit {
    /// The group of its case.
    pub group: &'static str,
    pub case: String,
    pub operation: &'static str,
    pub cost: Cost,
    pub by: By,
    /// What was measured when the limit was set.
    pub usual: f64,
    pub most: f64,
}

/// The figures of a run.
pub trait Figures {
    /// `None` if it was not measured. Times are tenth percentiles.
    fn figure(&self, side: Side, case: &str, operation: &'static str, cost: Cost) -> Option<f64>;
}

/// The limits, in the order of their groups: each with the usual figure and the most.
pub fn limits() -> Vec<Limit> {
    use By::{Floor, Nothing, Ours, Reference};
    use Cost::{Cpu, Faults, Octets, Processes, Wall};
    let none = (Processes, Nothing, [0.0, 0.0]);
    let fuller = |emptier: String| vec![(Cpu, Ours(emptier), [1.0, 1.6])];
    let denser = |usual| vec![(Octets, Ours(names::density(0)), [usual, 1.4])];
    let version =
        [(Cpu, Reference, [0.18, 0.29]), (Cpu, Floor, [1.3, 2.1]), (Faults, Floor, [2.1, 3.2])];
    let bridge_add = [
        (Cpu, Reference, [0.18, 0.29]),
        (Wall, Reference, [0.2, 0.36]),
        (Cpu, Floor, [1.4, 2.3]),
        (Faults, Floor, [3.0, 4.5]),
        none.clone(),
    ];
    let bridge_del = [(Cpu, Reference, [0.17, 0.28]), (Wall, Floor, [1.1, 1.9]), none.clone()];
    let masquerade_add =
        [(Cpu, Reference, [0.1, 0.17]), (Wall, Reference, [0.07, 0.13]), none.clone()];
    let masquerade_del =
        [(Cpu, Reference, [0.07, 0.12]), (Wall, Reference, [0.27, 0.5]), none.clone()];
    let macvlan_del = [(Cpu, Reference, [0.14, 0.24]), (Wall, Floor, [1.0, 1.8])];
    let bandwidth_del = [(Cpu, Reference, [0.24, 0.4]), (Wall, Floor, [1.05, 1.9])];
    let chain_add = [(Cpu, Reference, [0.14, 0.23]), (Wall, Reference, [0.15, 0.27]), none.clone()];
    let chain_del = [(Cpu, Reference, [0.07, 0.13]), (Wall, Reference, [0.25, 0.45]), none.clone()];
    let portmap_add =
        [(Cpu, Reference, [0.04, 0.07]), (Wall, Reference, [0.045, 0.08]), none.clone()];
    let portmap_del = [(Cpu, Reference, [0.03, 0.05]), (Wall, Reference, [0.13, 0.25]), none];
    [
        of("version", names::VERSION, "", version.to_vec()),
        of("bridge", names::BRIDGE, "ADD", bridge_add.to_vec()),
        of("bridge", names::BRIDGE, "DEL", bridge_del.to_vec()),
        of("bridge-nftables", names::MASQUERADE, "ADD", masquerade_add.to_vec()),
        of("bridge-nftables", names::MASQUERADE, "DEL", masquerade_del.to_vec()),
        of("macvlan", names::MACVLAN, "DEL", macvlan_del.to_vec()),
        of("bandwidth", names::BANDWIDTH, "DEL", bandwidth_del.to_vec()),
        of("chain", names::CHAIN, "ADD", chain_add.to_vec()),
        of("chain", names::CHAIN, "DEL", chain_del.to_vec()),
        of("cnitool", names::CNITOOL, "DEL", vec![(Wall, Floor, [1.25, 2.1])]),
        of("host-local", names::leases(10), "ADD", vec![(Cpu, Reference, [0.22, 0.36])]),
        of("host-local", names::leases(1_000), "ADD", fuller(names::leases(10))),
        of("host-local", names::leases(1_000), "DEL", fuller(names::leases(10))),
        of("portmap", names::mappings(10), "ADD", portmap_add.to_vec()),
        of("portmap", names::mappings(10), "DEL", portmap_del.to_vec()),
        of("portmap", names::mappings(100), "ADD", fuller(names::mappings(10))),
        of("density", names::density(40), "ADD", denser(0.85)),
        of("density", names::density(40), "DEL", denser(1.1)),
    ]
    .concat()
}

fn of(
    group: &'static str,
    case: impl Into<String>,
    operation: &'static str,
    limits: Vec<(Cost, By, [f64; 2])>,
) -> Vec<Limit> {
    let case = case.into();
    let limit = |(cost, by, [usual, most]): (Cost, By, [f64; 2])| Limit {
        group,
        case: case.clone(),
        operation,
        cost,
        by,
        usual,
        most,
    };
    limits.into_iter().map(limit).collect()
}

/// Whether a limit is of this group.
pub fn wants(group: &str) -> bool {
    limits().iter().any(|limit| limit.group == group)
}

/// Judges all limits, in their order.
pub fn judge(figures: &impl Figures) -> Vec<Budget> {
    limits().iter().map(|limit| limit.judge(figures)).collect()
}

impl Limit {
    fn judge(&self, figures: &impl Figures) -> Budget {
        let figure = |side, case: &str| figures.figure(side, case, self.operation, self.cost);
        let divisor = match &self.by {
            By::Reference => figure(Side::Reference, &self.case),
            By::Floor => figure(Side::Floor, &self.case),
            By::Ours(case) => figure(Side::Ours, case),
            By::Nothing => Some(1.0),
        };
        // The divisor is 0 where the kernel has accounted no time to the process.
        let measured = figure(Side::Ours, &self.case)
            .zip(divisor.filter(|divisor| *divisor > 0.0))
            .map(|(ours, divisor)| ours / divisor);
        let unit = if matches!(self.by, By::Nothing) { "" } else { "×" };
        Budget { name: self.name(), limit: self.most, unit, measured }
    }

    /// As in `bridge+host-local ADD: CPU / C program`.
    pub fn name(&self) -> String {
        let of = format!("{} {}", self.case, self.operation);
        let by = match &self.by {
            By::Reference => " / reference".to_owned(),
            By::Floor => " / C program".to_owned(),
            By::Ours(case) => format!(" / {case}"),
            By::Nothing => String::new(),
        };
        format!("{}: {}{by}", of.trim_end(), self.cost.name())
    }
}

/// How often a group is measured again in which a limit is exceeded. Its samples are added to the
/// earlier ones, so load that ends does not fail a run, and a regression does.
pub const REPEATS: usize = 2;

/// Whether a limit of this group is exceeded.
pub fn exceeds(judged: &[Budget], group: &str) -> bool {
    let of_group = |(limit, budget): (Limit, &Budget)| limit.group == group && budget.missed();
    limits().into_iter().zip(judged).any(of_group)
}

/// A line for each limit that is exceeded.
pub fn excesses(judged: &[Budget]) -> Vec<String> {
    let excess = |(limit, budget): (Limit, &Budget)| {
        let measured = budget.measured.filter(|_| budget.missed())?;
        let Limit { usual, most, .. } = limit;
        Some(format!("{}: {measured:.2}, usually {usual:.2}, at most {most:.2}", budget.name))
    };
    limits().into_iter().zip(judged).filter_map(excess).collect()
}

/// How many limits a run has passed. Those of groups that the machine cannot run are skipped; any
/// other one without a figure has failed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Outcome {
    /// Of what [`judge`] returned.
    pub fn of(judged: &[Budget], left_out: &[&str]) -> Outcome {
        let mut outcome = Outcome::default();
        for (limit, budget) in limits().iter().zip(judged) {
            match budget.measured {
                None if left_out.contains(&limit.group) => outcome.skipped += 1,
                Some(_) if !budget.missed() => outcome.passed += 1,
                _ => outcome.failed += 1,
            }
        }
        outcome
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Outcome { passed, failed, skipped } = self;
        write!(f, "guard: {passed} passed, {failed} failed, {skipped} skipped")
    }
}
