//! `cni-multi doctor`: the selftest passes here, finds what does not work, and leaves nothing; each
//! module makes the faults of one family of findings and sees their codes.

mod addresses;
mod bundle;
mod configuration;
mod dns;
mod faults;
mod foreign_files;
mod healthy;
mod legacy;
mod links;
mod named;
mod names;
mod node;
mod page;
mod probe;
mod road;
mod rows;
mod rulesets;
pub mod site;
mod speed;
mod strays;
mod together;
mod zones;

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use cni_multi::registry::PLUGINS;
use serde_json::Value;

use crate::support::attachment::skip;
use crate::support::call::binary;
use crate::support::extent::is_emulated;
use crate::support::netns::is_root;
use crate::support::patience;
use crate::support::scratch::Scratch;

/// The command behind another program with its arguments, such as prlimit.
fn selftest(wrapper: &[&str], program: &Path) -> Command {
    let mut line = wrapper.iter().map(Path::new).chain([program]);
    let mut command = Command::new(line.next().unwrap());
    command.args(line).args(["doctor", "--selftest"]);
    command
}

fn json(command: &mut Command) -> (Output, Vec<Value>) {
    let output = command.args(["-o", "json"]).output().unwrap();
    let rows = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output, rows)
}

fn with_outcome<'a>(rows: &'a [Value], outcome: &str) -> Vec<&'a Value> {
    rows.iter().filter(|row| row["outcome"] == outcome).collect()
}

/// All checks that a kernel with every feature passes.
fn require_passed(command: &mut Command) -> Vec<Value> {
    let (output, rows) = json(command);
    let failed = with_outcome(&rows, "failed");
    // Beside other tests an emulated machine may be slower than the limit; the tier `kernels` runs it alone.
    let is_slow = |row: &&Value| is_emulated() && row["chapter"] == "A rate limit";
    assert!(failed.iter().all(is_slow), "{output:?}");
    assert!(output.status.success() || !failed.is_empty(), "{output:?}");
    for entry in PLUGINS {
        assert!(rows.iter().any(|row| row["check"] == entry.name), "{} of {rows:?}", entry.name);
    }
    assert!(with_outcome(&rows, "passed").len() > 20, "{rows:?}");
    rows
}

#[test]
fn selftest_passes_and_misses_nothing() {
    let rows = require_passed(&mut selftest(&[], &binary()));
    if let Some(row) = with_outcome(&rows, "missing").first() {
        skip(row["check"].as_str().unwrap());
    }
}

/// A copy of the binary where every user may run it.
fn public_copy(dir: &Scratch) -> std::path::PathBuf {
    let copy = dir.join("cni-multi");
    std::fs::copy(binary(), &copy).unwrap();
    for path in [dir.join(""), copy.clone()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    copy
}

#[test]
fn selftest_passes_for_an_ordinary_user() {
    const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let may_unshare = || {
        let mut unshare = Command::new(NOBODY[0]);
        unshare.args(&NOBODY[1..]).args(["unshare", "-Urnm", "true"]);
        unshare.output().is_ok_and(|output| output.status.success())
    };
    if !is_root() || !may_unshare() {
        return skip("root, and user namespaces for other users");
    }
    let dir = Scratch::new();
    require_passed(&mut selftest(&NOBODY, &public_copy(&dir)));
}

#[test]
fn selftest_without_enough_files_fails() {
    let (output, rows) = json(&mut selftest(&["prlimit", "--nofile=20"], &binary()));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let failed = with_outcome(&rows, "failed");
    let of_files = |row: &&&Value| row["evidence"].to_string().contains("too many open files");
    assert!(failed.iter().any(|row| of_files(&row)), "{rows:?}");
}

#[test]
fn selftest_without_namespaces_names_the_switch() {
    let switched_off = "echo 0 >/proc/sys/user/max_user_namespaces && \
                        exec setpriv --bounding-set -all --inh-caps -all \"$0\" doctor --selftest";
    let mut command = Command::new("unshare");
    command.args(["-Ur", "sh", "-c", switched_off]).arg(binary());
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    if stderr.contains("unshare failed") {
        return skip("user namespaces");
    }
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    assert!(stderr.starts_with("make namespaces: "), "{stderr}");
    assert!(stderr.contains("sysctl user.max_user_namespaces=15000"), "{stderr}");
}

/// All that it started has its stdout; the pipe ends with the last of them.
#[test]
fn selftest_killed_half_way_leaves_no_process() {
    let mut command = selftest(&[], &binary());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("Every plugin") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "it ended before");
    }
    let killed = Instant::now();
    child.kill().unwrap();
    child.wait().unwrap();
    output.read_to_end(&mut vec![]).unwrap();
    assert!(killed.elapsed() < patience(5), "{:?}", killed.elapsed());
}

#[test]
fn selftest_touches_nothing_outside() {
    let inside = "mount -t tmpfs tmpfs /run && mkdir -p /run/cni && ip link set lo up || exit
                  list() { ip -br link; ip -br addr; ip route; ip rule; nft list ruleset
                           find /run /proc/sys/net/ipv4/conf; }
                  list >\"$1\" 2>&1
                  \"$0\" doctor --selftest >/dev/null || exit
                  list 2>&1 | diff \"$1\" -";
    let dir = Scratch::new();
    let mut command = Command::new("unshare");
    command.args(["-Urnm", "sh", "-c", inside]).arg(binary()).arg(dir.join("before"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
