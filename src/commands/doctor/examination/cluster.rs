//! D214 to D216: what the IPAM plugins of a cluster say of this node.

use std::path::Path;

use super::faults::{BLOCK_OF_TWO, DAEMON_IDLE, NO_STORE, NOT_READY};
use super::finding::{Finding, Findings, Object, quoted, text_of};
use super::node::{self, Network, Node};
use crate::cni::delegate;
use crate::plugin::leases::Holding;
use crate::plugins::ipam::cluster_local::held::{Blocks, State};
use crate::plugins::ipam::cluster_local::{client, conf};

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

/// The node's blocks and its daemon. It runs after that of STATUS, which fails where no ADD is served.
pub fn examine_blocks(node: &Node<'_>, findings: &mut Findings) {
    let host = node::host(node.request);
    let mut with_blocks = None;
    for leases in node.leases.iter().filter(|leases| OF_CLUSTER.contains(&leases.network.ipam)) {
        let places = conf::places(&leases.network.context(&host)).into_iter().flatten();
        // A file that cannot be read fails STATUS.
        let files: Vec<Blocks> =
            places.filter_map(|place| Blocks::read(place.dir()).ok()?).collect();
        if files.is_empty() {
            continue;
        }
        let network = leases.network.network.as_str();
        with_blocks.get_or_insert(&leases.network);
        let blocks = files.iter().flat_map(|own| &own.blocks);
        for held in blocks.filter(|held| held.state == State::Lost || held.contested) {
            let is_in = |held_in: &&Holding| held.block.contains(held_in.address);
            let count = leases.holdings.held.iter().filter(is_in).count();
            let evidence =
                format!("{} is another node's, too, and has {count} leases", held.block.prefix());
            let finding =
                Finding::new(&BLOCK_OF_TWO, Object::Network(network.to_owned()), evidence);
            findings.add(finding.show(format!("sudo cni-multi ipam ls {}", quoted(network))));
        }
    }
    let is_known = findings.0.iter().any(|finding| *finding.fault == NOT_READY);
    let Some(network) = with_blocks.filter(|_| !is_known) else { return };
    if let Err(error) = client::status(network.context(&host).deadline()) {
        findings.add(Finding::new(&DAEMON_IDLE, Object::Node, text_of(&error)));
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
