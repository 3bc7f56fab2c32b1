//! A cluster of one: the claims of all networks of a data directory, and the lock for changing
//! them.
//!
//! A block is claimed if the file of any network lists it, so there is no second list that could
//! differ. A network that claims holds the lock of claims, and then its own; another network's lock
//! comes third. Every wait for a lock has a timeout.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::block::{Block, number};
use super::engine::Name;
use super::held::{Blocks, Held, State, Token};
use super::pool::Pool;
use super::room::{Leased, merged, rest, unused};
use crate::cni::attachment::NetworkName;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::plain_file;
use crate::steps::allocation::files::lock::Lock;
use crate::steps::allocation::files::{Place, operator};
use crate::sys::random::Random;

/// The directory of the lock. No network's name begins with a dot.
const LOCK: &str = ".claims";

/// Another network of the realm.
pub struct Other {
    /// Its leases.
    place: Place,
    /// Its blocks.
    blocks: Blocks,
}

/// A block, and the part of it that its network can give up.
struct Gift {
    block: Block,
    part: Block,
}

/// The claims of a realm.
pub struct Claims {
    /// The realm's other networks.
    others: Vec<Other>,
    /// None while they are only read.
    _lock: Option<Lock>,
}

/// Which claims are meant.
pub struct Scope<'a> {
    /// The parent of the networks' directories.
    pub data_dir: &'a Path,
    /// The network that claims.
    pub network: &'a NetworkName,
    /// Its realm.
    pub realm: &'a Name,
    /// Limits the wait for locks.
    pub deadline: Deadline,
}

impl Claims {
    /// Locks the claims and reads those of the other networks.
    pub fn lock(scope: &Scope<'_>) -> Result<Claims> {
        let lock = lock(scope.data_dir, scope.deadline)?;
        Ok(Claims { others: others(scope)?, _lock: Some(lock) })
    }

    /// Reads the claims of the other networks, which may be stale at once.
    pub fn look(scope: &Scope<'_>) -> Result<Claims> {
        Ok(Claims { others: others(scope)?, _lock: None })
    }

    /// Every block that is claimed: the others', and these.
    pub fn with(&self, own: &Blocks) -> Vec<Block> {
        let mut all = self.of_others();
        all.extend(own.blocks.iter().map(|held| held.block));
        all
    }

    /// Every block that another network has claimed.
    pub fn of_others(&self) -> Vec<Block> {
        let others = self.others.iter().flat_map(|other| &other.blocks.blocks);
        others.map(|held| held.block).collect()
    }

    /// Takes from another network the largest part of a block that it does not use and the pool
    /// can; returns whether there was any.
    pub fn squeeze(&mut self, pool: &Pool) -> Result<bool> {
        let mut found: Vec<(usize, u8)> = vec![];
        for (index, other) in self.others.iter().enumerate() {
            found.extend(other.unused(pool)?.map(|gift| (index, gift.part.length())));
        }
        found.sort_by_key(|(_, length)| *length);
        for (index, _) in found {
            if self.others[index].give_up(&|other| other.unused(pool))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// As [`Claims::squeeze`], of one address.
    pub fn squeeze_out(&mut self, ip: IpAddr) -> Result<bool> {
        let single = of_one(ip);
        for other in &mut self.others {
            if other.holder_of(single)?.is_some() {
                return other.give_up(&|other| other.holder_of(single));
            }
        }
        Ok(false)
    }
}

/// Locks the claims of all networks of a data directory.
pub fn lock(data_dir: &Path, deadline: Deadline) -> Result<Lock> {
    let dir: PathBuf = data_dir.join(LOCK);
    let made = plain_file::make_private_directory(&dir);
    made.map_err(Error::at_path("create directory", &dir))?;
    Lock::take(&dir, deadline)
}

/// The block of one address.
pub fn of_one(ip: IpAddr) -> Block {
    Block::at(Family::of(ip), number(ip), u8::MAX)
}

/// The networks of the realm besides the one that claims. A file that cannot be read is an error:
/// its blocks would be claimed twice.
fn others(scope: &Scope<'_>) -> Result<Vec<Other>> {
    let mut others = vec![];
    for network in operator::networks(scope.data_dir) {
        if network == *scope.network {
            continue;
        }
        let place = Place::new(scope.data_dir, &network, scope.deadline).of_this_boot();
        let blocks = Blocks::read(place.dir())?.filter(|blocks| blocks.realm == *scope.realm);
        others.extend(blocks.map(|blocks| Other { place, blocks }));
    }
    Ok(others)
}

impl Other {
    /// The blocks that another network may get a part of. Those of names are kept.
    fn divisible(&self) -> impl Iterator<Item = Block> {
        self.blocks.active().filter(|held| held.sticky.is_none()).map(|held| held.block)
    }

    fn taken(&self) -> Result<HashSet<IpAddr>> {
        self.place.taken()
    }

    /// The block with the largest part without a lease, and that part.
    fn unused(&self, pool: &Pool) -> Result<Option<Gift>> {
        let leased = Leased::new(self.taken()?);
        let gift = |block| Some(Gift { block, part: unused(block, pool, &leased)? });
        Ok(self.divisible().filter_map(gift).min_by_key(|gift| gift.part.length()))
    }

    /// The block that contains a part, if that has no lease.
    fn holder_of(&self, part: Block) -> Result<Option<Gift>> {
        let Some(block) = self.divisible().find(|block| block.covers(part)) else {
            return Ok(None);
        };
        let is_leased = Leased::new(self.taken()?).any_in(part);
        Ok((!is_leased).then_some(Gift { block, part }))
    }

    /// Gives up a part that is still unused under the network's lock.
    fn give_up(&mut self, find: &dyn Fn(&Other) -> Result<Option<Gift>>) -> Result<bool> {
        let _lock = self.place.lock()?;
        let Some(blocks) = Blocks::read(self.place.dir())? else { return Ok(false) };
        self.blocks = blocks;
        let Some(Gift { block, part }) = find(self)? else { return Ok(false) };
        self.blocks.blocks.retain(|held| held.block != block);
        self.blocks.blocks.extend(rest(block, part).into_iter().map(claimed));
        self.blocks.write(self.place.dir())?;
        Ok(true)
    }
}

/// A block that this machine has claimed now. Without a store of a cluster there is no revision.
pub fn claimed(block: Block) -> Held {
    Held {
        block,
        token: Token::random(&mut Random::new()),
        mod_revision: 0,
        state: State::Active,
        since: now(),
        incarnation: 0,
        of: None,
        sticky: None,
    }
}

/// The seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Adds blocks to those of a network; pairs of halves become one block.
pub fn add(own: &mut Blocks, new: Vec<Block>) {
    let is_free = |held: &Held| held.sticky.is_none() && held.state == State::Active;
    let before: Vec<Block> =
        own.blocks.iter().filter(|held| is_free(held)).map(|held| held.block).collect();
    let after = merged([&before[..], &new].concat());
    own.blocks.retain(|held| !is_free(held) || after.contains(&held.block));
    let added = after.into_iter().filter(|block| !before.contains(block));
    own.blocks.extend(added.map(claimed).collect::<Vec<_>>());
}
