//! D213: networks whose plugins report by STATUS that an ADD would fail.

use nix::errno::Errno;

use super::faults::{DISK_FULL, DISK_READ_ONLY, MOUNTED_NOEXEC, NOT_EXECUTABLE, NOT_READY};
use super::finding::{Finding, Findings, Object, text_of};
use super::node::Node;

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
                    && ([DISK_FULL, DISK_READ_ONLY, NOT_EXECUTABLE, MOUNTED_NOEXEC]
                        .contains(finding.fault)
                        || words.any(|word| word == quoted || network.has(word)))
        };
        if findings.0.iter().any(|finding| is_about(&finding)) {
            continue;
        }
        if let Err(error) = runtime.status(&network.list)
            && error.errno.is_none_or(|it| it != Errno::EPERM as i32 && it != Errno::EACCES as i32)
        {
            let show = format!("sudo cni-multi net status {}", network.list.name);
            findings.add(Finding::new(&NOT_READY, object, text_of(&error)).show(show));
        }
    }
}
