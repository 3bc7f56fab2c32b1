//! `ipam import`: takes over the leases of another machine, all of them or none.

use std::io::Read;
use std::path::Path;

use super::Request;
use super::document::{self, Section};
use super::export::cannot_move;
use super::ip_pools;
use super::networks::{Host, Leased};
use crate::cni::attachment::NetworkName;
use crate::error::{Code, Error, Result};
use crate::plain_file::{LARGEST_CONFIGURATION, read_configuration};
use crate::plugin::leases::{Holding, Incoming, LeaseImporter};
use crate::terminal::progress::Progress;

/// How many times the command attempts an import.
const ATTEMPTS: usize = 3;

/// A network of the document, with what imports it.
struct Target {
    network: Leased,
    importer: &'static dyn LeaseImporter,
    leases: Vec<Holding>,
}

/// Imports; returns what is printed.
pub fn import(host: &Host<'_>, request: &Request, stdin: &mut dyn Read) -> Result<String> {
    let mut text = vec![];
    if request.file == "-" {
        let read = stdin.take(LARGEST_CONFIGURATION as u64).read_to_end(&mut text);
        read.map_err(|e| Error::io("read stdin", &e))?;
    } else {
        let path = Path::new(&request.file);
        text = read_configuration(path).map_err(Error::at_path("read", path))?;
    }
    let within = |e: Error| e.context(&request.file);
    let (sections, note) = if request.is_of_whereabouts {
        ip_pools::sections(host, &text, request.network.as_ref()).map_err(within)?
    } else {
        let sections = document::read(&text).map_err(within)?;
        (chosen(sections, request.network.as_ref())?, String::new())
    };
    let targets: Result<Vec<Target>> =
        sections.into_iter().map(|section| target(host, section)).collect();
    let targets = targets?;
    if request.is_dry_run {
        return Ok(dry_run(host, &targets)? + &note);
    }
    let progress = Progress::default();
    let imported = Import { host, progress: &progress }.whole(&targets);
    progress.clear();
    Ok(report("imported", &targets, &imported?) + &note)
}

/// What an import would do.
fn dry_run(host: &Host<'_>, targets: &[Target]) -> Result<String> {
    let mut previews = vec![];
    for target in targets {
        let preview = target.importer.preview(&target.network.context(host), &target.leases);
        previews.push(preview.map_err(|e| target.in_network(e))?);
    }
    let missing: Vec<usize> = previews.iter().map(|preview| preview.missing).collect();
    let notes = targets.iter().zip(&previews).flat_map(|(target, preview)| {
        preview.notes.iter().map(|note| format!("{}: {note}\n", target.network.network))
    });
    Ok(report("would import", targets, &missing) + &notes.collect::<String>())
}

/// The section of the named network, or all.
fn chosen(sections: Vec<Section>, wanted: Option<&NetworkName>) -> Result<Vec<Section>> {
    let Some(wanted) = wanted else { return Ok(sections) };
    let names: Vec<String> = sections.iter().map(|section| section.network.to_string()).collect();
    let chosen: Vec<Section> =
        sections.into_iter().filter(|section| section.network == *wanted).collect();
    if !chosen.is_empty() {
        return Ok(chosen);
    }
    let msg = format!("the document has no network {:?}", wanted.as_str());
    Err(Error::new(Code::INVALID_CONFIG, msg)
        .with_details(format_args!("it has: {}", names.join(", "))))
}

/// The network here that the section is for.
fn target(host: &Host<'_>, section: Section) -> Result<Target> {
    let Section { network, ipam, leases } = section;
    let here = host.leased(None)?.into_iter();
    let mut of_name = here.filter(|leased| leased.network == network);
    let Some(leased) = of_name.find(|leased| leased.ipam == ipam) else {
        let msg = format!("network {:?} with {ipam} is not configured here", network.as_str());
        let advice = format!("expected it in {}", host.conf_dir.display());
        return Err(Error::new(Code::INVALID_CONFIG, msg).with_details(advice));
    };
    let importer = leased.store.importer().ok_or_else(|| cannot_move(&leased))?;
    Ok(Target { network: leased, importer, leases })
}

impl Target {
    fn in_network(&self, error: Error) -> Error {
        error.context(format_args!("network {:?}", self.network.network.as_str()))
    }
}

/// An import that a person watches.
struct Import<'a> {
    host: &'a Host<'a>,
    progress: &'a Progress,
}

impl Import<'_> {
    /// Prepares every network and then writes the leases; returns how many leases of each network were
    /// missing. Retries if another node claims a block before its leases are written.
    fn whole(&self, targets: &[Target]) -> Result<Vec<usize>> {
        let mut attempt = 1;
        loop {
            targets.iter().try_for_each(|target| self.prepare(target))?;
            let mut missing = vec![];
            match self.all(targets, &mut missing) {
                Err(e) if e.code == Code::TRY_AGAIN && attempt < ATTEMPTS => attempt += 1,
                done => {
                    missing.reverse(); // the last network was done first
                    return done.map(|()| missing);
                }
            }
        }
    }

    fn prepare(&self, target: &Target) -> Result<()> {
        let name = &target.network.network;
        let tell = |done, all| self.progress.tell(&format!("{name}: claims {done}/{all}"));
        let incoming = Incoming { leases: &target.leases, tell: &tell };
        let prepared = target.importer.prepare(&target.network.context(self.host), &incoming);
        prepared.map_err(|e| target.in_network(e))
    }

    /// Imports the networks, each while the ones before it are locked and can still be undone.
    fn all(&self, targets: &[Target], missing: &mut Vec<usize>) -> Result<()> {
        let Some((first, rest)) = targets.split_first() else { return Ok(()) };
        let mut in_rest = false;
        let mut then = || {
            in_rest = true;
            self.all(rest, missing)
        };
        let name = &first.network.network;
        let tell = |done, all| self.progress.tell(&format!("{name}: {done}/{all}"));
        let cx = first.network.context(self.host);
        let incoming = Incoming { leases: &first.leases, tell: &tell };
        let imported = first.importer.import(&cx, &incoming, &mut then);
        let count = imported.map_err(|e| if in_rest { e } else { first.in_network(e) })?;
        missing.push(count);
        Ok(())
    }
}

/// A line for each network.
fn report(verb: &str, targets: &[Target], missing: &[usize]) -> String {
    let line = |(target, missing): (&Target, &usize)| {
        let there = target.leases.len() - missing;
        format!("{}: {verb} {missing}, already there {there}\n", target.network.network)
    };
    targets.iter().zip(missing).map(line).collect()
}
