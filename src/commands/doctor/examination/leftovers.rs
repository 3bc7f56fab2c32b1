//! D27x: what gone containers have left on the host.

use super::faults::LEFTOVERS;
use super::finding::{Finding, Findings, Object, quoted, text_of};
use super::node::{Network, Node, Reader};
use crate::cni::attachment::NetworkName;
use crate::error::Error;
use crate::runtime::find::listed;
use crate::runtime::gc::{Event, Extent, Sweep, Unrecorded};

/// What a GC would remove is left, also by the reference plugins.
pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    if !node.request.subject.is_empty() {
        return; // what a gone container has left is no fault of this one
    }
    let has_name = |network: &&Network| NetworkName::parse(&network.list.name).is_ok();
    for network in node.networks.iter().filter(has_name) {
        let left = left(node, network, findings);
        if left.is_empty() {
            continue;
        }
        let name = &network.list.name;
        let left: Vec<&str> = left.iter().map(String::as_str).collect();
        let finding = Finding::new(&LEFTOVERS, Object::Network(name.clone()), listed(&left));
        findings.add(finding.fix(format!("sudo cni-multi net gc {}", quoted(name))));
    }
}

/// What a GC of the network would remove. It also reports each record that cannot be read, which is a
/// finding already.
fn left(node: &Node<'_>, network: &Network, findings: &mut Findings) -> Vec<String> {
    let mut sink = std::io::sink();
    let mut runtime = node.request.runtime(&mut sink);
    let mut left = vec![];
    let mut watch = |event: &Event<'_>| match event {
        Event::Step(step) => left.push(format!("attachment of {}", step.at.key.container_id)),
        Event::Removed(_, all) => {
            let objects = all.iter().filter(|stale| !stale.is_call);
            left.extend(objects.map(|stale| stale.what.clone()));
        }
        Event::Left(_) | Event::Spared(..) => (),
    };
    let sweep = Sweep::new(Extent::Look, &mut watch);
    let errors = runtime.gc_dead(&network.list, Unrecorded::Spare, sweep).err();
    for error in errors.into_iter().flat_map(Error::into_parts) {
        let text = text_of(&error);
        if !findings.0.iter().any(|known| known.evidence.starts_with(&text)) {
            Reader(findings).keep::<()>(Err(error));
        }
    }
    left
}
