//! `cni-multi validate FILE|DIR`: reports every configuration mistake without accessing the kernel.
//!
//! [`document`] locates values in a text, and [`files`] reads texts. [`list`] checks the
//! [`network`] in a file, with [`names`], [`plugin`], [`mistakes`] and [`programs`]; [`directory`]
//! checks all files of a directory, [`together`] compares several networks, and [`picks`]
//! determines which file a runtime would use.

mod checker;
mod directory;
mod document;
mod files;
mod finding;
mod list;
mod mistakes;
mod names;
mod nearest;
mod network;
mod paths;
mod picks;
mod plugin;
mod programs;
mod together;
mod trial;

use std::path::Path;
use std::rc::Rc;

use clap::{Arg, ArgAction, ArgMatches, Command};
use serde::Serialize;

use self::checker::Checker;
use self::files::bytes_of;
use self::finding::{Finding, push};
pub use self::paths::put;
pub use self::trial::{a_result, try_out};
use super::{CONF_DIR, plugin_path};
use crate::cni::env::Environment;
use crate::cni::json;
use crate::error::{Error, Result};
use crate::plugin::Entry;
use crate::runtime::cache::Cache;
use crate::runtime::chain::Runtime;
use crate::terminal::Streams;
use crate::terminal::visible::visible;

/// The command line.
pub fn command() -> Command {
    let option =
        |name: &'static str, value, help| Arg::new(name).long(name).value_name(value).help(help);
    Command::new("validate")
        .about("Find mistakes in network configurations")
        .arg(
            Arg::new("file")
                .value_name("FILE|DIR")
                .help("What to look at, - for stdin [/etc/cni/net.d]"),
        )
        .arg(option(
            "plugin-path",
            "DIRS",
            "Directories of plugins, with : between them [CNI_PATH, else where this binary is]",
        ))
        .arg(
            Arg::new("strict")
                .long("strict")
                .action(ArgAction::SetTrue)
                .help("Fail on warnings, too"),
        )
        .arg(option("output", "FORMAT", "text or json [text]").short('o'))
}

/// Runs the command. Exit status 0: no errors; 1: errors, or warnings with `--strict`; 2: the check
/// could not run.
pub fn run(
    matches: &ArgMatches,
    plugins: &'static [Entry],
    env: &Environment,
    io: &mut Streams<'_>,
) -> u8 {
    let (fails, text) = match look(matches, plugins, env, io) {
        Ok(looked) => looked,
        Err(error) => {
            let _ = writeln!(io.stderr, "{}", visible(&error.to_string())); // the status says it too
            return 2;
        }
    };
    match io.stdout.write_all(text.as_bytes()).and_then(|()| io.stdout.flush()) {
        Ok(()) => u8::from(fails),
        Err(_) => 2,
    }
}

/// Whether the check fails, and the output.
fn look(
    matches: &ArgMatches,
    plugins: &'static [Entry],
    env: &Environment,
    io: &mut Streams<'_>,
) -> Result<(bool, String)> {
    let argument =
        |name: &str| matches.get_one::<String>(name).map(String::as_str).unwrap_or_default();
    let output = argument("output");
    if !["", "text", "json"].contains(&output) {
        return Err(Error::config("--output", "expected text or json"));
    }
    let path = plugin_path(argument("plugin-path"), env)?;
    let cache = Cache::new("");
    let handles = Rc::default();
    let mut checker =
        Checker::new(Runtime { plugins, env, path, cache, stderr: io.stderr, handles });
    let mut picks = vec![];
    match matches.get_one::<String>("file").map_or(CONF_DIR, String::as_str) {
        "" => {
            return Err(Error::config(
                "FILE|DIR",
                "empty, expected the name of a file or directory",
            ));
        }
        "-" => {
            let mut bytes = vec![];
            io.stdin.read_to_end(&mut bytes).map_err(|e| Error::io("read stdin", &e))?;
            checker.check(files::STDIN.to_owned(), &bytes);
        }
        file => {
            let file = Path::new(file);
            if file.is_dir() {
                picks = checker.check_dir(file)?;
            } else {
                let bytes = bytes_of(file).map_err(|e| e.context(file.display()))?;
                checker.check(file.to_string_lossy().into_owned(), &bytes);
            }
        }
    }
    together::check(&mut checker);
    let findings = checker.into_findings();
    let fails = findings.iter().any(|finding| finding.is_error() || matches.get_flag("strict"));
    Ok((
        fails,
        match output {
            "json" => json::plain_text(&Report { findings: &findings, picks: &picks }) + "\n",
            _ => as_text(&findings, &picks),
        },
    ))
}

fn as_text(findings: &[Finding], picks: &[picks::Pick]) -> String {
    let mut text = String::new();
    findings.iter().for_each(|finding| finding.tell(&mut text));
    if !picks.is_empty() {
        text.push_str("which file a runtime takes:\n");
    }
    for pick in picks {
        let blanks = "          ".get(pick.runtime.len()..).unwrap_or_default();
        push(&mut text, &["  ", pick.runtime, blanks, "  ", &visible(&pick.reason), "\n"]);
    }
    text
}

/// The report for tools.
#[derive(Serialize)]
struct Report<'a> {
    findings: &'a [Finding],
    picks: &'a [picks::Pick],
}
