//! D211 and D212: the links of the host that networks are made on.

use super::faults::{LOWER_LINK_DOWN, LOWER_LINK_MISSING};
use super::finding::{Finding, Findings, Object, quoted};
use super::node::{Network, Node};
use crate::cni::json::Value;
use crate::net::netlink::Link;

/// The plugins with a key `master`.
const STACKED: [&str; 3] = ["macvlan", "ipvlan", "vlan"];

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    for network in &node.networks {
        for master in masters(network) {
            findings.0.extend(finding(node, network, master));
        }
    }
}

/// The lower links of the host that the network's plugins name.
fn masters(network: &Network) -> impl Iterator<Item = &str> {
    let stacked = network.list.plugins.iter().filter(|it| STACKED.contains(&it.kind.as_str()));
    let of_host = stacked.filter(|it| it.value.get("linkInContainer") != Some(&Value::Bool(true)));
    let named = of_host.filter_map(|plugin| plugin.value.get("master")?.as_str());
    named.filter(|master| !master.is_empty())
}

fn finding(node: &Node<'_>, network: &Network, master: &str) -> Option<Finding> {
    let object = Object::Network(network.list.name.clone());
    let file = network.file.display();
    let Some(link) = node.link_named(master) else {
        let evidence = format!("{file} has master {master:?}, and no link has that name");
        return Some(Finding::new(&LOWER_LINK_MISSING, object, evidence).fix("ip -br link"));
    };
    let down = first_down(node, link)?;
    let evidence = match &down.name {
        name if name == master => format!("{master:?}, the master in {file}, is down"),
        name => format!("{name:?}, which {master:?}, the master in {file}, is on, is down"),
    };
    let fix = format!("sudo ip link set {} up", quoted(&down.name));
    Some(Finding::new(&LOWER_LINK_DOWN, object, evidence).fix(fix))
}

/// The link, or that which it is on, if it is down.
fn first_down<'n>(node: &'n Node<'_>, link: &'n Link) -> Option<&'n Link> {
    let below = link.lower.filter(|_| !link.lower_is_elsewhere());
    let below = below.and_then(|index| node.link(index));
    [Some(link), below].into_iter().flatten().find(|link| !link.up)
}
