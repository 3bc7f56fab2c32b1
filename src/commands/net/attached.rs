//! An attachment as displayed: the content of its cache file, and the state of its namespace.

use std::time::SystemTime;

use super::network;
use super::operator::Operator;
use super::publish::published;
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::error::{Error, Result};
use crate::runtime::cache::{Found, Record};
use crate::runtime::living::state_of;
use crate::runtime::parameters::Parameters;
use crate::terminal::progress::Progress;
use crate::terminal::table::{self, Members, PROBLEM, put, put_text};

/// A cache file that has been read.
pub struct Attached {
    /// The file's name, unique among all attachments.
    pub file_name: String,
    /// The attachment's parameters; None if unknown.
    pub at: Option<Parameters>,
    /// The network's document at the time of ADD; may be empty.
    pub document: Vec<u8>,
    /// The result of ADD; null if it cannot be read.
    pub result: Value,
    /// The members that `ps` prints.
    pub members: Members,
}

/// Every file of the caches. A bare result of an old libcni shows its network, the typed one or one
/// of the directory, only by the file's name.
pub fn all(operator: &Operator<'_>) -> Result<Vec<Attached>> {
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

/// What a record contains, as far as it can be read.
#[derive(Default)]
struct Contents {
    at: Option<Parameters>,
    document: Vec<u8>,
    result: Value,
    /// Why a part of it cannot be read; else empty.
    problem: String,
}

impl Contents {
    /// The contents of a record; `named` is the attachment that the file's name indicates.
    fn of(record: Result<Record>, named: Option<Parameters>) -> Contents {
        let unreadable =
            |error: Error| Contents { problem: error.to_string(), ..Contents::default() };
        let Record { at, document, result, .. } = match record {
            Ok(record) => record,
            Err(error) => return unreadable(error),
        };
        match result {
            Err(error) => Contents { at, document, ..unreadable(error) },
            Ok(result) => {
                let result = result.map_or(Value::Null, |result| result.to_value());
                Contents { at: at.or(named), document, result, problem: String::new() }
            }
        }
    }

    /// The members that `ps` prints, without those about the file.
    fn members(&self) -> Members {
        let mut members = Members::new();
        if let Some(at) = &self.at {
            put_text(&mut members, "name", &at.name());
            put_text(&mut members, "network", at.key.network.as_str());
            put_text(&mut members, "containerId", at.key.container_id.as_str());
            put_text(&mut members, "ifname", at.key.ifname.as_str());
            put_text(&mut members, "pod", &at.pod().unwrap_or_default());
            put_text(&mut members, "netns", &at.netns);
        }
        let netns = self.at.as_ref().map_or("", |at| &at.netns);
        put_text(&mut members, "namespace", state_of(netns));
        put(&mut members, "addresses", table::texts(addresses(&self.result, "")));
        let ports = self.at.as_ref().map(|at| published(&at.capability_args));
        put(&mut members, "ports", table::texts(ports.unwrap_or_default()));
        members
    }
}

impl Attached {
    fn of(found: Found, networks: &[NetworkName]) -> Attached {
        let named = networks.iter().find_map(|network| found.attachment(network));
        let file = found.file.to_string_lossy().into_owned();
        let file_name = file.rsplit('/').next().unwrap_or_default().to_owned();
        let contents = Contents::of(found.record, named);
        let mut members = contents.members();
        // A time to come is no age.
        let age = found.written.and_then(|at| SystemTime::now().duration_since(at).ok());
        if let Some(age) = age {
            put(&mut members, "ageSeconds", Value::number(age.as_secs()));
        }
        put_text(&mut members, "file", &file);
        let Contents { at, document, result, mut problem } = contents;
        if at.is_none() && problem.is_empty() {
            problem = format!("no owner is recorded: {file_name}");
        }
        put_text(&mut members, PROBLEM, &problem);
        Attached { file_name, at, document, result, members }
    }

    /// Whether the member `key` is `wanted`; if the parameters are unknown, whether the file's name
    /// allows it.
    pub fn is(&self, key: &str, wanted: &str) -> bool {
        match (&self.at, key) {
            _ if wanted.is_empty() => true,
            (None, "network") => self.file_name.starts_with(&format!("{wanted}-")),
            (None, _) => self.file_name.contains(&format!("-{wanted}-")),
            _ => self.text(key) == Some(wanted),
        }
    }

    /// Whether this is the record's file, by name or path.
    pub fn is_file(&self, name: &str) -> bool {
        self.file_name == name || self.text("file") == Some(name)
    }

    /// Whether the container's id begins with `wanted`; if the parameters are unknown, whether the
    /// file's name allows it.
    pub fn has_id(&self, wanted: &str) -> bool {
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
pub fn addresses(result: &Value, ifname: &str) -> Vec<String> {
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
