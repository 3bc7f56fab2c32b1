//! D18x: what is recorded of attachments.

use super::attachment::Attachment;
use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Object, quoted, text_of};
use super::node::{Node, Reader};
use super::wiring::detach;
use crate::runtime::cache::Found;
use crate::runtime::find;

const NOT_ATTACHED: Fault = Fault::error("D180", "the container is attached to no network");
const UNREADABLE: Fault = Fault::warning("D181", "a record cannot be read");
const NO_RESULT: Fault = Fault::warning("D182", "a record has no result that can be read");
const OF_HOST: Fault = Fault::error("D183", "the namespace of a record is the host's");

/// The examination.
pub const EXAMINATION: Examination =
    Examination { faults: || vec![&NOT_ATTACHED, &UNREADABLE, &NO_RESULT, &OF_HOST], examine };

fn examine(node: &Node<'_>, findings: &mut Findings) {
    let subject = &node.request.subject;
    if subject.is_empty() {
        examine_files(node, findings);
    } else if node.attachments.is_empty() {
        findings.add(not_attached(node));
    }
    for attachment in node.attachments.iter().filter(|attachment| attachment.result.is_none()) {
        let file = attachment.recorded.found.file.display();
        let evidence = format!("{file} has no result, so nothing of it can be compared");
        let key = &attachment.at().key;
        let fix = format!(
            "sudo cni-multi net inspect {} --container-id {} -i {}",
            key.network,
            key.container_id,
            quoted(key.ifname.as_str())
        );
        findings.add(Finding::new(&NO_RESULT, attachment.object(), evidence).fix(fix));
    }
    let in_host = node.attachments.iter().filter(|attachment| attachment.is_in_host);
    in_host.for_each(|attachment| findings.add(of_host(attachment)));
}

/// A record whose path leads to the host by now: the number of the container's process is that of
/// another one.
fn of_host(attachment: &Attachment) -> Finding {
    let netns = &attachment.at().netns;
    let evidence = format!("{netns} is a namespace of the host: the container is gone");
    Finding::new(&OF_HOST, attachment.object(), evidence).fix(detach(attachment))
}

/// The files of all caches that are no records.
fn examine_files(node: &Node<'_>, findings: &mut Findings) {
    let caches = Reader(findings).keep(find::caches(&node.request.cache));
    for cache in caches {
        let files = Reader(findings).keep(cache.all());
        files.iter().filter_map(unreadable).for_each(|finding| findings.add(finding));
    }
}

fn unreadable(found: &Found) -> Option<Finding> {
    let error = found.record.as_ref().err()?;
    let file = found.file.display();
    let evidence = format!("{file}: {}; gc keeps what it may belong to", text_of(error));
    Some(
        Finding::new(&UNREADABLE, Object::Node, evidence)
            .fix(format!("sudo rm {}", quoted(&file.to_string()))),
    )
}

fn not_attached(node: &Node<'_>) -> Finding {
    let subject = &node.request.subject;
    let networks: Vec<&str> = node.networks.iter().map(|net| net.list.name.as_str()).collect();
    let object = Object::Attachment {
        container: subject.clone(),
        network: String::new(),
        ifname: "eth0".to_owned(),
    };
    let evidence = format!("no attachment of {subject} is recorded");
    let finding = Finding::new(&NOT_ATTACHED, object, evidence);
    match networks.first() {
        Some(network) => {
            finding.fix(format!("sudo cni-multi net add {} {}", quoted(network), quoted(subject)))
        }
        None => finding.fix("configure a network: cni-multi example bridge host-local"),
    }
}
