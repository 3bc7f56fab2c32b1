//! `net ps`: the attachments recorded in the cache.

use super::attached;
use super::network;
use super::operator::Operator;
use crate::cni::attachment::{ContainerId, NetworkName};
use crate::cni::json::Value;
use crate::error::Result;
use crate::terminal::table;

/// The columns of the table.
const COLUMNS: [(&str, &str); 6] = [
    ("NETWORK", "network"),
    ("CONTAINER", "containerId"),
    ("INTERFACE", "ifname"),
    ("ADDRESSES", "addresses"),
    ("AGE", "ageSeconds"),
    ("NAMESPACE", "namespace"),
];

/// The output of the command.
pub fn show(operator: &Operator<'_>) -> Result<String> {
    let id = operator.argument("container-id");
    if !id.is_empty() {
        ContainerId::parse(id)?;
    }
    Ok(table::of_rows(rows(operator)?, &COLUMNS, operator.wants_json()))
}

/// The attachments that the arguments select.
fn rows(operator: &Operator<'_>) -> Result<Vec<Value>> {
    let name = operator.argument("network");
    let id = operator.argument("container-id");
    let mut rows = vec![];
    for attached in attached::all(&operator.cache(), &networks(operator)?)? {
        if attached.is("network", name) && attached.is("containerId", id) {
            rows.push(Value::Object(attached.members));
        }
    }
    Ok(rows)
}

/// The network of the command line, or all.
pub fn networks(operator: &Operator<'_>) -> Result<Vec<NetworkName>> {
    Ok(match operator.network()? {
        Some(name) => vec![name],
        None => network::names(&operator.conf_dir()).0,
    })
}
