//! `net inspect`: everything known about one attachment, and what the kernel still has of it. Runs
//! no plugin.

use super::attached::{self, Attached, addresses};
use super::operator::Operator;
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, RouteEntry};
use crate::net::netns::Netns;
use crate::runtime::find::{self, Name};
use crate::runtime::parameters::Parameters;
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

/// The only attachment that matches the arguments.
fn select(operator: &Operator<'_>) -> Result<Attached> {
    let all = attached::all(operator)?;
    let names = recorded_names(&all);
    let mut found = choose(operator, all)?;
    match found.len() {
        0 => Err(none_fits(&names)),
        1 => Ok(found.swap_remove(0)),
        _ => Err(several_fit(&found)),
    }
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

/// The name of each container that is recorded, once.
fn recorded_names(all: &[Attached]) -> Vec<String> {
    let mut names: Vec<String> =
        all.iter().filter_map(|one| Some(one.at.as_ref()?.name())).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn none_fits(names: &[String]) -> Error {
    let error = Error::new(Code::UNKNOWN_CONTAINER, "no such attachment");
    error.with_details(format_args!("recorded: {}", find::listed(names)))
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
    let routes = netlink.routes_through(&link)?;
    put(told, "routes", table::texts(routes.iter().map(text_of_route).collect()));
    Ok(())
}

/// `10.1.0.0/16 via 10.0.0.1`, with the table unless it is the main one.
fn text_of_route(route: &RouteEntry) -> String {
    let mut text = route.dst.to_string();
    for gateway in route.gateways() {
        text += &format!(" via {gateway}");
    }
    if !route.is_in_main() {
        text += &format!(" table {}", route.table);
    }
    text
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
