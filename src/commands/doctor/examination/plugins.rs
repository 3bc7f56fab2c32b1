//! D33x: what each plugin's CHECK reports.

use super::attachment::Attachment;
use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, text_of};
use super::node::{Node, Reader};
use super::wiring::{attach_again, sync};
use crate::runtime::drift::Drift;

const OTHER: Fault = Fault::error("D330", "a plugin's CHECK reports a difference");
const PORTMAP: Fault = Fault::error("D331", "published ports are gone");
const BANDWIDTH: Fault = Fault::warning("D332", "bandwidth limits are gone");
const FIREWALL: Fault = Fault::error("D333", "the firewall's rules for the container are gone");
const TUNING: Fault = Fault::warning("D334", "settings of the tuning plugin are gone");
const SBR: Fault = Fault::error("D335", "source routing is gone");
const VRF: Fault = Fault::error("D336", "the interface is not in its VRF");

/// The plugins with a code of their own.
const BY_PLUGIN: [(&str, &Fault); 6] = [
    ("portmap", &PORTMAP),
    ("bandwidth", &BANDWIDTH),
    ("firewall", &FIREWALL),
    ("tuning", &TUNING),
    ("sbr", &SBR),
    ("vrf", &VRF),
];

/// The examination. It is the last about attachments: what an earlier one has found of the links
/// and addresses, the first plugin's CHECK reports again.
pub const EXAMINATION: Examination = Examination {
    faults: || vec![&OTHER, &PORTMAP, &BANDWIDTH, &FIREWALL, &TUNING, &SBR, &VRF],
    examine,
};

fn examine(node: &Node<'_>, findings: &mut Findings) {
    let mut ignored = std::io::sink(); // what a plugin says besides its errors
    let mut runtime = node.request.runtime(&mut ignored);
    Reader(findings).keep(runtime.handles.remember());
    for attachment in &node.attachments {
        if let Some(list) = attachment.list.as_ref().filter(|_| attachment.has_interface()) {
            runtime.cache = attachment.recorded.cache.clone();
            match runtime.drifts(list, attachment.at()) {
                Ok(all) => all.iter().for_each(|one| add(attachment, one, findings)),
                Err(error) => {
                    let finding = Finding::new(&OTHER, attachment.object(), text_of(&error));
                    findings.add_unless_known(finding.fix(attach_again(attachment)));
                }
            }
        }
    }
}

fn add(attachment: &Attachment, drift: &Drift, findings: &mut Findings) {
    let Drift { plugin, error, changes } = drift;
    let fault = BY_PLUGIN.iter().find(|(kind, _)| kind == plugin).map(|(_, fault)| *fault);
    let fix = if changes.is_empty() {
        attach_again(attachment)
    } else {
        sync(attachment.at().key.network.as_str())
    };
    let evidence = format!("{plugin}: {}", text_of(error));
    match fault {
        Some(fault) => {
            findings.add(Finding::new(fault, attachment.object(), evidence).fix(fix));
        }
        None => {
            findings.add_unless_known(Finding::new(&OTHER, attachment.object(), evidence).fix(fix))
        }
    }
}
