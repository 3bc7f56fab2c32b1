//! Attachments as owners of elements in our nftables tables.

use std::net::IpAddr;

use crate::cni::attachment::{Hash8, Key, NetworkName};
use crate::cni::conf::ValidAttachments;
use crate::cni::valid::{Holder, Stale};
use crate::error::{ErrorList, Result};
use crate::hex;
use crate::net::nft::NfFamily;
use crate::net::nft::batch::{Holds, KeyType, Table};
use crate::net::nft::owned::{Layout, Owned, Owner, Released, Search};
use crate::net::nft::wire::read_ip;
use crate::plugin::Handles;

/// The owner that an attachment is.
pub fn of(key: &Key) -> Owner {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&Key::network_hash(&key.network));
    id[8..].copy_from_slice(&key.attachment_hash());
    Owner { id, comment: key.comment() }
}

/// Removes the elements of an owner, if the kernel has nf_tables, and returns them.
pub fn release(
    handles: &Handles,
    layout: &Layout,
    owner: &Owner,
    search: Search,
) -> Result<Vec<Released>> {
    let Some(nft) = handles.nft()? else { return Ok(vec![]) };
    layout.on(nft).of(owner).release(search)
}

/// Removes the elements of a network's attachments that are not in `valid`.
pub fn release_invalid(
    handles: &Handles,
    layout: &Layout,
    network: &NetworkName,
    valid: &ValidAttachments,
) -> Result<Vec<Released>> {
    let Some(nft) = handles.nft()? else { return Ok(vec![]) };
    let mut errors = ErrorList::default();
    let mut released = vec![];
    for (owner, stale) in invalid(handles, layout, network, valid)? {
        let gone = valid.remove(|| stale, || layout.on(nft).of(&owner).release(Search::Comments));
        released.extend(errors.push(gone).unwrap_or_default());
    }
    errors.finish().map(|()| released)
}

/// The owners that are attachments to this network and not in `valid`, with what they own. Of their
/// comments only the start is known.
pub fn invalid(
    handles: &Handles,
    layout: &Layout,
    network: &NetworkName,
    valid: &ValidAttachments,
) -> Result<Vec<(Owner, Stale)>> {
    let Some(nft) = handles.nft()? else { return Ok(vec![]) };
    let held = layout.on(nft).holdings(Some(Key::network_hash(network)))?;
    let stale = held.into_iter().filter(|held| !valid.contains_hash(&member_of(held.id)));
    let owner = |id: [u8; 16]| {
        let (network, attachment) = id.split_at(8);
        Owner { id, comment: format!("{}-{}", hex::encode(network), hex::encode(attachment)) }
    };
    Ok(stale.map(|held| (owner(held.id), stale_of(layout, &held))).collect())
}

/// Describes what an owner has in a table as something that GC removes.
pub fn stale_of(layout: &Layout, held: &Owned) -> Stale {
    let Table { family, name } = layout.table;
    let holder = Holder::of_comment(&held.comment);
    // A container's address is the first field of the value in a map that leads to containers, or else
    // of the key.
    let address_in = |element: &Released| {
        let set = layout.sets.iter().find(|set| set.name == element.set)?;
        let (fields, bytes) = match set.holds {
            Holds::Values(fields) => (fields, &element.value),
            Holds::Keys | Holds::Verdicts => (set.key, &element.key),
        };
        match fields.first()? {
            KeyType::Ipv4 => read_ip(bytes.get(..4)?),
            KeyType::Ipv6 => read_ip(bytes.get(..16)?),
            _ => None,
        }
    };
    let mut addresses: Vec<IpAddr> = held.elements.iter().filter_map(address_in).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Stale {
        what: format!("elements of table {family} {name}"),
        holder: Holder { hash: Some(member_of(held.id)), ..holder },
        addresses,
        needs_link: family == NfFamily::Bridge, // frames arrive by the port
        ..Stale::default()
    }
}

fn member_of(id: [u8; 16]) -> Hash8 {
    let mut member = [0; 8];
    member.copy_from_slice(&id[8..]);
    member
}
