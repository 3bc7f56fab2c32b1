//! `net inspect`: all that is known of one attachment, and what the kernel still has of it. No plugin is run.

use ipnet::IpNet;

use super::attached::{self, Attached, age_text};
use super::network;
use super::operator::Operator;
use super::table::{self, Table};
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Address, Link};
use crate::net::netns::Netns;
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::{self, Parameters};

/// More names than this help nobody.
const NAMES_TOLD: usize = 10;

/// What is printed.
pub fn show(operator: &Operator<'_>) -> Result<String> {
    let attached = select(operator)?;
    let kernel = Kernel::of(&attached);
    Ok(match operator.wants_json() {
        true => table::json(&to_value(&attached, &kernel)),
        false => to_text(&attached, &kernel),
    })
}

/// The one attachment that fits what was typed: the name of its file, or its network with as much more as it takes.
fn select(operator: &Operator<'_>) -> Result<Attached> {
    let name = operator.argument("network");
    let mut all = attached::all(&operator.cache(), &network::names(&operator.conf_dir()))?;
    if let Some(index) = all.iter().position(|attached| attached.file_name() == name) {
        return Ok(all.swap_remove(index));
    }
    let fits = wanted(operator)?;
    let (mut fitting, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|attached| fits(attached.names()));
    if fitting.len() == 1 {
        return Ok(fitting.swap_remove(0));
    }
    let (msg, told) = match fitting.is_empty() {
        true => (format!("there is no such attachment to network {name:?}"), &others),
        false => (format!("{} attachments fit, say which by --container-id or --ifname", fitting.len()), &fitting),
    };
    let names: Vec<String> = told.iter().take(NAMES_TOLD).map(Attached::file_name).collect();
    let more = if told.len() > NAMES_TOLD { ", …" } else { "" };
    let details =
        if names.is_empty() { "the cache is empty".to_owned() } else { format!("there is: {}", names.join(", ")) };
    Err(Error::new(Code::UNKNOWN_CONTAINER, msg).with_details(details + more))
}

/// Whether network, container, interface and namespace are those that were typed. A namespace stands for the container
/// that was attached by it, under any id.
fn wanted(operator: &Operator<'_>) -> Result<impl Fn([&str; 4]) -> bool> {
    let (network, container) = (operator.argument("network"), operator.argument("container-id"));
    let ifname = operator.option("ifname", "CNI_IFNAME").unwrap_or_default();
    let (netns, id) = match operator.argument("netns").is_empty() {
        true => Default::default(),
        false => {
            let netns = operator.netns()?;
            let id = parameters::container_id(&netns)?.to_string();
            (netns, id)
        }
    };
    let is = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
    Ok(move |[of, by, name, at]: [&str; 4]| {
        of == network && is(&container, by) && is(&ifname, name) && (is(&netns, at) || by == id)
    })
}

/// What the kernel has.
#[derive(Default)]
struct Kernel {
    /// None where it is not there, or that cannot be told.
    link: Option<Link>,
    addresses: Vec<Address>,
    /// Addresses of the result that the interface has not.
    missing: Vec<IpNet>,
    /// Addresses of the interface that the result has not.
    others: Vec<IpNet>,
    /// Why that cannot be told.
    problem: String,
}

impl Kernel {
    fn of(attached: &Attached) -> Kernel {
        let Some(at) = &attached.at else { return Kernel::unknown("nothing tells the namespace".to_owned()) };
        let mut kernel = match attached.namespace() {
            "gone" => Kernel::default(),
            _ => Kernel::look(at).unwrap_or_else(|error| Kernel::unknown(error.to_string())),
        };
        let expected = expected(attached, at);
        let found: Vec<IpNet> = kernel.addresses.iter().map(|address| address.net).collect();
        kernel.missing = expected.iter().filter(|net| !found.contains(net)).copied().collect();
        // The kernel gives itself a link-local address, which no result has.
        let is_other = |net: &&IpNet| !expected.contains(net) && !is_link_local(net);
        kernel.others = found.iter().filter(is_other).copied().collect();
        kernel
    }

    fn unknown(problem: String) -> Kernel {
        Kernel { problem, ..Kernel::default() }
    }

    fn look(at: &Parameters) -> Result<Kernel> {
        let netlink = Netns::open(&at.netns)?.netlink()?;
        let link = netlink.find_link(at.key.ifname.as_str())?;
        let addresses = link.as_ref().map_or(Ok(vec![]), |link| netlink.addresses(link))?;
        Ok(Kernel { link, addresses, ..Kernel::default() })
    }

    fn state(&self) -> &'static str {
        match (&self.link, self.problem.is_empty()) {
            (Some(_), _) => "present",
            (None, true) => "absent",
            (None, false) => "unknown",
        }
    }

    fn to_value(&self) -> Value {
        let of_link = |value: fn(&Link) -> Value| self.link.as_ref().map_or(Value::Null, value);
        let nets = |nets: &[IpNet]| table::texts(&nets.iter().map(IpNet::to_string).collect::<Vec<_>>());
        table::object([
            ("interface", table::text(self.state())),
            ("mac", of_link(|link| table::text(&MacAddr::new(&link.mac).to_string()))),
            ("mtu", of_link(|link| Value::Number(link.mtu.into()))),
            ("up", of_link(|link| Value::Bool(link.up))),
            ("addresses", nets(&self.addresses.iter().map(|address| address.net).collect::<Vec<_>>())),
            ("missing", nets(&self.missing)),
            ("others", nets(&self.others)),
            ("problem", table::text(&self.problem)),
        ])
    }
}

/// The result's addresses of the attachment's own interface.
fn expected(attached: &Attached, at: &Parameters) -> Vec<IpNet> {
    let Some(result) = &attached.result else { return vec![] };
    let is_own = |index: i64| {
        let link = usize::try_from(index).ok().and_then(|index| result.interfaces.get(index));
        link.is_some_and(|link| link.name == at.key.ifname.as_str())
    };
    result.ips.iter().filter(|ip| ip.interface.is_none_or(is_own)).map(|ip| ip.address).collect()
}

fn is_link_local(net: &IpNet) -> bool {
    matches!(net, IpNet::V6(net) if net.addr().is_unicast_link_local())
}

fn to_value(attached: &Attached, kernel: &Kernel) -> Value {
    let mut members = attached.to_value();
    let mut add = |key: &str, value: Value| members.push((key.to_owned(), value));
    if let Some(at) = &attached.at {
        let pair = |(key, value): &(String, String)| Value::Array(vec![table::text(key), Value::String(value.clone())]);
        add("args", Value::Array(at.args.iter().map(pair).collect()));
        add("capabilityArgs", at.capability_args.clone());
    }
    if let Some(list) = cached_network(attached) {
        add("cniVersion", Value::String(list.version));
        add("plugins", Value::Array(list.plugins.into_iter().map(|plugin| plugin.value).collect()));
    }
    if let Some(result) = cached_result(attached) {
        add("result", result);
    }
    add("kernel", kernel.to_value());
    Value::Object(members)
}

/// The network as it was at ADD.
fn cached_network(attached: &Attached) -> Option<NetworkList> {
    let record = attached.found.record.as_ref().ok()?;
    NetworkList::parse(record.document.clone()).ok()
}

fn cached_result(attached: &Attached) -> Option<Value> {
    let document = attached.found.record.as_ref().ok()?.result.as_ref().ok()?.as_ref()?;
    Value::parse(document.to_compact_text().as_bytes()).ok()
}

fn to_text(attached: &Attached, kernel: &Kernel) -> String {
    let mut table = Table::without_headers(2);
    let [network, container, ifname, netns] = attached.names();
    let mut line = |label: &str, value: &str| {
        if !value.is_empty() {
            table.row(&[label, value], "");
        }
    };
    line("network", network);
    line("container", container);
    line("interface", ifname);
    line("namespace", &format!("{netns} ({})", attached.namespace()));
    line("age", &age_text(attached.age()));
    line("file", &attached.found.file.to_string_lossy());
    line("problem", &attached.problem);
    if let Some(at) = &attached.at {
        line("args", &at.joined_args());
        line("capabilities", &Some(at.capability_args.to_text()).filter(|text| text != "{}").unwrap_or_default());
    }
    if let Some(list) = cached_network(attached) {
        let kinds: Vec<_> = list.plugins.iter().map(|plugin| plugin.kind.as_str()).collect();
        line("plugins", &format!("{} (version {})", kinds.join(", "), list.version));
    }
    line("kernel", &kernel_text(kernel));
    for (nets, what) in [(&kernel.missing, "is missing"), (&kernel.others, "is not in the result")] {
        nets.iter().filter(|_| kernel.link.is_some()).for_each(|net| line("", &format!("{net} {what}")));
    }
    let result = cached_result(attached).map(|result| format!("result\n{}\n", result.to_indented_text()));
    table.to_text() + &result.unwrap_or_default()
}

fn kernel_text(kernel: &Kernel) -> String {
    let Some(link) = &kernel.link else {
        let reason = if kernel.problem.is_empty() { "there is no such interface" } else { &kernel.problem };
        return format!("{}: {reason}", kernel.state());
    };
    let state = if link.up { "up" } else { "down" };
    let addresses: Vec<String> = kernel.addresses.iter().map(|address| address.net.to_string()).collect();
    format!("{} is {state}, mac {}, mtu {}, {}", link.name, MacAddr::new(&link.mac), link.mtu, addresses.join(", "))
}
