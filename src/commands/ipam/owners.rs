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
            let recorded = found.filter_map(|found| found.record.ok()?.at);
            records.extend(recorded.map(|at| (name_of_record(&at), at)));
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
        let verdicts = self.living.judge(&stale, &[]);
        leases.iter().zip(verdicts).map(|(lease, verdict)| self.settle(*lease, verdict)).collect()
    }

    /// The lease as GC describes it.
    fn stale(&self, lease: Lease<'_>) -> Stale {
        let (_, held) = lease;
        let recorded = self.record(lease).map(|at| at.netns.clone());
        Stale {
            what: String::new(),
            holder: holder(held),
            addresses: vec![held.address],
            netns_path: recorded.unwrap_or_else(|| held.netns_path.clone()),
            ..Stale::default()
        }
    }

    /// An address that no namespace has may be of an ADD that is under way.
    fn settle(&self, lease: Lease<'_>, verdict: Verdict) -> Verdict {
        let is_known = self.record(lease).is_some() || !lease.1.netns_path.is_empty();
        if verdict == Verdict::Gone && !is_known && is_new(lease.1) {
            return Verdict::Unknown;
        }
        verdict
    }
}

fn name_of_record(at: &Parameters) -> Name {
    let key = &at.key;
    (key.network.to_string(), key.container_id.to_string(), key.ifname.to_string())
}

fn holder(held: &Holding) -> Holder {
    let id = &held.container_id;
    if held.ifname.is_empty() {
        return Holder::of_container(id);
    }
    let hash = Some(attachment_hash(id, &held.ifname));
    Holder { hash, ifname: held.ifname.clone(), ..Holder::of_container(id) }
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
