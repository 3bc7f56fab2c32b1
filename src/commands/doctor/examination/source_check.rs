//! D28x: containers with several networks, and the kernel's check of source addresses.

use super::attachment::{Attachment, Inside};
use super::faults::STRICT_RP_FILTER;
use super::finding::{Finding, Findings, quoted};
use super::node::{Node, Reader};
use crate::error::Result;
use crate::family::Family;
use crate::net::sysctl::Sysctl;

/// The value of rp_filter that accepts a packet only on the link of the route back (RFC 3704).
const STRICT_VALUE: &str = "1";

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    for attachment in &node.attachments {
        if Reader(findings).keep(is_dropped(attachment)) {
            findings.add(finding(attachment));
        }
    }
}

/// Whether packets from elsewhere that come in by this interface are dropped: their route back is
/// by another one.
fn is_dropped(attachment: &Attachment) -> Result<bool> {
    let Some(inside) = &attachment.inside else { return Ok(false) };
    if !is_default_elsewhere(inside, attachment) || has_own_routes(attachment) {
        return Ok(false);
    }
    let Some(netns) = attachment.open()? else { return Ok(false) };
    let ifname = attachment.at().key.ifname.as_str();
    netns.enter(|| is_strict(ifname))
}

/// Whether there is a default route, and none by this interface.
fn is_default_elsewhere(inside: &Inside, attachment: &Attachment) -> bool {
    let ifname = attachment.at().key.ifname.as_str();
    let Some(link) = inside.links.iter().find(|link| link.name == ifname) else { return false };
    let mut ips = attachment.result.iter().flat_map(|result| &result.ips);
    let has_ipv4 = ips.any(|ip| ip.address.addr().is_ipv4());
    let mut defaults = inside.routes.iter().filter(|route| route.is_default(Family::V4)).peekable();
    let is_any = defaults.peek().is_some();
    has_ipv4 && is_any && !defaults.any(|route| route.link == Some(link.index))
}

/// Whether a plugin gives the interface routes of its own.
fn has_own_routes(attachment: &Attachment) -> bool {
    let plugins = attachment.list.as_ref().map_or(&[][..], |list| &list.plugins);
    plugins.iter().any(|plugin| ["sbr", "vrf"].contains(&plugin.kind.as_str()))
}

/// Whether the greater of both settings is strict (Documentation/networking/ip-sysctl.rst).
fn is_strict(ifname: &str) -> Result<bool> {
    let values = [Sysctl::ipv4_conf("all", "rp_filter"), Sysctl::ipv4_conf(ifname, "rp_filter")];
    let [all, link] = [values[0].read()?, values[1].read()?];
    Ok(all.max(link) == STRICT_VALUE)
}

fn finding(attachment: &Attachment) -> Finding {
    let at = attachment.at();
    let (network, ifname) = (at.key.network.as_str(), at.key.ifname.as_str());
    let evidence = format!(
        "rp_filter of {ifname} is 1, and the default route is by another interface: packets from \
         outside of {network} are dropped; the plugin sbr gives it routes of its own"
    );
    let (netns, setting) = (quoted(&at.netns), Sysctl::ipv4_conf(ifname, "rp_filter"));
    let change = quoted(&format!("{setting}=2"));
    let fix = format!("sudo nsenter --net={netns} sysctl -w {change}");
    Finding::new(&STRICT_RP_FILTER, attachment.object(), evidence).fix(fix)
}
