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
    let id = operator.argument("container-id");
    if !id.is_empty() {
        ContainerId::parse(id)?;
    }
    let mut rows = rows(operator)?;
    if !operator.wants_json() && !operator.has_flag("no-trunc") {
        rows.iter_mut().for_each(truncate);
    }
    Ok(table::of_rows(rows, &COLUMNS, operator.wants_json()))
}

fn truncate(row: &mut Value) {
    let id = row.get(ID).and_then(Value::as_str).map(find::short_id);
    if let Some(id) = id.map(Value::text) {
        row.set(ID, id);
    }
}

/// The attachments that the arguments select.
fn rows(operator: &Operator<'_>) -> Result<Vec<Value>> {
    let [name, id] = ["network", "container-id"].map(|name| operator.argument(name));
    let mut all = attached::all(operator)?;
    all.retain(|attached| attached.is("network", name));
    if all.is_empty() && !name.is_empty() {
        network::of(operator)?; // a misspelt name is no network without attachments
    }
    all.retain(|attached| attached.has_id(id));
    Ok(all.into_iter().map(|attached| Value::Object(attached.members)).collect())
}
