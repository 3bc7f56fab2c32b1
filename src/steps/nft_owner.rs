//! Attachments as owners of elements in our nftables tables.

use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachments;
use crate::error::{ErrorList, Result};
use crate::net::nft::Nft;
use crate::net::nft::owned::{Layout, Owner};

/// The owner that an attachment is.
pub fn of(key: &Key) -> Owner {
    Owner { id: id(&Key::network_hash(&key.network), &key.attachment_hash()), comment: key.comment() }
}

/// A socket to nf_tables; None where the kernel has none, so that nothing of ours can be there.
pub fn open() -> Result<Option<Nft>> {
    let Ok(nft) = Nft::open() else { return Ok(None) };
    Ok(nft.generation().is_ok().then_some(nft))
}

/// Removes the elements of an owner, if the kernel has nf_tables.
pub fn release(layout: &Layout, owner: &Owner) -> Result<()> {
    let Some(nft) = open()? else { return Ok(()) };
    nft.release(layout, owner).map(drop)
}

/// Removes the elements of a network's attachments that are not in the list.
pub fn release_invalid(layout: &Layout, network: &NetworkName, valid: &ValidAttachments) -> Result<()> {
    let Some(nft) = open()? else { return Ok(()) };
    let group = Key::network_hash(network);
    let valid: Vec<[u8; 16]> = valid.iter().filter_map(|valid| valid.key(network)).map(|key| of(&key).id).collect();
    let mut errors = ErrorList::default();
    for id in nft.owners(layout, group)? {
        if !valid.contains(&id) {
            errors.push(nft.release(layout, &Owner { id, comment: String::new() }));
        }
    }
    errors.finish()
}

fn id(group: &[u8; 8], member: &[u8; 8]) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(group);
    id[8..].copy_from_slice(member);
    id
}
