//! What was asked, and where things are.

use std::io::Write;
use std::path::PathBuf;

use crate::cni::env::Environment;
use crate::plugin::Entry;
use crate::runtime::cache::Cache;
use crate::runtime::chain::Runtime;

/// What was asked, and where things are.
pub struct Request<'a> {
    /// The plugins of this binary.
    pub plugins: &'static [Entry],
    /// The process's variables.
    pub env: &'a Environment,
    /// The directory of networks.
    pub conf_dir: PathBuf,
    /// The cache of results.
    pub cache: Cache,
    /// The plugin directories, in the form of CNI_PATH.
    pub plugin_path: String,
    /// The container; empty for all of the node.
    pub subject: String,
    /// Whether no packet is sent to or from a named container.
    pub no_packets: bool,
    /// The file for everything that is looked at, which must not exist.
    pub bundle: Option<PathBuf>,
}

impl<'a> Request<'a> {
    /// A runtime that only looks; what plugins say besides their errors goes to `stderr`.
    pub fn runtime(&self, stderr: &'a mut dyn Write) -> Runtime<'a> {
        let usual = Runtime::of(self.plugins, self.env, stderr);
        Runtime { path: self.plugin_path.clone(), cache: self.cache.clone(), ..usual }
    }

    /// Whether packets are sent: a container is named.
    pub fn sends_packets(&self) -> bool {
        !self.no_packets && !self.subject.is_empty()
    }

    /// The plugin directories.
    pub fn plugin_dirs(&self) -> Vec<PathBuf> {
        let dirs = std::env::split_paths(&self.plugin_path);
        dirs.filter(|dir| !dir.as_os_str().is_empty()).collect()
    }
}
