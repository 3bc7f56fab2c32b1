//! `cni-multi validate [FILE|DIR]...`: reports every configuration mistake without accessing the kernel.
//!
//! [`document`] locates values in a text with [`reader`], which explains why a text is not JSON;
//! [`files`] reads files, directories and objects of Kubernetes. [`list`] checks the network in a file,
//! with [`plugin`], [`mistakes`], [`keys`] and [`hosts`]; [`together`] compares several networks, and
//! [`picks`] determines which file a runtime would use. [`checker`] has the findings, whose
//! kinds are [`faults`].

mod checker;
mod document;
mod faults;
mod files;
mod hosts;
mod keys;
mod list;
mod mistakes;
mod picks;
mod plugin;
mod reader;
mod together;

use std::io::Read;
use std::path::Path;

use clap::{ArgMatches, Command};
use serde::Serialize;

pub use self::checker::Finding;
use self::checker::{Checker, push};
pub use self::document::below;
pub use self::faults::FAULTS;
use self::files::bytes_of;
pub use self::keys::add_keys;
pub use self::mistakes::{Trial, put};
use self::picks::Pick;
use super::{CONF_DIR, plugin_path};
use crate::cni::env::Environment;
use crate::error::{Error, Result};
use crate::plugin::OperatorCommand;
use crate::registry::PLUGINS;
use crate::runtime::chain::Runtime;
use crate::terminal::arguments::{flag, option, output, positional, text};
use crate::terminal::manual::Manual;
use crate::terminal::style::Style;
use crate::terminal::visible::visible;
use crate::terminal::{Streams, table};

/// The argument that stands for stdin.
const STDIN_ARGUMENT: &str = "-";

/// The sections of its page.
pub const MANUAL: Manual = Manual {
    description: &["Nothing is changed, and the kernel is not queried."],
    examples: &[
        ("cni-multi validate", "Check every network of this host."),
        ("cni-multi validate --strict net.d/10-pods.conflist", "Refuse warnings, too."),
        ("cni-multi validate -", "Check what `kubectl get net-attach-def -A -o json` prints."),
        ("cni-multi validate red.conflist blue.conflist", "Check two networks, and both together."),
    ],
    exit_status: &[
        ("0", "There is no error."),
        ("1", "There are errors, or warnings with --strict."),
        ("2", "The check could not run."),
    ],
    files: &[("/etc/cni/net.d", "What is checked without an argument.")],
    environment: &[
        ("CNI_PATH", "The directories of plugins, without --plugin-path."),
        ("NO_COLOR", "On a terminal, nothing is coloured if this is set."),
    ],
    see_also: &["cni.conflist(5)", "cni-multi-schema(1)"],
};

/// `cni-multi validate`.
pub const COMMAND: OperatorCommand =
    OperatorCommand { name: "validate", command_line: command, run, manual: |_| MANUAL };

fn command() -> Command {
    let files = "Files and directories to check, - for stdin [/etc/cni/net.d]";
    let path = "Plugin directories, colon-separated [CNI_PATH, else the directory of this binary]";
    Command::new("validate")
        .about("Find mistakes in network configurations")
        .arg(positional("files", "FILE|DIR", files).required(false).num_args(0..))
        .arg(option("plugin-path", "DIRS", path))
        .arg(flag("strict", "Treat warnings as errors"))
        .arg(output(["text", "json"], "Output format: text or json [text]"))
}

/// Runs the command. Exit status 0: no errors; 1: errors, or warnings with `--strict`; 2: the check
/// could not run.
fn run(matches: &ArgMatches, env: &Environment, io: &mut Streams<'_>) -> u8 {
    match look(matches, env, io) {
        Ok((fails, text)) if io.print(&text) == 0 => u8::from(fails),
        Ok(_) => 2,
        Err(error) => {
            io.complain(&error);
            2
        }
    }
}

/// Whether the check fails, and the output.
fn look(matches: &ArgMatches, env: &Environment, io: &mut Streams<'_>) -> Result<(bool, String)> {
    let as_json = text(matches, "output") == "json";
    let path = plugin_path(text(matches, "plugin-path"), env)?;
    let mut checker = Checker::new(Runtime { path, ..Runtime::of(PLUGINS, env, io.stderr) });
    let mut typed: Vec<&str> =
        matches.get_many::<String>("files").into_iter().flatten().map(String::as_str).collect();
    if typed.is_empty() {
        typed.push(CONF_DIR);
    }
    let mut picks = vec![];
    for (number, argument) in typed.iter().enumerate() {
        checker.progress.count(number, typed.len());
        picks.extend(check_argument(&mut checker, argument, io.stdin)?);
    }
    together::check(&mut checker);
    let files = checker.files;
    let findings = checker.into_findings();
    let fails = findings.iter().any(|finding| finding.is_error() || matches.get_flag("strict"));
    let report = Report { files, findings: &findings, picks: &picks };
    let text = if as_json { table::json(&report) } else { report.text(Style::of_stdout(env)) };
    Ok((fails, text))
}

/// The findings about a directory of networks. The runtime looks up their plugins.
pub fn findings_of(dir: &Path, runtime: Runtime<'_>) -> Result<Vec<Finding>> {
    let mut checker = Checker::new(runtime);
    checker.check_dir(dir)?;
    together::check(&mut checker);
    Ok(checker.into_findings())
}

/// Checks a file, a directory or stdin; the picks are a directory's.
fn check_argument(
    checker: &mut Checker<'_>,
    argument: &str,
    stdin: &mut dyn Read,
) -> Result<Vec<Pick>> {
    let file = Path::new(argument);
    match argument {
        "" => {
            let problem = "empty, expected the name of a file or directory";
            return Err(Error::config("FILE|DIR", problem));
        }
        STDIN_ARGUMENT => {
            let mut bytes = vec![];
            stdin.read_to_end(&mut bytes).map_err(|e| Error::io("read stdin", &e))?;
            checker.check_text(files::STDIN.to_owned(), &bytes);
        }
        _ if file.is_dir() => return checker.check_dir(file),
        _ => {
            let bytes = bytes_of(file).map_err(|e| e.context(file.display()))?;
            checker.check_text(argument.to_owned(), &bytes);
        }
    }
    Ok(vec![])
}

/// What the command prints.
#[derive(Serialize)]
struct Report<'a> {
    /// The number of files.
    #[serde(skip)]
    files: usize,
    findings: &'a [Finding],
    picks: &'a [Pick],
}

impl Report<'_> {
    /// The report for people; empty for files without findings.
    fn text(&self, style: Style) -> String {
        let mut text = String::new();
        self.findings.iter().for_each(|finding| finding.tell(&mut text, style));
        // The picks of each directory have their own title.
        let groups = self.picks.chunk_by(|one, other| one.directory == other.directory);
        let is_one = groups.clone().count() == 1;
        for group in groups {
            let directory = visible(&group[0].directory);
            let of = if is_one { String::new() } else { [" of ", &directory].concat() };
            push(&mut text, &["which file", &of, " each runtime uses:\n"]);
            group.iter().for_each(|pick| pick.tell(&mut text));
        }
        if !text.is_empty() {
            text.push_str(&self.summary());
        }
        text
    }

    /// The last line: `2 files, 1 error, 3 warnings`.
    fn summary(&self) -> String {
        let counted =
            |count: usize, noun| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let errors = self.findings.iter().filter(|finding| finding.is_error()).count();
        let warnings = self.findings.len() - errors;
        let counts = [(errors, "error"), (warnings, "warning")];
        let mut parts = vec![counted(self.files, "file")];
        let found = counts.into_iter().filter(|(count, _)| *count > 0);
        parts.extend(found.map(|(count, what)| counted(count, what)));
        if self.findings.is_empty() {
            parts.push("no findings".to_owned());
        }
        parts.join(", ") + "\n"
    }
}
