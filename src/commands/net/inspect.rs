//! `net inspect`: everything known about one attachment, and what the kernel still has of it. Runs
//! no plugin.

use super::attached::{self, Attached, addresses};
use super::network;
use super::operator::Operator;
use crate::cni::attachment::ContainerId;
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::Link;
use crate::net::netns::Netns;
use crate::runtime::parameters::{self, Parameters};
use crate::terminal::table::{self, Members, PROBLEM, put, put_text};

/// The output of the command.
pub fn show(operator: &Operator<'_>) -> Result<String> {
    let mut attached = select(operator)?;
    let mut members = std::mem::take(&mut attached.members);
    put_record(&mut members, &attached);
    if let Some(at) = &attached.at {
        put(&mut members, "kernel", Value::Object(kernel(at, &attached.result)));
    }
    Ok(table::of_object(Value::Object(members), operator.wants_json()))
}

/// Adds what the record has besides the members that `ps` prints.
fn put_record(members: &mut Members, attached: &Attached) {
    if let Some(at) = &attached.at {
        put_text(members, "args", &at.joined_args());
        put(members, "capabilityArgs", at.capability_args.clone());
    }
    if let Ok(config) = Value::parse(&attached.document) {
        put(members, "config", config);
    }
    if matches!(attached.result, Value::Object(_)) {
        put(members, "result", attached.result.clone());
    }
}

/// The arguments that select an attachment: the name of its file, or its network with as many
/// further arguments as needed.
struct Selection<'a> {
    name: &'a str,
    container: &'a str,
    ifname: String,
    netns: String,
    /// A namespace matches the container attached with it, under any id.
    id_of_netns: ContainerId,
}

impl Selection<'_> {
    fn of<'a>(operator: &'a Operator<'_>) -> Result<Selection<'a>> {
        let has_netns = !operator.argument("netns").is_empty();
        let netns = if has_netns { operator.netns()? } else { String::new() };
        Ok(Selection {
            name: operator.argument("network"),
            container: operator.argument("container-id"),
            ifname: operator.option("ifname", "CNI_IFNAME", ""),
            id_of_netns: parameters::container_id(&netns)?,
            netns,
        })
    }

    fn fits(&self, attached: &Attached) -> bool {
        attached.file_name == self.name || attached.at.is_some() && self.has_names_of(attached)
    }

    fn has_names_of(&self, attached: &Attached) -> bool {
        attached.is("network", self.name)
            && attached.is("ifname", &self.ifname)
            && attached.is("containerId", self.container)
            && self.has_netns_of(attached)
    }

    fn has_netns_of(&self, attached: &Attached) -> bool {
        attached.is("netns", &self.netns) || attached.is("containerId", self.id_of_netns.as_str())
    }
}

/// The only attachment that matches the arguments.
fn select(operator: &Operator<'_>) -> Result<Attached> {
    let selection = Selection::of(operator)?;
    let mut all = attached::all(&operator.cache(), &network::names(&operator.conf_dir()).0)?;
    all.retain(|attached| selection.fits(attached));
    match all.len() {
        0 => Err(none_fits()),
        1 => Ok(all.swap_remove(0)),
        _ => Err(several_fit(&all)),
    }
}

fn none_fits() -> Error {
    let error = Error::new(Code::UNKNOWN_CONTAINER, "no such attachment");
    error.with_details("`net ps` lists the attachments")
}

fn several_fit(all: &[Attached]) -> Error {
    let names: Vec<&str> = all.iter().map(|attached| attached.file_name.as_str()).collect();
    let msg = "several attachments match; select one with --container-id or --ifname";
    Error::new(Code::UNKNOWN_CONTAINER, msg).with_details(names.join(", "))
}

/// The kernel's state compared with the result.
fn kernel(at: &Parameters, result: &Value) -> Members {
    let mut told = Members::new();
    if let Err(problem) = look(at, result, &mut told) {
        put_problem(&mut told, &problem);
    }
    told
}

fn put_problem(members: &mut Members, problem: &Error) {
    let state = if problem.is_not_found() { "absent" } else { "unknown" };
    put_text(members, "interface", state);
    put_text(members, PROBLEM, &problem.to_string());
}

fn look(at: &Parameters, result: &Value, told: &mut Members) -> Result<()> {
    let ifname = at.key.ifname.as_str();
    let netns = Netns::open(&at.netns)?;
    let netlink = netns.netlink()?;
    let link = netlink.link(ifname)?;
    let mut addresses = Addresses { missing: addresses(result, ifname), ..Addresses::default() };
    for address in netlink.addresses(&link)? {
        addresses.add(address.net.to_string());
    }
    put_link(told, &link);
    addresses.put(told);
    Ok(())
}

fn put_link(members: &mut Members, link: &Link) {
    put_text(members, "interface", "present");
    put_text(members, "mac", &MacAddr::new(&link.mac).to_string());
    put(members, "mtu", Value::Number(link.mtu.into()));
    put(members, "up", Value::Bool(link.up));
}

/// The addresses of an interface, compared with those of the result.
#[derive(Default)]
struct Addresses {
    found: Vec<String>,
    /// Those of the result that are not found.
    missing: Vec<String>,
    /// Those found that the result does not have.
    others: Vec<String>,
}

impl Addresses {
    fn put(self, members: &mut Members) {
        put(members, "addresses", table::texts(self.found));
        put(members, "missing", table::texts(self.missing));
        put(members, "others", table::texts(self.others));
    }

    /// Adds an address of the interface.
    fn add(&mut self, found: String) {
        // The kernel adds a link-local address itself, which no result contains.
        if !self.take_missing(&found) && !found.starts_with("fe80:") {
            self.others.push(found.clone());
        }
        self.found.push(found);
    }

    /// Removes the address from the missing ones; returns whether it was one of them.
    fn take_missing(&mut self, found: &str) -> bool {
        let before = self.missing.len();
        self.missing.retain(|expected| expected != found);
        self.missing.len() < before
    }
}
