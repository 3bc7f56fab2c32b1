//! `net inspect`: everything known about one attachment, and what the kernel still has of it. Runs
//! no plugin.

use super::attached::{self, Attached, addresses};
use super::network;
use super::operator::Operator;
use crate::cni::attachment::ContainerId;
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
        attached.file_name == self.name
            || attached.at.is_some()
                && attached.is("network", self.name)
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
    if all.len() == 1 {
        return Ok(all.swap_remove(0));
    }
    let names: Vec<&str> = all.iter().map(|attached| attached.file_name.as_str()).collect();
    let (msg, details) = if all.is_empty() {
        ("no such attachment", "`net ps` lists the attachments".to_owned())
    } else {
        ("several attachments match; select one with --container-id or --ifname", names.join(", "))
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
    let mut addresses = Addresses { missing: addresses(result, ifname), ..Addresses::default() };
    for address in netlink.addresses(&link)? {
        addresses.add(address.net.to_string());
    }
    put_text(told, "interface", "present");
    put_text(told, "mac", &MacAddr::new(&link.mac).to_string());
    put(told, "mtu", Value::Number(link.mtu.into()));
    put(told, "up", Value::Bool(link.up));
    put(told, "addresses", table::texts(addresses.found));
    put(told, "missing", table::texts(addresses.missing));
    put(told, "others", table::texts(addresses.others));
    Ok(())
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
    /// Adds an address of the interface.
    fn add(&mut self, found: String) {
        let before = self.missing.len();
        self.missing.retain(|expected| *expected != found);
        // The kernel adds a link-local address itself, which no result contains.
        if self.missing.len() == before && !found.starts_with("fe80:") {
            self.others.push(found.clone());
        }
        self.found.push(found);
    }
}
