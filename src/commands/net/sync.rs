//! `net sync`: repairs running attachments, in one network or in all.

use std::io::Write;

use super::attached::{self, Attached};
use super::operator::Operator;
use super::{error_text, network, on_firewalld};
use crate::cni::attachment::Key;
use crate::cni::json::Value;
use crate::error::{Error, ErrorList, Result};
use crate::net::netns::Netns;
use crate::plugin::Entry;
use crate::repair::{Extent, Repairs};
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::Parameters;
use crate::terminal::table::{self, Members, put_text};
use crate::terminal::visible::visible;
use crate::terminal::{self, Streams};

/// The exit status of a dry run that has found something to do.
const TO_DO: u8 = 3;

/// Repairs once, or with `--on` again and again. Returns the exit status.
pub fn run(operator: &Operator<'_>, plugins: &'static [Entry], io: &mut Streams<'_>) -> Result<u8> {
    if !on_firewalld::is_wanted(operator) {
        return repair(operator, plugins, io);
    }
    on_firewalld::repeat(operator, || {
        if let Err(error) = repair(operator, plugins, io) {
            let text = error_text(&error, operator.wants_json());
            let _ = io.stderr.write_all(text.as_bytes()); // the next reload is awaited all the same
        }
    })
}

/// Repairs every attachment that is alive. Does all it can and reports every failure at the end.
fn repair(operator: &Operator<'_>, plugins: &'static [Entry], io: &mut Streams<'_>) -> Result<u8> {
    let repairs = Repairs::new(extent(operator));
    let mut report =
        Report { stdout: &mut *io.stdout, as_json: operator.wants_json(), rows: vec![] };
    let mut errors = ErrorList::default();
    let mut runtime = operator.runtime(plugins, &mut *io.stderr)?;
    for attached in selected(operator)? {
        let Some(at) = &attached.at else { continue };
        runtime.cache = attached.cache.clone();
        let list = list_of(operator, &attached, at);
        let repaired = list.and_then(|list| runtime.repair(&list, at, &repairs));
        errors.push(repaired.map_err(|error| of_attachment(error, &at.key)));
        report.add(&at.key, repairs.take_changes())?;
    }
    tell_skipped(&repairs, io.stderr);
    report.finish()?;
    let is_to_do = repairs.is_look() && !report.rows.is_empty();
    errors.finish().map(|()| if is_to_do { TO_DO } else { 0 })
}

fn extent(operator: &Operator<'_>) -> Extent {
    if operator.has_flag("dry-run") { Extent::Look } else { Extent::Make }
}

/// The attachments of the network of the command line, or of all, whose namespaces exist.
fn selected(operator: &Operator<'_>) -> Result<Vec<Attached>> {
    operator.network()?;
    let mut all = attached::all(operator)?;
    all.retain(|attached| attached.is("network", operator.argument("network")));
    if all.is_empty() && !operator.argument("network").is_empty() {
        network::of(operator)?; // without attachments it must be one of the configured networks
    }
    all.retain(|attached| attached.at.as_ref().is_some_and(is_alive));
    Ok(all)
}

/// A namespace that cannot be opened is reported by the repair.
fn is_alive(at: &Parameters) -> bool {
    !matches!(Netns::open_if_there(&at.netns), Ok(None))
}

/// The network at the time of ADD. A result of an old libcni comes without it.
fn list_of(operator: &Operator<'_>, attached: &Attached, at: &Parameters) -> Result<NetworkList> {
    match attached.document.as_slice() {
        [] => network::find(&operator.conf_dir(), at.key.network.as_str()),
        document => NetworkList::parse(document.to_vec()),
    }
}

fn of_attachment(error: Error, key: &Key) -> Error {
    error.context(format_args!("{} {} {}", key.network, key.container_id, key.ifname))
}

fn tell_skipped(repairs: &Repairs, stderr: &mut dyn Write) {
    for plugin in repairs.take_skipped() {
        let plugin = visible(&plugin);
        let _ = writeln!(stderr, "plugin {plugin} is another program, and has no repair"); // for information only
    }
}

/// Reports each change as it is made; JSON is printed at the end.
struct Report<'a> {
    stdout: &'a mut dyn Write,
    as_json: bool,
    rows: Vec<Value>,
}

impl Report<'_> {
    fn add(&mut self, key: &Key, changes: Vec<String>) -> Result<()> {
        for change in changes {
            let Key { network, container_id, ifname } = key;
            if !self.as_json {
                let line = format!("{network} {container_id} {ifname}: {}\n", visible(&change));
                terminal::print(self.stdout, &line)?;
            }
            self.rows.push(row(key, &change));
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if self.as_json {
            terminal::print(self.stdout, &table::json(&Value::Array(self.rows.clone())))
        } else {
            Ok(())
        }
    }
}

fn row(key: &Key, change: &str) -> Value {
    let mut members = Members::new();
    put_text(&mut members, "network", key.network.as_str());
    put_text(&mut members, "containerId", key.container_id.as_str());
    put_text(&mut members, "ifname", key.ifname.as_str());
    put_text(&mut members, "change", change);
    Value::Object(members)
}
