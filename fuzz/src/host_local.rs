//! Any files in the directories of host-local, and whole executions of the plugin on them: nothing
//! panics, a leased address is in a file, a released one is in none, and other owners' leases stay.
//!
//! The input is `ipam`, the later content of the index, and then files: a name below `dataDir`, a
//! newline, the content. Lines of three hyphens separate them.

use std::fs;
use std::path::{Component, Path, PathBuf};

use cni_multi::cni::json::Value;

use crate::scratch::Scratch;
use crate::static_ipam::{call, require_answer};

/// The most files in an input: each costs system calls.
const FILES: usize = 12;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let scratch = Scratch::new("host-local");
    let [ipam, index, mut files] = crate::parts(bytes);
    for _ in 0..FILES {
        let [file, rest] = crate::parts(files);
        files = rest;
        plant(scratch.path(), file);
    }
    let Some(config) = config(scratch.path(), ipam) else { return };
    let others = of_others(scratch.path());
    let call = |command, id| require_answer(command, &call("host-local", command, id, &config, "IgnoreUnknown=1"));

    let given = call("ADD", "one");
    let held = |id: &str| leases(scratch.path()).into_iter().filter(|(_, text)| is_of(text, id)).count();
    if let Some(result) = given {
        let ips = result.into_add_result().expect("it is one of the configuration's version").ips.len();
        assert!(held("one") >= ips.min(1), "nothing says that {ips} addresses are taken");
    }
    call("CHECK", "one");
    call("ADD", "two");
    call("STATUS", "two");
    // Writing into existing files breaks no seal, so the index may contain anything now.
    spoil_index(scratch.path(), index);
    call("ADD", "two");
    call("DEL", "two");
    fs::remove_dir_all(scratch.path().join(".cni-multi")).unwrap_or_default();
    // The second round is for leases from before files named the interface, next to one that does.
    for id in ["one", "two", "one", "two"] {
        call("DEL", id);
    }
    assert_eq!(held("one") + held("two"), 0, "{:?}", leases(scratch.path()));
    for (path, text) in &others {
        assert_eq!(fs::read(path).ok().as_ref(), Some(text), "{path:?} is another's");
    }
    call("GC", "one");
}

/// The configuration; `None` if `ipam` is not an object.
fn config(dir: &Path, ipam: &[u8]) -> Option<Vec<u8>> {
    let mut ipam = Value::parse(ipam).ok().filter(|value| matches!(value, Value::Object(_)))?;
    ipam.set("type", Value::text("host-local"));
    ipam.set("dataDir", Value::text(dir.to_str()?));
    if ipam.get("resolvConf").is_some() {
        ipam.set("resolvConf", Value::text(dir.join("resolv.conf").to_str()?));
    }
    let config = Value::object(vec![
        ("cniVersion", Value::text("1.1.0")),
        ("name", Value::text("net")),
        ("ipam", ipam),
        ("cni.dev/valid-attachments", Value::Array(vec![])),
    ]);
    Some(config.to_text().into_bytes())
}

/// Writes a file, if its name stays in the directory.
fn plant(dir: &Path, file: &[u8]) {
    let end = file.iter().position(|byte| *byte == b'\n').unwrap_or(file.len());
    let Ok(name) = std::str::from_utf8(&file[..end]) else { return };
    let name = Path::new(name);
    let is_inside = name.components().all(|component| matches!(component, Component::Normal(_)));
    if !is_inside || name.as_os_str().is_empty() || name.to_string_lossy().contains('\0') {
        return;
    }
    let path = dir.join(name);
    if let Some(parent) = path.parent() {
        let _ = fs::create_dir_all(parent); // if a file has this name, nothing is planted
    }
    let _ = fs::write(path, file.get(end + 1..).unwrap_or_default());
}

fn spoil_index(dir: &Path, text: &[u8]) {
    for entry in fs::read_dir(dir.join(".cni-multi/net")).into_iter().flatten().flatten() {
        let _ = fs::write(entry.path(), text); // fails on a directory, which stays one
    }
}

/// The files named by an address, with their content.
fn leases(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(dir.join("net")).into_iter().flatten().flatten();
    let read = |path: PathBuf| {
        let name = path.file_name()?.to_str()?;
        let is_address = name.parse().is_ok_and(|ip: std::net::IpAddr| ip.to_string() == name);
        Some((path.clone(), fs::read(&path).ok().filter(|_| is_address)?))
    };
    entries.filter_map(|entry| read(entry.path())).collect()
}

fn of_others(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let is_blank = |text: &[u8]| {
        let text = String::from_utf8_lossy(text);
        text.trim_matches(|c: char| c.is_whitespace() || c == '\0').is_empty()
    };
    // GC runs without valid attachments here, and its deletions are not checked.
    leases(dir).into_iter().filter(|(_, text)| !is_blank(text) && !is_of(text, "one") && !is_of(text, "two")).collect()
}

/// Whether a file may be a lease of the container, in either format.
fn is_of(text: &[u8], id: &str) -> bool {
    let text = String::from_utf8_lossy(text);
    let mut lines = text.trim_matches(|c: char| c.is_whitespace() || c == '\0').split("\r\n").map(str::trim);
    lines.next() == Some(id) && lines.next().is_none_or(|ifname| ifname == "eth0")
}
