//! D214: on a node of a Kubernetes cluster, networks that may give an address of another node again.

use std::path::Path;

use super::faults::NO_STORE;
use super::finding::{Finding, Findings, Object};
use super::node::{Network, Node};
use crate::cni::delegate;
use crate::plugins::ipam::cluster_local::node::{CONFIGURATION, is_of_cluster};

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
    let kubelet = KUBELETS.iter().find(|file| Path::new(file).exists());
    let Some(kubelet) = kubelet.filter(|_| !is_of_cluster()) else { return };
    let dirs = node.request.plugin_dirs();
    // The original whereabouts asks the Kubernetes API.
    let is_own =
        |kind: &str| delegate::find(kind, &dirs).map_or(true, |it| delegate::is_this_binary(&it));
    let ipam =
        |network: &Network| OF_CLUSTER.into_iter().find(|kind| network.has(kind) && is_own(kind));
    for network in &node.networks {
        let Some(ipam) = ipam(network) else { continue };
        let evidence =
            format!("{kubelet} makes this a node of a cluster, and {ipam} has no {CONFIGURATION}");
        let object = Object::Network(network.list.name.clone());
        findings.add(Finding::new(&NO_STORE, object, evidence));
    }
}
