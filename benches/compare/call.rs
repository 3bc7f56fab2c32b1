//! The calls that a runtime would make, and their configurations.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::Result;
use crate::names::Side;
use crate::namespaces::SCRATCH;
use crate::process::{Invocation, find_program};

/// A directory of plugins, and the side that they belong to.
#[derive(Clone)]
pub struct Plugins {
    pub side: Side,
    pub dir: PathBuf,
    /// The PATH to run them with; `None` keeps the benchmark's.
    pub path: Option<String>,
}

impl Plugins {
    /// Whether the plugins support a version of the specification: distinguishes old plugins from
    /// new ones, which all report "version unknown".
    pub fn speak(&self, version: &str) -> bool {
        let output = Command::new(self.dir.join("bridge"))
            .env("CNI_COMMAND", "VERSION")
            .stdin(Stdio::null())
            .output();
        let answer =
            output.ok().and_then(|output| serde_json::from_slice::<Value>(&output.stdout).ok());
        let known = answer.as_ref().and_then(|answer| answer["supportedVersions"].as_array());
        known.is_some_and(|known| known.iter().any(|one| one == version))
    }

    /// The same plugins on a host with these programs and no others.
    pub fn with_programs(&self, programs: &[&str]) -> Result<Plugins> {
        let dir = format!("{SCRATCH}/only-{}", programs.join("-"));
        std::fs::create_dir_all(&dir).map_err(|e| format!("create {dir:?}: {e}"))?;
        for name in programs {
            let program = find_program(name).ok_or_else(|| format!("find {name} in PATH"))?;
            let link = Path::new(&dir).join(name);
            let _ = std::fs::remove_file(&link); // one from the other side
            std::os::unix::fs::symlink(program, &link)
                .map_err(|e| format!("link {link:?}: {e}"))?;
        }
        Ok(Plugins { path: Some(dir), ..self.clone() })
    }

    /// The binary of ours that the plugins are links to.
    pub fn binary(&self) -> Result<PathBuf> {
        std::fs::canonicalize(self.dir.join("bridge")).map_err(|e| format!("find ours: {e}"))
    }

    pub fn has(&self, plugin: &str) -> bool {
        self.dir.join(plugin).exists()
    }

    /// One of the two calls that need no attachment: VERSION, and no command at all for the about
    /// text.
    pub fn bare(&self, plugin: &str, command: Option<&str>) -> Invocation {
        let mut call = Invocation::new(self.dir.join(plugin));
        call.env = command
            .map(|command| ("CNI_COMMAND".to_owned(), command.to_owned()))
            .into_iter()
            .collect();
        call.stdin = json!({"cniVersion": "1.0.0"}).to_string();
        call
    }
}

/// One container's interface in one network.
pub struct Attachment<'a> {
    pub plugins: &'a Plugins,
    pub netns: String,
    pub container_id: String,
}

impl Attachment<'_> {
    pub fn call(&self, plugin: &str, command: &str, conf: &Value) -> Invocation {
        let env = [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", &self.container_id),
            ("CNI_NETNS", &self.netns),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", &self.plugins.dir.to_string_lossy()),
        ];
        let mut call = Invocation::new(self.plugins.dir.join(plugin));
        call.env =
            env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        call.env.extend(self.plugins.path.iter().map(|path| ("PATH".to_owned(), path.clone())));
        call.stdin = conf.to_string();
        call
    }
}

/// Parses the result of an ADD; an error if it is not one.
pub fn result(stdout: &str) -> Result<Value> {
    let value: Value = serde_json::from_str(stdout)
        .map_err(|e| format!("ADD did not print JSON ({e}): {stdout}"))?;
    if value["cniVersion"].is_string() {
        Ok(value)
    } else {
        Err(format!("ADD did not print a result: {stdout}"))
    }
}

/// A plugin's own configuration, with the keys that every network has. Both sides get version
/// 1.0.0, whatever their age.
pub fn conf(network: &str, plugin: &str, own: &Value) -> Value {
    let mut conf = json!({"cniVersion": "1.0.0", "name": network, "type": plugin});
    merge(&mut conf, own);
    conf
}

/// A configuration with `prevResult`, for a chained plugin or for CHECK.
pub fn with_previous(conf: &Value, previous: &Value) -> Value {
    let mut conf = conf.clone();
    conf["prevResult"] = previous.clone();
    conf
}

/// Adds the members of `from` to `into`.
pub fn merge(into: &mut Value, from: &Value) {
    let (Some(into), Some(from)) = (into.as_object_mut(), from.as_object()) else { return };
    into.extend(from.iter().map(|(key, value)| (key.clone(), value.clone())));
}

/// A bridge that is the containers' gateway, with addresses from host-local.
pub fn bridge(network: &str) -> Value {
    conf(
        network,
        "bridge",
        &json!({"bridge": "bench0", "isGateway": true, "ipam": ipam(&["10.88.0.0/16"])}),
    )
}

/// host-local with a range and a default route for each subnet.
pub fn ipam(subnets: &[&str]) -> Value {
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    let default =
        |subnet: &&str| json!({"dst": if subnet.contains(':') { "::/0" } else { "0.0.0.0/0" }});
    json!({"type": "host-local", "ranges": ranges, "routes": subnets.iter().map(default).collect::<Vec<_>>()})
}

/// Writes a host-local store as the reference would leave it, the newest address last.
pub fn fill_store(dir: &Path, leases: usize) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| format!("create {dir:?}: {e}"))?;
    let mut address = String::new();
    for lease in 0..leases {
        let number = lease + 2; // 10.0.0.1 is the gateway
        address = format!("10.{}.{}.{}", number >> 16, (number >> 8) & 255, number & 255);
        write_private(&dir.join(&address), &format!("held-{lease}\r\neth0"))?;
    }
    write_private(&dir.join("last_reserved_ip.0"), &address)
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|e| format!("write {path:?}: {e}"))
}
