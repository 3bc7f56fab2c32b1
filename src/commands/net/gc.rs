//! `net gc`: detaches every attachment whose namespace is gone, in one network or in all.

use std::fmt;
use std::io::Write;

use super::network;
use super::operator::Operator;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::json::Value;
use crate::cni::valid::{Holder, Stale};
use crate::error::{ErrorList, Result};
use crate::net::netlink::Netlink;
use crate::runtime::directory;
use crate::runtime::find;
use crate::runtime::gc::{Event, Extent, Sweep, Unrecorded};
use crate::runtime::leave;
use crate::runtime::living::Verdict;
use crate::runtime::parameters::Parameters;
use crate::terminal::Streams;
use crate::terminal::progress::Output;
use crate::terminal::table::{self, Members, put_text};
use crate::terminal::visible::visible;

/// Does all it can and reports every failure at the end.
pub fn run(operator: &Operator<'_>, io: &mut Streams<'_>) -> Result<()> {
    let mut report = Report {
        output: Output::new(io.stdout),
        as_json: operator.wants_json(),
        extent: if operator.has_flag("dry-run") { Extent::Look } else { Extent::Detach },
        is_leave: operator.has_flag("leave"),
        is_begun: false,
        counts: [0; 3],
        left: 0,
        told: vec![],
    };
    let mut errors = ErrorList::default();
    errors.push(if report.is_leave {
        leave_tables(operator, &mut report)
    } else {
        collect(operator, io.stderr, &mut report)
    });
    errors.push(report.finish());
    errors.finish()
}

fn collect(operator: &Operator<'_>, stderr: &mut dyn Write, report: &mut Report<'_>) -> Result<()> {
    let is_wanted = operator.has_flag("unrecorded");
    let unrecorded = if is_wanted { Unrecorded::Take } else { Unrecorded::Spare };
    let dir = operator.conf_dir();
    let wanted = operator.network()?;
    let mut runtime = operator.runtime(stderr)?;
    if let Some(name) = wanted {
        let list = network::find(&dir, name.as_str())?;
        report.is_begun = true;
        return report.watch(|sweep| runtime.gc_dead(&list, unrecorded, sweep));
    }
    // Collect for every network of the directory, and for those with records alone. A file that
    // cannot be read does not stop the loop.
    let mut errors = ErrorList::default();
    let mut known: Vec<NetworkName> = vec![];
    let mut is_all_known = true;
    let files = directory::files(&dir)?;
    report.is_begun = true;
    for file in files {
        let Some(list) = errors.push(directory::load(&file)) else {
            is_all_known = false;
            continue;
        };
        let name = NetworkName::parse(&list.name)
            .map_err(|error| error.with_details(format_args!("the file is {}", file.display())));
        let name = errors.push(name).filter(|name| !known.contains(name));
        let Some(name) = name else { continue };
        known.push(name);
        errors.push(report.watch(|sweep| runtime.gc_dead(&list, unrecorded, sweep)));
    }
    if is_all_known {
        errors.push(report.watch(|sweep| runtime.gc_forgotten(&known, &dir, sweep)));
    } else {
        // Another process may be writing the file that cannot be read, and its content may differ
        // from that at ADD.
        let note = "networks without a configuration are skipped, because a file cannot be read";
        operator.note(note, runtime.stderr);
    }
    errors.finish()
}

/// `--leave`: removes the elements of gone attachments from our nftables tables.
fn leave_tables(operator: &Operator<'_>, report: &mut Report<'_>) -> Result<()> {
    report.is_begun = true;
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
    output: Output<'a>,
    as_json: bool,
    extent: Extent,
    /// Whether the run covers only our nftables tables.
    is_leave: bool,
    /// Whether there is anything to summarise.
    is_begun: bool,
    /// The numbers of attachments detached, removed without a record, and kept without one.
    counts: [usize; 3],
    /// The number of attachments kept by `disableGC`.
    left: usize,
    told: Vec<Value>,
}

impl Report<'_> {
    /// Runs `work` with a GC whose events are reported here.
    fn watch(&mut self, work: impl FnOnce(Sweep<'_>) -> Result<()>) -> Result<()> {
        work(Sweep::new(self.extent, &mut |event| self.tell(event)))
    }

    fn tell(&mut self, event: &Event<'_>) {
        const WHY_LEFT: &str = "its network has disableGC; `cni-multi net del` detaches it";
        match event {
            Event::Step(step) => {
                if step.succeeded {
                    self.counts[0] += 1;
                    self.attachment("detach", step.at, "");
                }
                let network = &step.at.key.network;
                self.output.progress.tell(&format!("{network}: {}/{}", step.number, step.of));
            }
            Event::Left(at) => {
                self.left += 1;
                self.attachment("spare", at, WHY_LEFT);
            }
            // The calls, what belongs to no attachment any more, and the rest by attachment.
            Event::Removed(network, all) => {
                let network = network.as_str();
                let objects = || all.iter().filter(|stale| !stale.is_call);
                for stale in all.iter().filter(|stale| stale.is_call) {
                    self.line(&format!("{} {}\n", self.verb("call"), stale.what));
                }
                for stale in objects().filter(|stale| stale.is_torn) {
                    self.line(&format!("{} {}\n", self.verb("remove"), stale.what));
                }
                for (holder, what) in by_holder(&mut objects().filter(|stale| !stale.is_torn)) {
                    self.removed(Subject { network, holder }, &what);
                }
            }
            Event::Spared(network, all, verdict) => {
                let network = network.as_str();
                for (holder, what) in by_holder(&mut all.iter()) {
                    self.spared(Subject { network, holder }, &what, *verdict);
                }
            }
        }
    }

    /// Reports an attachment with a record.
    fn attachment(&mut self, verb: &str, at: &Parameters, why: &str) {
        let Key { network, ifname, .. } = &at.key;
        let subject = Subject { network: network.as_str(), holder: &Holder::of(&at.key) };
        self.note(verb, subject, &[("netns", &at.netns), ("why", why)]);
        let end = if why.is_empty() { String::new() } else { format!(": {why}") };
        let verb = self.verb(verb);
        self.line(&format!("{verb} {network} {} {ifname}{end}\n", visible(&at.name())));
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
            self.output.print(text);
        }
    }

    fn finish(mut self) -> Result<()> {
        if !self.is_begun {
            return Ok(());
        }
        let text = if self.as_json { table::json(&self.told) } else { self.summary() };
        self.output.print(&text);
        self.output.finish()
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
        let same = together.iter_mut().find(|(holder, _)| {
            let other = &stale.holder;
            holder.hash == other.hash && (holder.hash.is_some() || *holder == other)
        });
        match same {
            Some((_, of_holder)) => of_holder.push(what),
            None => together.push((&stale.holder, vec![what])),
        }
    }
    together
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
        let container = match self.holder.container_id.as_str() {
            "" => "an unknown attachment".to_owned(),
            id if self.holder.is_cut => [id, "…"].concat(),
            id => find::short_id(id).to_owned(),
        };
        let words = [self.network, &container, self.holder.ifname.as_str()];
        let known: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        f.write_str(&known.join(" "))
    }
}
