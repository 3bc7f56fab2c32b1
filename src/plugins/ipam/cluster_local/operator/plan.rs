//! What `ipam join` claims: the smallest blocks that contain this machine's leases.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use super::super::block::{Block, width};
use super::super::claims::of_one;
use super::super::engine::{Claimed, ClusterState, Found, Name, Token};
use super::super::held::{Blocks, Held};
use crate::cni::attachment::NetworkName;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::steps::allocation::files::operator::Listed;
use crate::steps::allocation::files::{Place, operator};
use crate::sys::random::Random;

/// The most addresses that an error names.
const MOST_NAMED: usize = 10;

/// A network of this machine.
pub struct Local {
    /// Its name.
    pub name: NetworkName,
    /// Its leases.
    pub place: Place,
    /// Its file of blocks.
    pub blocks: Blocks,
    leases: Vec<Listed>,
}

/// A block to claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The block.
    pub block: Block,
    /// The token of the claim: that of the block on the disk that it is a part of.
    pub token: Token,
    /// The name that it is kept for.
    pub sticky: Option<String>,
    /// The addresses with leases.
    pub held: usize,
}

/// The networks of a data directory with blocks.
pub fn networks(data_dir: &Path, deadline: Deadline) -> Result<Vec<Local>> {
    let mut all = vec![];
    let mut names = operator::networks(data_dir);
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    for name in names {
        let place = Place::new(data_dir, &name, deadline).of_this_boot();
        let Some(blocks) = Blocks::read(place.dir())? else { continue };
        let leases = place.list()?;
        all.push(Local { name, place, blocks, leases });
    }
    Ok(all)
}

/// What the cluster has, as far as it is not this machine's.
pub struct Others<'a> {
    state: &'a ClusterState,
    uid: Token,
}

impl<'a> Others<'a> {
    /// The keys that are not of the machine with this uid.
    pub fn of(state: &'a ClusterState, uid: Token) -> Others<'a> {
        Others { state, uid }
    }

    fn in_realm(&self, realm: &Name) -> impl Iterator<Item = &'a Found> {
        let uid = self.uid;
        let found = self.state.realms.get(realm).into_iter().flat_map(|realm| &realm.blocks);
        found.filter(move |found| found.claimed.as_ref().is_none_or(|is| is.owner.uid != uid))
    }

    fn overlapping(&self, realm: &Name, block: Block) -> Option<&'a Found> {
        self.in_realm(realm).find(|found| found.block.overlaps(block))
    }
}

/// The blocks to claim for each network, or every address that the cluster has given to others.
pub fn pieces(networks: &[Local], others: &Others<'_>) -> Result<Vec<Vec<Piece>>> {
    let refused: Vec<String> =
        networks.iter().flat_map(|local| local.disagreements(others)).collect();
    if refused.is_empty() {
        return Ok(networks.iter().map(|local| local.pieces(others)).collect());
    }
    let more = refused.len().saturating_sub(MOST_NAMED);
    let error = Error::new(Code::CONFLICT, refused[..refused.len() - more].join("; "));
    let error = if more > 0 { error.with_details(format_args!("and {more} more")) } else { error };
    Err(error.with_details(
        "nothing was changed: detach these containers, or free the addresses in the cluster, and join then",
    ))
}

impl Local {
    fn ips(&self) -> impl Iterator<Item = IpAddr> {
        self.leases.iter().map(|lease| lease.ip)
    }

    /// A sentence for each leased address that another node has.
    fn disagreements(&self, others: &Others<'_>) -> Vec<String> {
        let realm = &self.blocks.realm;
        let taken = self.leases.iter().filter_map(|lease| {
            others.overlapping(realm, of_one(lease.ip)).map(|found| self.says(lease, found))
        });
        taken.collect()
    }

    fn says(&self, lease: &Listed, found: &Found) -> String {
        let (network, prefix) = (self.name.as_str(), found.block.prefix());
        let container = lease.owner.as_ref().map_or("another program", |o| o.container_id.as_str());
        let node = found.claimed.as_ref().map(|claimed: &Claimed| claimed.owner.node.as_str());
        let holder = node.map_or("an unreadable key".to_owned(), |node| format!("node {node:?}"));
        format!(
            "{} of network {network:?} is held by {container:?} here, and {holder} has {prefix}",
            lease.ip
        )
    }

    /// The blocks to claim: those with leases, and the addresses of names that are still free.
    fn pieces(&self, others: &Others<'_>) -> Vec<Piece> {
        let blocks: BTreeSet<Block> = self.ips().map(|ip| self.block_for(ip, others)).collect();
        let mut pieces: Vec<Piece> = blocks.into_iter().map(|block| self.piece(block)).collect();
        let names = self.blocks.active().filter(|held| held.sticky.is_some());
        for Held { block, .. } in names {
            let is_planned = pieces.iter().any(|piece| piece.block.overlaps(*block));
            if !is_planned && others.overlapping(&self.blocks.realm, *block).is_none() {
                pieces.push(self.piece(*block));
            }
        }
        pieces
    }

    fn around(&self, ip: IpAddr) -> Option<&Held> {
        self.blocks.active().find(|held| held.block.contains(ip))
    }

    /// The block of the pool's length, as far as it is this network's and no other node has a part;
    /// else the address alone.
    fn block_for(&self, ip: IpAddr, others: &Others<'_>) -> Block {
        let Some(held) = self.around(ip) else { return of_one(ip) };
        let pool = self.blocks.pools.iter().find(|pool| pool.allocates(ip));
        let length = pool.map_or(width(Family::of(ip)), |pool| pool.length());
        let block = Block::around(ip, length.max(held.block.length())).unwrap_or(of_one(ip));
        let is_free = others.overlapping(&self.blocks.realm, block).is_none();
        if is_free { block } else { of_one(ip) }
    }

    fn piece(&self, block: Block) -> Piece {
        let held = self.around(block.first());
        let token = held.map_or_else(|| Token::random(&mut Random::new()), |held| held.token);
        let sticky = held.and_then(|held| held.sticky.clone());
        let held = self.ips().filter(|ip| block.contains(*ip)).count();
        Piece { block, token, sticky, held }
    }
}
