//! What was asked, and where things are.

use std::path::PathBuf;

use crate::cni::env::Environment;
use crate::plugin::Entry;
use crate::runtime::cache::Cache;

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
    /// The file for everything that is looked at, which must not exist.
    pub bundle: Option<PathBuf>,
}

impl Request<'_> {
    /// The plugin directories.
    pub fn plugin_dirs(&self) -> Vec<PathBuf> {
        let dirs = std::env::split_paths(&self.plugin_path);
        dirs.filter(|dir| !dir.as_os_str().is_empty()).collect()
    }
}
