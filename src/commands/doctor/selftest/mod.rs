//! `doctor --selftest`: whether this kernel can carry every plugin.
//!
//! Everything happens in namespaces of the command's own ([`private`]), so nothing of it reaches
//! the machine. [`world`] is the host in there, with containers and a machine outside; [`traffic`]
//! is packets, [`snapshot`] compares what was before with what is after, [`report`] prints. Each
//! other module is a chapter of what is tried.

mod crash;
mod networks;
mod plugins;
mod reference;
mod report;
mod snapshot;
mod traffic;
mod walk;
mod world;

use std::io::Write;

use self::report::Report;
use self::world::World;
use crate::cni::env::Environment;
use crate::error::{Code, Error, Result};
use crate::net::private;
use crate::plugin::Entry;
use crate::sys::child::{Child, Ended};
use crate::terminal::style::Style;

/// What is tried, in order. An error ends its chapter.
const CHAPTERS: [fn(&World<'_>, &mut Report<'_>) -> Result<()>; 8] = [
    walk::two_containers,
    walk::published_port,
    walk::rate_limit,
    crash::failed_add,
    crash::killed_add,
    walk::farewell,
    plugins::every_plugin,
    reference::side_by_side,
];

/// Runs it all and prints the outcome; whether everything passed that this kernel has.
///
/// A child does the work: as the first process of its PID namespace it takes every process that it
/// started along when it ends.
pub fn run(
    plugins: &'static [Entry],
    env: &Environment,
    as_json: bool,
    stdout: &mut dyn Write,
) -> Result<bool> {
    private::enter()?;
    let child = Child::start(|| match inside(plugins, env, as_json, stdout) {
        Ok(passed) => u8::from(!passed),
        Err(error) => report::give_up(&error),
    })?;
    match child.wait()? {
        Ended::Exited(0) => Ok(true),
        Ended::Exited(1) => Ok(false),
        ended => Err(Error::new(Code::BUG, format!("the selftest ended early: {ended:?}"))),
    }
}

/// The chapters, in the private namespaces.
fn inside(
    plugins: &'static [Entry],
    env: &Environment,
    as_json: bool,
    stdout: &mut dyn Write,
) -> Result<bool> {
    private::show_own_processes();
    let style = if as_json { Style::PLAIN } else { Style::of_stdout(env) };
    let mut report = Report::begin(stdout, style, as_json)?;
    let world = World::make(plugins, env)?;
    for chapter in CHAPTERS {
        let ended = chapter(&world, &mut report);
        report.survive(ended)?;
    }
    report.finish()
}
