//! The sections of the page about `install`.

use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE};

/// The sections.
pub const MANUAL: Manual = Manual {
    description: &[
        "What has the name of a plugin already is kept, and comes back with --uninstall. One rename \
         replaces each name, so a runtime finds the old plugin or the new one at every moment. A \
         run that was killed is completed by the next.",
        "For a plugin directory of this host's runtimes (/opt/cni/bin, /usr/lib/cni, \
         /usr/libexec/cni), cni-multi and cnitool are linked into /usr/local/bin; for another \
         directory only with --path. A file there that is no link to this installation stays.",
    ],
    examples: &[
        ("cni-multi install --dry-run", "List the paths that it would change."),
        ("cni-multi install --dir /usr/lib/cni", "Install where containerd of Debian looks."),
        (
            "cni-multi install --only bridge,host-local,portmap",
            "Link these alone, also at later installations.",
        ),
        (
            "cni-multi install --alias cnv-bridge=bridge",
            "Link a further name to a plugin, also at later installations.",
        ),
        ("cni-multi install --rollback", "Go back to the binary before."),
        ("cni-multi install --uninstall", "Go back to the plugins before."),
        (
            "cni-multi install --watch",
            "Restore the links that other programs overwrite, until SIGTERM.",
        ),
    ],
    exit_status: SUCCESS_FAILURE_OR_USAGE,
    files: &[
        ("/opt/cni/bin/cni-multi", "The binary; each plugin is a link to it."),
        ("/opt/cni/bin/.cni-multi", "The binary before, and what was replaced."),
        ("/opt/cni/bin/.cni-multi/only", "The names that --only has chosen."),
        ("/opt/cni/bin/.cni-multi/aliases", "The names that --alias has linked."),
        ("/opt/cni/bin/.cni-multi/on-path", "The links that --path has made."),
        ("/usr/local/bin/cni-multi, /usr/local/bin/cnitool", "Links to the binary."),
    ],
    see_also: &["cni-multi-list(1)", "cni-multi-man(1)"],
    ..Manual::EMPTY
};
