//! D213: networks whose plugins report by STATUS that an ADD would fail.

use nix::errno::Errno;

use super::faults::{DISK_FULL, DISK_READ_ONLY, MOUNTED_NOEXEC, NOT_EXECUTABLE, NOT_READY};
use super::finding::{Finding, Findings, Object, text_of};
use super::node::Node;
use crate::error::Error;

/// What an ordinary user is refused.
const RIGHTS: [Errno; 2] = [Errno::EPERM, Errno::EACCES];
/// What libcni says of a program that the kernel does not start.
const NOT_STARTED: &str = "fork/exec ";

/// Whether a finding about a file system that the error names, or about a program that cannot be
/// started, is the cause.
fn is_known(error: &Error, findings: &Findings) -> bool {
    let text = text_of(error);
    let names = |known: &Finding| {
        let mut paths = known.evidence.split(' ').filter(|word| word.starts_with('/'));
        paths.any(|path| text.contains(path))
    };
    findings.0.iter().any(|known| match known.fault {
        fault if [DISK_FULL, DISK_READ_ONLY].contains(fault) => names(known),
        fault if [NOT_EXECUTABLE, MOUNTED_NOEXEC].contains(fault) => text.contains(NOT_STARTED),
        _ => false,
    })
}

/// It runs after those of networks and of the node, and skips a network that one of
/// their findings names: that finding is the cause.
pub fn examine(node: &Node<'_>, findings: &mut Findings) {
    let mut ignored = std::io::sink(); // warnings
    let mut runtime = node.request.runtime(&mut ignored);
    for network in &node.networks {
        let object = Object::Network(network.list.name.clone());
        let is_about = |finding: &&Finding| {
            let mut words = finding.evidence.split([' ', ',', ':']);
            let quoted = format!("{:?}", network.list.name.as_str());
            finding.object == object
                || finding.object == Object::Node
                    && words.any(|word| word == quoted || network.has(word))
        };
        if findings.0.iter().any(|finding| is_about(&finding)) {
            continue;
        }
        if let Err(error) = runtime.status(&network.list)
            && !RIGHTS.iter().any(|errno| error.is_errno(*errno))
            && !is_known(&error, findings)
        {
            let show = format!("sudo cni-multi net status {}", network.list.name);
            findings.add(Finding::new(&NOT_READY, object, text_of(&error)).show(show));
        }
    }
}
