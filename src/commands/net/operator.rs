//! What the operator says, in options or else in variables.

use std::path::{Path, PathBuf};

use clap::ArgMatches;

use super::capability;
use crate::cni::attachment::{ContainerId, IfName, Key, NetworkName};
use crate::cni::env::Environment;
use crate::cni::json::Value;
use crate::error::{Error, Result};
use crate::runtime::cache::{self, Cache};
use crate::runtime::list::NetworkList;
use crate::runtime::parameters::{self, Parameters};

/// Where networks are configured unless told otherwise.
const CONF_DIR: &str = "/etc/cni/net.d";

/// Where `ip netns` names its namespaces.
const NETNS_DIR: &str = "/run/netns";

/// One command's line, and the environment that it was typed in.
pub struct Operator<'a> {
    /// What clap has read.
    pub matches: &'a ArgMatches,
    /// The process's variables.
    pub env: &'a Environment,
}

impl Operator<'_> {
    /// An argument or option; empty where it was not given or the command has none of that name.
    pub fn argument(&self, name: &str) -> String {
        self.matches.try_get_one::<String>(name).ok().flatten().cloned().unwrap_or_default()
    }

    /// Every value of an option that may be repeated.
    pub fn arguments(&self, name: &str) -> Vec<&str> {
        self.matches.get_many::<String>(name).unwrap_or_default().map(String::as_str).collect()
    }

    /// The option, or else the variable; empty is not given.
    pub fn option(&self, name: &str, variable: &str) -> Option<String> {
        [self.argument(name), self.env.get(variable)].into_iter().find(|text| !text.is_empty())
    }

    /// `-o json`.
    pub fn wants_json(&self) -> bool {
        self.argument("output") == "json"
    }

    /// The directory of networks.
    pub fn conf_dir(&self) -> PathBuf {
        PathBuf::from(self.option("conf-dir", "NETCONFPATH").unwrap_or_else(|| CONF_DIR.to_owned()))
    }

    /// The network's name; None where it may be left out and was.
    pub fn network(&self) -> Result<Option<NetworkName>> {
        let name = self.argument("network");
        if name.is_empty() && self.matches.value_source("network").is_none() {
            return Ok(None);
        }
        NetworkName::parse(&name).map(Some)
    }

    /// Where results are kept.
    pub fn cache(&self) -> Cache {
        let dir = self.argument("cache-dir");
        Cache::new(if dir.is_empty() { cache::DEFAULT_DIR.to_owned() } else { dir })
    }

    /// Without a word about it plugins are where this binary is, so that it works alone.
    pub fn plugin_path(&self) -> Result<String> {
        if let Some(path) = self.option("plugin-path", "CNI_PATH") {
            return Ok(path);
        }
        let own = std::env::current_exe().map_err(|e| Error::io("find this binary's directory; set CNI_PATH", &e))?;
        Ok(own.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned())
    }

    /// The namespace's path from the root.
    pub fn netns(&self) -> Result<String> {
        parameters::absolute(&netns_path(&self.argument("netns")))
    }

    /// All of one attachment.
    pub fn parameters(&self, network: NetworkName, list: &NetworkList) -> Result<Parameters> {
        let capability_args = self.capability_args(list)?;
        let args = parameters::parse_args(&self.option("args", "CNI_ARGS").unwrap_or_default())?;
        let ifname = IfName::parse(&self.option("ifname", "CNI_IFNAME").unwrap_or_else(|| "eth0".to_owned()))?;
        let netns = self.netns()?;
        let container_id = match self.argument("container-id") {
            id if id.is_empty() => parameters::container_id(&netns)?,
            id => ContainerId::parse(&id)?,
        };
        Ok(Parameters { key: Key { network, container_id, ifname }, netns, args, capability_args })
    }

    /// What was typed has to reach a plugin. The variable, which may be set for networks of every kind, counts as a
    /// runtime's: who has not declared a capability does not get it.
    fn capability_args(&self, list: &NetworkList) -> Result<Value> {
        let typed = capability::typed(self)?;
        capability::require_declared(list, &typed)?;
        let mut args = match self.argument("capability-args") {
            text if text.is_empty() => parameters::parse_capability_args(&self.env.get("CAP_ARGS"))?,
            _ => Value::Object(vec![]),
        };
        for arg in typed {
            args.set(&arg.capability, arg.value);
        }
        Ok(args)
    }
}

/// A word that is no file here is a name that `ip netns` gave; whether or not there still is such a namespace, since
/// DEL must come to the same container id as ADD did.
fn netns_path(argument: &str) -> PathBuf {
    let path = Path::new(argument);
    if argument.contains('/') || path.is_file() { path.to_owned() } else { Path::new(NETNS_DIR).join(path) }
}
