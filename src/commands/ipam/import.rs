//! `ipam export` prints the leases as a document, and `ipam import` takes over those of another
//! machine, all of them or none.
//!
//! ```json
//! {"cniMultiLeases":1,"networks":[{"network":"pods","ipam":"host-local","leases":[
//!   {"address":"10.88.0.2","containerId":"4f1c","ifname":"eth0"}]}]}
//! ```
//!
//! Networks are sorted by name and leases by address, so two exports of one state are equal.

use std::collections::HashSet;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

use super::networks::{Host, Leased};
use super::{Request, ip_pools};
use crate::cni::attachment::{ContainerId, IfName, NetworkName};
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::plain_file::{LARGEST_CONFIGURATION, read_configuration};
use crate::plugin::leases::{Holding, Incoming, LeaseImporter};
use crate::terminal::progress::Progress;
use crate::terminal::table::{Members, put_text};

/// A network of the document, with what imports it.
struct Target {
    network: Leased,
    importer: &'static dyn LeaseImporter,
    leases: Vec<Holding>,
}

/// `ipam import`; returns what is printed.
pub fn import(host: &Host<'_>, request: &Request, stdin: &mut dyn Read) -> Result<String> {
    let mut text = vec![];
    if request.file == "-" {
        let read = stdin.take(LARGEST_CONFIGURATION as u64).read_to_end(&mut text);
        read.map_err(|e| Error::io("read stdin", &e))?;
    } else {
        let path = Path::new(&request.file);
        text =
            read_configuration(path).map_err(Error::at_path("read", path)).map_err(|e| match e
                .is_not_found()
            {
                true => {
                    e.with_details("name what `cni-multi ipam export` has written, or - for stdin")
                }
                false => e,
            })?;
    }
    let within = |e: Error| e.context(&request.file);
    let (sections, note) = if request.is_of_whereabouts {
        ip_pools::sections(host, &text, request.network.as_ref()).map_err(within)?
    } else {
        let sections = read(&text).map_err(within)?;
        (chosen(sections, request.network.as_ref())?, String::new())
    };
    let targets: Result<Vec<Target>> =
        sections.into_iter().map(|section| target(host, section)).collect();
    let targets = targets?;
    if request.is_dry_run {
        return Ok(dry_run(host, &targets)? + &note);
    }
    let progress = Progress::default();
    let mut missing = vec![];
    let imported = Import { host, progress: &progress }.all(&targets, &mut missing);
    progress.clear();
    missing.reverse(); // the last network was done first
    imported.map(|()| report("imported", &targets, &missing) + &note)
}

/// What an import would do.
fn dry_run(host: &Host<'_>, targets: &[Target]) -> Result<String> {
    let mut missing = vec![];
    for target in targets {
        let preview = target.importer.preview(&target.network.context(host), &target.leases);
        missing.push(preview.map_err(|e| target.in_network(e))?);
    }
    Ok(report("would import", targets, &missing))
}

/// The section of the named network, or all.
fn chosen(sections: Vec<Section>, wanted: Option<&NetworkName>) -> Result<Vec<Section>> {
    let Some(wanted) = wanted else { return Ok(sections) };
    let names: Vec<String> = sections.iter().map(|section| section.network.to_string()).collect();
    let chosen: Vec<Section> =
        sections.into_iter().filter(|section| section.network == *wanted).collect();
    if !chosen.is_empty() {
        return Ok(chosen);
    }
    let msg = format!("the document has no network {:?}", wanted.as_str());
    Err(Error::new(Code::INVALID_CONFIG, msg)
        .with_details(format_args!("it has: {}", names.join(", "))))
}

/// The network here that the section is for.
fn target(host: &Host<'_>, section: Section) -> Result<Target> {
    let Section { network, ipam, leases } = section;
    let here = host.leased(None)?.into_iter();
    let mut of_name = here.filter(|leased| leased.network == network);
    let Some(leased) = of_name.find(|leased| leased.ipam == ipam) else {
        let msg = format!("network {:?} with {ipam} is not configured here", network.as_str());
        let advice = format!("expected it in {}", host.conf_dir.display());
        return Err(Error::new(Code::INVALID_CONFIG, msg).with_details(advice));
    };
    let importer = leased.store.importer().ok_or_else(|| cannot_move(&leased))?;
    Ok(Target { network: leased, importer, leases })
}

impl Target {
    fn in_network(&self, error: Error) -> Error {
        error.context(format_args!("network {:?}", self.network.network.as_str()))
    }
}

/// An import that a person watches.
struct Import<'a> {
    host: &'a Host<'a>,
    progress: &'a Progress,
}

impl Import<'_> {
    /// Imports the networks, each while the ones before it are locked and can still be undone.
    fn all(&self, targets: &[Target], missing: &mut Vec<usize>) -> Result<()> {
        let Some((first, rest)) = targets.split_first() else { return Ok(()) };
        let mut in_rest = false;
        let mut then = || {
            in_rest = true;
            self.all(rest, missing)
        };
        let name = &first.network.network;
        let tell = |done, all| self.progress.tell(&format!("{name}: {done}/{all}"));
        let cx = first.network.context(self.host);
        let incoming = Incoming { leases: &first.leases, tell: &tell };
        let imported = first.importer.import(&cx, &incoming, &mut then);
        let count = imported.map_err(|e| if in_rest { e } else { first.in_network(e) })?;
        missing.push(count);
        Ok(())
    }
}

/// A line for each network.
fn report(verb: &str, targets: &[Target], missing: &[usize]) -> String {
    let line = |(target, missing): (&Target, &usize)| {
        let there = target.leases.len() - missing;
        format!("{}: {verb} {missing}, already there {there}\n", target.network.network)
    };
    targets.iter().zip(missing).map(line).collect()
}

/// `ipam export`: of the named network, or of all that can be imported.
pub fn export(host: &Host<'_>, request: &Request) -> Result<String> {
    let networks = host.leased(request.network.as_ref())?;
    // Leases that a server grants have no importer: another machine would have to ask it itself.
    let (served, portable): (Vec<&Leased>, Vec<&Leased>) =
        networks.iter().partition(|leased| leased.store.importer().is_none());
    if let (true, Some(leased)) = (request.network.is_some() && portable.is_empty(), served.first())
    {
        return Err(cannot_move(leased));
    }
    let mut sections = vec![];
    for leased in portable {
        let mut leases = leased.holdings(host)?.held;
        leases.retain(|held| !held.container_id.is_empty()); // those that name their owner
        let Leased { network, ipam, .. } = leased;
        sections.push(Section { network: network.clone(), ipam: (*ipam).to_owned(), leases });
    }
    Ok(write(&sections).to_indented_text())
}

/// The error for leases that cannot be moved.
pub fn cannot_move(leased: &Leased) -> Error {
    let msg = format!("leases of {} belong to a server and cannot be moved", leased.ipam);
    Error::new(Code::INVALID_CONFIG, msg)
        .with_details(format_args!("network {:?}", leased.network.as_str()))
}

/// The version of the format, which is the value of the first member.
const VERSION: u64 = 1;
/// The first member.
const KIND: &str = "cniMultiLeases";

/// The leases of one network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The network.
    pub network: NetworkName,
    /// The name of the IPAM plugin.
    pub ipam: String,
    /// The leases; of their members only address, container and interface are in the document.
    pub leases: Vec<Holding>,
}

/// The document of these networks.
pub fn write(sections: &[Section]) -> Value {
    let lease = |held: &Holding| {
        let mut members = Members::new();
        put_text(&mut members, "address", &held.address.to_string());
        put_text(&mut members, "containerId", &held.container_id);
        put_text(&mut members, "ifname", &held.ifname);
        Value::Object(members)
    };
    let section = |section: &Section| {
        Value::object([
            ("network", Value::text(section.network.as_str())),
            ("ipam", Value::text(&section.ipam)),
            ("leases", Value::Array(section.leases.iter().map(lease).collect())),
        ])
    };
    let sections = sections.iter().map(section).collect();
    Value::object([(KIND, Value::number(VERSION)), ("networks", Value::Array(sections))])
}

/// Reads a document. An error names the place in it.
pub fn read(text: &[u8]) -> Result<Vec<Section>> {
    let document = Value::parse(text)?;
    match document.get(KIND) {
        None => return Err(Error::missing(KIND, "the output of cni-multi ipam export")),
        Some(version) if version.as_u64() == Some(VERSION) => (),
        Some(other) => {
            let problem = format!("version {} is unknown", other.to_text());
            return Err(Error::config(KIND, problem).expecting("1"));
        }
    }
    let mut sections: Vec<Section> = vec![];
    for (place, value) in items(&document, "", "networks")? {
        let section = read_section(value, &place)?;
        if sections
            .iter()
            .any(|known| known.network == section.network && known.ipam == section.ipam)
        {
            let problem = format!("{:?} is there twice", section.network.as_str());
            return Err(Error::config(format_args!("{place}.network"), problem));
        }
        sections.push(section);
    }
    Ok(sections)
}

fn read_section(value: &Value, place: &str) -> Result<Section> {
    let network = text(value, place, "network")?;
    let network =
        NetworkName::parse(network).map_err(|e| e.context(format_args!("{place}.network")))?;
    let ipam = text(value, place, "ipam")?.to_owned();
    let mut seen = HashSet::new();
    let mut leases = vec![];
    for (place, value) in items(value, place, "leases")? {
        let lease = read_lease(value, &place)?;
        if !seen.insert(lease.address) {
            let problem = format!("{} is there twice", lease.address);
            return Err(Error::config(format_args!("{place}.address"), problem));
        }
        leases.push(lease);
    }
    Ok(Section { network, ipam, leases })
}

fn read_lease(value: &Value, place: &str) -> Result<Holding> {
    let typed = text(value, place, "address")?;
    let no_address = |_| {
        let problem = format!("{typed:?} is not an IP address");
        Error::config(format_args!("{place}.address"), problem)
    };
    let address: IpAddr = typed.parse().map_err(no_address)?;
    let id = text(value, place, "containerId")?;
    ContainerId::parse(id).map_err(|e| e.context(format_args!("{place}.containerId")))?;
    let ifname = if value.get("ifname").is_some() { text(value, place, "ifname")? } else { "" };
    if !ifname.is_empty() {
        IfName::parse(ifname).map_err(|e| e.context(format_args!("{place}.ifname")))?;
    }
    Ok(Holding {
        address,
        container_id: id.to_owned(),
        ifname: ifname.to_owned(),
        since: None,
        netns_path: String::new(),
    })
}

/// The member, which must be a text.
pub fn text<'v>(value: &'v Value, place: &str, key: &str) -> Result<&'v str> {
    let found = value.get(key);
    found.and_then(Value::as_str).ok_or_else(|| wrong(found, &path(place, key), "a string"))
}

/// The items of the member, which must be a list, each with its path.
pub fn items<'v>(value: &'v Value, place: &str, key: &str) -> Result<Vec<(String, &'v Value)>> {
    let path = path(place, key);
    match value.get(key) {
        Some(Value::Array(items)) => {
            let place = |(index, item)| (format!("{path}[{index}]"), item);
            Ok(items.iter().enumerate().map(place).collect())
        }
        found => Err(wrong(found, &path, "a list")),
    }
}

fn path(place: &str, key: &str) -> String {
    let point = if place.is_empty() { "" } else { "." };
    [place, point, key].concat()
}

fn wrong(found: Option<&Value>, path: &str, expected: &'static str) -> Error {
    match found {
        None => Error::missing(path, expected),
        Some(found) => {
            Error::config(path, format_args!("{} found", found.kind())).expecting(expected)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn held(address: &str, id: &str, ifname: &str) -> Holding {
        Holding {
            address: address.parse().unwrap(),
            container_id: id.to_owned(),
            ifname: ifname.to_owned(),
            since: None,
            netns_path: String::new(),
        }
    }

    #[test]
    fn document_is_read_as_it_was_written() {
        let section = Section {
            network: NetworkName::parse("pods").unwrap(),
            ipam: "host-local".to_owned(),
            leases: vec![held("10.88.0.2", "4f1c", "eth0"), held("fd00::2", "old", "")],
        };
        let text = write(std::slice::from_ref(&section)).to_text();
        assert_eq!(
            text,
            r#"{"cniMultiLeases":1,"networks":[{"network":"pods","ipam":"host-local","leases":[{"address":"10.88.0.2","containerId":"4f1c","ifname":"eth0"},{"address":"fd00::2","containerId":"old"}]}]}"#
        );
        assert_eq!(read(text.as_bytes()).unwrap(), [section]);
    }

    #[test]
    fn mistakes_have_their_place() {
        let lease = |members: &str| {
            format!(
                r#"{{"cniMultiLeases":1,"networks":[{{"network":"n","ipam":"x","leases":[{members}]}}]}}"#
            )
        };
        let one = r#"{"address":"10.0.0.2","containerId":"a"}"#;
        let torn = lease(one)[..60].to_owned();
        let twice = lease(&format!("{one},{one}"));
        for (text, problem) in [
            (torn.as_str(), "EOF while parsing"),
            ("[]", "cniMultiLeases: missing, expected the output of cni-multi ipam export"),
            (r#"{"cniMultiLeases":2}"#, "cniMultiLeases: version 2 is unknown, expected 1"),
            (r#"{"cniMultiLeases":"1"}"#, "cniMultiLeases: version \"1\" is unknown, expected 1"),
            (r#"{"cniMultiLeases":1}"#, "networks: missing, expected a list"),
            (r#"{"cniMultiLeases":1,"networks":{}}"#, "networks: object found, expected a list"),
            (
                r#"{"cniMultiLeases":1,"networks":[7]}"#,
                "networks[0].network: missing, expected a string",
            ),
            (
                r#"{"cniMultiLeases":1,"networks":[{"network":"../n"}]}"#,
                "networks[0].network: invalid characters found in network name; ../n",
            ),
            (&lease("1"), "networks[0].leases[0].address: missing, expected a string"),
            (
                &lease(r#"{"address":"10.0.0.300"}"#),
                "networks[0].leases[0].address: \"10.0.0.300\" is not an IP address",
            ),
            (
                &lease(r#"{"address":"10.0.0.2"}"#),
                "networks[0].leases[0].containerId: missing, expected a string",
            ),
            (
                &lease(r#"{"address":"10.0.0.2","containerId":"a/b"}"#),
                "networks[0].leases[0].containerId: invalid characters in containerID; a/b",
            ),
            (
                &lease(r#"{"address":"10.0.0.2","containerId":"a","ifname":7}"#),
                "networks[0].leases[0].ifname: number found, expected a string",
            ),
            (&twice, "networks[0].leases[1].address: 10.0.0.2 is there twice"),
        ] {
            let error = read(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(problem), "{text}: {error}");
        }
    }
}
