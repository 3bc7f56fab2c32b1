//! `net inspect`: everything known about one attachment, and what the kernel still has of it. Runs
//! no plugin.

use super::attached::{self, Attached, addresses};
use super::operator::Operator;
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::RouteEntry;
use crate::net::netns::Netns;
use crate::runtime::find::{self, Name};
use crate::runtime::parameters::Parameters;
use crate::terminal::table::{self, Members, PROBLEM, put, put_text};

/// The output of the command.
pub fn show(operator: &Operator<'_>) -> Result<String> {
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
    let all = attached::all(operator)?;
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
