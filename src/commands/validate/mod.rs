//! `cni-multi validate FILE|DIR`: every mistake in configurations, found without touching the kernel.
//!
//! [`document`] knows where in a text a value stands, [`network`] looks at one file, [`together`] at several, and
//! [`picks`] says which file a runtime would take.

mod document;
mod finding;
mod nearest;
mod network;
mod picks;
mod together;

use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Command};

use self::finding::Finding;
use self::network::Checker;
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::plugin::Entry;
use crate::runner::Streams;

/// Where networks are configured unless told otherwise.
const CONF_DIR: &str = "/etc/cni/net.d";

/// The command line.
pub fn command() -> Command {
    Command::new("validate")
        .about("Find mistakes in network configurations")
        .arg(
            Arg::new("file").value_name("FILE|DIR").num_args(0..).help("What to look at, - for stdin [/etc/cni/net.d]"),
        )
        .arg(
            Arg::new("plugin-path")
                .long("plugin-path")
                .value_name("DIRS")
                .help("Directories of plugins, with : between them [CNI_PATH, else where this binary is]"),
        )
        .arg(Arg::new("strict").long("strict").action(ArgAction::SetTrue).help("Fail on warnings, too"))
        .arg(Arg::new("output").long("output").short('o').value_name("FORMAT").help("text or json [text]"))
}

/// Runs it. 0: no errors; 1: errors, or warnings where `--strict` counts them; 2: it could not look.
pub fn run(matches: &ArgMatches, plugins: &'static [Entry], env: &Environment, io: &mut Streams<'_>) -> u8 {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let is_json = match text("output").as_str() {
        "" | "text" => false,
        "json" => true,
        other => {
            let _ = writeln!(io.stderr, "--output {other}: expected text or json"); // the status says it too
            return 2;
        }
    };
    let mut checker = Checker::new(plugins, env, plugin_path(text("plugin-path"), env));
    let mut picks = vec![];
    let named: Vec<String> = matches.get_many("file").unwrap_or_default().cloned().collect();
    let named = if named.is_empty() { vec![CONF_DIR.to_owned()] } else { named };
    for name in named {
        if name == "-" {
            let mut bytes = vec![];
            if io.stdin.read_to_end(&mut bytes).is_err() {
                return 2;
            }
            checker.check("<stdin>".to_owned(), &bytes);
        } else if Path::new(&name).is_dir() {
            picks.extend(checker.check_dir(Path::new(&name)));
        } else {
            checker.check_file(Path::new(&name));
        }
    }
    let findings = checker.finish();
    let written = match is_json {
        true => writeln!(io.stdout, "{}", as_value(&findings, &picks).to_text()),
        false => io.stdout.write_all(as_text(&findings, &picks).as_bytes()),
    };
    if written.and_then(|()| io.stdout.flush()).is_err() {
        return 2;
    }
    let fails = |finding: &Finding| finding.is_error() || matches.get_flag("strict");
    u8::from(findings.iter().any(fails))
}

/// Without a word about it plugins are where this binary is.
fn plugin_path(given: String, env: &Environment) -> Vec<PathBuf> {
    match [given, env.get("CNI_PATH")].into_iter().find(|text| !text.is_empty()) {
        Some(path) => path.split(':').map(PathBuf::from).collect(),
        None => std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned())).into_iter().collect(),
    }
}

fn as_text(findings: &[Finding], picks: &[picks::Pick]) -> String {
    let mut text: String = findings.iter().map(Finding::to_text).collect();
    if !picks.is_empty() {
        text.push_str("which file a runtime takes:\n");
    }
    for pick in picks {
        text.push_str(&format!("  {:<18} {}\n", pick.runtime, pick.reason));
    }
    text
}

fn as_value(findings: &[Finding], picks: &[picks::Pick]) -> Value {
    let picks = picks.iter().map(picks::Pick::to_value).collect();
    Value::object(vec![
        ("findings", Value::Array(findings.iter().map(Finding::to_value).collect())),
        ("picks", Value::Array(picks)),
    ])
}
