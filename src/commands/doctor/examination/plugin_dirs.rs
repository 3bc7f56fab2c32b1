//! D24x: the directories in which runtimes look for plugins.

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use nix::sys::statvfs::{FsFlags, statvfs};

use super::configuration::NOT_ON_PATH;
use super::faults::{FOREIGN_PROGRAM, MOUNTED_NOEXEC, NO_PLUGIN_DIR, NOT_EXECUTABLE};
use super::finding::{Finding, Findings, Object, quoted};
use super::node::Node;

/// The code of `validate` for a plugin that cannot be asked for its versions.
const NO_ANSWER: &str = "no-answer";

/// The name under which `cni-multi install` installs this binary.
const BINARY: &str = "cni-multi";

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let dirs = node.request.plugin_dirs();
    if !dirs.is_empty() && !dirs.iter().any(|dir| dir.is_dir()) {
        findings.0.retain(|known| known.fault.code != NOT_ON_PATH); // that there is none is the cause
    }
    for dir in dirs {
        if dir.is_dir() {
            examine_dir(node, &dir, findings);
        } else {
            let evidence = format!("{} is in the plugin path", dir.display());
            let fix = format!(
                "sudo cni-multi install --no-path --dir {}",
                quoted(&dir.to_string_lossy())
            );
            findings.add(Finding::new(&NO_PLUGIN_DIR, Object::Node, evidence).fix(fix));
        }
    }
}

fn examine_dir(node: &Node<'_>, dir: &Path, findings: &mut Findings) {
    let word = quoted(&dir.to_string_lossy());
    if statvfs(dir).is_ok_and(|found| found.flags().contains(FsFlags::ST_NOEXEC)) {
        let evidence = format!("no program in {} can be started", dir.display());
        let fix = format!("sudo mount -o remount,exec \"$(findmnt -no TARGET -T {word})\"");
        findings.add(Finding::new(&MOUNTED_NOEXEC, Object::Node, evidence).fix(fix));
        forget_no_answer(&format!(" {}/", dir.display()), findings);
    }
    let mut seen = vec![]; // plugins of one binary are links to it
    for kind in kinds(node) {
        let file = dir.join(&kind);
        let Some(metadata) = file_at(&file) else { continue };
        let file_id = (metadata.dev(), metadata.ino());
        if metadata.permissions().mode() & 0o111 != 0 {
            continue;
        }
        forget_no_answer(&format!(" {}: ", file.display()), findings);
        if !seen.contains(&file_id) {
            seen.push(file_id);
            let evidence = format!("{} has mode {:04o}", file.display(), metadata.mode() & 0o7777);
            let fix = format!("sudo chmod 755 {}", quoted(&file.to_string_lossy()));
            findings.add(Finding::new(&NOT_EXECUTABLE, Object::Node, evidence).fix(fix));
        }
    }
    examine_names(node, dir, findings);
}

/// Drops what `validate` says of programs with this in their path: why they do not start is known.
fn forget_no_answer(started: &str, findings: &mut Findings) {
    findings.0.retain(|it| it.fault.code != NO_ANSWER || !it.evidence.contains(started));
}

/// The plugins that networks name, each once.
fn kinds(node: &Node<'_>) -> Vec<String> {
    let kinds = node.networks.iter().flat_map(|network| network.kinds());
    let mut kinds: Vec<String> =
        kinds.filter(|kind| !kind.is_empty() && !kind.contains('/')).map(str::to_owned).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// The file that the path leads to.
fn file_at(path: &Path) -> Option<Metadata> {
    fs::metadata(path).ok().filter(Metadata::is_file)
}

/// Where cni-multi is installed, each of its plugins should be a link to it. Elsewhere nothing is
/// ours, and any program may have any name.
fn examine_names(node: &Node<'_>, dir: &Path, findings: &mut Findings) {
    let Some(own) = file_at(&dir.join(BINARY)) else { return };
    let is_own = |file: &Metadata| (file.dev(), file.ino()) == (own.dev(), own.ino());
    let is_foreign = |name: &&str| file_at(&dir.join(name)).is_some_and(|file| !is_own(&file));
    let names = node.request.plugins.iter().map(|entry| entry.name);
    let foreign: Vec<&str> = names.filter(is_foreign).collect();
    if foreign.is_empty() {
        return;
    }
    let evidence = format!("{} in {} are not links to {BINARY}", foreign.join(", "), dir.display());
    let fix = format!("sudo cni-multi install --no-path --dir {}", quoted(&dir.to_string_lossy()));
    findings.add(Finding::new(&FOREIGN_PROGRAM, Object::Node, evidence).fix(fix));
}
