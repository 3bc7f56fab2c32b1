//! `ipam ls` lists the leases and the ranges; `ipam free` frees an address that a container left
//! behind, and refuses for a container that is alive.

use std::net::IpAddr;
use std::time::SystemTime;

use super::Request;
use super::networks::{Host, Leased};
use super::owners::{Lease, Owners, state};
use crate::cni::attachment::NetworkName;
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::plugin::leases::{Holding, Holdings};
use crate::runtime::find;
use crate::runtime::living::Verdict;
use crate::runtime::parameters::Parameters;
use crate::terminal::table::{self, Members, PROBLEM, put, put_text};

/// The columns of the table of leases.
const LEASES: [(&str, &str); 7] = [
    ("NETWORK", "network"),
    ("ADDRESS", "address"),
    ("CONTAINER", NAME),
    ("INTERFACE", "ifname"),
    ("NAMESPACE", "namespace"),
    ("POD", "pod"),
    ("AGE", "ageSeconds"),
];

/// The member with what people call the container.
const NAME: &str = "name";

/// The columns of the table of ranges.
const RANGES: [(&str, &str); 5] = [
    ("NETWORK", "network"),
    ("RANGE", "range"),
    ("HELD", "held"),
    ("SIZE", "size"),
    ("FREE", "free"),
];

/// `ipam ls`. Where the leases of a network cannot be read, a row says why.
pub fn list(host: &Host<'_>, request: &Request) -> Result<String> {
    let networks = host.leased(request.network.as_ref())?;
    let listed: Vec<Listed> = networks
        .into_iter()
        .map(|network| Listed { holdings: network.holdings(host), network })
        .collect();
    let leases = lease_rows(host, &listed)?;
    let ranges = listed.iter().flat_map(Listed::range_rows).collect();
    Ok(if request.as_json {
        let [leases, ranges] = [leases, ranges].map(Value::Array);
        table::json(&Value::object([("leases", leases), ("ranges", ranges)]))
    } else {
        let leases = table::of_rows(leases, &LEASES, false);
        leases + "\n" + &table::of_rows(ranges, &RANGES, false)
    })
}

/// A network with its leases.
struct Listed {
    network: Leased,
    holdings: Result<Holdings>,
}

impl Listed {
    fn leases(&self) -> impl Iterator<Item = Lease<'_>> {
        let held = self.holdings.as_ref().map_or(&[][..], |holdings| &holdings.held);
        held.iter().map(|held| (&self.network.network, held))
    }

    fn range_rows(&self) -> Vec<Value> {
        let mut rows = vec![];
        for range in self.holdings.as_ref().map_or(&[][..], |holdings| &holdings.ranges) {
            let mut row = self.row();
            put_text(&mut row, "range", &range.range);
            put(&mut row, "held", Value::number(range.held));
            put(&mut row, "size", Value::number(range.size));
            put(&mut row, "free", Value::number(range.size.saturating_sub(range.held)));
            rows.push(Value::Object(row));
        }
        rows
    }

    /// The beginning of every row.
    fn row(&self) -> Members {
        let mut row = Members::new();
        put_text(&mut row, "network", self.network.network.as_str());
        put_text(&mut row, "ipam", self.network.ipam);
        row
    }
}

/// The rows of all leases, each with what is known of its owner.
fn lease_rows(host: &Host<'_>, listed: &[Listed]) -> Result<Vec<Value>> {
    let owners = Owners::look(&host.cache)?;
    let leases: Vec<Lease<'_>> = listed.iter().flat_map(Listed::leases).collect();
    let mut verdicts = owners.judge(&leases).into_iter();
    let mut rows = vec![];
    for listed in listed {
        for (lease, verdict) in listed.leases().zip(verdicts.by_ref()) {
            rows.push(lease_row(listed.row(), lease, &owners, verdict));
        }
        if let Err(error) = &listed.holdings {
            let mut row = listed.row();
            put_text(&mut row, PROBLEM, &error.to_string());
            rows.push(Value::Object(row));
        }
    }
    Ok(rows)
}

fn lease_row(mut row: Members, lease: Lease<'_>, owners: &Owners, verdict: Verdict) -> Value {
    let (_, held) = lease;
    put_text(&mut row, "address", &held.address.to_string());
    let record = owners.record(lease);
    let name = record.map(Parameters::name);
    let name = name.unwrap_or_else(|| find::short_id(&held.container_id).to_owned());
    put_text(&mut row, NAME, &name);
    put_text(&mut row, "containerId", &held.container_id);
    put_text(&mut row, "ifname", &held.ifname);
    put_text(&mut row, "namespace", state(verdict));
    put_text(&mut row, "pod", &record.and_then(Parameters::pod).unwrap_or_default());
    // A time to come is no age.
    let age = held.since.and_then(|since| SystemTime::now().duration_since(since).ok());
    if let Some(age) = age {
        put(&mut row, "ageSeconds", Value::number(age.as_secs()));
    }
    if held.container_id.is_empty() {
        put_text(&mut row, PROBLEM, "the lease names no container");
    }
    Value::Object(row)
}

/// `ipam free`: frees the address; returns what is printed.
pub fn free(host: &Host<'_>, request: &Request) -> Result<String> {
    let (Some(network), Some(address)) = (&request.network, request.address) else {
        return Err(Error::new(Code::BUG, "clap requires both"));
    };
    let (leased, held) = find(host, network, address)?;
    let owners = Owners::look(&host.cache)?;
    require_free(&owners, (network, &held), request.is_forced)?;
    if !leased.store.free(&leased.context(host), &held)? {
        return Err(Error::new(Code::CONFLICT, format!("{address} has another owner by now")));
    }
    Ok(format!("freed {address}, which {} had\n", words(&held)))
}

/// The network of this name that has a lease of the address, and the lease.
fn find(host: &Host<'_>, network: &NetworkName, address: IpAddr) -> Result<(Leased, Holding)> {
    for leased in host.leased(Some(network))? {
        let mut held = leased.holdings(host)?.held.into_iter();
        if let Some(held) = held.find(|held| held.address == address) {
            return Ok((leased, held));
        }
    }
    let msg = format!("{address} is not held in network {:?}", network.as_str());
    let advice = format!("what is held: cni-multi ipam ls {network}");
    Err(Error::new(Code::UNKNOWN_CONTAINER, msg).with_details(advice))
}

/// Refuses for an owner that is alive, and for one that may be unless this is forced.
fn require_free(owners: &Owners, lease: Lease<'_>, is_forced: bool) -> Result<()> {
    let (network, held @ Holding { container_id, ifname, .. }) = lease;
    let advice = match owners.judge(&[lease])[..] {
        _ if container_id.is_empty() => {
            "its file names no container; remove the file by hand".to_owned()
        }
        [Verdict::Gone] => return Ok(()),
        [Verdict::Unknown] if is_forced => return Ok(()),
        [Verdict::Lives] => {
            let netns = owners.record(lease).map_or("NETNS", |at| &at.netns);
            let ifname =
                if ifname.is_empty() { String::new() } else { format!(" --ifname {ifname}") };
            format!(
                "its container is alive; detach it: \
                 cni-multi net del {network} {netns} --container-id {container_id}{ifname}"
            )
        }
        _ => "nothing shows whether its container is alive; if it is gone, add --force".to_owned(),
    };
    let msg = format!("{} is not freed: {} has it", held.address, words(held));
    Err(Error::new(Code::CONFLICT, msg).with_details(advice))
}

/// The container and the interface, as far as the lease has them.
fn words(held: &Holding) -> String {
    match (held.container_id.as_str(), held.ifname.as_str()) {
        ("", _) => "an unknown container".to_owned(),
        (id, "") => format!("container {id}"),
        (id, ifname) => format!("{ifname} of container {id}"),
    }
}
