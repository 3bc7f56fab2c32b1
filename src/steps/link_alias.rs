//! The alias that we set on our links, which tells DEL, GC and people the owner.

use crate::cni::attachment::{Key, NetworkName, hex};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::{Holder, Stale};
use crate::error::{ErrorList, Result};
use crate::net::netlink::Link;
use crate::plugin::Context;

/// The prefix of our links' aliases.
const ALIAS: &str = "cni ";

/// The alias that names the owner of a link. Linux takes 255 bytes; the identity comes first.
pub fn of(key: &Key) -> String {
    format!("{ALIAS}{}", key.comment())
}

/// Whether a link with this alias belongs to an attachment, of any network.
pub fn is_of_any(alias: &str) -> bool {
    alias.starts_with(ALIAS)
}

/// Whether a link with this alias belongs to an attachment to the network.
pub fn is_of_network(alias: &str, network: &NetworkName) -> bool {
    alias.starts_with(&format!("{ALIAS}{}-", hex(&Key::network_hash(network))))
}

/// Whether a link with this alias belongs to the attachment.
pub fn is_of(alias: &str, key: &Key) -> bool {
    alias.starts_with(&format!("{ALIAS}{}", key.identity()))
}

/// Whether a link with this alias belongs to another attachment, of any network.
pub fn is_of_another(alias: &str, key: &Key) -> bool {
    is_of_any(alias) && !is_of(alias, key)
}

/// Removes the host's links of this kind that belong to attachments to this network which are not
/// valid.
pub fn collect_garbage(cx: &Context<'_>, kind: &str, valid: &ValidAttachments) -> Result<()> {
    let host = cx.host()?;
    let mut links = host.links_of_kind(kind)?;
    links.retain(|Link { alias, .. }| {
        is_of_network(alias, &cx.config.name) && !is_of_valid(alias, valid)
    });
    ErrorList::of(
        links
            .iter()
            .map(|link| valid.remove(|| stale(link), || host.delete_link_by_name(&link.name))),
    )
}

/// The [`Key::identity`] in one of our aliases.
pub fn identity_in(alias: &str) -> Option<&str> {
    alias.strip_prefix(ALIAS)?.get(..33)
}

/// Whether a link with this alias belongs to a valid attachment, given a link of the network in
/// question.
pub fn is_of_valid(alias: &str, valid: &ValidAttachments) -> bool {
    alias.strip_prefix(ALIAS).is_some_and(|comment| valid.contains_identity(comment))
}

/// Describes one of our links as something that GC removes. Both ends of a veth pair exist or
/// neither, so while the host has its end the other end's namespace exists as well, or is being
/// taken down by the kernel; nothing distinguishes the two.
pub fn stale(link: &Link) -> Stale {
    Stale {
        what: format!("link {}", link.name),
        holder: Holder::of_comment(link.alias.strip_prefix(ALIAS).unwrap_or_default()),
        is_alive: link.kind == "veth",
        ..Stale::default()
    }
}
