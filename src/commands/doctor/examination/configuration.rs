//! What `validate` finds in the directory of networks, with its codes.

use std::path::Path;

use super::finding::{Finding, Findings, Object, quoted};
use super::node::{Node, Reader};
use crate::commands::fault::Fault;
use crate::commands::validate;
use crate::runtime::directory;

/// The code of a plugin that only `cni-multi net` can run.
pub const NOT_ON_PATH: &str = "not-on-path";

/// The name of podman's default network.
const PODMAN: &str = "podman";

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let request = node.request;
    let mut ignored = std::io::sink();
    let runtime = request.runtime(&mut ignored);
    let mistakes = Reader(findings).keep(validate::findings_of(&request.conf_dir, runtime));
    for (i, mistake) in mistakes.iter().enumerate() {
        let is_told = mistakes[..i].iter().any(|earlier| is_mended_by_one_fix(earlier, mistake));
        if is_told || is_podmans(node, mistake) {
            continue;
        }
        let more = mistakes[i + 1..].iter().filter(|later| is_mended_by_one_fix(mistake, later));
        let count = more.count();
        let fault = mistake.fault();
        findings.0.extend(fault.map(|fault| and_more(finding(node, fault, mistake), count)));
    }
}

/// Whether the fix of one mistake is the whole fix of the other: all plugins of a file are installed
/// by one command.
fn is_mended_by_one_fix(one: &validate::Finding, other: &validate::Finding) -> bool {
    [one, other].iter().all(|mistake| mistake.code == NOT_ON_PATH) && one.file == other.file
}

/// The finding, which is about this many more plugins of its file.
fn and_more(mut finding: Finding, count: usize) -> Finding {
    if count > 0 {
        finding.evidence.push_str(&format!("; so for {count} more of its plugins"));
    }
    finding
}

/// Whether there is no file because podman needs none: its default network is in its memory.
fn is_podmans(node: &Node<'_>, mistake: &validate::Finding) -> bool {
    let mut networks = node.attachments.iter().map(|it| it.at().key.network.as_str());
    mistake.code == "no-files" && networks.any(|network| network == PODMAN)
}

fn finding(node: &Node<'_>, fault: &'static Fault, mistake: &validate::Finding) -> Finding {
    let object = Object::Network(network_of(node, &mistake.file));
    let mut evidence = evidence(mistake);
    if let Some(file) = used_instead(node, mistake) {
        evidence.push_str(&format!("; by its name, {} is found", file.display()));
    }
    Finding::new(fault, object, evidence).fix(fix(node, mistake))
}

/// Of two files with one network, that which a search by name finds.
fn used_instead<'n>(node: &'n Node<'_>, mistake: &validate::Finding) -> Option<&'n Path> {
    if mistake.code != "duplicate-name" {
        return None;
    }
    let list = directory::load(Path::new(&mistake.file)).ok()?;
    let used = node.networks.iter().find(|network| network.list.name == list.name);
    used.map(|network| network.file.as_path())
}

/// The network in the file; the file if it has none that loads.
fn network_of(node: &Node<'_>, file: &str) -> String {
    let path = Path::new(file);
    let found = node.networks.iter().find(|network| network.file == path);
    let name = found.map(|network| network.list.name.clone());
    name.or_else(|| Some(directory::load(path).ok()?.name)).unwrap_or_else(|| file.to_owned())
}

/// The place as an editor reads it, and what is wrong there.
fn evidence(mistake: &validate::Finding) -> String {
    let place = match mistake.place {
        (0, _) => mistake.file.clone(),
        (line, column) => format!("{}:{line}:{column}", mistake.file),
    };
    let mut text = format!("{place}: {}", mistake.message);
    if !mistake.expected.is_empty() {
        text.push_str(&format!(", expected {}", mistake.expected));
    }
    if !mistake.hint.is_empty() {
        text.push_str(&format!("; {}", mistake.hint));
    }
    text
}

/// A command line: that which repairs it, where one can, else the editor at the line.
fn fix(node: &Node<'_>, mistake: &validate::Finding) -> String {
    let file = quoted(&mistake.file);
    match (mistake.code, mistake.place) {
        ("duplicate-name", _) if is_used(node, mistake) => "sudo cni-multi net list".to_owned(),
        ("duplicate-name" | "not-read", _) => format!("sudo mv {file} {}", quoted(&off(mistake))),
        ("no-plugin" | NOT_ON_PATH, _) => install(node),
        ("no-files", _) => format!(
            "cni-multi example bridge host-local | sudo tee {}",
            quoted(&format!("{}/10-pods.conflist", mistake.file))
        ),
        ("unreadable", _) => format!("ls -lL {file}"),
        (_, (0, _)) => format!("cni-multi validate {file}"),
        (_, (line, _)) => format!("sudo vi +{line} {file}"),
    }
}

/// Whether a search by name finds this file, so that the other one is in excess.
fn is_used(node: &Node<'_>, mistake: &validate::Finding) -> bool {
    used_instead(node, mistake) == Some(Path::new(&mistake.file))
}

/// A name that no runtime reads, nor `validate` takes for a configuration.
fn off(mistake: &validate::Finding) -> String {
    let file = Path::new(&mistake.file);
    file.with_extension("off").to_string_lossy().into_owned()
}

/// The command that installs the plugins in the first plugin directory.
fn install(node: &Node<'_>) -> String {
    let dir = node.request.plugin_dirs().into_iter().next().unwrap_or_default();
    format!("sudo cni-multi install --no-path --dir {}", quoted(&dir.to_string_lossy()))
}
