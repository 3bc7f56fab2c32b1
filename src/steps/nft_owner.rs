//! Attachments as owners of elements in our nftables tables.

use std::cell::RefCell;
use std::rc::Rc;

use nix::errno::Errno;

use crate::cni::attachment::{Key, NetworkName};
use crate::cni::conf::ValidAttachments;
use crate::error::{Error, ErrorList, Result};
use crate::net::nft::Nft;
use crate::net::nft::owned::{Layout, Owner, Released};

/// The owner that an attachment is.
pub fn of(key: &Key) -> Owner {
    Owner { id: id(&Key::network_hash(&key.network), &key.attachment_hash()), comment: key.comment() }
}

thread_local! {
    /// Threads do not change their namespace, so a socket is good for all that its thread asks.
    static SOCKET: RefCell<Option<Rc<Nft>>> = const { RefCell::new(None) };
}

/// The thread's socket to nf_tables; None where the kernel has none, so that nothing of ours can be there.
///
/// It stays open to the end, because closing one waits until the kernel has let go of all that was deleted, by whomever:
/// ten milliseconds and more, which are over when a link is deleted in between.
pub fn open() -> Result<Option<Rc<Nft>>> {
    if let Some(nft) = SOCKET.with_borrow(Clone::clone) {
        return Ok(Some(nft));
    }
    match Nft::open().and_then(|nft| nft.generation().map(|_| Rc::new(nft))) {
        Ok(nft) => {
            SOCKET.set(Some(nft.clone()));
            Ok(Some(nft))
        }
        Err(error) if is_without_nf_tables(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the kernel has no netfilter sockets, or has them and nothing that answers for nf_tables. For any other reason,
/// too many open files for one, there may be something of ours.
fn is_without_nf_tables(error: &Error) -> bool {
    let reasons = [Errno::EPROTONOSUPPORT, Errno::EAFNOSUPPORT, Errno::EINVAL, Errno::EOPNOTSUPP, Errno::EBADMSG];
    reasons.iter().any(|errno| error.is_errno(*errno))
}

/// The same where there is no going on without one.
pub fn require() -> Result<Rc<Nft>> {
    open()?.ok_or_else(|| Error::kernel("open a netfilter socket", Errno::EOPNOTSUPP))
}

/// Removes the elements of an owner, if the kernel has nf_tables, and returns them.
pub fn release(layout: &Layout, owner: &Owner) -> Result<Vec<Released>> {
    let Some(nft) = open()? else { return Ok(vec![]) };
    nft.release(layout, owner)
}

/// The same for an owner whose entries of the ledger may be gone.
pub fn release_by_comment(layout: &Layout, owner: &Owner) -> Result<Vec<Released>> {
    let Some(nft) = open()? else { return Ok(vec![]) };
    nft.release_by_comment(layout, owner)
}

/// Removes the elements of a network's attachments that are not in the list.
pub fn release_invalid(layout: &Layout, network: &NetworkName, valid: &ValidAttachments) -> Result<Vec<Released>> {
    let Some(nft) = open()? else { return Ok(vec![]) };
    let (mut errors, mut released) = (ErrorList::default(), vec![]);
    for owner in invalid(layout, network, valid)? {
        released.extend(errors.push(nft.release_by_comment(layout, &owner)).unwrap_or_default());
    }
    errors.finish().map(|()| released)
}

/// The owners that are attachments of this network and not in the list. Their comments are not known.
pub fn invalid(layout: &Layout, network: &NetworkName, valid: &ValidAttachments) -> Result<Vec<Owner>> {
    let Some(nft) = open()? else { return Ok(vec![]) };
    let valid: Vec<[u8; 16]> = valid.iter().filter_map(|valid| valid.key(network)).map(|key| of(&key).id).collect();
    let mut ids = nft.owners(layout, Key::network_hash(network))?;
    ids.retain(|id| !valid.contains(id));
    Ok(ids.into_iter().map(|id| Owner { id, comment: String::new() }).collect())
}

fn id(group: &[u8; 8], member: &[u8; 8]) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(group);
    id[8..].copy_from_slice(member);
    id
}
