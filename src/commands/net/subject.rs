//! The attachment that `check` and `del` are about: what was typed, completed from its record.

use std::io::Write;

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
    operator.note(&note, stderr);
    Ok(())
}
