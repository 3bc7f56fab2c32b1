//! `net ps`: the attachments recorded in the cache.

use super::attached;
use super::network;
use super::operator::Operator;
use crate::cni::attachment::ContainerId;
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
    let name = operator.argument("network");
    let id = operator.argument("container-id");
    if !id.is_empty() {
        ContainerId::parse(id)?;
    }
    let networks = match operator.network()? {
        Some(name) => vec![name],
        None => network::names(&operator.conf_dir()).0,
    };
    let mut rows = vec![];
    for attached in &mut attached::all(&operator.cache(), &networks)? {
        if attached.is("network", name) && attached.is("containerId", id) {
            rows.push(Value::Object(std::mem::take(&mut attached.members)));
        }
    }
    Ok(table::of_rows(rows, &COLUMNS, operator.wants_json()))
}
