//! The same chain by this binary and by the reference plugins, where they are installed: as a
//! runtime runs it, a process for each plugin.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::networks::{self, BRIDGE};
use super::pods;
use super::report::{Outcome, Report, millis, text_of};
use super::world::{Container, Network, World};
use crate::cni::delegate;
use crate::commands::doctor::need;
use crate::error::{Error, Result};
use crate::runtime::chain::OnFailure;
use crate::sys::child::{Child, Ended};
use crate::sys::trace::{self, Trace};

/// Where the reference may be: of runtimes, of distributions, and what `install` has replaced.
const PLACES: [&str; 4] =
    ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni", "/opt/cni/bin/.cni-multi/replaced"];
/// The programs of the chain.
const PROGRAMS: [&str; 6] = ["bridge", "host-local", "portmap", "firewall", "tuning", "bandwidth"];
/// Where links to this binary are.
const OWN: &str = "/run/cni-multi";
/// The exit status of a child that the kernel does not let its parent trace.
const NOT_TRACED: u8 = 2;
/// The columns of the table.
const NAME_WIDTH: usize = 24;
const WIDTH: usize = 16;

/// What one side needed.
#[derive(Clone, Copy, Debug)]
struct Costs {
    add: Duration,
    del: Duration,
    trace: Option<Trace>,
    disk: u64,
}

/// Prints both sides, if there is another.
pub fn side_by_side(world: &World<'_>, report: &mut Report<'_>) -> Result<()> {
    let variable = world.env.get("CNI_PATH");
    let places = variable.split(':').chain(PLACES).filter(|dir| dir.starts_with('/'));
    let Some(reference) = places.into_iter().find(|dir| is_reference(Path::new(dir))) else {
        return Ok(());
    };
    if need::lacking(&pods::NEEDS_OF_LIMIT, world.host.netlink()?)?.is_some() {
        return Ok(());
    }
    report.chapter("Side by side with the plugins that are installed here")?;
    link_own()?;
    let ours = costs(world, OWN)?;
    match costs(world, reference) {
        Ok(theirs) => compare(report, reference, ours, theirs),
        Err(error) => {
            report.print(&format!("  {reference} does not work here: {}\n", text_of(&error)))?;
            report.enter("reference plugins", Outcome::Missing(text_of(&error)));
            Ok(())
        }
    }
}

/// Whether the directory has every program, and none is this binary.
fn is_reference(dir: &Path) -> bool {
    PROGRAMS.iter().all(|name| {
        let program = dir.join(name);
        program.is_file() && !delegate::is_this_binary(&program)
    })
}

/// A link resolves when a child calls exec, and /proc/self/exe is this binary until then.
fn link_own() -> Result<()> {
    let link_all = || -> io::Result<()> {
        fs::create_dir(OWN)?;
        PROGRAMS.iter().try_for_each(|name| symlink("/proc/self/exe", Path::new(OWN).join(name)))
    };
    link_all().map_err(Error::at_path("link the plugins in", Path::new(OWN)))
}

/// Traces an ADD, which also reads the programs from the disk, and then times both operations.
fn costs(world: &World<'_>, dir: &str) -> Result<Costs> {
    let side = Side {
        world,
        dir,
        network: networks::chain()?,
        container: Container::make(container_name(dir))?,
    };
    let trace = side.trace()?;
    let [add, del] = side.time()?;
    world.host.netlink()?.delete_link_by_name(BRIDGE)?;
    Ok(Costs { add, del, trace, disk: disk(Path::new(dir)) })
}

/// The container of a side.
fn container_name(dir: &str) -> &'static str {
    if dir == OWN { "ours" } else { "theirs" }
}

/// A set of plugins, and what they attach.
struct Side<'a> {
    world: &'a World<'a>,
    dir: &'a str,
    network: Network,
    container: Container,
}

impl Side<'_> {
    /// The durations of ADD and DEL.
    fn time(&self) -> Result<[Duration; 2]> {
        let begin = Instant::now();
        self.add()?;
        let add = begin.elapsed();
        self.del()?;
        Ok([add, begin.elapsed() - add])
    }

    fn add(&self) -> Result<()> {
        let at = self.network.parameters(&self.container)?;
        let mut stderr = io::sink();
        let mut runtime = self.world.runtime_of(self.dir, &mut stderr);
        runtime.add(&self.network.list, &at, OnFailure::Undo).map(drop)
    }

    fn del(&self) -> Result<()> {
        let at = self.network.parameters(&self.container)?;
        self.world.runtime_of(self.dir, &mut io::sink()).del(&self.network.list, &at).map(drop)
    }

    /// What an ADD starts; None where tracing is forbidden.
    fn trace(&self) -> Result<Option<Trace>> {
        let traced = Child::start(|| match trace::begin_traced() {
            Ok(()) => u8::from(self.add().is_err()),
            Err(_) => NOT_TRACED,
        })?;
        let (trace, ended) = traced.trace()?;
        self.del()?;
        match ended {
            Ended::Exited(0) => Ok(Some(trace)),
            Ended::Exited(NOT_TRACED) => Ok(None),
            _ => Err(Error::check("the ADD failed while it was traced")),
        }
    }
}

/// The bytes of the programs, links to one file counted once.
fn disk(dir: &Path) -> u64 {
    let files = PROGRAMS.iter().filter_map(|name| fs::canonicalize(dir.join(name)).ok());
    let different: BTreeSet<PathBuf> = files.collect();
    different.iter().filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

fn compare(report: &mut Report<'_>, reference: &str, ours: Costs, theirs: Costs) -> Result<()> {
    let header = format!("  {:NAME_WIDTH$}{:>WIDTH$}  {reference}\n", "", "cni-multi");
    report.print(&report.style().faint(&header))?;
    for row in rows() {
        let [own, other] = [ours, theirs].map(row.show);
        report.print(&format!("  {:NAME_WIDTH$}{own:>WIDTH$}  {other}\n", row.name))?;
        report.enter(row.name, Outcome::Passed(format!("{own}, {reference} {other}")));
    }
    Ok(())
}

/// A figure of both sides.
struct Row {
    name: &'static str,
    show: fn(Costs) -> String,
}

fn rows() -> [Row; 5] {
    [
        Row { name: "ADD of five plugins", show: |costs| millis(costs.add) },
        Row { name: "DEL of five plugins", show: |costs| millis(costs.del) },
        Row {
            name: "processes of the ADD",
            show: |costs| traced(costs, |trace| trace.processes.to_string()),
        },
        Row {
            name: "most memory of one",
            show: |costs| traced(costs, |trace| megabytes(trace.peak_kib * 1024)),
        },
        Row { name: "programs on disk", show: |costs| megabytes(costs.disk) },
    ]
}

fn traced(costs: Costs, show: fn(Trace) -> String) -> String {
    let known = costs.trace.filter(|trace| trace.peak_kib > 0);
    known.map_or_else(|| "not known".to_owned(), show)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
