//! Times our plugins and a reference directory side by side, in one run, and judges the budgets.
//!
//! `cargo bench --bench compare -- --help` lists the options; docs/performance.md says how to read
//! the result.

#![allow(clippy::print_stdout)] // the user reads stdout
#![allow(clippy::disallowed_methods)] // namespaces.rs enters them on threads that end, as net::netns does

mod budget;
mod budgets;
mod call;
mod cases;
mod connections;
mod crowds;
mod density;
mod floor;
mod groups;
mod guard;
mod host_state;
mod instructions;
mod kill;
mod leaks;
mod memory;
mod names;
mod namespaces;
mod netavark;
mod options;
mod packets;
mod pages;
mod ports;
mod process;
mod report;
mod schedule;
mod size;
mod summary;
mod tables;
mod trace;
mod tracer;
mod turns;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use call::Plugins;
use cases::Bench;
use groups::{GROUPS, Group};
use instructions::Counter;
use names::Side;
use options::Options;
use report::{LeftOut, Report};
use schedule::Book;

/// Errors are for the user: what was attempted and why it failed.
type Result<T> = std::result::Result<T, String>;

/// The exit status if a case failed: the budgets cannot be judged.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| run(&options)) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("compare: {e}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    if options.help {
        println!("{}", options::USAGE);
        return Ok(ExitCode::SUCCESS);
    }
    if options.list {
        GROUPS.iter().for_each(|group| println!("{}", group.name));
        return Ok(ExitCode::SUCCESS);
    }
    refuse_unknown_groups(options)?;
    pages::check(options)?;
    namespaces::ensure_private()?;
    let sides = both_sides(options)?;
    if options.guard && sides.len() < 2 {
        return Err("the guard compares with the reference plugins".to_owned());
    }
    let bench =
        Bench { plugins: sides, runs: options.runs(), quick: options.quick || options.guard };
    let mut book = Book::default();
    let mut measured = measure(options, &bench, &mut book, |group| options.wants(group));
    for _ in 0..if options.guard { guard::REPEATS } else { 0 } {
        let judged = guard::judge(&book);
        namespaces::forget_attachments();
        let again = measure(options, &bench, &mut book, |group| guard::exceeds(&judged, group));
        measured.failures.extend(again.failures);
    }
    let report = report(options, &bench, &book, measured.left_out);
    print!("{}", report.text());
    write_files(options, &bench, &report)?;
    if !measured.failures.is_empty() {
        return Err(format!(
            "{} of the cases failed:\n{}",
            measured.failures.len(),
            measured.failures.join("\n")
        ));
    }
    if options.guard {
        return Ok(conclude_guard(&report));
    }
    // A budget without a measurement counts as missed, unless the caller selected only some groups.
    let unmet = |budget: &budget::Budget| {
        budget.missed() || (budget.measured.is_none() && options.only.is_empty())
    };
    let missed = report.budgets.iter().any(unmet);
    Ok(if options.enforce && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Prints how many limits of the guard the run has passed.
fn conclude_guard(report: &Report) -> ExitCode {
    for LeftOut { group, lack } in &report.left_out {
        println!("SKIP guard of {group}: {lack}");
    }
    guard::excesses(&report.budgets).iter().for_each(|line| println!("{line}"));
    let left_out: Vec<&str> = report.left_out.iter().map(|left_out| left_out.group).collect();
    let outcome = guard::Outcome::of(&report.budgets, &left_out);
    println!("{outcome}");
    if outcome.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn refuse_unknown_groups(options: &Options) -> Result<()> {
    let unknown = options.only.iter().find(|name| GROUPS.iter().all(|group| group.name != **name));
    unknown.map_or(Ok(()), |name| Err(format!("--only {name}: no such group, see --list")))
}

/// The cases without figures.
#[derive(Default)]
struct Unmeasured {
    /// Why cases that ran have none.
    failures: Vec<String>,
    left_out: Vec<LeftOut>,
}

/// Runs the groups. A failed case does not stop the others.
fn measure(
    options: &Options,
    bench: &Bench,
    book: &mut Book,
    wants: impl Fn(&str) -> bool,
) -> Unmeasured {
    let counter = options.instructions.then(Counter::find).flatten();
    if options.instructions && counter.is_none() {
        eprintln!("note: neither perf with hardware counters nor valgrind: no instruction counts");
    }
    let mut unmeasured = Unmeasured::default();
    for group in GROUPS.iter().filter(|group| wants(group.name)) {
        let counter = counter.filter(|_| ["version", "bridge"].contains(&group.name));
        match groups::lacks(group) {
            Ok(None) => unmeasured.failures.extend(measure_group(group, bench, counter, book)),
            Ok(Some(lack)) => unmeasured.left_out.push(LeftOut { group: group.name, lack }),
            Err(e) => unmeasured.failures.push(format!("{}: {e}", group.name)),
        }
        // The kernel removes the group's namespaces in the background; the next group's figures
        // should not include that.
        std::thread::sleep(Duration::from_millis(500));
    }
    unmeasured
}

/// Runs one group and returns its failures.
fn measure_group(
    group: &Group,
    bench: &Bench,
    counter: Option<Counter>,
    book: &mut Book,
) -> Vec<String> {
    eprintln!("{} …", group.name);
    match (group.lanes)(bench) {
        Ok(lanes) => schedule::run(lanes, counter, book),
        Err(e) => vec![format!("{}: {e}", group.name)],
    }
}

/// Finds the plugins of both sides, ours first. A missing reference is a note, not an error: our
/// own figures are still useful.
fn both_sides(options: &Options) -> Result<Vec<Plugins>> {
    let ours = options.ours.clone().unwrap_or_else(|| env!("CARGO_BIN_EXE_cni-multi").into());
    let ours = if ours.is_dir() { ours } else { farm(&ours)? };
    let reference = options.reference.clone().or_else(installed_reference);
    if reference.is_none() {
        eprintln!("note: no reference plugins; name their directory with --reference");
    }
    let sides = [(Side::Ours, Some(ours)), (Side::Reference, reference)];
    let sides =
        sides.into_iter().filter_map(|(side, dir)| Some(Plugins { side, dir: dir?, path: None }));
    let sides: Vec<Plugins> = sides.collect();
    for plugins in &sides {
        if !plugins.dir.is_dir() {
            let hint = "a private /run and /var/lib hide what is below them";
            return Err(format!(
                "{}: {:?} is not a directory; {hint}",
                plugins.side.name(),
                plugins.dir
            ));
        }
    }
    Ok(sides)
}

fn installed_reference() -> Option<PathBuf> {
    let named = std::env::var_os("CNI_REFERENCE").map(PathBuf::from);
    named.or_else(|| Some("/usr/lib/cni".into())).filter(|dir| dir.join("bridge").exists())
}

/// Installs the binary as the installer does: a copy, and links to it under each plugin's name.
fn farm(binary: &Path) -> Result<PathBuf> {
    let binary = &copy(binary)?;
    let dir = PathBuf::from(format!("{}/ours", namespaces::SCRATCH));
    std::fs::create_dir_all(&dir).map_err(|e| format!("create {dir:?}: {e}"))?;
    let listed =
        Command::new(binary).arg("list").output().map_err(|e| format!("run {binary:?}: {e}"))?;
    for line in String::from_utf8_lossy(&listed.stdout).lines() {
        let name = line.split_whitespace().next().unwrap_or_default();
        std::os::unix::fs::symlink(binary, dir.join(name))
            .map_err(|e| format!("link {name:?}: {e}"))?;
    }
    Ok(dir)
}

/// A copy of the binary, on a disk and not below the private /run: the kernel maps a file that was
/// written in large pieces by more pages at a time than one in memory, or one that the linker wrote.
fn copy(binary: &Path) -> Result<PathBuf> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compare");
    std::fs::create_dir_all(&dir).map_err(|e| format!("create {dir:?}: {e}"))?;
    let copy = dir.join("cni-multi");
    let _ = std::fs::remove_file(&copy); // that of the run before; copying tells what is wrong
    std::fs::copy(binary, &copy).map_err(|e| format!("copy {binary:?} to {copy:?}: {e}"))?;
    Ok(copy)
}

fn report<'a>(
    options: &Options,
    bench: &Bench,
    book: &'a Book,
    left_out: Vec<LeftOut>,
) -> Report<'a> {
    let find = |side| bench.plugins.iter().find(|plugins| plugins.side == side);
    let (ours, reference) = (find(Side::Ours), find(Side::Reference));
    // The budget covers everything that we ship; the reference's size is compared for the names
    // that both have.
    let whole = ours.map(|ours| size::of(ours, None));
    let theirs = reference.map(|reference| size::of(reference, ours));
    let bytes = whole.as_ref().filter(|size| size.plugins > 0).map(|size| size.bytes);
    Report {
        machine: machine(),
        runs: bench.runs,
        ours: ours.map_or_else(String::new, about_line),
        reference: reference.map(about_line),
        left_out,
        book,
        densities: bench.densities(),
        budgets: if options.guard {
            guard::judge(book)
        } else {
            budgets::judge(bench, book, bytes)
        },
        sizes: [(Side::Ours, whole), (Side::Reference, theirs)]
            .into_iter()
            .filter_map(|(side, size)| Some((side, size?)))
            .collect(),
    }
}

fn machine() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The rest names a build.
    let kernel: Vec<&str> = kernel.trim().splitn(3, ['.', '-']).take(2).collect();
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!("Linux {}, {cpus} CPUs", kernel.join("."))
}

/// The plugins' about text and supported versions: distributions leave the version out of the text.
fn about_line(plugins: &Plugins) -> String {
    let output = Command::new(plugins.dir.join("bridge")).env_remove("CNI_COMMAND").output();
    let text = output
        .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
        .unwrap_or_default();
    text.lines().take(2).collect::<Vec<_>>().join("; ")
}

fn write_files(options: &Options, bench: &Bench, report: &Report) -> Result<()> {
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).map_err(|e| format!("write {path:?}: {e}"))
    };
    if let Some(path) = &options.json {
        write(path, format!("{:#}\n", report.json()))?;
    }
    match &options.markdown {
        Some(page) if pages::has_figures(page) => {
            pages::write_figures(page, options, bench, report)?;
        }
        Some(path) => write(path, report.markdown())?,
        None => {}
    }
    let readme = options.readme.as_ref();
    readme.map_or(Ok(()), |page| pages::write_summary(page, bench, report))
}
