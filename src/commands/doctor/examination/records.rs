//! D18x: what is recorded of attachments.

use std::fs;

use super::attachment::Attachment;
use super::faults::{NETNS_OF_HOST, NO_RESULT, NOT_ATTACHED, RECORD_UNREADABLE};
use super::finding::{Finding, Findings, Object, quoted, text_of};
use super::node::{Node, Reader};
use super::wiring::{detach, detach_at};
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::json::Value;
use crate::error::Result;
use crate::net::private::NETNS_DIR;
use crate::runtime::cache::Found;
use crate::runtime::find::{self, Name};
use crate::runtime::parameters::{self, Parameters};

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let subject = &node.request.subject;
    if subject.is_empty() || node.attachments.is_empty() {
        let torn = Reader(findings).keep(torn(node));
        if torn.is_empty() && !subject.is_empty() {
            findings.add(not_attached(node));
        }
        findings.0.extend(torn.iter().filter_map(unreadable));
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
    Finding::new(&NETNS_OF_HOST, attachment.object(), evidence).fix(detach(attachment))
}

/// A file of a cache that is no record, and the attachment that its name says.
struct Torn {
    found: Found,
    at: Option<Parameters>,
}

/// Those of the container that was asked for, or all.
fn torn(node: &Node<'_>) -> Result<Vec<Torn>> {
    let subject = &node.request.subject;
    let mut all = vec![];
    for cache in find::caches(&node.request.cache)? {
        let files = cache.all()?.into_iter().filter(|found| found.record.is_err());
        all.extend(files.map(|found| Torn { at: by_name(node, &found), found }));
    }
    if subject.is_empty() {
        return Ok(all);
    }
    Ok(Name::parse(subject)?.best_of(all, |torn| torn.at.as_ref()))
}

/// The attachment by the name of its file, unless that may stand for several. Its namespace is found
/// if its id was derived from the path of that, as those of `net add` are; else the id stands for it.
fn by_name(node: &Node<'_>, found: &Found) -> Option<Parameters> {
    let networks = node.networks.iter().filter_map(|it| NetworkName::parse(&it.list.name).ok());
    let mut keys: Vec<Key> = networks.flat_map(|network| found.readings(&network)).collect();
    let key = keys.pop().filter(|_| keys.is_empty())?;
    let paths = fs::read_dir(NETNS_DIR).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut paths = paths.map(|path| path.to_string_lossy().into_owned());
    let of_id =
        |path: &String| parameters::container_id(path).ok().as_ref() == Some(&key.container_id);
    let netns = paths.find(of_id).unwrap_or_else(|| key.container_id.to_string());
    Some(Parameters { key, netns, args: vec![], capability_args: Value::Object(vec![]) })
}

/// A container of a runtime is not detached behind that runtime's back.
fn unreadable(torn: &Torn) -> Option<Finding> {
    let text = text_of(torn.found.record.as_ref().err()?);
    let finding = |more: &str| Finding::new(&RECORD_UNREADABLE, Object::Node, text.clone() + more);
    let Some(at) = &torn.at else {
        let fix = format!("sudo rm {}", quoted(&torn.found.file.to_string_lossy()));
        return Some(finding("; gc keeps what it may belong to").fix(fix));
    };
    let id = at.key.container_id.as_str();
    if at.netns != id {
        return Some(finding("; detach the container, and attach it again").fix(detach_at(at)));
    }
    let advice = format!(
        "; delete container {} by its runtime; if it is gone: {}",
        find::short_id(id),
        detach_at(at)
    );
    Some(finding(&advice))
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
