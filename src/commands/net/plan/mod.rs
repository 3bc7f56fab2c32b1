//! `net plan`: what ADD would do, found by a rehearsal: ADD itself runs in a replica of the host
//! and of the container ([`replica`](crate::net::replica)), which is thrown away.
//!
//! [`cast`] decides which plugins are run there, [`facts`] is what host, container and disk have,
//! [`changes`] compares two of these, and [`report`] prints.

mod cast;
mod changes;
mod facts;
mod report;

use std::cell::OnceCell;
use std::path::{Path, PathBuf};

use self::cast::Cast;
use self::facts::Facts;
use self::report::Report;
use super::operator::Operator;
use super::{error_text, namespaces, network};
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::cni::result::Document;
use crate::error::{Code, Error, Result};
use crate::net::replica::{Original, Replica};
use crate::plugin::Entry;
use crate::runtime::chain::Runtime;
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::Parameters;
use crate::runtime::rehearsal::Played;
use crate::sys::child::{Child, Ended};
use crate::terminal::Streams;

/// Where plugins and runtimes keep files, besides the directories that a configuration names.
const STATE: [&str; 2] = ["/var/lib/cni", "/run/cni"];
/// The key of the directories that a configuration names.
const DIRECTORY: &str = "dataDir";

/// Prints the plan; returns the exit status that ADD would have. A child does the work, since a
/// process cannot leave a replica.
pub fn run(operator: &Operator<'_>, plugins: &'static [Entry], io: &mut Streams<'_>) -> Result<u8> {
    let list = network::of(operator)?;
    let at = operator.parameters(NetworkName::parse(&list.name)?, &list)?;
    let rehearsal = Rehearsal { operator, plugins, list: &list, at: &at, path: OnceCell::new() };
    let child = Child::start(|| match rehearsal.run(io) {
        Ok(()) => 0,
        Err(error) => {
            let text = rehearsal.told(&error_text(&error, operator.wants_json()));
            let _ = io.stderr.write_all(text.as_bytes()); // the exit status says it too
            1
        }
    })?;
    match child.wait()? {
        Ended::Exited(status @ (0 | 1)) => Ok(status),
        ended => {
            Err(Error::new(Code::BUG, format!("the rehearsal did not end by itself: {ended}")))
        }
    }
}

/// A rehearsal of one ADD.
struct Rehearsal<'a> {
    operator: &'a Operator<'a>,
    plugins: &'static [Entry],
    list: &'a NetworkList,
    at: &'a Parameters,
    /// The path of the container's replica.
    path: OnceCell<String>,
}

impl Rehearsal<'_> {
    /// Rehearses in this process and prints the plan.
    fn run(&self, io: &mut Streams<'_>) -> Result<()> {
        let mut runtime = self.operator.runtime(self.plugins, &mut *io.stderr)?;
        let cast = Cast::choose(&runtime, self.list, self.at)
            .map_err(|error| runtime.explain(self.list, error))?;
        let original = Original::open(&self.at.netns)?;
        let writable = self.writable();
        let replica = Replica::enter(&original, &writable)?;
        let netns = self.path.get_or_init(|| self.path_in(&original, &replica)).clone();
        let at = Parameters { netns, ..self.at.clone() };
        runtime.handles.observe_listeners_of(original.host);
        let env = cast.environment(runtime.env);
        let mut stage = runtime.staged(&env, &cast.stage);
        let mut report = Report::begin(self.list, self.at, &cast);
        let look = || Facts::take(&replica, &writable);
        let rehearsed = self.rehearse(&mut stage, (&at, &cast), &look, &mut report);
        let result = rehearsed.map_err(|error| {
            namespaces::with_those_there(runtime.explain(self.list, error), &self.at.netns)
        })?;
        report.print(result.as_ref(), self.operator.wants_json(), io.stdout)
    }

    /// Runs the plugins, and reports what each has changed.
    fn rehearse(
        &self,
        runtime: &mut Runtime<'_>,
        (at, cast): (&Parameters, &Cast),
        look: &dyn Fn() -> Result<Facts>,
        report: &mut Report<'_>,
    ) -> Result<Option<Document>> {
        let mut before = look()?;
        let result = runtime.rehearse(self.list, at, &cast.parts, &mut |plugin, played| {
            if played == Played::Done {
                let after = look()?;
                report.add_changes(plugin, changes::between(&before, &after));
                before = after;
            }
            report.add_gap(plugin, played);
            Ok(())
        })?;
        report.add_record(changes::between(&before, &look()?));
        Ok(result)
    }

    /// The path of the container in the replica. One that does not exist, or is the host, stays, so
    /// that it is the error that it is for ADD.
    fn path_in(&self, original: &Original, replica: &Replica) -> String {
        match (replica.container_path(), &original.container) {
            (Some(path), _) => path,
            (None, Some(_)) => "/proc/self/ns/net".to_owned(),
            (None, None) => self.at.netns.clone(),
        }
    }

    /// A text about the replica, as it is about the container.
    fn told(&self, text: &str) -> String {
        self.path.get().map_or_else(|| text.to_owned(), |path| text.replace(path, &self.at.netns))
    }

    /// The directories that plugins may write to.
    fn writable(&self) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = STATE.iter().map(PathBuf::from).collect();
        dirs.push(self.operator.cache().dir().to_owned());
        self.list.plugins.iter().for_each(|plugin| add_directories(&plugin.value, &mut dirs));
        dirs.dedup();
        dirs
    }
}

/// Adds each directory that a configuration names, at any depth.
fn add_directories(value: &Value, dirs: &mut Vec<PathBuf>) {
    let Value::Object(members) = value else {
        return value.items().iter().for_each(|item| add_directories(item, dirs));
    };
    for (key, value) in members {
        match value.as_str() {
            Some(dir) if key.eq_ignore_ascii_case(DIRECTORY) => {
                dirs.push(Path::new(dir).to_owned())
            }
            _ => add_directories(value, dirs),
        }
    }
}
