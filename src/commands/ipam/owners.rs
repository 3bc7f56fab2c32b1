//! The owners of leases: which of them are alive, and what is recorded of their attachments.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::cni::attachment::{NetworkName, attachment_hash};
use crate::cni::valid::{Holder, Stale};
use crate::error::Result;
use crate::plugin::leases::Holding;
use crate::runtime::cache::Cache;
use crate::runtime::find;
use crate::runtime::living::{Living, Verdict};
use crate::runtime::parameters::Parameters;

/// An ADD allocates the address first, and ends within this time.
const LONGEST_ADD: Duration = Duration::from_secs(120);

/// A lease of a network.
pub type Lease<'a> = (&'a NetworkName, &'a Holding);

/// What is known of the owners of leases.
pub struct Owners {
    living: Living,
    records: HashMap<Name, Parameters>,
}

/// Network, container id and interface.
type Name = (String, String, String);

impl Owners {
    /// Looks for the owners now. The leases to be judged must have been listed before.
    pub fn look(cache: &Cache) -> Result<Owners> {
        let mut records = HashMap::new();
        for cache in find::caches(cache)? {
            let found = cache.all()?.into_iter();
            for at in found.filter_map(|found| found.record.ok()?.at) {
                let key = &at.key;
                let name =
                    (key.network.to_string(), key.container_id.to_string(), key.ifname.to_string());
                records.insert(name, at);
            }
        }
        Ok(Owners { living: Living::look(None, cache), records })
    }

    /// The record of the attachment that holds the address.
    pub fn record(&self, (network, held): Lease<'_>) -> Option<&Parameters> {
        let name = (network.to_string(), held.container_id.clone(), held.ifname.clone());
        self.records.get(&name)
    }

    /// Every recorded attachment, in any order.
    pub fn recorded(&self) -> impl Iterator<Item = &Parameters> {
        self.records.values()
    }

    /// Whether the owner of each lease is alive.
    pub fn judge(&self, leases: &[Lease<'_>]) -> Vec<Verdict> {
        let stale: Vec<Stale> = leases.iter().map(|lease| self.stale(*lease)).collect();
        let mut verdicts = self.living.judge(&stale, &[]);
        for (lease @ (_, held), verdict) in leases.iter().zip(&mut verdicts) {
            let is_known = self.record(*lease).is_some() || !held.netns_path.is_empty();
            // An address that no namespace has may be of an ADD that is under way.
            if *verdict == Verdict::Gone && !is_known && is_new(held) {
                *verdict = Verdict::Unknown;
            }
        }
        verdicts
    }

    /// The lease as GC describes it.
    fn stale(&self, lease: Lease<'_>) -> Stale {
        let (_, Holding { address, container_id, ifname, netns_path, .. }) = lease;
        let mut holder = Holder::of_container(container_id);
        if !ifname.is_empty() {
            holder.hash = Some(attachment_hash(container_id, ifname));
            holder.ifname = ifname.clone();
        }
        let recorded = self.record(lease).map(|at| at.netns.clone());
        Stale {
            what: String::new(),
            holder,
            addresses: vec![*address],
            netns_path: recorded.unwrap_or_else(|| netns_path.clone()),
            ..Stale::default()
        }
    }
}

/// Whether the lease was allocated a moment ago; a time to come counts.
fn is_new(held: &Holding) -> bool {
    let age = held.since.map(|since| SystemTime::now().duration_since(since).unwrap_or_default());
    age.is_some_and(|age| age < LONGEST_ADD)
}

/// The word for a verdict.
pub fn state(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Lives => "alive",
        Verdict::Gone => "gone",
        Verdict::Unknown => "unknown",
    }
}
