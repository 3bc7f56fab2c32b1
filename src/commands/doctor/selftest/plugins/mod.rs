//! Every plugin once: attached, checked by CHECK and by packets, detached without a trace.
//!
//! [`subjects`] has a line for each plugin; [`dhcp`] is the daemon and the server that one of them
//! needs, and [`ovs`] the database of another.

mod dhcp;
mod ovs;
mod subjects;

use std::time::Instant;

use self::subjects::{SUBJECTS, Subject};
use super::report::{Outcome, Report, millis};
use super::world::{Attached, Container, Network, World, addresses};
use crate::commands::doctor::examination::text_of;
use crate::commands::doctor::need::{self, Lack};
use crate::error::Result;

/// How many plugins a line has.
const COLUMNS: usize = 6;
/// The width of a plugin's name.
const WIDTH: usize = 14;

/// Tries every plugin. Each failure has a line below the table; all missing modules share one.
pub fn every_plugin(world: &World<'_>, report: &mut Report<'_>) -> Result<()> {
    let mut failed = vec![];
    let mut lacks = vec![];
    for (index, subject) in SUBJECTS.iter().enumerate() {
        let lack = need::lacking(subject.needs, world.host.netlink()?)?;
        let begin = Instant::now();
        let outcome = match &lack {
            Some(lack) => Outcome::Missing(lack.to_string()),
            None => match attempt(world, subject) {
                Ok(()) => Outcome::Passed(millis(begin.elapsed())),
                Err(error) => Outcome::Failed(text_of(&error)),
            },
        };
        report.print(&cell(report, subject, &outcome, index))?;
        if let Outcome::Failed(_) = &outcome {
            failed.push(report.line(subject.plugin, &outcome));
        }
        report.enter(subject.plugin, outcome);
        lacks.extend(lack);
    }
    report.print("\n")?;
    failed.iter().try_for_each(|line| report.print(line))?;
    report.print(&note_of(&lacks, report))
}

/// A line for all modules that are missing, and one for each device.
fn note_of(lacks: &[Lack], report: &Report<'_>) -> String {
    let mut modules = vec![];
    let mut lines = vec![];
    for lack in lacks {
        match lack {
            Lack::Module(name) if modules.contains(name) => (),
            Lack::Module(name) => modules.push(name.clone()),
            Lack::Device(_) | Lack::Program(_) => lines.push(lack.to_string()),
        }
    }
    if !modules.is_empty() {
        lines.insert(0, format!("not in this kernel, nor a module of it: {}", modules.join(", ")));
    }
    let warn = |line: &String| format!("  {}\n", report.style().warning(&format!("– {line}")));
    lines.iter().map(warn).collect()
}

/// A mark and the name, padded; the last one of a line ends it.
fn cell(report: &Report<'_>, subject: &Subject, outcome: &Outcome, index: usize) -> String {
    let style = report.style();
    let mark = match outcome {
        Outcome::Passed(_) => style.good("✓"),
        Outcome::Failed(_) => style.bad("✗"),
        Outcome::Missing(_) => style.warning("–"),
    };
    let (begin, end) = match index % COLUMNS {
        0 => ("  ", ""),
        last if last == COLUMNS - 1 && index + 1 < SUBJECTS.len() => ("", "\n"),
        _ => ("", ""),
    };
    format!("{begin}{mark} {:WIDTH$}{end}", subject.plugin)
}

/// One life of an attachment. What was prepared for it is removed even after a failure, or the next
/// plugin would meet it.
fn attempt(world: &World<'_>, subject: &Subject) -> Result<()> {
    let container = (subject.container)(subject.plugin)?;
    let before = world.snapshot(&[&container])?;
    let lived = (subject.prepare)(world).and_then(|running| {
        let lived = live(world, subject, &container);
        drop(running);
        lived
    });
    let cleaned = (subject.clean_up)(world);
    lived.and(cleaned)?;
    before.require_same(&world.snapshot(&[&container])?)
}

/// ADD, CHECK, packets, DEL.
fn live(world: &World<'_>, subject: &Subject, container: &Container) -> Result<()> {
    let network = Network::new(subject.plugin, subject.network)?;
    let network = network.with_capabilities(subject.capabilities)?;
    let addresses = addresses(&world.add(&network, container)?)?;
    let checked = world.check(&network, container);
    let probed = (subject.probe)(&Attached { world, container, addresses });
    let deleted = world.del(&network, container);
    checked.and(probed).and(deleted)
}
