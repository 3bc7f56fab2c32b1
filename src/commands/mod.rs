//! What people type: one file or folder a command, named like it.

use std::path::Path;

use crate::error::{Error, Result};

pub mod cnitool;
pub mod net;
pub mod schema;
pub mod validate;

/// Where networks are configured unless told otherwise.
pub const CONF_DIR: &str = "/etc/cni/net.d";

/// The text as a terminal can be given it: what would move its cursor, change its colours or turn the order of letters
/// around is shown as `?`. Texts come from files and programs of others.
pub fn printable(text: &str) -> String {
    let turns_letters = |c| matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    text.replace(|c: char| c.is_control() || turns_letters(c), "?")
}

/// Where plugins are unless told otherwise: next to this binary, so that it works alone.
pub fn own_directory() -> Result<String> {
    let own = std::env::current_exe().map_err(|e| Error::io("find this binary's directory; set CNI_PATH", &e))?;
    Ok(own.parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned())
}
