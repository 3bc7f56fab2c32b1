//! The commands for users: a file or folder for each, with the command's name, and what they share.

use std::path::Path;

use crate::cni::env::Environment;
use crate::error::{Error, Result};
use crate::registry::PLUGINS;
use crate::terminal::nearest::nearest;

pub mod cnitool;
pub mod completion;
pub mod doctor;
pub mod example;
pub mod fault;
pub mod install;
pub mod ipam;
pub mod man;
pub mod metrics;
pub mod net;
pub mod plugin_help;
pub mod schema;
pub mod validate;

/// The default directory of network configurations.
pub const CONF_DIR: &str = "/etc/cni/net.d";

/// The name of libcni's own tool, under which the binary is that tool.
pub const CNITOOL: &str = "cnitool";

/// The directory in which container runtimes look for plugins.
const PLUGIN_DIR: &str = "/opt/cni/bin";

/// The plugin directories: from the command line, else from the variable, else this binary's
/// directory, so that it works alone.
pub fn plugin_path(typed: &str, env: &Environment) -> Result<String> {
    let path = typed_or_variable(typed, "CNI_PATH", env);
    if !path.is_empty() {
        return Ok(path);
    }
    let own = std::env::current_exe()
        .map_err(|e| Error::io("find this binary's directory; set CNI_PATH", &e))?;
    Ok(own.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned())
}

/// The same for what looks at the plugins that runtimes call: without a path, where runtimes look, if that directory exists.
fn path_of_runtimes(typed: &str, env: &Environment) -> Result<String> {
    let typed = typed_or_variable(typed, "CNI_PATH", env);
    let usual = if Path::new(PLUGIN_DIR).is_dir() { PLUGIN_DIR } else { "" };
    plugin_path(if typed.is_empty() { usual } else { &typed }, env)
}

/// The text from the command line, else from the variable; may be empty.
fn typed_or_variable(typed: &str, variable: &str, env: &Environment) -> String {
    if typed.is_empty() { env.get(variable) } else { typed.to_owned() }
}

/// The advice after a name that no plugin has.
fn advice_about_plugin(name: &str) -> String {
    match nearest(name, PLUGINS.iter().map(|entry| entry.name)) {
        Some(near) => format!("did you mean {near:?}?"),
        None => "`cni-multi list` lists the plugins".to_owned(),
    }
}
