//! The sections of the pages about `ipam` and its commands.

use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE, Terms};

/// The sections of the page about a command of `ipam`, or about `ipam` itself for an empty name.
pub fn of(verb: &str) -> Manual {
    let examples = EXAMPLES.iter().find(|page| page.0 == verb).map_or(&[][..], |page| page.1);
    Manual {
        description: description(verb),
        examples,
        exit_status: SUCCESS_FAILURE_OR_USAGE,
        files: FILES,
        environment: &[("NETCONFPATH", "The directory of networks, without --conf-dir.")],
        see_also: &["cni.conflist(5)", "cni-multi-net-gc(1)"],
    }
}

fn description(verb: &str) -> &'static [&'static str] {
    match verb {
        "ls" => {
            &["NAMESPACE is gone if the container's namespace is, and unknown if nothing shows \
             whether it is."]
        }
        "free" => {
            &["The address of a container that is alive is refused, also with --force: detach the \
             container."]
        }
        "export" => &["Leases that a server has granted, those of dhcp, are left out."],
        "import" => &[
            "Each network must be configured here, with ranges that contain the addresses. A lease \
             that is here already stays; an address with another owner here is an error. After \
             an error no lease has changed. On a node of a cluster, the daemon first claims the \
             addresses in etcd.",
            "With --whereabouts, FILE is the output of kubectl get \
             ippools.whereabouts.cni.cncf.io -A -o json. Leases of containers without a record of \
             an attachment here are left out, and counted.",
        ],
        _ => &[],
    }
}

const EXAMPLES: [(&str, Terms); 5] = [
    ("", &[("cni-multi ipam ls", "List the addresses of all networks.")]),
    (
        "ls",
        &[
            ("cni-multi ipam ls pods", "List the addresses of one network."),
            ("cni-multi ipam ls -o json", "The same of all networks, for a program."),
        ],
    ),
    ("free", &[("cni-multi ipam free pods 10.88.0.7", "Free an address.")]),
    ("export", &[("cni-multi ipam export >leases.json", "Write the leases of all networks.")]),
    (
        "import",
        &[
            ("cni-multi ipam import --dry-run leases.json", "Check whether they can be imported."),
            ("cni-multi ipam import pods leases.json", "Import those of one network."),
            (
                "cni-multi ipam import --whereabouts ippools.json",
                "Take over what attachments of this machine hold in whereabouts.",
            ),
        ],
    ),
];

const FILES: Terms = &[
    ("/etc/cni/net.d", "Networks, as cni.conflist(5) describes."),
    ("/var/lib/cni/networks", "The leases of host-local."),
    ("/var/lib/cni/results", "The records of attachments, in libcni's format."),
];
