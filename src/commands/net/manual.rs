//! The sections of the pages about `net` and its commands.

use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE, Terms, examples_of};

/// The sections of the page about a command of `net`, or about `net` itself for an empty name.
pub fn of(verb: &str) -> Manual {
    Manual {
        description: description(verb),
        examples: examples_of(verb, OF_ALL, OF_VERBS),
        exit_status: exit_status(verb),
        files: FILES,
        environment: if CALLS_PLUGINS.contains(&verb) { ENVIRONMENT } else { &ENVIRONMENT[..1] },
        see_also: &["cni.conflist(5)", "cni-multi-validate(1)", "ip-netns(8)"],
    }
}

/// The commands that call plugins.
const CALLS_PLUGINS: [&str; 8] = ["", "add", "check", "del", "exec", "gc", "sync", "status"];

fn exit_status(verb: &str) -> Terms {
    match verb {
        "exec" => EXIT_OF_EXEC,
        "sync" => EXIT_OF_SYNC,
        _ => SUCCESS_FAILURE_OR_USAGE,
    }
}

fn description(verb: &str) -> &'static [&'static str] {
    match verb {
        "add" => &[
            "The plugins of the network are called in order. If one fails, what the others did is \
             undone, except with --no-undo.",
        ],
        "del" => &[
            "It succeeds also if nothing is attached, and needs no namespace any more. What is \
             attached is listed on stderr then. If the network has no configuration any more, the one \
             recorded at add is used.",
            NAMES,
        ],
        "ps" => {
            &["The name is that of the namespace in ip-netns(8), else that of the pod, else the \
             beginning of the id. Attachments made by cnitool and by runtimes are listed as well."]
        }
        "check" => &[
            "Each difference from the result of add is a line on stderr, or with -o json an object of \
             a list on stdout. Arguments are taken from the record.",
            NAMES,
        ],
        "inspect" => &[
            "The first argument is a network, with a container if there are several; a container \
             alone; or the name of a record's file.",
            NAMES,
        ],
        "exec" => &[
            "The namespace is new, and has lo and the interface. The command has a mount namespace of \
             its own, in which /sys shows the links of the network namespace and /etc/resolv.conf has \
             the resolver settings of the result, if it has any.",
            "SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and SIGUSR2 are forwarded to the command. When \
             it has ended, the namespace is detached. Processes that it leaves in the background run \
             on, without the network.",
        ],
        "gc" => {
            &["An attachment is detached if its namespace is gone. Then each plugin removes what \
             belongs to none of the attachments that remain."]
        }
        "sync" => {
            &["Each plugin makes again what it had made of the host for an attachment and what is \
             missing, such as rules after `nft flush ruleset`. Containers keep their interfaces and \
             addresses, and no address is allocated. Each change is a line, and the last line counts \
             the attachments."]
        }
        _ => &[],
    }
}

/// What finds a container.
const NAMES: &str = "A container is found by the name of its namespace as ip-netns(8) lists it, by \
    any path of the namespace, by a process in it, by its id or at least four digits of the \
    beginning that no other id has, and by namespace/pod of Kubernetes, whichever program has \
    attached it.";

/// Examples of the page about all subcommands.
const OF_ALL: Terms = &[
    ("cni-multi net list", "List the networks of this host."),
    ("cni-multi net add pods blue", "Attach the namespace blue to the network pods."),
];

/// Examples of each subcommand.
const OF_VERBS: Terms = &[
    ("cni-multi net add pods blue", "Attach a namespace of ip-netns(8) by its name."),
    ("cni-multi net add pods /proc/4711/ns/net", "Attach the namespace of a process."),
    (
        "cni-multi net add pods blue --publish 8080:80 --ip 10.88.0.10",
        "Publish a port of the host, and request an address.",
    ),
    ("cni-multi net check pods blue", "Compare the attachment with the kernel."),
    ("cni-multi net check pods 3f2a", "Find the container by the beginning of its id."),
    ("cni-multi net del pods blue", "Detach the namespace blue."),
    ("cni-multi net exec pods -- ip address", "Show what a container of the network gets."),
    (
        "cni-multi net exec pods --publish 8080:80 -- python3 -m http.server 80",
        "Try a published port.",
    ),
    ("cni-multi net gc --dry-run", "List what would be removed in all networks."),
    ("cni-multi net gc pods", "Remove what dead containers left in one network."),
    ("cni-multi net sync --dry-run", "List what a repair would make again."),
    ("cni-multi net sync pods", "Repair the attachments to one network."),
    ("cni-multi net status pods", "Ask whether an add would be served."),
    ("cni-multi net list", "List the networks of this host."),
    ("cni-multi net list --conf-dir ./net.d -o json", "List those of a directory, as JSON."),
    ("cni-multi net ps pods", "List the attachments to a network."),
    ("cni-multi net ps --container-id 3f2a -o json", "Print those of one container as JSON."),
    ("cni-multi net inspect pods blue", "Show the record, and the interface as it is now."),
    ("cni-multi net inspect kube-system/dns-1 -i eth0", "Find the container by its pod."),
];

const EXIT_OF_SYNC: Terms = &[
    ("0", "Nothing was missing, or all is repaired."),
    ("1", "Something could not be repaired; the errors are on stderr."),
    ("2", "The command line is invalid."),
    ("3", "With --dry-run: something is missing."),
];

const EXIT_OF_EXEC: Terms = &[
    ("2", "The command line is invalid."),
    ("125", "The namespace could not be made, attached or detached; the error is on stderr."),
    ("126", "The command could not be started."),
    ("127", "The command was not found."),
    ("128+n", "Signal n has ended the command."),
    ("else", "That of the command."),
];

const FILES: Terms = &[
    ("/etc/cni/net.d", "Networks, as cni.conflist(5) describes."),
    ("/var/lib/cni/results", "The records of attachments, in libcni's format."),
    ("/run/netns", "The namespaces that are found by name."),
];

const ENVIRONMENT: Terms = &[
    ("NETCONFPATH", "The directory of networks, without --conf-dir."),
    ("CNI_PATH", "The directories of plugins, without --plugin-path."),
    ("CNI_IFNAME", "The name of the interface, without --ifname."),
    ("CNI_ARGS", "Arguments for plugins, without --args."),
    ("CAP_ARGS", "Arguments by capability, without --capability-args."),
];
