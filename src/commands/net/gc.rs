//! `net gc`: detaches what has no namespace any more, in one network or in all.

use std::io::Write;
use std::path::Path;

use super::network;
use super::operator::Operator;
use super::progress::Progress;
use super::table;
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::error::{ErrorList, Result};
use crate::plugin::Entry;
use crate::runner::Streams;
use crate::runtime::chain::Runtime;
use crate::runtime::gc::Step;
use crate::runtime::list::{self, NetworkList};
use crate::runtime::parameters::Parameters;

/// Does all it can and tells every failure at the end.
pub fn run(operator: &Operator<'_>, plugins: &'static [Entry], io: &mut Streams<'_>) -> Result<()> {
    let mut errors = ErrorList::default();
    let wanted = operator.network()?;
    let networks = match &wanted {
        Some(name) => vec![network::find(&operator.conf_dir(), name.as_str())?],
        None => all(&operator.conf_dir(), &mut errors)?,
    };
    let known: Vec<NetworkName> = networks.iter().filter_map(|list| NetworkName::parse(&list.name).ok()).collect();
    let known = wanted.is_none().then_some(known.as_slice());
    let is_dry = operator.matches.get_flag("dry-run");
    let mut report = Report::new(io.stdout, operator.wants_json(), is_dry);
    let mut runtime = operator.runtime(plugins, io.stderr)?;
    let collect = if is_dry { look } else { detach };
    collect(&mut runtime, &networks, known, &mut report, &mut errors);
    report.finish(&mut errors);
    errors.finish()
}

/// Every network of the directory that its name leads to, and more: a file that cannot be read keeps nobody from those
/// behind it.
fn all(dir: &Path, errors: &mut ErrorList) -> Result<Vec<NetworkList>> {
    let mut networks: Vec<NetworkList> = vec![];
    for file in list::files(dir)? {
        if let Some(list) = errors.push(list::load(&file))
            && !networks.iter().any(|other| other.name == list.name)
        {
            networks.push(list);
        }
    }
    Ok(networks)
}

/// With `known`, the networks that have a configuration, those go too that have none any more.
fn detach(
    runtime: &mut Runtime<'_>,
    networks: &[NetworkList],
    known: Option<&[NetworkName]>,
    report: &mut Report<'_>,
    errors: &mut ErrorList,
) {
    for list in networks {
        errors.push(runtime.gc_dead(list, &mut |step| report.step(step)));
    }
    if let Some(known) = known {
        errors.push(runtime.gc_forgotten(known, &mut |step| report.step(step)));
    }
}

/// What [`detach`] would do.
fn look(
    runtime: &mut Runtime<'_>,
    networks: &[NetworkList],
    known: Option<&[NetworkName]>,
    report: &mut Report<'_>,
    errors: &mut ErrorList,
) {
    for list in networks {
        errors.push(runtime.dead(list)).unwrap_or_default().iter().for_each(|at| report.line(at));
    }
    let forgotten = known.and_then(|known| errors.push(runtime.forgotten(known))).unwrap_or_default();
    for (list, of) in forgotten {
        if errors.push(list).is_some() {
            of.iter().for_each(|at| report.line(at));
        }
    }
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
    fn new(stdout: &mut dyn Write, as_json: bool, is_dry: bool) -> Report<'_> {
        let verb = if is_dry { "would detach" } else { "detached" };
        Report { stdout, as_json, verb, progress: Progress::new(), attachments: vec![], written: Ok(()) }
    }

    fn step(&mut self, step: &Step<'_>) {
        if step.detached {
            self.line(step.at);
        }
        self.progress.tell(&format!("{}: {}/{}", step.at.key.network, step.number, step.of));
    }

    fn line(&mut self, at: &Parameters) {
        let key = &at.key;
        self.attachments.push(table::object([
            ("network", table::text(key.network.as_str())),
            ("containerId", table::text(key.container_id.as_str())),
            ("ifname", table::text(key.ifname.as_str())),
            ("netns", table::text(&at.netns)),
        ]));
        if !self.as_json {
            self.print(&format!("{} {} {} {}\n", self.verb, key.network, key.container_id, key.ifname));
        }
    }

    fn print(&mut self, text: &str) {
        self.progress.clear();
        if self.written.is_ok() {
            self.written = table::print(self.stdout, text);
        }
    }

    fn finish(mut self, errors: &mut ErrorList) {
        let attachments = std::mem::take(&mut self.attachments);
        let count = attachments.len();
        if self.as_json {
            self.print(&table::json(&Value::Array(attachments)));
        }
        self.progress.finish(&format!("{} {count}", self.verb));
        errors.push(self.written);
    }
}
