//! The attachment that `check` and `del` are about: what was typed, completed from its record.

use std::io::Write;

use super::note_text;
use super::operator::Operator;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::json::Value;
use crate::error::Result;
use crate::runtime::cache::Cache;
use crate::runtime::directory;
use crate::runtime::find::{self, Name, Recorded};
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::Parameters;

/// The shortest beginning of an id that counts: a shorter word may well be the name of a namespace
/// that is gone, and `del` detaches what it finds.
const SHORTEST: usize = 4;

/// An attachment.
pub struct Subject {
    /// Its parameters.
    pub at: Parameters,
    /// The cache that has its record, or the operator's.
    pub cache: Cache,
    /// Whether the path of its namespace is the recorded one.
    pub is_at_recorded_path: bool,
}

/// Finds the attachment by the name of its namespace, by another name of its container, or by
/// `--container-id`. Fails if the name is the beginning of several ids.
pub fn find(operator: &Operator<'_>, network: NetworkName, list: &NetworkList) -> Result<Subject> {
    let typed = operator.parameters(network, list)?;
    let record = record_of(operator, &typed.key)?;
    let Some(record) = record else {
        let cache = operator.cache();
        return Ok(Subject { at: typed, cache, is_at_recorded_path: false });
    };
    let recorded = record.at.netns.clone();
    let at = completed(operator, typed, record.at);
    Ok(Subject { is_at_recorded_path: at.netns == recorded, at, cache: record.cache })
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
    all.retain(|recorded| is_of(&recorded.at.key, typed));
    let name = Name::parse(operator.argument("netns"))?.at_least(SHORTEST);
    let found = name.only_of(all, |recorded| Some(&recorded.at))?;
    Ok(found.into_iter().next())
}

/// The network of the typed attachment as it was at its ADD; None without a record that has it.
pub fn recorded_network(
    operator: &Operator<'_>,
    network: NetworkName,
) -> Result<Option<NetworkList>> {
    let recorded = record_of(operator, &operator.key(network.clone())?)?;
    let record = recorded.and_then(|recorded| recorded.found.record.ok());
    let document = record.map(|record| record.document).unwrap_or_default();
    if document.is_empty() {
        return Ok(None);
    }
    let list = directory::of_document(document, &operator.conf_dir())?;
    Ok(Some(list).filter(|list| list.name == network.as_str()))
}

fn has_container_id(operator: &Operator<'_>) -> bool {
    !operator.argument("container-id").is_empty()
}

/// Whether network and interface are those of the typed attachment.
fn is_of(recorded: &Key, typed: &Key) -> bool {
    recorded.network == typed.network && recorded.ifname == typed.ifname
}

/// The recorded parameters; those that were typed replace them.
fn completed(operator: &Operator<'_>, typed: Parameters, recorded: Parameters) -> Parameters {
    let netns = if has_container_id(operator) { typed.netns } else { recorded.netns };
    let args = if typed.args.is_empty() { recorded.args } else { typed.args };
    let capability_args = if is_empty(&typed.capability_args) {
        recorded.capability_args
    } else {
        typed.capability_args
    };
    Parameters { key: recorded.key, netns, args, capability_args }
}

fn is_empty(arguments: &Value) -> bool {
    matches!(arguments, Value::Object(members) if members.is_empty())
}

/// Says on stderr that the attachment has no record, and lists the recorded ones of the network.
pub fn tell_not_attached(
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
    let text = note_text(&note, operator.wants_json());
    let _ = stderr.write_all(text.as_bytes()); // for information only
    Ok(())
}
