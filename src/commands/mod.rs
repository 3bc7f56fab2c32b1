//! What people type: one file or folder a command, named like it.

use std::path::Path;

use crate::error::{Error, Result};

pub mod cnitool;
pub mod install;
pub mod net;
pub mod schema;
pub mod validate;
pub mod visible;

/// Where networks are configured unless told otherwise.
pub const CONF_DIR: &str = "/etc/cni/net.d";

/// Where plugins are unless told otherwise: next to this binary, so that it works alone.
pub fn own_directory() -> Result<String> {
    let own = std::env::current_exe().map_err(|e| Error::io("find this binary's directory; set CNI_PATH", &e))?;
    Ok(own.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned())
}
