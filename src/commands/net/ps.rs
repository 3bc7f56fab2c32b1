//! `net ps`: the attachments recorded in the cache.

use super::operator::Operator;
use super::{attached, network};
use crate::cni::attachment::ContainerId;
use crate::cni::json::Value;
use crate::error::Result;
use crate::runtime::find;
use crate::terminal::table;

/// The columns of the table.
const COLUMNS: [(&str, &str); 9] = [
    ("NAME", "name"),
    ("NETWORK", "network"),
    ("INTERFACE", "ifname"),
    ("ID", ID),
    ("POD", "pod"),
    ("PORTS", "ports"),
    ("ADDRESSES", "addresses"),
    ("AGE", "ageSeconds"),
    ("NAMESPACE", "namespace"),
];

/// The member that the table truncates.
const ID: &str = "containerId";

/// The output of the command.
pub fn show(operator: &Operator<'_>) -> Result<String> {
    operator.network()?;
    let [name, id] = ["network", "container-id"].map(|name| operator.argument(name));
    if !id.is_empty() {
        ContainerId::parse(id)?;
    }
    let mut all = attached::all(operator)?;
    all.retain(|attached| attached.is("network", name));
    if all.is_empty() && !name.is_empty() {
        network::of(operator)?; // a misspelt name is no network without attachments
    }
    all.retain(|attached| attached.has_id(id));
    let is_truncated = !operator.wants_json() && !operator.has_flag("no-trunc");
    let mut rows = vec![];
    for mut row in all.into_iter().map(|attached| Value::Object(attached.members)) {
        let id = row.get(ID).and_then(Value::as_str).map(find::short_id);
        if let Some(id) = id.filter(|_| is_truncated).map(Value::text) {
            row.set(ID, id);
        }
        rows.push(row);
    }
    Ok(table::of_rows(rows, &COLUMNS, operator.wants_json()))
}
