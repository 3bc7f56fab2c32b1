//! Which nodes and networks have the addresses that an import into a network of this node needs.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::super::block::Block;
use super::super::engine::{Found, Name};
use super::super::held::{Blocks, Held, State};
use super::super::need::Wish;
use super::plan;
use super::session::Session;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::plugin::leases::Holding;

/// The keys of a realm, except those of the network's own blocks.
pub struct Holders {
    /// In the order of their addresses. None lies in another.
    found: Vec<Found>,
    /// The network's own blocks.
    own: Vec<Held>,
    realm: Name,
    node: Name,
    data_dir: PathBuf,
}

impl Holders {
    /// The keys as they are now.
    pub fn of(session: &mut Session, wish: &Wish<'_>) -> Result<Holders> {
        let dir = wish.place.dir();
        let own = Blocks::read(dir)?.map(|own| own.blocks).unwrap_or_default();
        let realm = wish.conf.terms.realm.clone();
        let realm =
            realm.ok_or_else(|| Error::new(Code::BUG, "a configuration without a realm"))?;
        let mut found = session.survey()?.realms.remove(&realm).unwrap_or_default().blocks;
        let blocks: BTreeSet<Block> = own.iter().map(|held| held.block).collect();
        found.retain(|found| !blocks.contains(&found.block));
        let found = disjoint(found);
        let node = session.settings.node.clone();
        let data_dir = dir.parent().unwrap_or(dir).to_owned();
        Ok(Holders { found, own, realm, node, data_dir })
    }

    /// All blocks of the realm, those of the network included.
    pub fn blocks(&self) -> Vec<Block> {
        let own = self.own.iter().map(|held| held.block);
        self.found.iter().map(|found| found.block).chain(own).collect()
    }

    /// Divides the leases: those whose addresses are in blocks of other nodes or networks, and the rest.
    /// Fails if an address is kept for a name: only an attachment of the name gets it.
    pub fn contested<'l>(
        &self,
        leases: Vec<&'l Holding>,
    ) -> Result<(Vec<&'l Holding>, Vec<&'l Holding>)> {
        let named = |lease: &&&Holding| self.of_address(lease).is_some_and(is_for_name);
        if let Some(refused) = leases.iter().find(named).and_then(|lease| self.refusal(lease)) {
            return Err(refused);
        }
        Ok(leases.into_iter().partition(|lease| self.of_address(lease).is_some()))
    }

    fn of_address(&self, lease: &Holding) -> Option<&Found> {
        let after = self.found.partition_point(|found| found.block.first() <= lease.address);
        self.found[..after].last().filter(|found| found.block.contains(lease.address))
    }

    /// The error for a lease whose address another node or network has, with the remedy.
    pub fn refusal(&self, lease: &Holding) -> Option<Error> {
        let words = lease_words(lease);
        if let Some(held) = self.own_unusable(lease) {
            let msg = format!("{words}: block {} is {} here", held.block.prefix(), held.state);
            return Some(Error::new(Code::CONFLICT, msg).with_details(
                "no lease was written: `cni-multi ipam conflicts` and the log of the daemon have more",
            ));
        }
        let found = self.of_address(lease)?;
        let msg = format!("{words}: {} has {}", self.holder(found), found.block.prefix());
        Some(Error::new(Code::CONFLICT, msg).with_details(self.advice(found)))
    }

    fn own_unusable(&self, lease: &Holding) -> Option<&Held> {
        let unusable = |held: &&Held| matches!(held.state, State::Lost | State::Conflict);
        self.own.iter().filter(unusable).find(|held| held.block.contains(lease.address))
    }

    /// The note of a dry run about a lease in a block of another node or network.
    pub fn asks(&self, lease: &Holding) -> String {
        let Some(found) = self.of_address(lease) else { return lease_words(lease) };
        format!(
            "{}: {} has {}, and is asked for the address: the import fails if the address is in use there",
            lease_words(lease),
            self.holder(found),
            found.block.prefix()
        )
    }

    /// The owner of a key in words: a network of this node, or another node.
    fn holder(&self, found: &Found) -> String {
        let Some(claimed) = &found.claimed else {
            return "a key that cannot be read".to_owned();
        };
        let node = claimed.owner.node.as_str();
        let kept = claimed.sticky.as_ref().map(|name| format!(", for the name {name:?},"));
        let kept = kept.unwrap_or_default();
        match self.network_here(found) {
            Some(network) => format!("network {network:?} of this node{kept}"),
            None => format!("node {node:?}{kept}"),
        }
    }

    fn is_here(&self, found: &Found) -> bool {
        found.claimed.as_ref().is_some_and(|claimed| claimed.owner.node == self.node)
    }

    fn network_here(&self, found: &Found) -> Option<String> {
        let networks = plan::networks(&self.data_dir, Deadline::default()).ok()?;
        let mut of_realm = networks.iter().filter(|local| local.blocks.realm == self.realm);
        let has = |held: &Held| held.block == found.block;
        let local = of_realm.find(|local| local.blocks.blocks.iter().any(has));
        local.filter(|_| self.is_here(found)).map(|local| local.name.to_string())
    }

    fn advice(&self, found: &Found) -> String {
        let node = found.claimed.as_ref().map_or("", |claimed| claimed.owner.node.as_str());
        if is_for_name(found) {
            return "no lease was written: only an attachment of that name gets the address; leave the lease out"
                .to_owned();
        }
        if self.is_here(found) || node.is_empty() {
            return "no lease was written: `cni-multi ipam ls` lists the container that has the address; detach it, \
                or leave the lease out"
                .to_owned();
        }
        format!(
            "no lease was written: `cni-multi ipam ls` on {node} lists the container that has the address; detach it \
             there, or leave the lease out. A node that is off releases no address: start it, or reclaim it if it \
             is gone"
        )
    }
}

/// The keys in order, without those of blocks in another block.
fn disjoint(mut found: Vec<Found>) -> Vec<Found> {
    found.sort_unstable_by_key(|found| found.block);
    found.dedup_by(|next, before| before.block.covers(next.block));
    found
}

fn is_for_name(found: &Found) -> bool {
    found.claimed.as_ref().is_some_and(|claimed| claimed.sticky.is_some())
}

/// A lease in the words of error messages.
pub fn lease_words(lease: &Holding) -> String {
    let Holding { address, container_id, .. } = lease;
    format!("{address} of container {container_id:?}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::{Duration, Instant};

    use super::super::super::engine::{Claimed, Identity, Token};
    use super::super::super::pool::Pool;
    use super::super::super::room::Disjoint;
    use super::*;

    /// A key of node n2.
    fn key(block: Block) -> Found {
        let owner = Identity { node: "n2".parse().unwrap(), uid: Token(2), incarnation: 0 };
        let claimed = Claimed { owner, token: Token(7), sticky: None, vacant: false };
        Found { block, claimed: Some(claimed), revision: 1 }
    }

    fn holders(keys: Vec<Found>) -> Holders {
        let [realm, node] = ["default", "n1"].map(|name| name.parse().unwrap());
        Holders { found: disjoint(keys), own: vec![], realm, node, data_dir: PathBuf::new() }
    }

    fn leases(first: [u8; 4], count: u32) -> Vec<Holding> {
        let first = u32::from(Ipv4Addr::from(first));
        let lease = |address: u32| Holding {
            address: IpAddr::V4(address.into()),
            container_id: "c".to_owned(),
            ifname: "eth0".to_owned(),
            since: None,
            netns_path: String::new(),
        };
        (first..first + count).map(lease).collect()
    }

    #[test]
    fn a_lease_is_found_in_the_key_around_it() {
        let keys = ["4-0a010008-30", "4-0a010004-31", "4-0a010000-29", "4-0a010014-32"];
        let holders = holders(keys.map(|block| key(block.parse().unwrap())).into());
        let of = |lease: &Holding| holders.of_address(lease).map(|found| found.block.to_string());
        let all: Vec<Option<String>> = leases([10, 0, 255, 0], 24).iter().map(of).collect();
        assert_eq!(all, vec![None; 24], "addresses before the keys");
        let all: Vec<Option<String>> = leases([10, 1, 0, 0], 24).iter().map(of).collect();
        for (last, found) in all.iter().enumerate() {
            let expected = match last {
                0..8 => Some("4-0a010000-29"),
                8..12 => Some("4-0a010008-30"),
                20 => Some("4-0a010014-32"),
                _ => None,
            };
            assert_eq!(found.as_deref(), expected, "10.1.0.{last}");
        }
    }

    /// Quadratic work took minutes in this build.
    #[test]
    fn a_plan_for_65000_leases_beside_10000_keys_takes_no_time() {
        let blocks = (0..10_000_u32).map(|at| {
            let first = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 1, 0, 0)) + 8 * at);
            Block::around(first.into(), 30).unwrap()
        });
        let (holders, leases) = (holders(blocks.map(key).collect()), leases([10, 1, 0, 0], 65_000));
        let pool = r#"{"length":30,"spans":["10.1.0.0-10.3.255.255"]}"#;
        let pool: Pool = serde_json::from_str(pool).unwrap();
        let begun = Instant::now();
        let (asked, free) = holders.contested(leases.iter().collect()).unwrap();
        let mut claimed = Disjoint::new(holders.blocks());
        let planned = free.iter().filter_map(|lease| claimed.claim_around(&pool, lease.address));
        assert_eq!((planned.count(), asked.len(), free.len()), (8125, 32_500, 32_500));
        let took = begun.elapsed();
        let limit = if std::env::var_os("CNI_VM").is_some() { 50 } else { 5 }; // emulated
        assert!(took < Duration::from_secs(limit), "{took:?}");
    }
}
