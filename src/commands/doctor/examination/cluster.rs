//! D214: on a node of a Kubernetes cluster, networks that may give an address of another node again.

use std::path::Path;

use super::faults::NO_STORE;
use super::finding::{Finding, Findings, Object};
use super::node::{Network, Node};
use crate::cni::delegate;

/// The kubelet's access to its cluster: of kubeadm, cloud images, k3s, RKE2 and MicroK8s.
const KUBELETS: [&str; 5] = [
    "/etc/kubernetes/kubelet.conf",
    "/var/lib/kubelet/kubeconfig",
    "/var/lib/rancher/k3s/agent/kubelet.kubeconfig",
    "/var/lib/rancher/rke2/agent/kubelet.kubeconfig",
    "/var/snap/microk8s/current/credentials/kubelet.config",
];

/// The IPAM plugins that allocate for a whole cluster.
const OF_CLUSTER: [&str; 2] = ["cluster-local", "whereabouts"];

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let Some(kubelet) = KUBELETS.iter().find(|file| Path::new(file).exists()) else { return };
    let dirs = node.request.plugin_dirs();
    // The original whereabouts asks the Kubernetes API.
    let is_own =
        |kind: &str| delegate::find(kind, &dirs).map_or(true, |it| delegate::is_this_binary(&it));
    for network in &node.networks {
        let Some(ipam) = of_machine(network).filter(|kind| is_own(kind)) else { continue };
        let evidence = format!(
            "{kubelet} makes this a node of a cluster, and {ipam} has \"scope\": \"machine\""
        );
        let object = Object::Network(network.list.name.clone());
        findings.add(Finding::new(&NO_STORE, object, evidence));
    }
}

/// The network's IPAM plugin, if its addresses are unique on this machine only.
fn of_machine(network: &Network) -> Option<&str> {
    network.list.plugins.iter().find_map(|plugin| {
        let ipam = plugin.value.get("ipam")?;
        let is_of_machine = ipam.get("scope")?.as_str() == Some("machine");
        let kind = ipam.get("type")?.as_str()?;
        (is_of_machine && OF_CLUSTER.contains(&kind)).then_some(kind)
    })
}
