//! Before a return to the reference plugins: makes what their DEL of our attachments looks for.
//!
//! The reference masquerades a container by a chain of iptables. With iptables-nft 1.8.9 its DEL
//! fails where that chain is missing, after it has removed interface and address.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use super::cache::{self, Cache};
use super::find;
use crate::cni::attachment::{Key, hex};
use crate::error::Result;
use crate::family::Family;
use crate::net::nft::owned::Owned;
use crate::plugin::Handles;
use crate::steps::{masquerade, nft_owner};

/// What was made.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Handover {
    /// How many chains.
    pub chains: usize,
    /// How many attachments have no chain, because nothing has their whole names.
    pub unnamed: usize,
}

/// Makes the missing chains of the attachments that our table masquerades.
pub fn make_chains() -> Result<Handover> {
    let handles = Handles::default();
    let Some(nft) = handles.nft()? else { return Ok(Handover::default()) };
    let held = masquerade::LAYOUT.on(nft).holdings(None)?;
    if held.is_empty() {
        return Ok(Handover::default());
    }
    let recorded = recorded()?;
    let mut made = Handover::default();
    let mut wanted = HashMap::from(Family::ALL.map(|family| (family, BTreeSet::new())));
    for owned in &held {
        let identity = format!("{}-{}", hex(&owned.id[..8]), hex(&owned.id[8..]));
        let Some(key) = recorded.get(&identity).cloned().or_else(|| named_by(owned, &identity))
        else {
            made.unnamed += 1;
            continue;
        };
        for ip in nft_owner::stale_of(&masquerade::LAYOUT, owned).addresses {
            wanted.entry(Family::of(ip)).or_default().insert(key.iptables_chain());
        }
    }
    for (family, chains) in wanted {
        made.chains += masquerade::make_chains(&handles, family, &chains)?;
    }
    Ok(made)
}

/// The recorded attachments by their identity.
fn recorded() -> Result<HashMap<String, Key>> {
    let caches = find::caches(&Cache::new(Path::new(cache::DEFAULT_DIR)))?;
    let recorded = find::recorded(&caches)?.into_iter();
    Ok(recorded.map(|recorded| (recorded.at.key.identity(), recorded.at.key)).collect())
}

/// The attachment that the elements' comment names, unless the comment was cut.
fn named_by(owned: &Owned, identity: &str) -> Option<Key> {
    let (_, words) = owned.comment.split_once(", net: ")?;
    let (network, words) = words.split_once(", if: ")?;
    let (ifname, container_id) = words.rsplit_once(", id: ")?;
    let key = Key::parse(network, container_id, ifname).ok()?;
    (key.identity() == identity).then_some(key)
}
