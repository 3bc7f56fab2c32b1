//! `net ps`: who is attached, as the cache has it.

use super::attached::{self, Attached, age_text};
use super::network;
use super::operator::Operator;
use super::table::{self, Table};
use crate::cni::attachment::ContainerId;
use crate::cni::json::Value;
use crate::error::Result;

/// What is printed.
pub fn show(operator: &Operator<'_>) -> Result<String> {
    let wanted = operator.network()?;
    let container = match operator.argument("container-id") {
        id if id.is_empty() => None,
        id => Some(ContainerId::parse(&id)?),
    };
    let networks = wanted.clone().map_or_else(|| network::names(&operator.conf_dir()), |name| vec![name]);
    let mut rows = attached::all(&operator.cache(), &networks)?;
    rows.retain(|row| wanted.as_ref().is_none_or(|name| row.is_of_network(name)));
    rows.retain(|row| container.as_ref().is_none_or(|id| row.is_of_container(id)));
    Ok(match operator.wants_json() {
        true => table::json(&Value::Array(rows.iter().map(|row| Value::Object(row.to_value())).collect())),
        false => to_table(&rows),
    })
}

fn to_table(rows: &[Attached]) -> String {
    let mut table = Table::new(&["NETWORK", "CONTAINER", "INTERFACE", "ADDRESSES", "AGE", "NAMESPACE"]);
    for row in rows {
        let [network, container, ifname, _] = row.names();
        let cells = [network, container, ifname, &row.addresses().join(","), &age_text(row.age()), row.namespace()];
        table.row(&cells, &row.problem);
    }
    table.to_text()
}
