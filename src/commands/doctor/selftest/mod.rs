//! `doctor --selftest`: whether this kernel can carry every plugin.
//!
//! Everything happens in namespaces of the command's own ([`private`]), so nothing of it reaches
//! the machine. [`world`] is the host in there, with containers and a machine outside; [`traffic`]
//! is packets, [`snapshot`] compares what was before with what is after, [`need`] is what a kernel
//! may lack, [`report`] prints. Each other module is a chapter of what is tried.

mod plugins;
mod pods;
mod report;
mod snapshot;
mod traffic;
mod world;

use std::io::Write;

use self::pods::NEEDS;
use self::report::Report;
use self::world::World;
use super::examination::text_of;
use super::need::{self, Need};
use crate::cni::env::Environment;
use crate::error::{Code, Error, Result, warn};
use crate::net::private;
use crate::sys::process::{Child, Ended};
use crate::terminal::style::Style;

/// What is tried, in order: the title of a chapter, what is missing where the kernel lacks a need, and
/// the chapter. An error ends it.
const CHAPTERS: [(&str, &str, &[Need], Chapter); 7] = [
    ("Two containers on a bridge", "bridge, portmap, firewall", &NEEDS, pods::two_containers),
    ("A published port", "portmap", &NEEDS, pods::published_port),
    ("A rate limit", "bandwidth", &pods::NEEDS_OF_LIMIT, pods::rate_limit),
    ("An ADD that fails", "a failed ADD", &NEEDS, pods::failed_add),
    ("kill -9 in the middle of an ADD", "a killed ADD", &NEEDS, pods::killed_add),
    ("DEL", "DEL", &NEEDS, pods::detach_both),
    ("Every plugin: ADD, CHECK, packets, DEL, nothing left", "", &[], plugins::every_plugin),
];

type Chapter = fn(&World<'_>, &mut Report<'_>) -> Result<()>;

/// The note where /proc could not be mounted.
const HIDDEN_PROC: &str = "  – this container hides parts of /proc, so sysctls may be read-only\n";

/// Runs it all and prints the outcome; whether everything passed that this kernel has.
///
/// A child does the work. It is process 1 of its PID namespace, so the kernel kills all its
/// descendants when it ends.
pub fn run(env: &Environment, as_json: bool, stdout: &mut dyn Write) -> Result<bool> {
    private::enter()?;
    let child = Child::start(|| match inside(env, as_json, stdout) {
        Ok(passed) => u8::from(!passed),
        Err(error) => {
            warn(text_of(&error)); // no further check can be made
            1
        }
    })?;
    match child.wait()? {
        Ended::Exited(0) => Ok(true),
        Ended::Exited(1) => Ok(false),
        ended => Err(Error::new(Code::BUG, format!("the selftest did not end by itself: {ended}"))),
    }
}

/// The chapters, in the private namespaces.
fn inside(env: &Environment, as_json: bool, stdout: &mut dyn Write) -> Result<bool> {
    let sees_own_processes = private::show_own_processes();
    let style = if as_json { Style::PLAIN } else { Style::of_stdout(env) };
    let mut report = Report::begin(stdout, style, as_json)?;
    if !sees_own_processes {
        report.print(HIDDEN_PROC)?;
    }
    let world = World::make(env)?;
    for (title, claim, needs, chapter) in CHAPTERS {
        report.chapter(title)?;
        let lack = world.host.netlink().and_then(|host| need::lacking(needs, host));
        let ended = lack.and_then(|lack| match lack {
            Some(lack) => report.miss(claim, &lack),
            None => chapter(&world, &mut report),
        });
        report.end_chapter(ended)?;
    }
    report.finish()
}
