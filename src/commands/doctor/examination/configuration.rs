//! D101 to D138: what `validate` finds in the directory of networks.

use std::path::Path;

use super::examination::Examination;
use super::finding::{Fault, Finding, Findings, Object, quoted};
use super::node::{Node, Reader};
use crate::commands::validate;
use crate::runtime::directory;

/// The code of `validate` for a plugin that only `cni-multi net` can run.
const NOT_ON_PATH: &str = "not-on-path";

/// The codes of `validate`, each with its fault.
static FAULTS: [(&str, Fault); 38] = [
    ("bridge-gateway", Fault::error("D101", "two networks want different addresses of one bridge")),
    (
        "bridge-gateway-replaced",
        Fault::warning("D102", "two networks replace each other's address of a bridge"),
    ),
    ("bridge-vlan", Fault::warning("D103", "two networks disagree whether a bridge filters VLANs")),
    ("duplicate-name", Fault::warning("D104", "a network is configured twice")),
    ("duplicate-key", Fault::warning("D105", "a key is in an object twice")),
    ("invalid-name", Fault::error("D106", "a network has no valid name")),
    ("invalid-value", Fault::error("D107", "a plugin refuses a value")),
    ("list-in-plugin", Fault::error("D108", "a list of plugins is in the file of a single one")),
    ("long-name", Fault::warning("D109", "the name of a network is too long")),
    (
        "missing-capability",
        Fault::warning("D110", "a plugin lacks the capability that gives it work"),
    ),
    ("no-answer", Fault::error("D111", "a plugin does not report its versions")),
    ("no-gateway", Fault::warning("D112", "nothing answers at the gateway of a default route")),
    ("no-files", Fault::warning("D113", "there is no network configuration")),
    ("no-plugin", Fault::error("D114", "a plugin does not exist")),
    ("no-plugins", Fault::error("D115", "a network has no plugins")),
    ("no-version", Fault::warning("D116", "a network has no cniVersion")),
    ("not-loaded", Fault::error("D117", "runtimes refuse a file")),
    (NOT_ON_PATH, Fault::warning("D118", "a plugin is not in the plugin directories")),
    ("not-read", Fault::warning("D119", "no runtime reads a file")),
    ("order", Fault::warning("D120", "a plugin is at a place where it cannot work")),
    ("overlap", Fault::warning("D121", "two networks have the same addresses")),
    ("plugin-in-list", Fault::error("D122", "a single plugin is in the file of a list")),
    ("repeated", Fault::warning("D123", "a plugin is in a network twice")),
    ("reserved-key", Fault::warning("D124", "a key is the runtime's to write")),
    ("second-interface", Fault::error("D125", "two plugins create the same interface")),
    ("syntax", Fault::error("D126", "a file is not JSON")),
    ("unknown-key", Fault::warning("D127", "no plugin reads a key")),
    ("unknown-version", Fault::error("D128", "a cniVersion does not exist")),
    ("unreadable", Fault::error("D129", "a file cannot be read")),
    ("unused-capability", Fault::warning("D130", "a plugin does not read its capability")),
    ("unused-version", Fault::warning("D131", "a list names a version that does not exist")),
    ("version-of-plugin", Fault::error("D132", "a plugin does not support the network's version")),
    ("wrong-ipam", Fault::error("D133", "the IPAM plugin is not one")),
    ("wrong-type", Fault::error("D134", "a value has the wrong type")),
    ("no-effect", Fault::warning("D135", "a key has no effect")),
    ("no-host", Fault::error("D136", "an address is that of a whole subnet")),
    ("unreachable-gateway", Fault::error("D137", "a gateway is outside the subnet")),
    ("router-address", Fault::warning("D138", "a bridge takes the address of the LAN's router")),
];

/// The name of podman's default network.
const PODMAN: &str = "podman";

/// The examination.
pub const EXAMINATION: Examination =
    Examination { faults: || FAULTS.iter().map(|(_, fault)| fault).collect(), examine };

fn examine(node: &Node<'_>, findings: &mut Findings) {
    let request = node.request;
    let mut ignored = std::io::sink();
    let runtime = request.runtime(&mut ignored);
    let mistakes = Reader(findings).keep(validate::findings_of(&request.conf_dir, runtime));
    for (i, mistake) in mistakes.iter().enumerate() {
        let is_told = mistakes[..i].iter().any(|earlier| is_mended_by_one_fix(earlier, mistake));
        if is_told || is_podmans(node, mistake) {
            continue;
        }
        let found = FAULTS.iter().find(|(code, _)| *code == mistake.code);
        let more = mistakes[i + 1..].iter().filter(|later| is_mended_by_one_fix(mistake, later));
        let count = more.count();
        findings.0.extend(found.map(|(_, fault)| and_more(finding(node, fault, mistake), count)));
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
