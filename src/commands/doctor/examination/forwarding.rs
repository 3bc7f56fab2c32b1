//! D22x: whether the host forwards for its containers.

use super::attachment::Attachment;
use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Object};
use super::node::{Node, Reader};
use crate::cni::json::Value;
use crate::family::Family;
use crate::net::sysctl::Sysctl;

const OFF_V4: Fault = Fault::error("D220", "IPv4 forwarding is off");
const OFF_V6: Fault = Fault::error("D221", "IPv6 forwarding is off");

/// The examination.
pub const EXAMINATION: Examination = Examination { faults: || vec![&OFF_V4, &OFF_V6], examine };

fn examine(node: &Node<'_>, findings: &mut Findings) {
    for (family, fault) in [(Family::V4, &OFF_V4), (Family::V6, &OFF_V6)] {
        let forwarded = node.attachments.iter().filter(|at| needs(at, family)).count();
        let setting = Sysctl::forwarding(family);
        if forwarded == 0 || Reader(findings).keep(setting.read()) != "0" {
            continue;
        }
        let containers = if forwarded == 1 { "attachment needs" } else { "attachments need" };
        let evidence = format!("sysctl {setting} is 0, and {forwarded} {containers} it");
        let fix = format!("sudo sysctl -w {setting}=1");
        findings.add(Finding::new(fault, Object::Node, evidence).fix(fix));
    }
}

/// Whether the host routes packets of the family for the attachment.
fn needs(attachment: &Attachment, family: Family) -> bool {
    let Some(result) = attachment.result.as_ref().filter(|_| attachment.inside.is_some()) else {
        return false;
    };
    result.ips.iter().any(|ip| Family::of_net(ip.address) == family) && is_routed(attachment)
}

/// Whether the plugins of the attachment make the host its gateway.
fn is_routed(attachment: &Attachment) -> bool {
    let plugins = attachment.list.as_ref().map_or(&[][..], |list| &list.plugins);
    plugins.iter().any(|plugin| match plugin.kind.as_str() {
        "ptp" => true,
        "bridge" => {
            let keys = ["isGateway", "isDefaultGateway", "ipMasq"];
            keys.iter().any(|key| plugin.value.get(key) == Some(&Value::Bool(true)))
        }
        _ => false,
    })
}
