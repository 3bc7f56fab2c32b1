//! `cni-multi install`: installs the binary where runtimes look for plugins, and goes back.
//!
//! It needs neither a shell nor a program of the host, so that a container with a directory of the
//! host mounted can run it. install.sh builds the binary and then calls this. What is installed:
//!
//! * `DIR/cni-multi`: the binary
//! * `DIR/<plugin>`: a link to it for each name that `cni-multi list` prints; relative, so that the
//!   directory may be mounted somewhere else in a container
//! * `DIR/.cni-multi/previous`: the binary of the installation before this one
//! * `DIR/.cni-multi/replaced/`: files of other owners that had a plugin's name, for example those
//!   of containernetworking/plugins. The first one of a name is kept.
//! * `/usr/local/bin/cni-multi` and `cnitool`: links to the binary, for people (see [`on_path`])
//! * `DIR/.cni-multi/only`: the names that `--only` has chosen (see [`choice`])
//! * `DIR/.cni-multi/aliases`: the aliases (see [`choice`])
//! * `DIR/.cni-multi/on-path`: the paths of those links
//!
//! Files of other names are not touched. One rename replaces each name, so a runtime that starts a
//! plugin meanwhile finds the old one or the new one.
//!
//! A rollback goes one step back, however often it is run: the previous binary takes the place of
//! the present one, and the names that it lists are linked. Without a previous binary, but with
//! replaced files, it uninstalls. The present binary does all of that: the previous one need not
//! know this command.

mod choice;
mod going_back;
mod installing;
mod layout;
mod on_path;
mod watch;
mod work;

use clap::ArgMatches;

use self::choice::{Aliases, Choice};
use self::work::{Task, Work};
use crate::cni::env::Environment;
use crate::error::{Code, Result};
use crate::plugin::OperatorCommand;
use crate::terminal::Streams;
use crate::terminal::arguments::{flag, option};
use crate::terminal::manual::{Manual, SUCCESS_FAILURE_OR_USAGE};
use crate::terminal::visible::visible;

/// The sections of its page.
const MANUAL: Manual = Manual {
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

/// `cni-multi install`.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: "install", command_line: command, run, manual: |_| MANUAL };

/// The command line.
fn command() -> clap::Command {
    let rollback =
        flag("rollback", "Go one step back: to the binary before, or the plugins before");
    clap::Command::new("install")
        .about("Install this binary into a directory of plugins, with a link for each plugin")
        .arg(option("dir", "DIR", "The directory [/opt/cni/bin]"))
        .arg(rollback.conflicts_with("uninstall"))
        .arg(flag("uninstall", "Remove what was installed, and put back what it replaced"))
        .args(choice::arguments())
        .args(on_path::arguments())
        .arg(
            flag("dry-run", "Only list the paths that it would make, replace or remove")
                .visible_alias("list-only"),
        )
        .arg(
            flag("watch", "Stay, and keep the links to this build that other programs overwrite")
                .conflicts_with_all(["uninstall", "rollback", "dry-run", "path"]),
        )
}

/// Runs the command.
fn run(matches: &ArgMatches, _: &Environment, io: &mut Streams<'_>) -> u8 {
    let mut work = Work::of(matches, io.stdout, io.stderr);
    match perform(&mut work, matches) {
        Ok(()) => u8::from(!work.is_heard),
        Err(error) => {
            let text = visible(&format!("{}: {error}", work.dir));
            let _ = writeln!(work.err, "{text}"); // the status reports it too
            if error.code == Code::INVALID_CONFIG { 2 } else { 1 }
        }
    }
}

fn perform(work: &mut Work<'_>, matches: &ArgMatches) -> Result<()> {
    work.choice = Choice::of(matches)?;
    work.further = Aliases::of(matches)?;
    if matches.get_flag("watch") {
        return watch::run(work);
    }
    work.perform(&Task::of(matches)?)
}
