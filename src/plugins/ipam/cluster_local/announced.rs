//! What the plugin writes into the file of a network's blocks, where the daemon reads it: the pools as
//! they are configured. Configurations of one name may differ in their ranges.

use std::collections::HashSet;
use std::net::IpAddr;

use super::held::{Blocks, Held, now};
use super::pool::Pool;
use crate::error::{Error, Result};

/// How many seconds a free block keeps the pool of another configuration: as long as the daemon keeps those
/// beyond `spare`.
const IDLE: u64 = 300;
/// The most pools of a network whose configurations differ.
const MOST_POOLS: usize = 16;

/// Whether the file of blocks says what is configured, and perhaps more.
pub fn is_of(own: &Blocks, terms: &Blocks) -> bool {
    own.realm == terms.realm
        && terms.pools.iter().all(|pool| own.pools.contains(pool))
        && own.names == terms.names
        && own.spare == terms.spare
}

/// The blocks of a network, as it is configured now. One with blocks stays in its realm, where their
/// claims are: without leases it has no pools until the daemon has given the blocks back.
pub fn announced(
    found: Option<Blocks>,
    terms: &Blocks,
    leases: &HashSet<IpAddr>,
) -> Result<Blocks> {
    let stays = |found: &Blocks| found.realm == terms.realm || !found.blocks.is_empty();
    let Some(found) = found.filter(stays) else { return Ok(terms.clone()) };
    if found.realm == terms.realm {
        let pools = united(&found, terms, leases);
        return Ok(Blocks { pools, blocks: found.blocks, ..terms.clone() });
    }
    let is_leased = |held: &&Held| leases.iter().any(|ip| held.block.contains(*ip));
    match found.blocks.iter().filter(is_leased).count() {
        0 => Ok(Blocks { pools: vec![], names: vec![], spare: 0, ..found }),
        count => {
            let of = found.realm.as_str();
            let problem =
                format_args!("attachments have addresses of {count} blocks in realm {of:?}");
            Err(Error::config("ipam.realm", problem)
                .expecting("the same realm as long as the network has attachments")
                .with_details("give the network another name, or detach its containers"))
        }
    }
}

/// The configured pools, and before them those of other configurations of the network that are used:
/// an ADD that waits knows a pool by its place.
fn united(found: &Blocks, terms: &Blocks, leases: &HashSet<IpAddr>) -> Vec<Pool> {
    if !found.names.is_empty() || !terms.names.is_empty() {
        return terms.pools.clone(); // names and pools have the same places
    }
    let now = now();
    let is_leased = |pool: &Pool| leases.iter().any(|ip| pool.allocates(*ip));
    let is_used = |pool: &Pool| {
        let mut of_pool = found.blocks.iter().filter(|held| pool.meets(held.block)).peekable();
        // Without a block, an ADD may wait for the first one.
        let is_new = |held: &Held| held.since + IDLE > now;
        of_pool.peek().is_none() || is_leased(pool) || of_pool.any(is_new)
    };
    let is_apart = |pool: &Pool| !terms.pools.iter().any(|new| new.overlaps(pool));
    let is_configured = |pool: &Pool| terms.pools.contains(pool);
    let stays = |pool: &&Pool| is_configured(pool) || is_apart(pool) && is_used(pool);
    let mut pools: Vec<Pool> = found.pools.iter().filter(stays).cloned().collect();
    let new = terms.pools.iter().filter(|new| !found.pools.contains(new));
    pools.extend(new.cloned());
    let mut excess = pools.len().saturating_sub(MOST_POOLS);
    pools.retain(|pool| {
        let goes = excess > 0 && !is_configured(pool) && !is_leased(pool);
        excess -= usize::from(goes);
        !goes
    });
    pools
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::held::State;
    use super::super::store::Token;
    use super::*;

    fn pool(span: &str) -> Pool {
        Pool::of(vec![span.parse().unwrap()], 32)
    }

    fn terms(realm: &str, spans: &[&str]) -> Blocks {
        Blocks::new(realm.parse().unwrap(), spans.iter().map(|span| pool(span)).collect(), 2)
    }

    fn held(block: &str, since: u64) -> Held {
        let (block, token, state) = (block.parse().unwrap(), Token(1), State::Active);
        Held { block, token, state, since, contested: false, name: None }
    }

    fn leases(addresses: &[&str]) -> HashSet<IpAddr> {
        addresses.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn a_network_with_leases_stays_in_its_realm() {
        let span = "10.1.0.8-10.1.0.9";
        let new = announced(None, &terms("a", &[span]), &leases(&[])).unwrap();
        assert_eq!(new, Blocks::new("a".parse().unwrap(), vec![pool(span)], 2));
        let moved = announced(Some(new.clone()), &terms("b", &[span]), &leases(&["10.1.0.9"]));
        assert_eq!(moved.unwrap().realm.as_str(), "b");
        let found = Blocks { blocks: vec![held("4-0a010008-32", 0)], ..new };
        let gives_back =
            announced(Some(found.clone()), &terms("b", &[span]), &leases(&["10.1.0.9"]));
        assert_eq!(gives_back.unwrap(), Blocks { pools: vec![], spare: 0, ..found.clone() });
        let error = announced(Some(found), &terms("b", &[span]), &leases(&["10.1.0.8"]));
        let error = error.unwrap_err();
        let expected = "ipam.realm: attachments have addresses of 1 blocks in realm \"a\", expected the same realm as long as the network has attachments";
        assert_eq!((error.code.0, error.msg.as_str()), (7, expected));
    }

    #[test]
    fn pools_of_other_configurations_stay_while_they_are_used() {
        let [one, two, both] = ["10.1.0.2-10.1.0.9", "10.2.0.2-10.2.0.9", "10.1.0.9-10.2.0.2"];
        let now = now();
        for (blocks, leased, spans, expected) in [
            (vec![], &[][..], &[two][..], &[one, two][..]),
            (vec![held("4-0a010002-32", now)], &[], &[two], &[one, two]),
            (vec![held("4-0a010002-32", now - 301)], &[], &[two], &[two]),
            (vec![held("4-0a010002-32", now - 301)], &["10.1.0.2"], &[two], &[one, two]),
            (vec![held("4-0a010002-32", now)], &["10.1.0.2"], &[both], &[both]),
            (vec![], &[], &[two, one], &[one, two]),
        ] {
            let found = Blocks::new("a".parse().unwrap(), vec![pool(one)], 1);
            let found = Blocks { blocks, ..found };
            let found = announced(Some(found), &terms("a", spans), &leases(leased)).unwrap();
            assert_eq!(found.pools, expected.iter().map(|span| pool(span)).collect::<Vec<_>>());
        }
        let many: Vec<Pool> = (0..20).map(|n| pool(&format!("10.9.{n}.2-10.9.{n}.9"))).collect();
        let found = Blocks::new("a".parse().unwrap(), many.clone(), 2);
        let now = announced(Some(found), &terms("a", &[one]), &leases(&["10.9.1.2"])).unwrap();
        assert_eq!(now.pools.len(), 16);
        assert!(now.pools[0] == many[1] && now.pools[15] == pool(one), "{:?}", now.pools);
    }
}
