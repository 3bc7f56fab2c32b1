//! Counts user instructions: a figure without noise.

use std::path::PathBuf;

use crate::Result;
use crate::names::Side;
use crate::namespaces::SCRATCH;
use crate::process::{Invocation, Prepared, find_program};

/// The tool that counts instructions.
#[derive(Clone, Copy, Debug)]
pub enum Counter {
    Perf,
    Valgrind,
}

impl Counter {
    /// perf if the machine has hardware counters (many virtual machines have none), otherwise
    /// valgrind.
    pub fn find() -> Option<Counter> {
        let truth = Invocation::new(find_program("true")?);
        [Counter::Perf, Counter::Valgrind]
            .into_iter()
            .find(|counter| matches!(counter.run(&truth), Ok((Some(_), _))))
    }

    /// valgrind cannot run Go programs, and the reference is one.
    pub fn can_run(self, side: Side) -> bool {
        matches!(self, Counter::Perf) || side != Side::Reference
    }

    /// Runs the call under the tool; returns the count, if any, and the call's stdout.
    pub fn run(self, invocation: &Invocation) -> Result<(Option<u64>, String)> {
        let wrapper = self.wrapper().ok_or("the tool that counts is not installed")?;
        let file = self.file();
        let _ = std::fs::remove_file(&file); // from the previous call
        let (_, stdout) = Prepared::new(&invocation.under(&wrapper), 0)?.run()?;
        Ok((self.parse(&std::fs::read_to_string(&file).unwrap_or_default()), stdout))
    }

    fn file(self) -> PathBuf {
        PathBuf::from(format!("{SCRATCH}/instructions"))
    }

    fn wrapper(self) -> Option<Vec<String>> {
        let file = self.file().to_string_lossy().into_owned();
        let (program, args) = match self {
            Counter::Perf => (
                "perf",
                vec![
                    "stat".to_owned(),
                    "-x,".to_owned(),
                    "-einstructions:u".to_owned(),
                    format!("-o{file}"),
                    "--".to_owned(),
                ],
            ),
            Counter::Valgrind => (
                "valgrind",
                vec![
                    "--tool=callgrind".to_owned(),
                    "--callgrind-out-file=/dev/null".to_owned(),
                    "--trace-children=yes".to_owned(),
                    format!("--log-file={file}"),
                ],
            ),
        };
        let program = find_program(program)?.to_string_lossy().into_owned();
        Some(std::iter::once(program).chain(args).collect())
    }

    fn parse(self, text: &str) -> Option<u64> {
        match self {
            Counter::Perf => text
                .lines()
                .find(|line| line.contains("instructions"))?
                .split(',')
                .next()?
                .parse()
                .ok(),
            Counter::Valgrind => {
                let counts = text.lines().filter_map(|line| {
                    line.split_once("Collected :")?.1.trim().parse::<u64>().ok()
                });
                counts.reduce(|a, b| a + b)
            }
        }
    }
}
