//! What a host has that an attachment may leave behind, as comparable lines.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Result;
use crate::process::find_program;

/// Directories in which plugins keep files.
const DIRECTORIES: [&str; 2] = ["/var/lib/cni", "/run/cni"];
/// Files that belong to a network rather than to one of its attachments: locks, the address that
/// was allocated last, and host-local's index, which every operation checks against the leases.
const SHARED_FILES: [&str; 3] = ["/lock", "/last_reserved_ip.", "/.cni-multi/"];

/// Things that are left, by their kind.
pub type Left = BTreeMap<&'static str, usize>;

/// Kind and description of each thing, and how many are alike.
pub struct HostState(BTreeMap<(&'static str, String), usize>);

impl HostState {
    /// Of the calling thread's network namespace, and of the directories.
    pub fn read() -> Result<HostState> {
        let mut state = HostState(BTreeMap::new());
        state.read_links()?;
        state.read_nftables()?;
        state.read_legacy_iptables()?;
        DIRECTORIES.iter().for_each(|directory| state.read_files(Path::new(directory)));
        Ok(state)
    }

    /// What is here and was not there before.
    pub fn since(&self, before: &HostState) -> Left {
        let mut left = Left::new();
        for (thing, count) in &self.0 {
            let more = count.saturating_sub(before.0.get(thing).copied().unwrap_or(0));
            if more > 0 {
                *left.entry(thing.0).or_default() += more;
            }
        }
        left
    }

    fn add(&mut self, kind: &'static str, what: impl Into<String>) {
        *self.0.entry((kind, what.into())).or_default() += 1;
    }

    fn read_links(&mut self) -> Result<()> {
        for link in array(&output("ip", &["-j", "link"])?)? {
            self.add("links", link["ifname"].to_string());
        }
        for link in array(&output("ip", &["-j", "address"])?)? {
            let addresses = link["addr_info"].as_array().into_iter().flatten();
            // The kernel adds link-local addresses in its own time.
            for address in addresses.filter(|address| address["scope"] != "link") {
                self.add("addresses", format!("{} {}", link["ifname"], address["local"]));
            }
        }
        Ok(())
    }

    /// The rules of iptables-nft are rules of nftables too.
    fn read_nftables(&mut self) -> Result<()> {
        let listed = output("nft", &["--json", "--stateless", "list", "ruleset"])?;
        let listed: Value = serde_json::from_str(&listed).map_err(|e| format!("nft: {e}"))?;
        for object in listed["nftables"].as_array().into_iter().flatten() {
            let Some((kind, object)) = object.as_object().and_then(|object| object.iter().next())
            else {
                continue;
            };
            self.add_nftables(kind, object.clone());
        }
        Ok(())
    }

    fn add_nftables(&mut self, kind: &str, mut object: Value) {
        let kind = match kind {
            "table" | "chain" => "chains",
            "rule" => "rules",
            "set" | "map" => "sets",
            _ => return,
        };
        let place = format!("{} {} {}", object["family"], object["table"], object["name"]);
        for element in object["elem"].take().as_array().into_iter().flatten() {
            self.add("elements", format!("{place} {element}"));
        }
        without_counts(&mut object);
        self.add(kind, object.to_string());
    }

    fn read_legacy_iptables(&mut self) -> Result<()> {
        if !output("iptables", &["--version"])?.contains("legacy") {
            return Ok(());
        }
        for program in ["iptables-save", "ip6tables-save"].into_iter().filter(|name| is_there(name))
        {
            let saved = output(program, &[])?;
            for line in saved.lines().filter(|line| line.starts_with("-A")) {
                self.add("rules", line);
            }
        }
        Ok(())
    }

    fn read_files(&mut self, directory: &Path) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            let text = path.to_string_lossy().into_owned();
            if path.is_dir() {
                self.read_files(&path);
            } else if !SHARED_FILES.iter().any(|shared| text.contains(shared)) {
                self.add(if text.contains("/networks/") { "leases" } else { "files" }, text);
            }
        }
    }
}

fn is_there(program: &str) -> bool {
    find_program(program).is_some()
}

fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|e| format!("run {program}: {e}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{program} failed: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

fn array(text: &str) -> Result<Vec<Value>> {
    serde_json::from_str(text).map_err(|e| format!("ip did not print a list ({e}): {text}"))
}

/// Removes numbers that differ between two readings of the same rule.
fn without_counts(value: &mut Value) {
    match value {
        Value::Object(members) => {
            ["handle", "packets", "bytes"].iter().for_each(|name| drop(members.remove(*name)));
            members.values_mut().for_each(without_counts);
        }
        Value::Array(values) => values.iter_mut().for_each(without_counts),
        _ => {}
    }
}
