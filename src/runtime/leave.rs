//! Removes what stays of ours in nftables when other plugins take over: the reference plugins
//! detach what we attached, and do not know our tables. An element that stays leads a published
//! port to whichever container gets the address next.
//!
//! This finds what is left without any record or configuration of ours. An attachment is present
//! while its link exists, while a record in any cache below /var/lib/cni has its namespace, while
//! host-local's lease of its address is its own, and, if no lease names the address, while any
//! namespace of the machine has it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

use super::cache::Cache;
use super::living::{Living, Verdict};
use crate::cni::attachment::{Hash8, Key, NetworkName, attachment_hash, hex};
use crate::cni::valid::{Extent, Holder, Stale};
use crate::error::{Error, ErrorList, Result};
use crate::net::netlink::Netlink;
use crate::net::nft::Nft;
use crate::net::nft::owned::{Layout, Owned, Owner, Search};
use crate::plugins::main::bridge::spoofcheck;
use crate::plugins::meta::{firewall, portmap};
use crate::steps::allocation::files::lease::{self, Content};
use crate::steps::{fastpath, link_alias, masquerade, nft_owner};

/// The directory of host-local's leases unless a configuration sets another `dataDir`.
const LEASES: &str = "/var/lib/cni/networks";

/// Our tables.
const TABLES: [&Layout; 5] = [
    &masquerade::LAYOUT,
    &portmap::LAYOUT,
    &firewall::LAYOUT,
    &spoofcheck::LAYOUT,
    &fastpath::LAYOUT,
];

/// An attachment with elements in a table of ours.
pub struct Left {
    /// The table, as nft(8) names it.
    pub table: String,
    /// The attachment or container that has them.
    pub holder: Holder,
    /// Whether its container is alive.
    pub verdict: Verdict,
}

/// How many attachments have elements in each of our tables; empty tables are omitted.
pub fn count() -> Result<Vec<(String, usize)>> {
    let Some(nft) = Nft::open_if_there()? else { return Ok(vec![]) };
    let mut counts = vec![];
    for layout in TABLES {
        let held = layout.on(&nft).holdings(None)?.len();
        counts.extend((held > 0).then(|| (name(layout), held)));
    }
    Ok(counts)
}

/// What stays after cni-multi is removed, in one line; None if nothing stays. `command` is the one
/// that can still be run.
pub fn summary(counts: &[(String, usize)], command: &str) -> Option<String> {
    if counts.is_empty() {
        return None;
    }
    let tables: Vec<String> =
        counts.iter().map(|(table, count)| format!("{table}: {count}")).collect();
    Some(format!(
        "elements of attachments stay in nftables, which the plugins of others do not remove ({}); \
         when containers have gone, {command} removes theirs",
        tables.join(", ")
    ))
}

/// Removes from our tables the elements of attachments that are gone; `watch` receives each as soon
/// as it is done.
pub fn leave(
    host: &Netlink,
    cache: &Cache,
    extent: Extent,
    watch: &mut dyn FnMut(&Left),
) -> Result<()> {
    let Some(nft) = Nft::open_if_there()? else { return Ok(()) };
    let mut held = vec![];
    for layout in TABLES {
        let owners = layout.on(&nft).holdings(None)?.into_iter();
        held.extend(owners.map(|owned| (layout, owned)));
    }
    let evidence = Evidence::look(host, cache)?;
    let mut errors = ErrorList::default();
    for (layout, owned) in held {
        let stale = nft_owner::stale_of(layout, &owned);
        let verdict = evidence.judge(&owned, &stale);
        if verdict == Verdict::Gone && extent == Extent::Detach {
            let owner = Owner { id: owned.id, comment: String::new() };
            let released = layout.on(&nft).of(&owner).release(Search::Comments);
            if errors.push(released).is_none() {
                continue;
            }
        }
        watch(&Left { table: name(layout), holder: stale.holder, verdict });
    }
    errors.finish()
}

fn name(layout: &Layout) -> String {
    format!("{} {}", layout.table.family, layout.table.name)
}

/// The evidence of which attachments are present.
struct Evidence {
    /// The identities on links of the host, and of attachments that have a record and a namespace.
    alive: HashSet<String>,
    /// The owner of each leased address, by the network's hash.
    leases: HashMap<Hash8, Leases>,
    living: Living,
}

/// The owner of each leased address of a network.
type Leases = HashMap<IpAddr, Holder>;

impl Evidence {
    fn look(host: &Netlink, cache: &Cache) -> Result<Evidence> {
        let living = Living::look(None, cache);
        if let Some(problem) = living.problem() {
            let what = "not every namespace can be seen, and one may be a container's";
            return Err(problem.clone().context(what));
        }
        let mut alive: HashSet<String> = living.recorded().iter().map(Key::identity).collect();
        for link in host.links_of_kind("veth")? {
            alive.extend(link_alias::identity_in(&link.alias).map(str::to_owned));
        }
        Ok(Evidence { alive, leases: leases(Path::new(LEASES))?, living })
    }

    fn judge(&self, owned: &Owned, stale: &Stale) -> Verdict {
        let identity = format!("{}-{}", hex(&owned.id[..8]), hex(&owned.id[8..]));
        if self.alive.contains(&identity) {
            return Verdict::Lives;
        }
        if stale.needs_link {
            return Verdict::Gone;
        }
        if stale.addresses.is_empty() {
            return Verdict::Unknown;
        }
        // An address is leased to the holder, or without a lease, a namespace has it.
        let leases = self.leases.get(&owned.id[..8]);
        let lives = |ip: &IpAddr| match leases.and_then(|leases| leases.get(ip)) {
            Some(Holder { hash: Some(hash), .. }) => stale.holder.hash == Some(*hash),
            // Old plugins did not write the interface.
            Some(lease) => lease.container_id.starts_with(&stale.holder.container_id),
            None => self.living.has(ip).unwrap_or(true),
        };
        if stale.addresses.iter().any(lives) { Verdict::Lives } else { Verdict::Gone }
    }
}

/// Every lease in host-local's default directory, which has a directory for each network.
fn leases(dir: &Path) -> Result<HashMap<Hash8, Leases>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(HashMap::new()),
        entries => entries.map_err(Error::at_path("open", dir))?,
    };
    let mut all = HashMap::new();
    for entry in entries {
        let entry = entry.map_err(Error::at_path("open", dir))?;
        let name = entry.file_name();
        let network = name.to_str().and_then(|name| NetworkName::parse(name).ok());
        let Some(network) = network else { continue };
        let dir = entry.path();
        let ips = match lease::addresses(&dir) {
            Err(e) if e.kind() == ErrorKind::NotADirectory => continue,
            ips => ips.map_err(Error::at_path("open", &dir))?,
        };
        let mut leases = Leases::new();
        for ip in ips {
            let Some(Content::Owned(owner)) = lease::read(&dir, ip)? else { continue };
            let id = &owner.container_id;
            let hash = owner.ifname.as_ref().map(|ifname| attachment_hash(id, ifname));
            leases.insert(ip, Holder { hash, ..Holder::of_container(id) });
        }
        all.insert(Key::network_hash(&network), leases);
    }
    Ok(all)
}
