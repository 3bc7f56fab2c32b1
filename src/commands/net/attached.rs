//! Attachments as displayed: the content of their cache files, and the state of their namespaces.
//! `net ps` lists them; `net inspect` shows everything known about one, and what the kernel still has
//! of it. Neither runs a plugin.

use std::time::SystemTime;

use super::capability::published;
use super::network;
use super::operator::Operator;
use crate::cni::attachment::{ContainerId, NetworkName};
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netns::Netns;
use crate::runtime::cache::{Found, Record};
use crate::runtime::find::{self, Name};
use crate::runtime::living::state_of;
use crate::runtime::parameters::Parameters;
use crate::terminal::progress::Progress;
use crate::terminal::table::{self, Members, PROBLEM, put, put_text};

/// A cache file that has been read.
struct Attached {
    /// The file's name, unique among all attachments.
    file_name: String,
    /// The attachment's parameters; None if unknown.
    at: Option<Parameters>,
    /// The network's document at the time of ADD; may be empty.
    document: Vec<u8>,
    /// The result of ADD; null if it cannot be read.
    result: Value,
    /// The members that `ps` prints.
    members: Members,
}

/// Every file of the caches. A bare result of an old libcni shows its network, the typed one or one
/// of the directory, only by the file's name.
fn all(operator: &Operator<'_>) -> Result<Vec<Attached>> {
    let networks = networks(operator);
    let progress = Progress::default();
    let mut all = vec![];
    for cache in operator.caches()? {
        let files = cache.each()?;
        let count = files.len();
        for (number, found) in files.enumerate() {
            progress.count(number, count);
            all.push(Attached::of(found, &networks));
        }
    }
    progress.clear();
    Ok(all)
}

/// The typed network, if the argument can be one, and those of the directory.
pub fn networks(operator: &Operator<'_>) -> Vec<NetworkName> {
    let typed = NetworkName::parse(operator.argument("network")).ok();
    typed.into_iter().chain(network::names(&operator.conf_dir()).0).collect()
}

impl Attached {
    fn of(found: Found, networks: &[NetworkName]) -> Attached {
        let named = networks.iter().find_map(|network| found.attachment(network));
        let file = found.file.to_string_lossy().into_owned();
        let file_name = file.rsplit('/').next().unwrap_or_default().to_owned();
        let (at, document, result, mut problem) = match found.record {
            Err(error) => (None, vec![], Value::Null, error.to_string()),
            Ok(Record { at, document, result: Err(error), .. }) => {
                (at, document, Value::Null, error.to_string())
            }
            Ok(Record { at, document, result: Ok(result), .. }) => {
                let result = result.map_or(Value::Null, |result| result.to_value());
                (at.or(named), document, result, String::new())
            }
        };
        let mut members = Members::new();
        if let Some(at) = &at {
            put_text(&mut members, "name", &at.name());
            put_text(&mut members, "network", at.key.network.as_str());
            put_text(&mut members, ID, at.key.container_id.as_str());
            put_text(&mut members, "ifname", at.key.ifname.as_str());
            put_text(&mut members, "pod", &at.pod().unwrap_or_default());
            put_text(&mut members, "netns", &at.netns);
        }
        let netns = at.as_ref().map_or("", |at| &at.netns);
        put_text(&mut members, "namespace", state_of(netns));
        put(&mut members, "addresses", table::texts(addresses(&result, "")));
        let ports = at.as_ref().map(|at| published(&at.capability_args));
        put(&mut members, "ports", table::texts(ports.unwrap_or_default()));
        // A time to come is no age.
        let age = found.written.and_then(|at| SystemTime::now().duration_since(at).ok());
        if let Some(age) = age {
            put(&mut members, "ageSeconds", Value::number(age.as_secs()));
        }
        put_text(&mut members, "file", &file);
        if at.is_none() && problem.is_empty() {
            problem = format!("no owner is recorded: {file_name}");
        }
        put_text(&mut members, PROBLEM, &problem);
        Attached { file_name, at, document, result, members }
    }

    /// Whether the member `key` is `wanted`; if the parameters are unknown, whether the file's name
    /// allows it.
    fn is(&self, key: &str, wanted: &str) -> bool {
        match (&self.at, key) {
            _ if wanted.is_empty() => true,
            (None, "network") => self.file_name.starts_with(&format!("{wanted}-")),
            (None, _) => self.file_name.contains(&format!("-{wanted}-")),
            _ => self.text(key) == Some(wanted),
        }
    }

    /// Whether this is the record's file, by name or path.
    fn is_file(&self, name: &str) -> bool {
        self.file_name == name || self.text("file") == Some(name)
    }

    /// Whether the container's id begins with `wanted`; if the parameters are unknown, whether the
    /// file's name allows it.
    fn has_id(&self, wanted: &str) -> bool {
        match &self.at {
            None => self.is("containerId", wanted),
            Some(at) => at.key.container_id.as_str().starts_with(wanted),
        }
    }

    /// The text of a member.
    fn text(&self, key: &str) -> Option<&str> {
        let member = self.members.iter().find(|(name, _)| name == key);
        member.and_then(|(_, value)| value.as_str())
    }
}

/// The addresses of a result of any version; with an interface's name, only those that may belong
/// to that interface.
fn addresses(result: &Value, ifname: &str) -> Vec<String> {
    let ips = result.get("ips").map_or(&[][..], Value::items).iter();
    let ips =
        ips.filter(|ip| ifname.is_empty() || owner(result, ip).is_none_or(|owner| owner == ifname));
    // Those of version 0.2.0 or before.
    let old = ["ip4", "ip6"].into_iter().filter_map(|key| result.get(key)?.get("ip"));
    let addresses = ips.filter_map(|ip| ip.get("address")).chain(old);
    addresses.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The name of the interface that an address belongs to, if the result has it.
fn owner<'a>(result: &'a Value, ip: &Value) -> Option<&'a str> {
    let index = ip.get("interface")?.as_u64()?;
    let interface = result.get("interfaces")?.items().get(index as usize)?;
    interface.get("name")?.as_str()
}

/// The columns of `net ps`.
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

/// `net ps`: the attachments recorded in the cache.
pub fn list(operator: &Operator<'_>) -> Result<String> {
    operator.network()?;
    let [name, id] = ["network", "container-id"].map(|name| operator.argument(name));
    if !id.is_empty() {
        ContainerId::parse(id)?;
    }
    let mut all = all(operator)?;
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

/// `net inspect`.
pub fn inspect(operator: &Operator<'_>) -> Result<String> {
    let Attached { at, document, result, mut members, .. } = select(operator)?;
    if let Some(at) = &at {
        put_text(&mut members, "args", &at.joined_args());
        put(&mut members, "capabilityArgs", at.capability_args.clone());
    }
    if let Ok(config) = Value::parse(&document) {
        put(&mut members, "config", config);
    }
    if matches!(result, Value::Object(_)) {
        put(&mut members, "result", result.clone());
    }
    if let Some(at) = &at {
        let mut kernel = Members::new();
        if let Err(problem) = look(at, &result, &mut kernel) {
            let state = if problem.is_not_found() { "absent" } else { "unknown" };
            put_text(&mut kernel, "interface", state);
            put_text(&mut kernel, PROBLEM, &problem.to_string());
        }
        put(&mut members, "kernel", Value::Object(kernel));
    }
    Ok(table::of_object(Value::Object(members), operator.wants_json()))
}

/// The only attachment that matches the arguments.
fn select(operator: &Operator<'_>) -> Result<Attached> {
    let all = all(operator)?;
    let mut names: Vec<String> =
        all.iter().filter_map(|one| Some(one.at.as_ref()?.name())).collect();
    names.sort_unstable();
    names.dedup();
    let mut found = choose(operator, all)?;
    if found.len() > 1 {
        let files: Vec<&str> = found.iter().map(|attached| attached.file_name.as_str()).collect();
        let msg = "several attachments match; select one with --container-id or --ifname";
        return Err(Error::new(Code::UNKNOWN_CONTAINER, msg).with_details(files.join(", ")));
    }
    found.pop().ok_or_else(|| {
        Error::new(Code::UNKNOWN_CONTAINER, "no such attachment")
            .with_details(format_args!("recorded: {}", find::listed(&names)))
    })
}

/// Every attachment that matches the arguments. The first one is the name of a record's file, a
/// network or, without a second one, a name of a container.
fn choose(operator: &Operator<'_>, mut all: Vec<Attached>) -> Result<Vec<Attached>> {
    let [first, container] = ["network", "netns"].map(|name| operator.argument(name));
    if let Some(index) = all.iter().position(|attached| attached.is_file(first)) {
        return Ok(vec![all.swap_remove(index)]);
    }
    let ifname = operator.option("ifname", "CNI_IFNAME", "");
    let id = operator.argument("container-id");
    all.retain(|attached| attached.at.is_some());
    let is_network = !container.is_empty() || all.iter().any(|one| one.is("network", first));
    let network = if is_network { first } else { "" };
    all.retain(|attached| {
        attached.is("network", network) && attached.is("ifname", &ifname) && attached.has_id(id)
    });
    if all.iter().any(|one| one.is("containerId", id)) {
        all.retain(|one| one.is("containerId", id)); // longer ids may begin with this one
    }
    let name = if is_network { container } else { first };
    if name.is_empty() { Ok(all) } else { Name::parse(name)?.only_of(all, |one| one.at.as_ref()) }
}

/// The kernel's state compared with the result.
fn look(at: &Parameters, result: &Value, told: &mut Members) -> Result<()> {
    let ifname = at.key.ifname.as_str();
    let netns = Netns::open(&at.netns)?;
    let netlink = netns.netlink()?;
    let link = netlink.link(ifname)?;
    let recorded = addresses(result, ifname);
    let found: Vec<String> =
        netlink.addresses(&link)?.iter().map(|address| address.net.to_string()).collect();
    put_text(told, "interface", "present");
    put_text(told, "mac", &MacAddr::new(&link.mac).to_string());
    put(told, "mtu", Value::Number(link.mtu.into()));
    put(told, "up", Value::Bool(link.up));
    let missing = recorded.iter().filter(|address| !found.contains(address)).cloned().collect();
    // The kernel adds a link-local address itself, which no result contains.
    let is_other = |address: &&String| !recorded.contains(address) && !address.starts_with("fe80:");
    let others = found.iter().filter(is_other).cloned().collect();
    put(told, "addresses", table::texts(found));
    put(told, "missing", table::texts(missing));
    put(told, "others", table::texts(others));
    // `10.1.0.0/16 via 10.0.0.1`, with the table unless it is the main one.
    let mut routes = vec![];
    for route in netlink.routes_through(&link)? {
        let mut text = route.dst.to_string();
        route.gateways().iter().for_each(|gateway| text += &format!(" via {gateway}"));
        if !route.is_in_main() {
            text += &format!(" table {}", route.table);
        }
        routes.push(text);
    }
    put(told, "routes", table::texts(routes));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_found_in_results_of_every_version() {
        let of = |text: &str, ifname| {
            addresses(&Value::parse(text.as_bytes()).unwrap(), ifname).join(" ")
        };
        let result = r#"{"interfaces":[{"name":"br0"},{"name":"eth0"}],"ips":[{"address":"10.0.0.1/8","interface":0},
            {"address":"10.0.0.2/8","interface":1},{"address":"10.0.0.3/8"},{"address":"10.0.0.4/8","interface":-1}]}"#;
        assert_eq!(of(result, ""), "10.0.0.1/8 10.0.0.2/8 10.0.0.3/8 10.0.0.4/8");
        assert_eq!(of(result, "eth0"), "10.0.0.2/8 10.0.0.3/8 10.0.0.4/8");
        assert_eq!(
            of(r#"{"ip4":{"ip":"10.0.0.1/8"},"ip6":{"ip":"fd00::1/64"}}"#, ""),
            "10.0.0.1/8 fd00::1/64"
        );
        assert_eq!(of("null", ""), "");
    }
}
