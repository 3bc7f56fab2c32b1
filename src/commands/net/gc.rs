//! `net gc`: detaches every attachment whose namespace is gone, in one network or in all.

use std::fmt;
use std::io::Write;
use std::path::Path;

use super::operator::Operator;
use super::{network, note_text};
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::json::Value;
use crate::cni::valid::{Holder, Stale};
use crate::error::{ErrorList, Result};
use crate::net::netlink::Netlink;
use crate::plugin::Entry;
use crate::runtime::chain::Runtime;
use crate::runtime::directory;
use crate::runtime::find;
use crate::runtime::gc::{Event, Extent, Step, Sweep, Unrecorded};
use crate::runtime::leave;
use crate::runtime::list::NetworkList;
use crate::runtime::living::Verdict;
use crate::runtime::parameters::Parameters;
use crate::terminal::progress::Progress;
use crate::terminal::table::{self, Members, put_text};
use crate::terminal::visible::visible;
use crate::terminal::{self, Streams};

/// Does all it can and reports every failure at the end.
pub fn run(operator: &Operator<'_>, plugins: &'static [Entry], io: &mut Streams<'_>) -> Result<()> {
    let mut report = Report::new(io.stdout, operator.wants_json(), extent(operator));
    let mut errors = ErrorList::default();
    errors.push(if operator.matches.get_flag("leave") {
        leave_tables(operator, &mut report)
    } else {
        collect(operator, plugins, io.stderr, &mut report)
    });
    errors.push(report.finish());
    errors.finish()
}

fn extent(operator: &Operator<'_>) -> Extent {
    if operator.matches.get_flag("dry-run") { Extent::Look } else { Extent::Detach }
}

fn unrecorded(operator: &Operator<'_>) -> Unrecorded {
    if operator.matches.get_flag("unrecorded") { Unrecorded::Take } else { Unrecorded::Spare }
}

fn collect(
    operator: &Operator<'_>,
    plugins: &'static [Entry],
    stderr: &mut dyn Write,
    report: &mut Report<'_>,
) -> Result<()> {
    let unrecorded = unrecorded(operator);
    let dir = operator.conf_dir();
    let wanted = operator.network()?;
    let mut runtime = operator.runtime(plugins, stderr)?;
    let Some(name) = wanted else { return collect_all(&mut runtime, &dir, unrecorded, report) };
    let list = network::find(&dir, name.as_str())?;
    report.is_begun = true;
    report.watch(|sweep| runtime.gc_dead(&list, unrecorded, sweep))
}

/// Collects every network of the directory, and those whose configuration has been removed.
fn collect_all(
    runtime: &mut Runtime<'_>,
    dir: &Path,
    unrecorded: Unrecorded,
    report: &mut Report<'_>,
) -> Result<()> {
    let mut errors = ErrorList::default();
    // A file that cannot be read does not stop the loop.
    let mut known: Vec<NetworkName> = vec![];
    let mut is_all_known = true;
    let files = directory::files(dir)?;
    report.is_begun = true;
    for file in files {
        let Some(list) = errors.push(directory::load(&file)) else {
            is_all_known = false;
            continue;
        };
        let name = errors.push(name_of(&list, &file));
        let Some(name) = name.filter(|name| !known.contains(name)) else { continue };
        known.push(name);
        errors.push(report.watch(|sweep| runtime.gc_dead(&list, unrecorded, sweep)));
    }
    if is_all_known {
        errors.push(report.watch(|sweep| runtime.gc_forgotten(&known, dir, sweep)));
    } else {
        tell_skipped(report.as_json, runtime.stderr);
    }
    errors.finish()
}

/// Says which networks are skipped: another process may be writing the file that cannot be read, and
/// its content may differ from that at ADD.
fn tell_skipped(as_json: bool, stderr: &mut dyn Write) {
    let what = "networks without a configuration are skipped, because a file cannot be read";
    let _ = stderr.write_all(note_text(what, as_json).as_bytes()); // for information only
}

fn name_of(list: &NetworkList, file: &Path) -> Result<NetworkName> {
    NetworkName::parse(&list.name)
        .map_err(|error| error.with_details(format_args!("the file is {}", file.display())))
}

/// `--leave`: removes the elements of gone attachments from our nftables tables.
fn leave_tables(operator: &Operator<'_>, report: &mut Report<'_>) -> Result<()> {
    (report.is_begun, report.is_leave) = (true, true);
    leave::leave(&Netlink::open()?, &operator.cache(), report.extent, &mut |left| {
        let subject = Subject { network: "", holder: &left.holder };
        let elements = [format!("elements of table {}", left.table)];
        match left.verdict {
            Verdict::Gone => report.removed(subject, &elements),
            Verdict::Lives | Verdict::Unknown => report.spared(subject, &elements, left.verdict),
        }
    })
}

/// Reports each attachment as it is removed; JSON is printed at the end.
struct Report<'a> {
    stdout: &'a mut dyn Write,
    as_json: bool,
    extent: Extent,
    progress: Progress,
    /// Whether the run covers only our nftables tables.
    is_leave: bool,
    /// Whether there is anything to summarise.
    is_begun: bool,
    /// The numbers of attachments detached, removed without a record, and kept without one.
    counts: [usize; 3],
    /// The number of attachments kept by `disableGC`.
    left: usize,
    told: Vec<Value>,
    /// The result of writing the report. A closed stdout does not stop the work.
    written: Result<()>,
}

impl Report<'_> {
    fn new(stdout: &mut dyn Write, as_json: bool, extent: Extent) -> Report<'_> {
        Report {
            stdout,
            as_json,
            extent,
            progress: Progress::new(),
            is_leave: false,
            is_begun: false,
            counts: [0; 3],
            left: 0,
            told: vec![],
            written: Ok(()),
        }
    }

    /// Runs `work` with a GC whose events are reported here.
    fn watch(&mut self, work: impl FnOnce(Sweep<'_>) -> Result<()>) -> Result<()> {
        work(Sweep::new(self.extent, &mut |event| self.tell(event)))
    }

    fn tell(&mut self, event: &Event<'_>) {
        match event {
            Event::Step(step) => self.step(step),
            Event::Left(at) => self.left(at),
            Event::Removed(network, all) => self.removed_all(network.as_str(), all),
            Event::Spared(network, all, why) => self.spared_all(network.as_str(), all, *why),
        }
    }

    /// Reports the calls, what belongs to no attachment any more, and the rest by attachment.
    fn removed_all(&mut self, network: &str, all: &[Stale]) {
        self.print_each("call", &mut all.iter().filter(|stale| stale.is_call));
        let objects = || all.iter().filter(|stale| !stale.is_call);
        self.print_each("remove", &mut objects().filter(|stale| stale.is_torn));
        for (holder, what) in by_holder(&mut objects().filter(|stale| !stale.is_torn)) {
            self.removed(Subject { network, holder }, &what);
        }
    }

    /// Reports each object on its own.
    fn print_each(&mut self, verb: &str, all: &mut dyn Iterator<Item = &Stale>) {
        for stale in all {
            self.line(&format!("{} {}\n", self.verb(verb), stale.what));
        }
    }

    fn spared_all(&mut self, network: &str, all: &[Stale], verdict: Verdict) {
        for (holder, what) in by_holder(&mut all.iter()) {
            self.spared(Subject { network, holder }, &what, verdict);
        }
    }

    fn step(&mut self, step: &Step<'_>) {
        if step.succeeded {
            self.detached(step.at);
        }
        let network = &step.at.key.network;
        self.progress.tell(&format!("{network}: {}/{}", step.number, step.of));
    }

    fn detached(&mut self, at: &Parameters) {
        self.counts[0] += 1;
        let Key { network, ifname, .. } = &at.key;
        let subject = Subject { network: network.as_str(), holder: &Holder::of(&at.key) };
        self.note("detach", subject, &[("netns", &at.netns)]);
        let verb = self.verb("detach");
        self.line(&format!("{verb} {network} {} {ifname}\n", visible(&at.name())));
    }

    fn left(&mut self, at: &Parameters) {
        const WHY: &str = "its network has disableGC; `cni-multi net del` detaches it";
        self.left += 1;
        let Key { network, ifname, .. } = &at.key;
        let subject = Subject { network: network.as_str(), holder: &Holder::of(&at.key) };
        self.note("spare", subject, &[("netns", &at.netns), ("why", WHY)]);
        let verb = self.verb("spare");
        self.line(&format!("{verb} {network} {} {ifname}: {WHY}\n", visible(&at.name())));
    }

    fn removed(&mut self, subject: Subject<'_>, what: &[String]) {
        self.counts[1] += 1;
        let what = what.join(", ");
        self.note("remove", subject, &[("what", &what)]);
        self.line(&format!("{} {subject}: {what}\n", self.verb("remove")));
    }

    fn spared(&mut self, subject: Subject<'_>, what: &[String], verdict: Verdict) {
        self.counts[2] += 1;
        let what = what.join(", ");
        let why = verdict.reason();
        self.note("spare", subject, &[("what", &what), ("why", why)]);
        self.line(&format!("{} {subject}: {what}; {why}\n", self.verb("spare")));
    }

    fn note(&mut self, action: &str, subject: Subject<'_>, more: &[(&str, &str)]) {
        let mut members = Members::new();
        let named = [
            ("action", action),
            ("network", subject.network),
            ("containerId", &subject.holder.container_id),
            ("ifname", &subject.holder.ifname),
        ];
        for (name, text) in named.iter().chain(more) {
            put_text(&mut members, name, text);
        }
        self.told.push(Value::Object(members));
    }

    /// Returns `detached`, or `would detach`.
    fn verb(&self, verb: &str) -> String {
        match self.extent {
            Extent::Look => format!("would {verb}"),
            Extent::Detach => format!("{}ed", verb.strip_suffix('e').unwrap_or(verb)),
        }
    }

    fn line(&mut self, text: &str) {
        if !self.as_json {
            self.print(text);
        }
    }

    fn print(&mut self, text: &str) {
        self.progress.clear();
        if self.written.is_ok() {
            self.written = terminal::print(self.stdout, text);
        }
    }

    fn finish(mut self) -> Result<()> {
        if !self.is_begun {
            return Ok(());
        }
        let text = if self.as_json { self.json() } else { self.summary() };
        self.print(&text);
        self.progress.finish("done");
        self.written
    }

    fn json(&mut self) -> String {
        table::json(&Value::Array(std::mem::take(&mut self.told)))
    }

    fn summary(&self) -> String {
        let [detached, removed, spared] = self.counts;
        let left = match self.left {
            0 => String::new(),
            left => format!(", {} {left}", self.verb("spare")),
        };
        let detached = format!("{} {detached}{left}; without a record: ", self.verb("detach"));
        let detached = if self.is_leave { "" } else { &detached };
        let [remove, spare] = ["remove", "spare"].map(|verb| self.verb(verb));
        format!("{detached}{remove} {removed}, {spare} {spared}\n")
    }
}

/// Groups the objects by holder, in the order of each holder's first object.
fn by_holder<'s>(all: &mut dyn Iterator<Item = &'s Stale>) -> Vec<(&'s Holder, Vec<String>)> {
    let mut together: Vec<(&Holder, Vec<String>)> = vec![];
    for stale in all {
        let what = stale.what.clone();
        match together.iter_mut().find(|(holder, _)| is_same(holder, &stale.holder)) {
            Some((_, of_holder)) => of_holder.push(what),
            None => together.push((&stale.holder, vec![what])),
        }
    }
    together
}

fn is_same(one: &Holder, other: &Holder) -> bool {
    match (one.hash, other.hash) {
        (Some(one), Some(other)) => one == other,
        (None, None) => one == other,
        _ => false,
    }
}

/// The attachment that a line reports.
#[derive(Clone, Copy)]
struct Subject<'a> {
    /// Empty if unknown.
    network: &'a str,
    holder: &'a Holder,
}

/// Displays the known names.
impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [self.network, &container(self.holder), self.holder.ifname.as_str()];
        let known: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        f.write_str(&known.join(" "))
    }
}

/// The id of a container, with an ellipsis if it is truncated.
fn container(holder: &Holder) -> String {
    match holder.container_id.as_str() {
        "" => "an unknown attachment".to_owned(),
        id if holder.is_cut => [id, "…"].concat(),
        id => find::short_id(id).to_owned(),
    }
}
