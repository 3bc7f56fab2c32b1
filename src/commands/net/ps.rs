//! `net ps`: the attachments recorded in the cache.

use super::attached;
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
    operator.network()?;
    let id = operator.argument("container-id");
    if !id.is_empty() {
        ContainerId::parse(id)?;
    }
    Ok(table::of_rows(rows(operator)?, &COLUMNS, operator.wants_json()))
}

/// The attachments that the arguments select.
fn rows(operator: &Operator<'_>) -> Result<Vec<Value>> {
    let [name, id] = ["network", "container-id"].map(|name| operator.argument(name));
    let mut all = attached::all(operator)?;
    all.retain(|attached| attached.is("network", name) && attached.has_id(id));
    Ok(all.into_iter().map(|attached| Value::Object(attached.members)).collect())
}
