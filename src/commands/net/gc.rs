//! `net gc`: detaches what has no namespace any more, in one network or in all.

use std::io::Write;

use super::network;
use super::operator::Operator;
use super::progress::Progress;
use super::table::{self, Members, put_text};
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::error::{ErrorList, Result};
use crate::plugin::Entry;
use crate::runner::Streams;
use crate::runtime::directory;
use crate::runtime::gc::{Extent, Step};

/// Does all it can and tells every failure at the end.
pub fn run(operator: &Operator<'_>, plugins: &'static [Entry], io: &mut Streams<'_>) -> Result<()> {
    let (dir, wanted) = (operator.conf_dir(), operator.network()?);
    let mut errors = ErrorList::default();
    let extent = if operator.matches.get_flag("dry-run") { Extent::Look } else { Extent::Detach };
    let mut report = Report {
        stdout: io.stdout,
        as_json: operator.wants_json(),
        verb: if extent == Extent::Look { "would detach" } else { "detached" },
        progress: Progress::new(),
        attachments: vec![],
        written: Ok(()),
    };
    let mut runtime = operator.runtime(plugins, io.stderr)?;
    if let Some(name) = &wanted {
        let list = network::find(&dir, name.as_str())?;
        errors.push(runtime.gc_dead(&list, extent, &mut |step| report.step(step)));
    } else {
        // A file that cannot be read keeps nobody from those behind it.
        let mut known: Vec<NetworkName> = vec![];
        let mut is_all_known = true;
        for file in directory::files(&dir)? {
            let Some(list) = errors.push(directory::load(&file)) else {
                is_all_known = false;
                continue;
            };
            let name = NetworkName::parse(&list.name)
                .map_err(|error| error.with_details(format_args!("the file is {}", file.display())));
            let Some(name) = errors.push(name).filter(|name| !known.contains(name)) else {
                continue;
            };
            known.push(name);
            errors.push(runtime.gc_dead(&list, extent, &mut |step| report.step(step)));
        }
        if is_all_known {
            errors.push(runtime.gc_forgotten(&known, &dir, extent, &mut |step| report.step(step)));
        } else {
            // Somebody may be writing that very file, and what is in it may be other than it was at ADD.
            let _ =
                writeln!(runtime.stderr, "networks without a configuration are left alone, as a file cannot be read");
        }
    }
    errors.push(report.finish());
    errors.finish()
}

/// Tells of each attachment as it goes; JSON is told at the end.
struct Report<'a> {
    stdout: &'a mut dyn Write,
    as_json: bool,
    verb: &'static str,
    progress: Progress,
    attachments: Vec<Value>,
    /// A reader that has gone keeps nothing from being detached.
    written: Result<()>,
}

impl Report<'_> {
    fn step(&mut self, step: &Step<'_>) {
        let key = &step.at.key;
        let (network, id, ifname) = (key.network.as_str(), key.container_id.as_str(), key.ifname.as_str());
        if step.succeeded {
            let mut members = Members::new();
            let told = [("network", network), ("containerId", id), ("ifname", ifname), ("netns", &step.at.netns)];
            told.iter().for_each(|(name, text)| put_text(&mut members, name, text));
            self.attachments.push(Value::Object(members));
            if !self.as_json {
                self.print(&format!("{} {network} {id} {ifname}\n", self.verb));
            }
        }
        self.progress.tell(&format!("{network}: {}/{}", step.number, step.of));
    }

    fn print(&mut self, text: &str) {
        self.progress.clear();
        if self.written.is_ok() {
            self.written = table::print(self.stdout, text);
        }
    }

    fn finish(mut self) -> Result<()> {
        let attachments = std::mem::take(&mut self.attachments);
        let done = format!("{} {}", self.verb, attachments.len());
        if self.as_json {
            self.print(&table::json(&Value::Array(attachments)));
        }
        self.progress.finish(&done);
        self.written
    }
}
