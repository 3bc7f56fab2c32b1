//! What people type: one file or folder a command, named like it.

use std::path::Path;

use crate::cni::env::Environment;
use crate::error::{Error, Result};

pub mod cnitool;
pub mod install;
pub mod net;
pub mod schema;
pub mod validate;

/// Where networks are configured unless told otherwise.
pub const CONF_DIR: &str = "/etc/cni/net.d";

/// The directories of plugins: as they were typed, else as the variable has them, else the one that
/// this binary is in, so that it works alone.
pub fn plugin_path(typed: &str, env: &Environment) -> Result<String> {
    let path = if typed.is_empty() { env.get("CNI_PATH") } else { typed.to_owned() };
    if !path.is_empty() {
        return Ok(path);
    }
    let own = std::env::current_exe()
        .map_err(|e| Error::io("find this binary's directory; set CNI_PATH", &e))?;
    Ok(own.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned())
}
