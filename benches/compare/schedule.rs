//! Runs the lanes of a group in alternation and records their cost.
//!
//! A lane is one case on one side. The lanes of a group alternate within every run, so other load
//! on the machine affects them alike, and the ratio of their medians stays valid when the absolute
//! times are not.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::Result;
use crate::guard::{Cost, Figures};
use crate::host_state::Left;
use crate::instructions::Counter;
use crate::kill::{self, Ended};
use crate::names::Side;
use crate::namespaces::Netns;
use crate::process::{Invocation, Prepared, Sample, wait};
use crate::trace;
use crate::tracer::Trace;
use crate::turns::{self, Spent, Turn};

/// What one lane does in one run. It must restore the previous state.
pub type Act = Box<dyn FnMut(&mut Round) -> Result<()>>;

/// One case on one side.
pub struct Lane {
    pub case: String,
    pub side: Side,
    /// The host's network namespace: each lane has its own, so the sides do not see each other's
    /// rules.
    pub host: Netns,
    pub runs: usize,
    pub warmups: usize,
    /// Whether to run it once more under trace, and once to count instructions.
    pub examined: bool,
    /// Whether to run it once more under ptrace, to count the octets of its sockets.
    pub counts_octets: bool,
    pub act: Act,
}

impl Lane {
    pub fn new(case: impl Into<String>, side: Side, host: Netns, runs: usize, act: Act) -> Lane {
        Lane {
            case: case.into(),
            side,
            host,
            runs,
            warmups: 3,
            examined: true,
            counts_octets: false,
            act,
        }
    }

    /// For acts that take seconds.
    pub fn slow(self, runs: usize) -> Lane {
        let runs = runs.min(self.runs);
        Lane { runs, warmups: 1, ..self }
    }

    /// For acts so short that one interruption outweighs them, and so cheap that many runs cost
    /// little.
    pub fn short(self) -> Lane {
        Lane { runs: self.runs * 5, ..self }
    }

    /// Counts the octets that the act's processes send and receive, too.
    pub fn counting_octets(self) -> Lane {
        Lane { counts_octets: true, ..self }
    }

    /// For acts where only the time matters.
    pub fn only_timed(self) -> Lane {
        Lane { warmups: 0, examined: false, ..self }
    }

    fn round(&mut self, number: usize, mode: Mode, book: &mut Book) -> Result<()> {
        self.host.enter()?;
        let mut round = Round { number, mode, sums: BTreeMap::new() };
        (self.act)(&mut round).map_err(|e| format!("{} ({}): {e}", self.case, self.side.name()))?;
        book.enter(&self.case, self.side, round.sums);
        Ok(())
    }
}

/// The purpose of a round.
#[derive(Clone, Copy)]
enum Mode {
    Warmup,
    Timed,
    Traced,
    Octets,
    Counted(Counter),
}

/// The cost of one operation in one round; the processes of a chain are added up.
#[derive(Default)]
struct Sum {
    sample: Option<Sample>,
    trace: Option<Trace>,
    instructions: Option<u64>,
    octets: Option<u64>,
    requests: u64,
    failures: usize,
    left: Option<Left>,
    members: Vec<Duration>,
    memory: Option<f64>,
}

impl Sum {
    /// Whether there is anything to record: a warm-up leaves nothing.
    fn says_something(&self) -> bool {
        self.sample.is_some()
            || self.trace.is_some()
            || self.instructions.is_some()
            || self.octets.is_some()
            || self.left.is_some()
            || !self.members.is_empty()
            || self.memory.is_some()
    }
}

/// One run of one lane; the lane makes its calls through it.
pub struct Round {
    /// Unique within the lane.
    pub number: usize,
    mode: Mode,
    sums: BTreeMap<&'static str, Sum>,
}

impl Round {
    /// Makes the call and records its cost under the operation's name. An error if it fails.
    pub fn timed(&mut self, operation: &'static str, invocation: &Invocation) -> Result<String> {
        let sum = self.sums.entry(operation).or_default();
        match self.mode {
            Mode::Warmup => once(invocation),
            Mode::Timed => {
                let (sample, stdout) = Prepared::new(invocation, 0)?.run()?;
                *sum.sample.get_or_insert_default() += sample;
                Ok(stdout)
            }
            Mode::Traced => {
                let (trace, stdout) = trace::run(invocation)?;
                *sum.trace.get_or_insert_default() += trace;
                Ok(stdout)
            }
            Mode::Octets => match kill::run(invocation, None)? {
                Ended::Whole { octets, stdout, .. } => {
                    *sum.octets.get_or_insert_default() += octets;
                    Ok(stdout)
                }
                Ended::Killed => Err("a call was killed".to_owned()),
            },
            Mode::Counted(counter) => {
                let (count, stdout) = counter.run(invocation)?;
                if let Some(count) = count {
                    *sum.instructions.get_or_insert_default() += count;
                }
                Ok(stdout)
            }
        }
    }

    /// Runs a function in this process and records its time under the operation's name.
    pub fn timed_here(
        &mut self,
        operation: &'static str,
        act: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let started = Instant::now();
        act()?;
        if let Mode::Timed = self.mode {
            let sample = Sample { wall: started.elapsed(), ..Sample::default() };
            self.sums.entry(operation).or_default().sample = Some(sample);
        }
        Ok(())
    }

    /// Records what an operation has left on the host.
    pub fn left(&mut self, operation: &'static str, left: Left) {
        self.sums.entry(operation).or_default().left = Some(left);
    }

    /// Records what of the kernel's memory a container takes, in KiB.
    pub fn takes_memory(&mut self, operation: &'static str, kib: f64) {
        self.sums.entry(operation).or_default().memory = Some(kib);
    }

    /// Makes the call without recording it.
    pub fn untimed(&mut self, invocation: &Invocation) -> Result<String> {
        once(invocation)
    }

    /// Does `work` for each member, `width` at a time, and records the whole as one sample and the
    /// time of each member. A failure is recorded and is not an error.
    pub fn crowd_of(
        &mut self,
        operation: &'static str,
        size: [usize; 2],
        work: impl Fn(Turn) -> Result<Spent> + Sync,
    ) {
        let crowd = turns::take(size, work);
        let sum = self.sums.entry(operation).or_default();
        let mut spent = Spent::default();
        for (took, outcome) in crowd.members {
            sum.members.push(took);
            match outcome {
                Ok(its) => spent += its,
                Err(error) => {
                    eprintln!("a member of the crowd failed: {error}");
                    sum.failures += 1;
                }
            }
        }
        sum.sample = Some(Sample { wall: crowd.wall, cpu: spent.cpu, ..Sample::default() });
        sum.requests += spent.requests;
    }

    /// Makes all the calls, `width` at a time, and records the whole as one sample. A failure is
    /// recorded and is not an error: the crowd exists to count failures. Returns true for each call
    /// that succeeded.
    pub fn crowd(
        &mut self,
        operation: &'static str,
        calls: &[Invocation],
        width: usize,
    ) -> Result<Vec<bool>> {
        let prepared = calls
            .iter()
            .enumerate()
            .map(|(slot, call)| Prepared::new(call, slot))
            .collect::<Result<Vec<_>>>()?;
        let mut succeeded = vec![false; calls.len()];
        let mut running = BTreeMap::new();
        let mut cpu = Duration::ZERO;
        let started = Instant::now();
        for (slot, call) in prepared.iter().enumerate() {
            if running.len() == width {
                cpu += reap(&mut running, &mut succeeded)?;
            }
            running.insert(call.spawn()?, slot);
        }
        while !running.is_empty() {
            cpu += reap(&mut running, &mut succeeded)?;
        }
        let sample = Sample { wall: started.elapsed(), cpu, ..Sample::default() };
        let failed = prepared.iter().zip(&succeeded).filter(|(_, succeeded)| !**succeeded);
        let errors: Vec<String> = failed.filter_map(|(call, _)| call.output(false).err()).collect();
        if let Some(error) = errors.first() {
            eprintln!("{} of {} calls failed, the first: {error}", errors.len(), calls.len());
        }
        let sum = self.sums.entry(operation).or_default();
        sum.sample = Some(sample);
        sum.failures += errors.len();
        Ok(succeeded)
    }
}

fn once(invocation: &Invocation) -> Result<String> {
    Prepared::new(invocation, 0)?.run().map(|(_, stdout)| stdout)
}

fn reap(running: &mut BTreeMap<libc::pid_t, usize>, succeeded: &mut [bool]) -> Result<Duration> {
    let ended = wait(-1)?;
    if let Some(slot) = running.remove(&ended.pid) {
        succeeded[slot] = ended.success;
    }
    Ok(ended.cpu)
}

/// All measurements of one operation of one case on one side.
#[derive(Default)]
pub struct Measured {
    pub samples: Vec<Sample>,
    pub trace: Option<Trace>,
    pub instructions: Option<u64>,
    /// The octets that the operation's processes have sent and received over sockets.
    pub octets: Option<u64>,
    /// The requests to nf_tables that the members of a crowd have sent, where they tell.
    pub requests: u64,
    pub failures: usize,
    /// What the operation has left on the host, where that is counted.
    pub left: Option<Left>,
    /// How long each member of a crowd took.
    pub members: Vec<Duration>,
    /// KiB of the kernel's memory for a container, of each run.
    pub memory: Vec<f64>,
}

impl Measured {
    /// Wall time in microseconds; `portion` 0.5 is the median.
    pub fn wall(&self, portion: f64) -> Option<f64> {
        percentile(
            self.samples.iter().map(|sample| sample.wall.as_secs_f64() * 1e6).collect(),
            portion,
        )
    }

    /// Wall time of a member of a crowd in microseconds.
    pub fn of_member(&self, portion: f64) -> Option<f64> {
        percentile(self.members.iter().map(|took| took.as_secs_f64() * 1e6).collect(), portion)
    }

    /// KiB of the kernel's memory for a container; the median of the runs.
    pub fn memory(&self) -> Option<f64> {
        percentile(self.memory.clone(), 0.5)
    }

    /// CPU time in microseconds, including children.
    pub fn cpu(&self, portion: f64) -> Option<f64> {
        percentile(
            self.samples.iter().map(|sample| sample.cpu.as_secs_f64() * 1e6).collect(),
            portion,
        )
    }

    /// The median of the page faults, including children; None where no process was measured.
    #[allow(clippy::cast_precision_loss)] // thousands
    pub fn faults(&self) -> Option<f64> {
        let faults = self.samples.iter().map(|sample| sample.faults as f64).collect();
        percentile(faults, 0.5).filter(|&faults| faults > 0.0)
    }
}

fn percentile(mut values: Vec<f64>, portion: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)]
    let at = (values.len().saturating_sub(1) as f64 * portion).round() as usize;
    values.get(at).copied()
}

/// A row of the report: case and operation.
pub type Row = (String, &'static str);

/// All measurements; rows are in the order of their first measurement.
#[derive(Default)]
pub struct Book {
    pub rows: Vec<Row>,
    cells: BTreeMap<(Row, Side), Measured>,
}

impl Book {
    pub fn get(&self, case: &str, operation: &'static str, side: Side) -> Option<&Measured> {
        self.cells.get(&((case.to_owned(), operation), side))
    }

    /// The figures of ours, the reference and the floor, where measured.
    pub fn sides(&self, (case, operation): &Row) -> [Option<&Measured>; 3] {
        [Side::Ours, Side::Reference, Side::Floor].map(|side| self.get(case, operation, side))
    }

    /// All measurements of one side.
    pub fn of(&self, side: Side) -> impl Iterator<Item = (&Row, &Measured)> {
        self.cells
            .iter()
            .filter(move |((_, of), _)| *of == side)
            .map(|((row, _), measured)| (row, measured))
    }

    fn enter(&mut self, case: &str, side: Side, sums: BTreeMap<&'static str, Sum>) {
        for (operation, sum) in sums.into_iter().filter(|(_, sum)| sum.says_something()) {
            let row = (case.to_owned(), operation);
            if !self.rows.contains(&row) {
                self.rows.push(row.clone());
            }
            let cell = self.cells.entry((row, side)).or_default();
            cell.samples.extend(sum.sample);
            cell.trace = cell.trace.or(sum.trace);
            cell.instructions = cell.instructions.or(sum.instructions);
            cell.octets = cell.octets.or(sum.octets);
            cell.requests += sum.requests;
            cell.failures += sum.failures;
            cell.left = cell.left.take().or(sum.left);
            cell.members.extend(sum.members);
            cell.memory.extend(sum.memory);
        }
    }
}

impl Figures for Book {
    #[allow(clippy::cast_precision_loss)] // thousands
    fn figure(&self, side: Side, case: &str, operation: &'static str, cost: Cost) -> Option<f64> {
        let measured = self.get(case, operation, side)?;
        match cost {
            Cost::Cpu => measured.cpu(0.1),
            Cost::Wall => measured.wall(0.1),
            Cost::Faults => measured.faults(),
            Cost::Octets => measured.octets.map(|octets| octets as f64),
            Cost::Processes => measured.trace.map(|trace| f64::from(trace.processes)),
        }
    }
}

/// Runs the warm-ups, the timed runs in alternation, then one examined run of each lane. Returns
/// the failures.
pub fn run(lanes: Vec<Lane>, counter: Option<Counter>, book: &mut Book) -> Vec<String> {
    let mut schedule = Schedule {
        lanes: lanes.into_iter().map(Some).collect(),
        number: 0,
        book,
        failures: vec![],
    };
    schedule.warm_up();
    schedule.measure();
    schedule.examine(counter);
    schedule.failures
}

struct Schedule<'a> {
    /// `None` for a lane with a failed call: its further figures would mean nothing.
    lanes: Vec<Option<Lane>>,
    number: usize,
    book: &'a mut Book,
    failures: Vec<String>,
}

impl Schedule<'_> {
    fn warm_up(&mut self) {
        for at in 0..self.lanes.len() {
            for _ in 0..self.lanes[at].as_ref().map_or(0, |lane| lane.warmups) {
                self.round(at, Mode::Warmup);
            }
        }
    }

    fn measure(&mut self) {
        let most = self.lanes.iter().flatten().map(|lane| lane.runs).max().unwrap_or(0);
        for run in 0..most {
            for at in order(run, self.lanes.len()) {
                // A lane with fewer runs than the others spreads them over the whole time.
                let stride = self.lanes[at].as_ref().map_or(1, |lane| most / lane.runs.max(1));
                if run % stride.max(1) == 0 {
                    self.round(at, Mode::Timed);
                }
            }
        }
    }

    fn examine(&mut self, counter: Option<Counter>) {
        for at in 0..self.lanes.len() {
            let Some(lane) = self.lanes[at].as_ref().filter(|lane| lane.examined) else { continue };
            let counter = counter.filter(|counter| counter.can_run(lane.side));
            let counts_octets = lane.counts_octets;
            self.round(at, Mode::Traced);
            if counts_octets {
                self.round(at, Mode::Octets);
            }
            if let Some(counter) = counter {
                self.count_instructions(at, counter);
            }
        }
    }

    /// Counts instructions once. The tool may fail on a call that works, as the earlier rounds have
    /// shown: that is not a failure of the benchmark.
    fn count_instructions(&mut self, at: usize, counter: Counter) {
        self.number += 1;
        let Some(lane) = self.lanes[at].as_mut() else { return };
        if let Err(e) = lane.round(self.number, Mode::Counted(counter), self.book) {
            eprintln!("note: instructions are not counted: {e}");
        }
    }

    fn round(&mut self, at: usize, mode: Mode) {
        self.number += 1;
        let Some(lane) = self.lanes[at].as_mut() else { return };
        if let Err(e) = lane.round(self.number, mode, self.book) {
            self.failures.push(e);
            self.lanes[at] = None;
        }
    }
}

/// Each run starts with another lane and alternates the direction, so that no lane always follows
/// the same one.
fn order(run: usize, lanes: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lanes).map(|at| (at + run / 2) % lanes).collect();
    if run % 2 == 1 {
        order.reverse();
    }
    order
}
