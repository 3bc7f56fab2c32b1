//! The rows of Open vSwitch's database, where the pretend host has one.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Deserializer, Value, json};

const TABLES: [(&str, &[&str]); 2] = [
    ("Port", &["name", "vlan_mode", "tag", "trunks", "external_ids"]),
    ("Interface", &["name", "type", "ofport_request", "external_ids"]),
];

/// One fact for each row; none without a server at the socket.
pub fn of(socket: &Path) -> Vec<String> {
    let Ok(mut stream) = UnixStream::connect(socket) else { return vec![] };
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let select = |(table, columns): (&str, &[&str])| json!({"op": "select", "table": table, "where": [], "columns": columns});
    let mut params = vec![json!("Open_vSwitch")];
    params.extend(TABLES.map(select));
    let request = json!({"method": "transact", "id": 1, "params": params});
    stream.write_all(request.to_string().as_bytes()).unwrap();
    let answer: Value = Deserializer::from_reader(stream).into_iter().next().unwrap().unwrap();
    let rows = |result: &Value| result["rows"].as_array().cloned().unwrap_or_default();
    let all = answer["result"].as_array().unwrap().iter().flat_map(rows);
    all.map(|row| format!("ovs {row}")).collect()
}
