//! The translation into the configuration of cluster-local.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::document::{Document, Ipam, KEYS, Single};
use super::{flat, range};
use crate::cni::attachment::hex;
use crate::cni::conf::Config;
use crate::cni::result::{Dns, IpConfig};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::plugin::{Context, PluginConf};
use crate::plugins::ipam::cluster_local::conf::{
    self as shared, DEFAULT_PATIENCE, DEFAULT_SPARE, Scope,
};
use crate::plugins::ipam::cluster_local::held::Blocks;
use crate::plugins::ipam::cluster_local::name::{LONGEST_REALM, Name};
use crate::plugins::ipam::cluster_local::pool::{BlockSize, Pool, Span};
use crate::steps::allocation::conf::AllocationConf;
use crate::steps::allocation::ranges::{RangeSet, Sets};
use crate::steps::{assigned, ipam};

/// Advice for a configuration that an old version has no room for.
const ADVICE: &str = "set cniVersion to 0.3.0 or later, or use one range per family";
/// The keys of CNI_ARGS that the original knows.
const ARGS: [&str; 5] =
    ["IP", "GATEWAY", "K8S_POD_NAME", "K8S_POD_NAMESPACE", "K8S_POD_INFRA_CONTAINER_ID"];

/// The settings that ADD, CHECK and STATUS use. DEL and GC use none of them, so an invalid one does
/// not fail DEL or GC.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    /// What cluster-local allocates, in each realm.
    #[serde(skip)]
    pub parts: Vec<shared::Conf>,
    /// The addresses for the result beside the allocated ones.
    #[serde(skip)]
    pub assigned: Vec<IpConfig>,
    /// The gateway of the allocated addresses of its family.
    #[serde(skip)]
    gateway: Option<IpAddr>,
    /// Resolver settings for the result.
    #[serde(skip)]
    pub dns: Dns,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = KEYS;

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        let (config, file) = flat::merged(cx.config)?;
        *self = read(&config, cx.args).map_err(|e| match file {
            Some(file) => e.with_details(format_args!(
                "keys that the configuration lacks are those of {}",
                file.display()
            )),
            None => e,
        })?;
        Ok(())
    }
}

impl Conf {
    /// The gateway of an allocated address.
    pub fn gateway_of(&self, net: IpNet) -> Option<IpAddr> {
        self.gateway.filter(|gateway| Family::of(*gateway) == Family::of_net(net))
    }
}

/// What cluster-local allocates for this configuration, in each realm.
pub fn translated(cx: &Context<'_>) -> Result<Vec<shared::Conf>> {
    let mut conf = Conf::default();
    conf.validate(cx)?;
    Ok(conf.parts)
}

fn read(config: &Config, args: &str) -> Result<Conf> {
    let ipam = config.decode::<Document>()?.ipam.ok_or_else(|| {
        Error::missing("ipam", "an object with range").saying("IPAM config missing 'ipam' key")
    })?;
    let scope = Scope::read(&ipam.scope)?;
    let gateway = range::address(&ipam.gateway, "ipam.gateway")?;
    let mut assigned = assigned::configured(&ipam.addresses)?;
    assigned::add_cni_args(&mut assigned, args, &ARGS)?;
    // The ranges as written, each with its path.
    let single = config.decode::<Single>()?.ipam;
    let listed =
        (0..).zip(&ipam.ip_ranges).map(|(i, range)| (format!("ipam.ipRanges[{i}]"), range));
    let mut ranges: Vec<_> = listed.collect();
    if !single.range.is_empty() {
        ranges.insert(0, ("ipam".to_owned(), &single));
    }
    if ranges.is_empty() {
        let error = Error::config("ipam.range", "there is none")
            .expecting("a subnet as in 10.1.0.0/16, or ipam.ipRanges");
        return Err(match ipam.addresses.is_empty() {
            true => error,
            false => error.with_details("the plugin static serves a network with addresses alone"),
        });
    }
    // Each range is a set, since each gives an address.
    let mut sets = Sets::default();
    for (at, document) in &ranges {
        let range = range::read(document, gateway, at)?;
        sets.add(at.clone(), RangeSet::of(vec![range], at))?;
    }
    let sets = sets.into_sets()?;
    let of_sets = sets.iter().filter_map(RangeSet::family);
    let of_assigned = assigned.iter().map(|ip| Family::of_net(ip.address));
    let families: Vec<Family> = of_sets.chain(of_assigned).collect();
    ipam::refuse_several_of_one(&families, &config.version, ADVICE)?;
    let without: Vec<IpAddr> = assigned.iter().map(|ip| ip.address.addr()).collect();
    let mut pools = vec![];
    for ((at, document), set) in ranges.iter().zip(&sets) {
        let mut excluded = shared::spans(&document.exclude, at, range::excluded)?;
        excluded.extend(without.iter().map(|ip| Span::of_prefix((*ip).into())));
        let size = block_size(&ipam.node_slice_size, set)?;
        pools.push(Pool::new(set, &excluded, size).ok_or_else(|| {
            let problem =
                format_args!("every address of {set} is excluded, assigned or the gateway");
            Error::config(format_args!("{at}.exclude"), problem).expecting("at least one address")
        })?);
    }
    let part = |realm: Name, sets: Vec<RangeSet>, pools: Vec<Pool>| shared::Conf {
        scope,
        terms: Blocks::new(realm, pools, DEFAULT_SPARE),
        allocation: AllocationConf { sets, routes: ipam.routes.clone(), ..Default::default() },
        assigned: without.clone(),
        patience: Duration::from_secs(DEFAULT_PATIENCE),
        ..shared::Conf::default()
    };
    let network = network_name(&ipam)?;
    // The file of blocks of a cluster has one realm.
    let common = match ipam.enable_overlapping_ranges.unwrap_or(true) {
        true => Some(network.clone()),
        false if scope == Scope::Cluster => Some(of_ranges(&network, &sets)?),
        false => None,
    };
    let mut realms: Vec<(Name, Vec<RangeSet>, Vec<Pool>)> = vec![];
    for (set, pool) in sets.into_iter().zip(pools) {
        let own = || of_ranges(&network, std::slice::from_ref(&set));
        let realm = common.clone().map_or_else(own, Ok)?;
        match realms.iter_mut().find(|(known, ..)| *known == realm) {
            Some((_, sets, pools)) => {
                sets.push(set);
                pools.push(pool);
            }
            None => realms.push((realm, vec![set], vec![pool])),
        }
    }
    let parts = realms.into_iter().map(|(realm, sets, pools)| part(realm, sets, pools)).collect();
    Ok(Conf { parts, assigned, gateway, dns: ipam.dns })
}

/// The size of the blocks of a set: the largest that is not larger than the slice of a node of the
/// original, which may be written with or without the slash.
fn block_size(slice: &str, set: &RangeSet) -> Result<BlockSize> {
    let subnet = set.ranges().first().map(|range| range.subnet).filter(|_| !slice.is_empty());
    let Some(subnet) = subnet else { return Ok(BlockSize::Auto) };
    let (shortest, longest) = (subnet.prefix_len(), subnet.max_prefix_len());
    let length: Option<u8> = slice.strip_prefix('/').unwrap_or(slice).parse().ok();
    let length = length.filter(|length| (shortest..=longest).contains(length));
    let size = |length| match longest - length {
        0..3 => BlockSize::One,
        3..6 => BlockSize::Eight,
        _ => BlockSize::Chunk,
    };
    length.map(size).ok_or_else(|| {
        Error::config("ipam.node_slice_size", format_args!("{slice:?} is no slice of {subnet}"))
            .expecting(format_args!("a prefix length from /{shortest} to /{longest}"))
    })
}

/// The realm in which addresses exclude each other across ranges: `network_name` in lower case, with
/// '-' for each character that a realm cannot have.
fn network_name(ipam: &Ipam) -> Result<Name> {
    let is_of_realm = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
    let name = ipam.network_name.replace(|c| !is_of_realm(c), "-").to_ascii_lowercase();
    shared::realm(&name, "ipam.network_name")
}

/// The realm in which only equal ranges exclude each other's addresses, in any order. A name that is too
/// long, or that of several ranges, ends with a hash.
fn of_ranges(network: &Name, sets: &[RangeSet]) -> Result<Name> {
    let ranges = sets.iter().flat_map(RangeSet::ranges);
    let mut subnets: Vec<String> = ranges.map(|range| range.subnet.to_string()).collect();
    subnets.sort_unstable();
    let mut realm = format!("{network}.range-{}", subnets.join("-").replace([':', '/'], "-"));
    if subnets.len() > 1 || realm.len() > LONGEST_REALM {
        let end = format!(".ranges-{}", hex(&Sha256::digest(&realm)[..4]));
        realm = network.to_string();
        realm.truncate(LONGEST_REALM - end.len());
        realm += &end;
    }
    shared::realm(&realm, "ipam.network_name")
}
