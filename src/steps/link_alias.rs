//! What we write on the links we make, so that DEL and GC know whose they are, and people too.

use crate::cni::attachment::{Key, NetworkName, hex};
use crate::cni::conf::ValidAttachments;
use crate::error::{ErrorList, Result};
use crate::plugin::Context;

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

/// Removes the host's links of this kind that are of attachments of this network which are not valid.
pub fn collect_garbage(cx: &Context<'_>, kind: &str, valid: &ValidAttachments) -> Result<()> {
    let network = &cx.config.name;
    let valid: Vec<Key> = valid.iter().filter_map(|valid| valid.key(network)).collect();
    let mut errors = ErrorList::default();
    let host = cx.host()?;
    for link in host.links_of_kind(kind)? {
        let is_valid = valid.iter().any(|key| is_of(&link.alias, key));
        if is_of_network(&link.alias, network) && !is_valid {
            errors.push(host.delete_link_by_name(&link.name));
        }
    }
    errors.finish()
}
