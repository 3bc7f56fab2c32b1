//! The port of an attachment: a row of Port with one of Interface, which the bridge's row refers to.
//!
//! Both go when the bridge refers to them no more: the server collects rows without a reference.
//! A port's `external_ids` name its owner, and no container can write them.

use super::conf::{Conf, bridge_missing};
use super::ovsdb::values::{self, Uuid, map, named_uuid, set, unexpected};
use super::ovsdb::{
    Database, Outcome, column, condition, count, insert, mutate, require, rows, select,
};
use super::vlan::Vlans;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::json::Value;
use crate::error::{Aspect, Code, Error, ErrorList, Result};
use crate::plugin::Attachment;

/// The value of `owner` that the original marks its ports with.
const OWNER: (&str, &str) = ("owner", "ovs-cni.network.kubevirt.io");
// The other keys of `external_ids`. The original has no key for the container and the network.
const CONTAINER: &str = "contId";
const NETWORK: &str = "net";
const IFNAME: &str = "contIface";
const NETNS: &str = "contNetns";
const POD: &str = "contPodUid";
/// How often ports that change meanwhile are looked for again.
const TRIES: usize = 5;

/// A port that has our mark or the original's.
#[derive(Debug)]
pub struct Port {
    /// Its name: that of the pair's end on the host.
    pub name: String,
    /// CNI_NETNS of its ADD.
    pub netns_path: String,
    /// Its VLANs.
    pub vlans: Vlans,
    uuid: Uuid,
    container_id: String,
    ifname: String,
    network: String,
    external_ids: Value,
}

impl Port {
    fn of(row: &Value) -> Result<Port> {
        let external_ids = column(row, "external_ids")?;
        let pairs = values::pairs(external_ids)?;
        let id = |key| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        let id = |key| id(key).unwrap_or_default().to_owned();
        let name = column(row, "name")?;
        let mode = values::text(column(row, "vlan_mode")?)?;
        let modes = ["access", "trunk", "native-tagged", "native-untagged"];
        let vlans = Vlans {
            mode: modes.into_iter().find(|known| Some(*known) == mode).or(mode.map(|_| "another")),
            tag: values::vlans(column(row, "tag")?)?.first().copied(),
            trunks: values::vlans(column(row, "trunks")?)?,
        };
        Ok(Port {
            name: values::text(name)?.ok_or_else(|| unexpected("a name", name))?.to_owned(),
            netns_path: id(NETNS),
            vlans,
            uuid: Uuid::of(column(row, "_uuid")?)?,
            container_id: id(CONTAINER),
            ifname: id(IFNAME),
            network: id(NETWORK),
            external_ids: external_ids.clone(),
        })
    }

    /// The attachment that its marks name; None for a port of the original.
    pub fn key(&self) -> Option<Key> {
        Key::parse(&self.network, &self.container_id, &self.ifname).ok()
    }

    /// Takes the port from its bridge, provided that it has the same owner still.
    fn removal(&self) -> [Value; 2] {
        let uuid = self.uuid.to_value();
        let has_it = condition("ports", "includes", set([uuid.clone()]));
        let deletion = condition("ports", "delete", set([uuid]));
        let is_same = require("Port", &self.uuid, "external_ids", self.external_ids.clone());
        [is_same, mutate("Bridge", has_it, deletion)]
    }
}

/// Which ports are looked for.
#[derive(Clone, Copy)]
pub enum Wanted<'a> {
    /// Those of an attachment.
    Of(&'a Key),
    /// Those of a network's attachments.
    OfNetwork(&'a NetworkName),
    /// Those that the original made for an interface of the namespace at a path.
    OfOriginal {
        /// CNI_NETNS.
        netns_path: &'a str,
        /// CNI_IFNAME.
        ifname: &'a str,
    },
}

impl Wanted<'_> {
    fn operation(self) -> Value {
        let mut ids = vec![OWNER];
        match self {
            Wanted::Of(key) => ids.extend([
                (CONTAINER, key.container_id.as_str()),
                (IFNAME, key.ifname.as_str()),
                (NETWORK, key.network.as_str()),
            ]),
            Wanted::OfNetwork(network) => ids.push((NETWORK, network.as_str())),
            Wanted::OfOriginal { netns_path, ifname } => {
                ids.extend([(NETNS, netns_path), (IFNAME, ifname)]);
            }
        }
        let columns = ["_uuid", "name", "external_ids", "vlan_mode", "tag", "trunks"];
        select("Port", condition("external_ids", "includes", map(ids)), &columns)
    }

    fn find_in(self, result: &Value) -> Result<Vec<Port>> {
        let mut ports: Vec<Port> = rows(result)?.iter().map(Port::of).collect::<Result<_>>()?;
        if matches!(self, Wanted::OfOriginal { .. }) {
            ports.retain(|port| port.container_id.is_empty());
        }
        Ok(ports)
    }
}

/// The ports that are wanted.
pub fn find(database: &Database, wanted: Wanted<'_>) -> Result<Vec<Port>> {
    wanted.find_in(first(&database.read(vec![wanted.operation()])?)?)
}

/// Requires the bridge, and returns ports that an earlier ADD of the attachment has left: one that
/// was killed, or one of before a restart of the host, which the database outlives.
pub fn require_bridge(database: &Database, conf: &Conf, key: &Key) -> Result<Vec<Port>> {
    let bridge = conf.bridge()?;
    let named = condition("name", "==", Value::text(bridge));
    let of_key = Wanted::Of(key);
    let results = database.read(vec![select("Bridge", named, &["name"]), of_key.operation()])?;
    if rows(first(&results)?)?.is_empty() {
        return Err(bridge_missing(bridge));
    }
    of_key.find_in(results.last().unwrap_or(&Value::Null))
}

/// Whether the database has the bridge.
pub fn has_bridge(database: &Database, bridge: &str) -> Result<bool> {
    let named = condition("name", "==", Value::text(bridge));
    let results = database.read(vec![select("Bridge", named, &["name"])])?;
    Ok(!rows(first(&results)?)?.is_empty())
}

fn first(results: &[Value]) -> Result<&Value> {
    results.first().ok_or_else(|| unexpected("a result", &Value::Null))
}

/// Adds the link `name` as the attachment's port, in place of its `stale` ones.
pub fn create(
    database: &Database,
    conf: &Conf,
    at: &Attachment,
    (name, stale): (&str, &[Port]),
) -> Result<()> {
    let bridge = conf.bridge()?;
    let mut interface = vec![("name", Value::text(name))];
    if !conf.interface_type.is_empty() {
        interface.push(("type", Value::text(&*conf.interface_type)));
    }
    if conf.ofport_request != 0 {
        interface.push(("ofport_request", Value::number(conf.ofport_request)));
    }
    if !conf.asked.ovn_port.is_empty() {
        interface.push(("external_ids", map([("iface-id", conf.asked.ovn_port.as_str())])));
    }
    // As the original has them, with the container and the network.
    let external_ids = map([
        (POD, conf.asked.pod_uid.as_str()),
        (NETNS, &at.netns_path),
        (IFNAME, at.ifname()),
        OWNER,
        (CONTAINER, at.key.container_id.as_str()),
        (NETWORK, at.key.network.as_str()),
    ]);
    let Vlans { mode, tag, trunks } = conf.vlans();
    let mut port = vec![
        ("name", Value::text(name)),
        ("interfaces", set([named_uuid("interface")])),
        ("external_ids", external_ids),
    ];
    port.extend(mode.map(|mode| ("vlan_mode", Value::text(mode))));
    port.extend(tag.map(|tag| ("tag", Value::number(tag))));
    if !trunks.is_empty() {
        port.push(("trunks", set(trunks.into_iter().map(Value::number))));
    }
    let mut operations: Vec<Value> = stale.iter().flat_map(Port::removal).collect();
    operations.extend([
        insert("Interface", "interface", interface),
        insert("Port", "port", port),
        mutate(
            "Bridge",
            condition("name", "==", Value::text(bridge)),
            condition("ports", "insert", set([named_uuid("port")])),
        ),
    ]);
    match database.transact(operations)? {
        Outcome::Refused(refusal) => {
            let what = format!("add port {name:?} to bridge {bridge:?}");
            Err(refusal.into_error(&what))
        }
        Outcome::Done(results) => match count(results.last().unwrap_or(&Value::Null))? {
            // Rows without a reference are collected, so nothing was made.
            0 => Err(bridge_missing(bridge)),
            _ => Ok(()),
        },
    }
}

/// Deletes the ports that are wanted. One that changes meanwhile is looked for again.
pub fn delete(database: &Database, wanted: Wanted<'_>) -> Result<()> {
    for _ in 0..TRIES {
        let ports = find(database, wanted)?;
        if ports.is_empty() {
            return Ok(());
        }
        match database.transact(ports.iter().flat_map(Port::removal).collect())? {
            Outcome::Done(_) => return Ok(()),
            Outcome::Refused(refusal) if refusal.is_of_wait() => (), // one of them has changed
            Outcome::Refused(refusal) => return Err(refusal.into_error("delete ports of OVSDB")),
        }
    }
    Err(Error::new(Code::TRY_AGAIN, "delete ports of OVSDB: they changed meanwhile"))
}

/// Compares the attachment's port `name` on its bridge with the configuration. A bridge that is gone
/// is a difference.
pub fn verify(database: &Database, conf: &Conf, (key, name): (&Key, &str)) -> Result<()> {
    let bridge = conf.bridge()?;
    let named = |name| condition("name", "==", Value::text(name));
    let results = database.read(vec![
        select("Bridge", named(bridge), &["ports"]),
        Wanted::Of(key).operation(),
        select("Interface", named(name), &["error"]),
    ])?;
    let [bridges, ports, interfaces] = &results[..] else {
        return Err(unexpected("three results", &Value::Null));
    };
    let Some(row) = rows(bridges)?.first() else {
        return Err(bridge_missing(bridge).with_code(Code::CHECK_FAILED));
    };
    let on_bridge = values::members(column(row, "ports")?);
    let mut ports = Wanted::Of(key).find_in(ports)?;
    ports.retain(|port| port.name == name && on_bridge.contains(&port.uuid.to_value()));
    let Some(port) = ports.pop() else {
        let what = format!("bridge {bridge:?} of Open vSwitch has no port {name:?} of ours");
        return Err(Error::check(what).about(&Aspect::HostEnd));
    };
    let mut found = ErrorList::default();
    let wanted = conf.vlans();
    if port.vlans != wanted {
        let what = format!("port {name:?} has {}, expected {wanted}", port.vlans);
        found.add(Error::check(what));
    }
    let error = match rows(interfaces)?.first() {
        Some(row) => column(row, "error").and_then(values::text),
        None => Ok(None),
    };
    if let Some(error) = found.push(error).flatten().filter(|error| !error.is_empty()) {
        let what = format!("Open vSwitch has an error of port {name:?}: {error}");
        found.add(Error::check(what));
    }
    found.finish()
}
