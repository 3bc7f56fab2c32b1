//! The command line of the benchmark.

use std::path::PathBuf;

use crate::Result;
use crate::guard;

pub const USAGE: &str = "\
usage: cargo bench --bench compare -- [OPTION…]
  --ours DIR|FILE    plugins under test, or the binary that has them (default: the one cargo built)
  --reference DIR    plugins to compare with (default: $CNI_REFERENCE, then /usr/lib/cni)
  --only NAME…       only these groups (see --list)
  --runs N           timed runs of each case and side (default 60; five times that where a run takes 2 ms)
  --json FILE        write every figure as JSON
  --markdown FILE    write the tables as Markdown. In a page with marks, such as docs/performance.md, replace the
                     parts whose groups run, and write their whole tables as CSV into `evidence` beside it; a FILE
                     without marks must not exist yet
  --readme FILE      write the README's six figures between its marks
  --instructions     also count instructions (perf stat, else valgrind)
  --guard            few cases, and limits that a regression exceeds and noise does not: exit status 1 if one did
  --quick            smaller stores and crowds, and the budgets judged at those: a smoke test
  --enforce          exit with status 1 when a budget is missed or, without --only, not measured
  --list             print the names of the groups";

/// The options of the benchmark.
#[derive(Default)]
pub struct Options {
    pub ours: Option<PathBuf>,
    pub reference: Option<PathBuf>,
    pub only: Vec<String>,
    /// Timed runs of each case and side.
    pub runs: Option<usize>,
    pub json: Option<PathBuf>,
    pub markdown: Option<PathBuf>,
    pub readme: Option<PathBuf>,
    pub instructions: bool,
    pub guard: bool,
    pub quick: bool,
    pub enforce: bool,
    pub list: bool,
    pub help: bool,
}

impl Options {
    pub fn parse(args: impl Iterator<Item = String>) -> Result<Options> {
        let mut options = Options::default();
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--bench" => {} // cargo passes it to every benchmark
                "--ours" => options.ours = Some(existing(&value()?)?),
                "--reference" => options.reference = Some(existing(&value()?)?),
                "--runs" => options.runs = Some(positive(&value()?)?),
                "--json" => options.json = Some(value()?.into()),
                "--markdown" => options.markdown = Some(value()?.into()),
                "--readme" => options.readme = Some(value()?.into()),
                "--only" => {
                    options.only.push(value()?);
                    while let Some(name) = args.next_if(|next| !next.starts_with("--")) {
                        options.only.push(name);
                    }
                }
                "--instructions" => options.instructions = true,
                "--guard" => options.guard = true,
                "--quick" => options.quick = true,
                "--enforce" => options.enforce = true,
                "--list" => options.list = true,
                "--help" | "-h" => options.help = true,
                _ => return Err(format!("unknown option {arg:?}\n{USAGE}")),
            }
        }
        Ok(options)
    }

    /// Whether the options select this group.
    pub fn wants(&self, group: &str) -> bool {
        if self.only.is_empty() {
            !self.guard || guard::wants(group)
        } else {
            self.only.iter().any(|name| name == group)
        }
    }

    pub fn runs(&self) -> usize {
        self.runs.unwrap_or(if self.guard { 20 } else { 60 })
    }
}

fn positive(text: &str) -> Result<usize> {
    text.parse()
        .ok()
        .filter(|n| *n > 0)
        .ok_or_else(|| format!("--runs {text}: expected a number above 0"))
}

fn existing(text: &str) -> Result<PathBuf> {
    std::fs::canonicalize(text).map_err(|e| format!("open {text:?}: {e}"))
}
