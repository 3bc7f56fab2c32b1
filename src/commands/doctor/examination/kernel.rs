//! D21x: what the kernel lacks for the plugins that are configured.

use super::faults::KERNEL_LACKS;
use super::finding::{Finding, Findings, Object};
use super::node::{Network, Node, Reader};
use crate::commands::doctor::need::{Lack, Need};

/// The plugins, each with what it needs of the kernel.
const NEEDS: [(&str, &[Need]); 11] = [
    ("bridge", &[Need::Link("bridge"), Need::Link("veth")]),
    ("ptp", &[Need::Link("veth")]),
    ("macvlan", &[Need::Link("macvlan")]),
    ("ipvlan", &[Need::Link("ipvlan")]),
    ("vlan", &[Need::Link("vlan")]),
    ("dummy", &[Need::Link("dummy")]),
    ("tap", &[Need::Tun]),
    ("vrf", &[Need::Link("vrf")]),
    ("bandwidth", &[Need::Link("ifb"), Need::Qdisc("tbf")]),
    ("firewall", &[Need::NfTables]),
    ("portmap", &[Need::NfTables]),
];

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    for need in needs(&node.networks) {
        let lack = Reader(findings).keep(need.lacking(&node.netlink));
        let Some(lack) = lack else { continue };
        findings.add(finding(node, need, &lack));
    }
}

/// What the plugins of these networks need, each once.
pub fn needs(networks: &[Network]) -> Vec<Need> {
    let mut needs = vec![];
    for network in networks {
        for (_, of_plugin) in NEEDS.iter().filter(|(kind, _)| network.has(kind)) {
            of_plugin.iter().for_each(|need| {
                if !needs.contains(need) {
                    needs.push(*need);
                }
            });
        }
    }
    needs
}

fn finding(node: &Node<'_>, need: Need, lack: &Lack) -> Finding {
    let plugins = NEEDS.iter().filter(|(_, needs)| needs.contains(&need));
    let plugins = plugins.map(|(kind, _)| *kind);
    let has = |kind: &&str| node.networks.iter().any(|network| network.has(kind));
    let plugins: Vec<&str> = plugins.filter(has).collect();
    let evidence = format!("{} needs {need}: {lack}", plugins.join(", "));
    let finding = Finding::new(&KERNEL_LACKS, Object::Node, evidence);
    match lack {
        Lack::Module(name) => finding.fix(format!("sudo modprobe {name}")),
        Lack::Device(_) => finding.fix("sudo modprobe tun"),
        Lack::Program(_) => finding, // none of the needs above
    }
}
