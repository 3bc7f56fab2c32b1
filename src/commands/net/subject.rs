//! `net check` and `net del`, and the attachment that they are about: what was typed, completed from
//! its record.

use std::io::Write;

use super::network;
use super::operator::Operator;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::json::Value;
use crate::error::Result;
use crate::runtime::cache::Cache;
use crate::runtime::check::Until;
use crate::runtime::directory;
use crate::runtime::find::{self, Name, Recorded};
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::Parameters;
use crate::terminal::table::{self, Members, put, put_text};
use crate::terminal::visible::visible;
use crate::terminal::{self, Streams};

/// The shortest beginning of an id that counts: a shorter word may well be the name of a namespace
/// that is gone, and `del` detaches what it finds.
const SHORTEST: usize = 4;

/// An attachment.
struct Subject {
    /// Its parameters.
    at: Parameters,
    /// The cache that has its record, or the operator's.
    cache: Cache,
    /// Whether the path of its namespace is the recorded one.
    is_at_recorded_path: bool,
}

/// Finds the attachment by the name of its namespace, by another name of its container, or by
/// `--container-id`. Fails if the name is the beginning of several ids.
fn find(operator: &Operator<'_>, network: NetworkName, list: &NetworkList) -> Result<Subject> {
    let typed = operator.parameters(network, list)?;
    let Some(Recorded { at: recorded, cache, .. }) = record_of(operator, &typed.key)? else {
        let cache = operator.cache();
        return Ok(Subject { at: typed, cache, is_at_recorded_path: false });
    };
    // What was typed replaces what is recorded.
    let has_capability_args = typed.capability_args != Value::Object(vec![]);
    let typed_netns = if has_container_id(operator) { typed.netns } else { recorded.netns.clone() };
    let at = Parameters {
        key: recorded.key,
        netns: typed_netns,
        args: if typed.args.is_empty() { recorded.args } else { typed.args },
        capability_args: match has_capability_args {
            true => typed.capability_args,
            false => recorded.capability_args,
        },
    };
    Ok(Subject { is_at_recorded_path: at.netns == recorded.netns, at, cache })
}

/// The record of the typed attachment. Where that has the typed names, no other record is read.
fn record_of(operator: &Operator<'_>, typed: &Key) -> Result<Option<Recorded>> {
    let caches = operator.caches()?;
    if let Some(recorded) = find::of_key(&caches, typed) {
        return Ok(Some(recorded));
    }
    let mut all = find::recorded(&caches)?;
    if has_container_id(operator) {
        return Ok(all.into_iter().find(|recorded| recorded.at.key == *typed));
    }
    all.retain(|Recorded { at, .. }| {
        at.key.network == typed.network && at.key.ifname == typed.ifname
    });
    let name = Name::parse(operator.argument("netns"))?.at_least(SHORTEST);
    let found = name.only_of(all, |recorded| Some(&recorded.at))?;
    Ok(found.into_iter().next())
}

fn has_container_id(operator: &Operator<'_>) -> bool {
    !operator.argument("container-id").is_empty()
}

/// Says on stderr that the attachment has no record, and lists the recorded ones of the network.
fn tell_not_attached(
    operator: &Operator<'_>,
    at: &Parameters,
    stderr: &mut dyn Write,
) -> Result<()> {
    let Key { network, ifname, .. } = &at.key;
    let all = find::recorded(&operator.caches()?)?;
    let of_network = all.iter().filter(|recorded| recorded.at.key.network == *network);
    let names: Vec<String> = of_network.map(|recorded| recorded.at.name()).collect();
    let there = find::listed(&names);
    let what = operator.argument("netns");
    let note =
        format!("no attachment of {ifname} of {what} to {network} was recorded; recorded: {there}");
    operator.note(&note, stderr);
    Ok(())
}

/// `net check`: verifies an attachment, and reports each difference on a line of its own. Returns the
/// exit status: 1 if anything differs.
pub fn check(operator: &Operator<'_>, io: &mut Streams<'_>) -> Result<u8> {
    let list = network::of(operator)?;
    let mut runtime = operator.runtime(&mut *io.stderr)?;
    let subject = find(operator, NetworkName::parse(&list.name)?, &list)?;
    runtime.cache = subject.cache;
    let checked = runtime.check(&list, &subject.at, Until::End);
    let checked = checked.map_err(|error| runtime.explain(&list, error))?;
    let checked = runtime.explain_each(checked);
    let differences = checked.differences();
    if operator.wants_json() {
        let mut found = vec![];
        for difference in &differences {
            let mut members = Members::new();
            put_text(&mut members, "plugin", &difference.plugin);
            put(&mut members, "code", Value::number(difference.error.code.0));
            put_text(&mut members, "msg", &difference.error.msg);
            put_text(&mut members, "details", &difference.error.details());
            found.push(Value::Object(members));
        }
        terminal::print(io.stdout, &table::json(&Value::Array(found)))?;
    }
    if !checked.is_recorded {
        tell_not_attached(operator, &subject.at, io.stderr)?;
    }
    let lines: String = differences
        .iter()
        .map(|it| format!("{}: {}\n", visible(&it.plugin), visible(&it.error.to_string())))
        .collect();
    let Err(error) = checked.finish() else { return Ok(0) };
    if operator.wants_json() {
        operator.complain(&error, io.stderr);
    } else {
        let _ = io.stderr.write_all(lines.as_bytes()); // the status says it too
    }
    Ok(1)
}

/// `net del`: detaches what the arguments name, also from a network without a configuration file. What
/// is not attached is a success that is reported.
pub fn del(operator: &Operator<'_>, stderr: &mut dyn Write) -> Result<()> {
    let list = list_of(operator, stderr)?;
    let mut runtime = operator.runtime(stderr)?;
    let mut subject = find(operator, NetworkName::parse(&list.name)?, &list)?;
    runtime.cache = subject.cache.clone();
    if subject.is_at_recorded_path && runtime.is_in_host(&subject.at)? {
        // DEL gets no namespace: the recorded path, such as `/proc/4711/ns/net`, leads to the host's
        // by now, and nothing in there is the container's.
        let netns = std::mem::take(&mut subject.at.netns);
        let note = format!("{netns:?} is the host's own namespace; detaching as if it were gone");
        operator.note(&note, runtime.stderr);
    }
    let done = runtime.del(&list, &subject.at);
    if !done.map_err(|error| runtime.explain(&list, error))? {
        tell_not_attached(operator, &subject.at, runtime.stderr)?;
    }
    Ok(())
}

/// The network by its file, or by the attachment's record if it has no file any more.
fn list_of(operator: &Operator<'_>, stderr: &mut dyn Write) -> Result<NetworkList> {
    let name = NetworkName::parse(operator.argument("network"))?;
    let dir = operator.conf_dir();
    if let Some(list) = directory::find_if_there(&dir, name.as_str())? {
        return Ok(list);
    }
    // As it was at ADD, if the record has it.
    let recorded = record_of(operator, &operator.key(name.clone())?)?;
    let record = recorded.and_then(|recorded| recorded.found.record.ok());
    let document = record.map(|record| record.document).filter(|document| !document.is_empty());
    let list = document.map(|document| directory::of_document(document, &dir)).transpose()?;
    let Some(list) = list.filter(|list| list.name == name.as_str()) else {
        return network::of(operator); // its error lists the networks
    };
    let note = format!(
        "network {:?} has no configuration in {}; detaching by the one recorded at add",
        list.name,
        dir.display()
    );
    operator.note(&note, stderr);
    Ok(list)
}
