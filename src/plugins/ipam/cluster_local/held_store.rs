//! The leases of one network, locked, with the blocks that they may be in.

use std::collections::HashSet;
use std::net::IpAddr;

use super::announced::is_of;
use super::conf::Terms;
use super::held::Blocks;
use super::need::{Wish, free, held_for};
use super::node;
use super::pool::{Pool, Span};
use crate::error::Result;
use crate::rollback::Rollback;
use crate::steps::allocation::Owner;
use crate::steps::allocation::Store;
use crate::steps::allocation::files::FileStore;
use crate::steps::allocation::ranges::RangeSet;

/// Lease files of which only addresses in the network's own usable blocks are given.
pub struct HeldStore<'a> {
    files: FileStore,
    /// The addresses with leases.
    pub taken: HashSet<IpAddr>,
    /// What the network holds; None if it has never held a block.
    pub own: Option<Blocks>,
    wish: &'a Wish<'a>,
}

impl<'a> HeldStore<'a> {
    /// Locks the network's leases, and reads them and its blocks.
    pub fn open(wish: &'a Wish<'a>) -> Result<HeldStore<'a>> {
        let files = FileStore::create(wish.place, wish.owner)?;
        let (taken, own) = (files.taken()?, Blocks::read(wish.place.dir())?);
        Ok(HeldStore { files, taken, own, wish })
    }

    /// Drops entries whose files are gone, after an undo.
    pub fn forget_what_is_gone(&mut self) {
        self.files.forget_what_is_gone();
    }

    /// Whether the file of blocks says what the configuration says, has the names' addresses, and is
    /// the node's own in this boot.
    pub fn is_ready(&self) -> bool {
        self.own.as_ref().is_some_and(|own| is_of(own, self.terms()))
            && self.has_names()
            && node::is_confirmed(self.wish.data_dir)
    }

    /// Whether the blocks have the address of the attachment's name in each set.
    pub fn has_names(&self) -> bool {
        let Some(own) = &self.own else { return false };
        let mut sets = self.wish.sets();
        sets.all(|(number, set)| {
            self.wish.name_in(number).is_none_or(|name| held_for(own, name, set).is_some())
        })
    }

    fn terms(&self) -> &'a Terms {
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
        let usable = self.own.iter().flat_map(Blocks::usable);
        let mut around = usable.filter(|held| held.block.contains(ip));
        around.any(|held| held.name.as_ref().is_none_or(is_ours)) && self.wish.pool_of(ip).is_some()
    }
}

impl<'a> Store for HeldStore<'a> {
    /// The free ones only.
    fn candidates<'s>(
        &self,
        set: &'s RangeSet,
        last: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> + use<'s, 'a> {
        let of_set = self.terms().pools.iter().flat_map(Pool::spans).copied();
        let of_set: Vec<Span> = of_set.filter(|span| set.contains(span.first())).collect();
        let free = self.own.as_ref().map(|own| free(own, &of_set, &self.taken, last));
        free.unwrap_or_default().into_iter()
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
