//! `cni-multi example PLUGIN...`: prints a configuration list that validates.
//!
//! The parts are put together as a list needs them: the plugin that creates the interface, with
//! its IPAM plugin, then those that change the interface. The plugins' own checks decide whether
//! they fit together.

use clap::{Arg, ArgMatches, Command};

use super::advice_about_plugin;
use super::validate::Trial;
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::cni::version;
use crate::error::{Code, Error, Result};
use crate::plugin::{Entry, Kind, OperatorCommand};
use crate::registry::PLUGINS;
use crate::terminal::Streams;
use crate::terminal::manual::Manual;

/// The plugin that creates the interface, if none is named.
const USUAL: &str = "bridge";

/// The IPAM plugin, if none is named.
const USUAL_IPAM: &str = "host-local";

/// The plugins of the group main that have no address, or bring their own `ipam`.
const WITHOUT_IPAM: [&str; 2] = ["loopback", "flannel"];

/// The plugin that knows the addresses before its interface exists, so that the IPAM plugin cannot
/// send packets over it.
const ADDRESSES_FIRST: &str = "ptp";

/// The sections of its page.
pub const MANUAL: Manual = Manual {
    description: &[
        "The plugins may be named in any order. Without one that creates an interface the example \
         has a bridge, and without an IPAM plugin it has host-local.",
    ],
    examples: &[
        ("cni-multi example bridge portmap firewall", "A bridge with published ports."),
        ("cni-multi example vlan dhcp >lab.conflist", "A file to edit."),
    ],
    exit_status: &[
        ("0", "Success."),
        ("1", "The output could not be written."),
        ("2", "There is no plugin of this name, or the plugins do not fit together."),
    ],
    see_also: &["cni.conflist(5)", "cni-multi-validate(1)"],
    ..Manual::EMPTY
};

/// `cni-multi example`.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: "example", command_line: command, run, manual: |_| MANUAL };

fn command() -> Command {
    let names = Arg::new("plugins").value_name("PLUGIN").num_args(1..).required(true);
    Command::new("example")
        .about("Print a configuration list with these plugins")
        .arg(names.help("Names of plugins"))
}

fn run(matches: &ArgMatches, _: &Environment, io: &mut Streams<'_>) -> u8 {
    let names = matches.get_many::<String>("plugins").into_iter().flatten();
    match list(names.map(String::as_str)) {
        Ok(list) => io.print(&(list.to_indented_text() + "\n")),
        Err(error) => {
            io.complain(&error);
            2
        }
    }
}

/// The plugins of a list.
struct Chain {
    main: &'static Entry,
    ipam: Option<&'static Entry>,
    metas: Vec<&'static Entry>,
}

/// The list with the plugins of these names.
fn list<'a>(names: impl Iterator<Item = &'a str>) -> Result<Value> {
    let mut chosen = vec![];
    for name in names {
        chosen.push(find(name)?);
    }
    chosen.sort_by_key(|entry| position(entry.name));
    chosen.dedup_by_key(|entry| entry.name);
    let chain = chain(&chosen)?;
    let objects = chain.objects();
    require_fit(&chain, &objects)?;
    let named: Vec<&str> = chosen.iter().map(|entry| entry.name).collect();
    Ok(Value::object([
        ("cniVersion", Value::text(version::CURRENT)),
        ("name", Value::text(named.join("-"))),
        ("plugins", Value::Array(objects)),
    ]))
}

fn find(name: &str) -> Result<&'static Entry> {
    if let Some(entry) = PLUGINS.iter().find(|entry| entry.name == name) {
        return Ok(entry);
    }
    Err(refusal(&format!("no plugin is named {name:?}")).with_details(advice_about_plugin(name)))
}

/// The chosen plugins by their groups, with the usual ones where a list needs one.
fn chain(chosen: &[&'static Entry]) -> Result<Chain> {
    let main = only(chosen, Kind::Main)?;
    let main = main.map_or_else(|| find(USUAL), Ok)?;
    let ipam = only(chosen, Kind::Ipam)?;
    let of_kind = chosen.iter().filter(|entry| entry.kind == Kind::Meta);
    let metas = of_kind.copied().collect();
    match (WITHOUT_IPAM.contains(&main.name), ipam) {
        (true, Some(ipam)) => {
            Err(refusal(&format!("{} takes no {} from a list", main.name, ipam.name)))
        }
        (false, None) => Ok(Chain { main, ipam: Some(find(USUAL_IPAM)?), metas }),
        _ => Ok(Chain { main, ipam, metas }),
    }
}

/// The chosen plugin of a group of which a list has at most one.
fn only(chosen: &[&'static Entry], kind: Kind) -> Result<Option<&'static Entry>> {
    let of_kind: Vec<_> = chosen.iter().filter(|entry| entry.kind == kind).collect();
    let [one, other, ..] = of_kind.as_slice() else {
        return Ok(of_kind.first().copied().copied());
    };
    let is_ipam = kind == Kind::Ipam;
    let what = if is_ipam { "allocate the addresses" } else { "create the interface" };
    Err(refusal(&format!("both {} and {} {what}", one.name, other.name))
        .with_details("name one of them"))
}

/// Requires that each plugin accepts its object, as in ADD.
fn require_fit(chain: &Chain, objects: &[Value]) -> Result<()> {
    let Chain { main, ipam, .. } = chain;
    if let Some(ipam) = ipam.filter(|ipam| ipam.needs_link && main.name == ADDRESSES_FIRST) {
        return Err(refusal(&format!(
            "{} needs the interface before {} creates it",
            ipam.name, main.name
        )));
    }
    let trial = Trial::new("example", version::CURRENT);
    let entries = [chain.main].into_iter().chain(chain.metas.iter().copied());
    for (index, (entry, object)) in entries.zip(objects).enumerate() {
        let mut object = object.clone();
        trial.prepare(&mut object, index == 0);
        trial.run_completed(entry, &object).map_err(|e| e.context(entry.name))?;
    }
    Ok(())
}

impl Chain {
    /// The objects of the list.
    fn objects(&self) -> Vec<Value> {
        let mut main = object(self.main.name);
        if let Some(ipam) = self.ipam {
            main.set("ipam", object(ipam.name));
            // Its gateway is the router of the LAN, whose address the bridge may not have.
            for key in ["isGateway", "ipMasq"].iter().filter(|_| ipam.needs_link) {
                main.remove(key);
            }
        }
        let metas = self.metas.iter().map(|entry| object(entry.name));
        [main].into_iter().chain(metas).collect()
    }
}

/// Plugins that make no list.
fn refusal(msg: &str) -> Error {
    Error::new(Code::INVALID_CONFIG, msg.to_owned())
}

/// Each plugin with its keys, in the order of a list: what creates the interface, the IPAM plugins
/// that it calls, and what changes the interface.
const PARTS: [(&str, &str); 24] = [
    ("loopback", "{}"),
    ("bridge", r#"{"bridge": "cni0", "isGateway": true, "ipMasq": true}"#),
    ("ptp", r#"{"ipMasq": true}"#),
    ("macvlan", r#"{"master": "eth0"}"#),
    ("ipvlan", r#"{"master": "eth0"}"#),
    ("vlan", r#"{"master": "eth0", "vlanId": 100}"#),
    ("host-device", r#"{"device": "eth1"}"#),
    ("dummy", "{}"),
    ("tap", "{}"),
    ("flannel", r#"{"delegate": {"hairpinMode": true, "isDefaultGateway": true}}"#),
    ("bond", r#"{"mode": "active-backup", "links": [{"name": "eth1"}, {"name": "eth2"}]}"#),
    ("ovs", r#"{"bridge": "ovs0", "vlan": 100}"#),
    (
        "host-local",
        r#"{"ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}"#,
    ),
    (
        "static",
        r#"{"addresses": [{"address": "10.88.0.2/24", "gateway": "10.88.0.1"}], "routes": [{"dst": "0.0.0.0/0"}]}"#,
    ),
    ("dhcp", "{}"),
    (
        "cluster-local",
        r#"{"scope": "machine", "ranges": [[{"subnet": "10.88.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}"#,
    ),
    (
        "whereabouts",
        r#"{"scope": "machine", "range": "10.88.0.0/24", "gateway": "10.88.0.1", "routes": [{"dst": "0.0.0.0/0"}]}"#,
    ),
    ("tuning", r#"{"sysctl": {"net.core.somaxconn": "512"}}"#),
    ("vrf", r#"{"vrfname": "red"}"#),
    ("sbr", "{}"),
    ("route-override", r#"{"addroutes": [{"dst": "10.0.0.0/8"}]}"#),
    (
        "bandwidth",
        r#"{"ingressRate": 100000000, "ingressBurst": 10000000, "egressRate": 100000000, "egressBurst": 10000000}"#,
    ),
    ("firewall", "{}"),
    ("portmap", r#"{"capabilities": {"portMappings": true}}"#),
];

/// The position of a plugin in a list.
pub fn position(name: &str) -> usize {
    PARTS.iter().position(|part| part.0 == name).unwrap_or(PARTS.len())
}

/// The object of a plugin.
pub fn object(name: &str) -> Value {
    let mut object = Value::object([("type", Value::text(name))]);
    let keys = PARTS.iter().find(|part| part.0 == name).map_or("{}", |part| part.1);
    let Ok(Value::Object(members)) = Value::parse(keys.as_bytes()) else { return object };
    for (key, value) in members {
        object.set(&key, value);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::PLUGINS;

    #[test]
    fn every_plugin_has_a_part_and_each_part_is_json() {
        for entry in PLUGINS {
            assert!(position(entry.name) < PARTS.len(), "{} has no part", entry.name);
        }
        assert_eq!(PARTS.len(), PLUGINS.len());
        for (name, keys) in PARTS {
            assert!(Value::parse(keys.as_bytes()).is_ok(), "{name}");
        }
    }
}
