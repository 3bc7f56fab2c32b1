//! D33x: what each plugin's CHECK reports.

use super::attachment::Attachment;
use super::faults::{
    ADMISSION_GONE, CHECK_DIFFERS, LIMITS_GONE, NO_DEFAULT_ROUTE, NOT_IN_VRF, PORTS_GONE,
    ROUTING_INSIDE_REFUSES, SETTINGS_GONE, SOURCE_ROUTING_GONE,
};
use super::finding::{Finding, Findings, text_of};
use super::node::{Node, Reader};
use super::wiring::{attach_again, sync};
use crate::commands::fault::Fault;
use crate::error::{Aspect, Error};
use crate::runtime::repair::Drift;

/// The plugins with a code of their own.
const BY_PLUGIN: [(&str, &Fault); 6] = [
    ("portmap", &PORTS_GONE),
    ("bandwidth", &LIMITS_GONE),
    ("firewall", &ADMISSION_GONE),
    ("tuning", &SETTINGS_GONE),
    ("sbr", &SOURCE_ROUTING_GONE),
    ("vrf", &NOT_IN_VRF),
];

/// It comes after all that send nothing: of what the plugins' CHECK reports, the
/// consequences of earlier findings are left out.
pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let mut ignored = std::io::sink(); // what a plugin says besides its errors
    let mut runtime = node.request.runtime(&mut ignored);
    Reader(findings).keep(runtime.handles.remember());
    for attachment in &node.attachments {
        if let Some(list) = attachment.list.as_ref().filter(|_| attachment.has_interface()) {
            runtime.cache = attachment.recorded.cache.clone();
            match runtime.drifts(list, attachment.at()) {
                Ok(all) => all.iter().for_each(|one| add(attachment, one, findings)),
                Err(error) => {
                    let finding = Finding::new(&CHECK_DIFFERS, attachment.object(), "");
                    add_unknown(finding.fix(attach_again(attachment)), &error, findings);
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
    let finding =
        Finding::new(fault.unwrap_or(&CHECK_DIFFERS), attachment.object(), format!("{plugin}: "));
    add_unknown(finding.fix(fix), error, findings);
}

/// Adds the differences that no earlier finding explains.
fn add_unknown(finding: Finding, error: &Error, findings: &mut Findings) {
    let mut parts = error.clone().into_parts();
    let is_known = |aspect: &Option<Aspect>| {
        aspect.as_ref().is_some_and(|it| findings.explain(&finding.object, it))
    };
    parts.retain(|part| !is_known(&part.aspect));
    if !parts.is_empty() {
        let texts: Vec<String> = parts.iter().map(text_of).collect();
        // Without its own rules and routes the container has no way out, which is a finding already.
        if [SOURCE_ROUTING_GONE, NOT_IN_VRF].contains(finding.fault) {
            let is_consequence = |it: &Finding| {
                it.object == finding.object
                    && [ROUTING_INSIDE_REFUSES, NO_DEFAULT_ROUTE].contains(it.fault)
            };
            findings.0.retain(|known| !is_consequence(known));
        }
        findings.add(finding.saying(&texts.join("; ")));
    }
}
