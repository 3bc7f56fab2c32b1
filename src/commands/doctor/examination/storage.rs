//! D23x: the directories that plugins and runtimes write into.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::geteuid;

use super::faults::{DISK_FULL, DISK_READ_ONLY, NOT_PRIVATE};
use super::finding::{Finding, Findings, Object, quoted};
use super::node::{Node, Reader};
use crate::error::Error;

/// Where host-local keeps leases unless a network says otherwise.
const LEASES: &str = "/var/lib/cni/networks";

/// Where plugins keep what DEL needs.
const RECORDS: &str = "/run/cni";

/// What is left where there is no room for another lease, in bytes: a file takes a block.
const LEAST_FREE: u64 = 64 * 1024;

pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let mut devices = vec![];
    for dir in directories(node) {
        let Some((there, metadata)) = Reader(findings).keep(nearest(&dir)) else { continue };
        if !devices.contains(&metadata.dev()) {
            devices.push(metadata.dev());
            examine_file_system(&there, findings);
        }
        if there == dir {
            examine_owner(&dir, &metadata, findings);
        }
    }
}

/// Every directory, each once.
fn directories(node: &Node<'_>) -> Vec<PathBuf> {
    let of_networks = node.networks.iter().flat_map(|network| &network.list.plugins);
    let data_dirs = of_networks.filter_map(|plugin| plugin.value.get("ipam")?.get("dataDir"));
    let data_dirs = data_dirs.filter_map(|dir| dir.as_str()).map(PathBuf::from);
    let usual = [node.request.cache.results(), LEASES.into(), RECORDS.into()];
    let mut all: Vec<PathBuf> = usual.into_iter().chain(data_dirs).collect();
    all.sort_unstable();
    all.dedup();
    all.retain(|dir| dir.is_absolute());
    all
}

/// The directory, or the nearest one above that exists: there it will be made.
fn nearest(dir: &Path) -> Result<Option<(PathBuf, Metadata)>, Error> {
    for above in dir.ancestors() {
        match fs::metadata(above) {
            Ok(metadata) => return Ok(Some((above.to_owned(), metadata))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => (),
            Err(e) => return Err(Error::at_path("look at", above)(e)),
        }
    }
    Ok(None)
}

fn examine_file_system(dir: &Path, findings: &mut Findings) {
    let found = statvfs(dir).map_err(|e| Error::kernel(format_args!("statvfs {dir:?}"), e));
    let Some(found) = Reader(findings).keep(found.map(Some)) else { return };
    let (path, word) = (dir.display(), quoted(&dir.to_string_lossy()));
    let free = found.blocks_available().saturating_mul(found.fragment_size());
    let has_files = found.files() == 0 || found.files_available() > 0; // btrfs counts none
    if found.flags().contains(FsFlags::ST_RDONLY) {
        let evidence = format!("{path} is on a file system that is mounted read-only");
        let fix = format!("sudo mount -o remount,rw \"$(findmnt -no TARGET -T {word})\"");
        findings.add(Finding::new(&DISK_READ_ONLY, Object::Node, evidence).fix(fix));
    } else if free < LEAST_FREE || !has_files {
        let files = found.files_available();
        let evidence = format!("{free} bytes and {files} files are left for {path}");
        findings
            .add(Finding::new(&DISK_FULL, Object::Node, evidence).fix(format!("df -h -i {word}")));
    }
}

fn examine_owner(dir: &Path, metadata: &Metadata, findings: &mut Findings) {
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner == geteuid().as_raw() && mode & 0o022 == 0 {
        return;
    }
    let word = quoted(&dir.to_string_lossy());
    let evidence = format!("{} has owner {owner} and mode {mode:04o}", dir.display());
    let fix = format!("sudo chown root {word}; sudo chmod go-w {word}");
    findings.add(Finding::new(&NOT_PRIVATE, Object::Node, evidence).fix(fix));
}
