//! `net inspect`: everything known about one attachment, and what the kernel still has of it. Runs
//! no plugin.

use super::attached::{self, Attached, addresses};
use super::network;
use super::operator::Operator;
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netns::Netns;
use crate::runtime::parameters::{self, Parameters};
use crate::terminal::table::{self, Members, PROBLEM, put, put_text};

/// The output of the command.
pub fn show(operator: &Operator<'_>) -> Result<String> {
    let mut attached = select(operator)?;
    let mut members = std::mem::take(&mut attached.members);
    if let Some(at) = &attached.at {
        put_text(&mut members, "args", &at.joined_args());
        put(&mut members, "capabilityArgs", at.capability_args.clone());
    }
    if let Ok(config) = Value::parse(&attached.document) {
        put(&mut members, "config", config);
    }
    if matches!(attached.result, Value::Object(_)) {
        put(&mut members, "result", attached.result.clone());
    }
    if let Some(at) = &attached.at {
        put(&mut members, "kernel", Value::Object(kernel(at, &attached.result)));
    }
    Ok(table::of_object(Value::Object(members), operator.wants_json()))
}

/// The only attachment that matches the arguments: the name of its file, or its network with as
/// many further arguments as needed. A namespace matches the container attached with it, under any
/// id.
fn select(operator: &Operator<'_>) -> Result<Attached> {
    let name = operator.argument("network");
    let container = operator.argument("container-id");
    let ifname = operator.option("ifname", "CNI_IFNAME", "");
    let netns =
        if operator.argument("netns").is_empty() { String::new() } else { operator.netns()? };
    let id = parameters::container_id(&netns)?;
    let mut all = attached::all(&operator.cache(), &network::names(&operator.conf_dir()).0)?;
    all.retain(|attached| {
        let is_in_netns = attached.is("netns", &netns) || attached.is("containerId", id.as_str());
        let is_named = attached.is("network", name) && attached.is("ifname", &ifname);
        let fits = attached.at.is_some()
            && is_named
            && is_in_netns
            && attached.is("containerId", container);
        fits || attached.file_name == name
    });
    if all.len() == 1 {
        return Ok(all.swap_remove(0));
    }
    let names: Vec<&str> = all.iter().map(|attached| attached.file_name.as_str()).collect();
    let (msg, details) = if all.is_empty() {
        ("there is no such attachment", "`net ps` lists the attachments".to_owned())
    } else {
        ("several attachments fit, say which by --container-id or --ifname", names.join(", "))
    };
    Err(Error::new(Code::UNKNOWN_CONTAINER, msg).with_details(details))
}

/// The kernel's state compared with the result.
fn kernel(at: &Parameters, result: &Value) -> Members {
    let mut told = Members::new();
    let problem = match look(at, result, &mut told) {
        Ok(()) => return told,
        Err(error) => error,
    };
    put_text(&mut told, "interface", if problem.is_not_found() { "absent" } else { "unknown" });
    put_text(&mut told, PROBLEM, &problem.to_string());
    told
}

fn look(at: &Parameters, result: &Value, told: &mut Members) -> Result<()> {
    let ifname = at.key.ifname.as_str();
    let netns = Netns::open(&at.netns)?;
    let netlink = netns.netlink()?;
    let link = netlink.link(ifname)?;
    let mut found = vec![];
    let mut missing = addresses(result, ifname);
    let mut others = vec![];
    for address in netlink.addresses(&link)? {
        let text = address.net.to_string();
        let before = missing.len();
        missing.retain(|expected| *expected != text);
        // The kernel adds a link-local address itself, which no result contains.
        if missing.len() == before && !text.starts_with("fe80:") {
            others.push(text.clone());
        }
        found.push(text);
    }
    put_text(told, "interface", "present");
    put_text(told, "mac", &MacAddr::new(&link.mac).to_string());
    put(told, "mtu", Value::Number(link.mtu.into()));
    put(told, "up", Value::Bool(link.up));
    for (key, list) in [("addresses", found), ("missing", missing), ("others", others)] {
        put(told, key, table::texts(list));
    }
    Ok(())
}
