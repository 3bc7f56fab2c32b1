//! `net sync`: repairs running attachments, in one network or in all.

use std::collections::BTreeSet;

use super::operator::Operator;
use super::{attached, network};
use crate::cni::attachment::Key;
use crate::cni::json::Value;
use crate::error::{ErrorList, Result};
use crate::plugins::meta::firewall::firewalld::Reloads;
use crate::repair::Extent;
use crate::runtime::find::{self, Recorded};
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::Parameters;
use crate::runtime::repair::{Presence, Round};
use crate::terminal::Streams;
use crate::terminal::progress::Output;
use crate::terminal::table::{self, Members, put, put_text};
use crate::terminal::visible::visible;

/// The exit status of a dry run that has found something to do.
const TO_DO: u8 = 3;

/// Repairs once and returns the exit status; with `--on` now and after each reload of firewalld, until
/// the system bus ends: that is an error, after which systemd starts the process again.
pub fn run(operator: &Operator<'_>, io: &mut Streams<'_>) -> Result<u8> {
    if operator.argument("on").is_empty() {
        return repair(operator, io);
    }
    // First the subscription: a reload in between is seen by the first repair, or as a signal.
    let mut reloads = Reloads::subscribe(operator.env)?;
    loop {
        if let Err(error) = repair(operator, io) {
            operator.complain(&error, io.stderr); // the next reload is awaited all the same
        }
        reloads.wait()?;
    }
}

/// Repairs every attachment that is alive. Does all it can and reports every failure at the end.
fn repair(operator: &Operator<'_>, io: &mut Streams<'_>) -> Result<u8> {
    let mut report = Report {
        output: Output::new(&mut *io.stdout),
        as_json: operator.wants_json(),
        extent: if operator.has_flag("dry-run") { Extent::Look } else { Extent::Make },
        networks: BTreeSet::new(),
        alive: 0,
        repaired: 0,
        failed: 0,
        rows: vec![],
        left: vec![],
    };
    let mut errors = ErrorList::default();
    let mut runtime = operator.runtime(&mut *io.stderr)?;
    let all = selected(operator)?;
    let mut lists = Lists { operator, last: None };
    let mut round = Round::begin(&mut runtime, report.extent)?;
    for (number, recorded) in all.iter().enumerate() {
        report.output.progress.count(number, all.len());
        let repaired = lists.of(recorded).and_then(|list| round.repair(list, recorded));
        let left = round.take_left();
        report.add(&recorded.at, &repaired, round.take_changes());
        left.iter().for_each(|difference| report.add_left(&recorded.at, difference));
        let Recorded { at, .. } = recorded;
        errors.push(repaired.map_err(|error| {
            error.context(format_args!("{} {} {}", at.key.network, at.name(), at.key.ifname))
        }));
    }
    let skipped: Vec<String> = round.take_skipped().collect();
    for plugin in skipped {
        let note = format!("plugin {plugin} is another program, and has no repair");
        operator.note(&note, io.stderr);
    }
    let is_to_do = report.extent == Extent::Look && report.repaired > 0;
    errors.push(report.finish());
    errors.finish().map(|()| if is_to_do { TO_DO } else { 0 })
}

/// The recorded attachments to the network of the command line, or to all. One that two caches have
/// is taken once.
fn selected(operator: &Operator<'_>) -> Result<Vec<Recorded>> {
    operator.network()?;
    let wanted = operator.argument("network");
    let mut all = find::recorded_of(&operator.caches()?, &attached::networks(operator))?;
    let mut known = BTreeSet::new();
    all.retain(|Recorded { at, .. }| {
        (wanted.is_empty() || at.key.network.as_str() == wanted)
            && known.insert((at.key.identity(), at.netns.clone()))
    });
    if all.is_empty() && !wanted.is_empty() {
        network::of(operator)?; // without attachments it must be one of the configured networks
    }
    Ok(all)
}

/// The networks of attachments. Those of one network mostly have the same document.
struct Lists<'a> {
    operator: &'a Operator<'a>,
    last: Option<NetworkList>,
}

impl Lists<'_> {
    /// The network at the time of ADD. A result of an old libcni comes without it.
    fn of(&mut self, recorded: &Recorded) -> Result<&NetworkList> {
        let document = recorded.document();
        if document.is_empty() {
            let name = recorded.at.key.network.as_str();
            return Ok(self.last.insert(network::find(&self.operator.conf_dir(), name)?));
        }
        match self.last.take() {
            Some(last) if last.document == document => Ok(self.last.insert(last)),
            _ => Ok(self.last.insert(NetworkList::parse(document.to_vec())?)),
        }
    }
}

/// Reports each change as it is made; JSON is printed at the end.
struct Report<'a> {
    output: Output<'a>,
    as_json: bool,
    extent: Extent,
    networks: BTreeSet<String>,
    /// The numbers of attachments: all that are alive, those that have changes, and those that
    /// failed.
    alive: usize,
    repaired: usize,
    failed: usize,
    rows: Vec<Value>,
    left: Vec<Value>,
}

impl Report<'_> {
    /// Adds an attachment, what has become of it, and its changes.
    fn add(&mut self, at: &Parameters, repaired: &Result<Presence>, changes: Vec<String>) {
        if *repaired == Ok(Presence::Gone) {
            return;
        }
        self.alive += 1;
        self.networks.insert(at.key.network.to_string());
        match repaired {
            Ok(_) => self.repaired += usize::from(!changes.is_empty()),
            Err(_) => self.failed += 1,
        }
        for change in &changes {
            match self.as_json {
                true => self.rows.push(row(&at.key, "change", change)),
                false => self.print_of(at, change),
            }
        }
    }

    /// Adds a difference of the container's side, which stays as it is.
    fn add_left(&mut self, at: &Parameters, difference: &str) {
        match self.as_json {
            true => self.left.push(row(&at.key, "difference", difference)),
            false => self.print_of(at, &format!("not repaired: {difference}")),
        }
    }

    fn print_of(&mut self, at: &Parameters, text: &str) {
        let Key { network, ifname, .. } = &at.key;
        let [name, text] = [&at.name(), text].map(visible);
        self.output.print(&format!("{network} {name} {ifname}: {text}\n"));
    }

    fn finish(mut self) -> Result<()> {
        let text = if self.as_json { self.json() } else { self.summary() };
        self.output.print(&text);
        self.output.finish()
    }

    fn summary(&self) -> String {
        let counted =
            |count: usize, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let [attachments, networks] =
            [counted(self.alive, "attachment"), counted(self.networks.len(), "network")];
        let Report { repaired, failed, .. } = self;
        let outcome = match self.extent {
            Extent::Look => format!("{repaired} to repair, {failed} could not be looked at"),
            Extent::Make => format!("{repaired} repaired, {failed} could not be"),
        };
        format!("{attachments} of {networks}: {outcome}\n")
    }

    fn json(&mut self) -> String {
        let mut members = Members::new();
        for (name, count) in [
            ("attachments", self.alive),
            ("networks", self.networks.len()),
            (if self.extent == Extent::Look { "toRepair" } else { "repaired" }, self.repaired),
            ("failed", self.failed),
        ] {
            put(&mut members, name, Value::number(count as u64));
        }
        put(&mut members, "changes", Value::Array(std::mem::take(&mut self.rows)));
        put(&mut members, "notRepaired", Value::Array(std::mem::take(&mut self.left)));
        table::json(&Value::Object(members))
    }
}

fn row(key: &Key, name: &str, text: &str) -> Value {
    let mut members = Members::new();
    put_text(&mut members, "network", key.network.as_str());
    put_text(&mut members, "containerId", key.container_id.as_str());
    put_text(&mut members, "ifname", key.ifname.as_str());
    put_text(&mut members, name, text);
    Value::Object(members)
}
