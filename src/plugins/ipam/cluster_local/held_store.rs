//! The leases of one network, locked, with the blocks that they may be in.

use std::collections::HashSet;
use std::net::IpAddr;

use super::block::address;
use super::conf::Terms;
use super::held::{Blocks, Confirmation};
use super::need::{Wish, held_for, spans};
use super::pool::{Pool, Span};
use super::room::candidates;
use super::sticky::MOST_IDLE;
use crate::error::Result;
use crate::rollback::Rollback;
use crate::steps::allocation::Owner;
use crate::steps::allocation::Store;
use crate::steps::allocation::files::FileStore;
use crate::steps::allocation::files::lock::boot_id;
use crate::steps::allocation::ranges::RangeSet;
use crate::sys::clock::since_boot;

/// Lease files of which only addresses in the network's own active blocks are given.
pub struct BlockStore<'a> {
    files: FileStore,
    /// What the network holds; None if it has never held a block.
    pub own: Option<Blocks>,
    wish: &'a Wish<'a>,
}

impl<'a> BlockStore<'a> {
    /// Locks the network's leases and reads its blocks.
    pub fn open(wish: &'a Wish<'a>) -> Result<BlockStore<'a>> {
        let files = FileStore::create(wish.place, wish.owner)?;
        let own = Blocks::read(wish.place.dir())?;
        Ok(BlockStore { files, own, wish })
    }

    /// Drops entries whose files are gone, after an undo.
    pub fn forget_what_is_gone(&mut self) {
        self.files.forget_what_is_gone();
    }

    /// Whether the file of blocks says what the configuration says, and has the names' addresses.
    pub fn is_ready(&self) -> bool {
        let own = self.own.as_ref().filter(|own| is_of(own, self.terms()));
        own.is_some() && self.confirmation() == Confirmation::Valid && self.has_names()
    }

    /// Whether the blocks have the address of the attachment's name in each set.
    pub fn has_names(&self) -> bool {
        let Some(own) = &self.own else { return false };
        let nothing = HashSet::new();
        let mut sets = self.wish.sets().filter(|(number, _)| self.wish.name_in(*number).is_some());
        sets.all(|(number, _)| self.wish.lack(number, own, &nothing).is_none())
    }

    /// Whether the file of blocks has more names without an attachment than are kept.
    pub fn has_forgettable(&self) -> Result<bool> {
        let most = MOST_IDLE * self.terms().names.len();
        let Some(own) = &self.own else { return Ok(false) };
        if own.blocks.iter().filter(|held| held.sticky.is_some()).count() <= most {
            return Ok(false);
        }
        Ok(!own.forgettable(&self.taken()?, &self.wish.names).is_empty())
    }

    /// Whether the daemon's confirmation of the blocks still holds.
    pub fn confirmation(&self) -> Confirmation {
        let confirmation = |own: &Blocks| own.confirmation(boot_id().trim(), since_boot());
        self.own.as_ref().map_or(Confirmation::Valid, confirmation)
    }

    fn terms(&self) -> &Terms {
        &self.wish.conf.terms
    }

    /// The addresses to take where a set contains any: those requested, and those of the name.
    pub fn wanted(&self) -> Vec<IpAddr> {
        let mut wanted = self.wish.conf.requested.clone();
        for (number, set) in self.wish.sets() {
            let name = self.wish.name_in(number);
            let held = self.own.as_ref().zip(name).and_then(|(own, name)| held_for(own, name, set));
            wanted.extend(held.map(|held| held.block.first()));
        }
        wanted
    }

    /// Whether the address may be given to the attachment.
    fn may_give(&self, ip: IpAddr) -> bool {
        let is_ours = |name: &String| self.wish.names.contains(name);
        let active = self.own.iter().flat_map(Blocks::active);
        let mut around = active.filter(|held| held.block.contains(ip));
        around.any(|held| held.sticky.as_ref().is_none_or(is_ours))
            && self.wish.pool_of(ip).is_some()
    }
}

/// Whether the blocks are those of a network with these terms.
pub fn is_of(own: &Blocks, terms: &Terms) -> bool {
    Some(&own.realm) == terms.realm.as_ref()
        && (&own.pools, &own.names) == (&terms.pools, &terms.names)
        && own.spare == terms.spare
}

/// Whether the span, which is in one range, is of the set. Sets have no address in common.
fn is_in(span: &Span, set: &RangeSet) -> bool {
    set.contains(address(span.family(), span.start()))
}

impl<'a> Store for BlockStore<'a> {
    fn candidates<'s>(
        &self,
        set: &'s RangeSet,
        last: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> + use<'s, 'a> {
        let of_set = self.terms().pools.iter().flat_map(Pool::spans);
        let of_set = of_set.filter(|span| is_in(span, set));
        candidates(self.own.as_ref().map(|own| spans(own, of_set)).unwrap_or_default(), last)
    }

    fn held_by(&self, owner: &Owner) -> Result<Vec<IpAddr>> {
        self.files.held_by(owner)
    }

    fn taken(&self) -> Result<HashSet<IpAddr>> {
        self.files.taken()
    }

    fn reserve(&mut self, ip: IpAddr, owner: &Owner) -> Result<bool> {
        if self.may_give(ip) { self.files.reserve(ip, owner) } else { Ok(false) }
    }

    fn release_on_failure(&self, ip: IpAddr, rb: &mut Rollback<'_>) {
        self.files.release_on_failure(ip, rb);
    }

    fn release(&mut self, ip: IpAddr) -> Result<()> {
        self.files.release(ip)
    }

    fn last_reserved(&self, range_set: usize) -> Option<IpAddr> {
        self.files.last_reserved(range_set)
    }

    fn set_last_reserved(&mut self, range_set: usize, ip: IpAddr) -> Result<()> {
        self.files.set_last_reserved(range_set, ip)
    }
}
