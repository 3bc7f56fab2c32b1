//! What we write on the links we make, so that DEL and GC know whose they are, and people too.

use crate::cni::attachment::{Key, NetworkName, hex};

/// What the aliases of our links begin with.
const ALIAS: &str = "cni ";

/// Says whose the link is. Linux takes 255 bytes; the identity comes first.
pub fn of(key: &Key) -> String {
    format!("{ALIAS}{}", key.comment())
}

/// Whether a link with this alias is of an attachment, of whatever network.
pub fn is_of_any(alias: &str) -> bool {
    alias.starts_with(ALIAS)
}

/// Whether a link with this alias is of an attachment to the network.
pub fn is_of_network(alias: &str, network: &NetworkName) -> bool {
    alias.starts_with(&format!("{ALIAS}{}-", hex(&Key::network_hash(network))))
}

/// Whether a link with this alias is of the attachment.
pub fn is_of(alias: &str, key: &Key) -> bool {
    alias.starts_with(&format!("{ALIAS}{}", key.identity()))
}
