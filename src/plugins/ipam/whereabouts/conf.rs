//! The translation into the configuration of cluster-local.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::document::{Document, Ipam, KEYS, RangeDocument, Rest};
use super::flat::Merged;
use super::range;
use crate::cni::result::{Dns, IpConfig};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::plugin::{Context, PluginConf};
use crate::plugins::ipam::cluster_local::conf::{
    self as shared, DEFAULT_PATIENCE, DEFAULT_SPARE, Scope, Terms,
};
use crate::plugins::ipam::cluster_local::name::{LONGEST_REALM, Name};
use crate::plugins::ipam::cluster_local::pool::{BlockSize, Pool, Span};
use crate::steps::allocation::ranges::RangeSet;
use crate::steps::allocation::ranges::Sets;
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
        let merged = Merged::of(cx.config)?;
        *self = read(&merged, cx.args).map_err(|e| merged.explain(e))?;
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

fn read(merged: &Merged, args: &str) -> Result<Conf> {
    merged.config.decode::<Rest>()?;
    let ipam = merged.config.decode::<Document>()?.ipam.ok_or_else(missing)?;
    let scope = Scope::read(&ipam.scope)?;
    let gateway = range::address(&ipam.gateway, "ipam.gateway")?;
    let mut assigned = assigned::configured(&ipam.addresses)?;
    assigned::add_cni_args(&mut assigned, args, &ARGS)?;
    let ranges = Ranges::read(&ipam, gateway)?;
    let of_sets = ranges.sets.iter().filter_map(RangeSet::family);
    let of_assigned = assigned.iter().map(|ip| Family::of_net(ip.address));
    let families: Vec<Family> = of_sets.chain(of_assigned).collect();
    ipam::refuse_several_of_one(&families, &merged.config.version, ADVICE)?;
    let without: Vec<IpAddr> = assigned.iter().map(|ip| ip.address.addr()).collect();
    let pools = ranges.pools(&without, &ipam.node_slice_size)?;
    let part = |realm: Name, sets: Vec<RangeSet>, pools: Vec<Pool>| shared::Conf {
        scope,
        sets,
        terms: Terms { realm: Some(realm), pools, spare: DEFAULT_SPARE, ..Terms::default() },
        assigned: without.clone(),
        patience: Duration::from_secs(DEFAULT_PATIENCE),
        routes: ipam.routes.clone(),
        ..shared::Conf::default()
    };
    let realm = network_name(&ipam)?;
    let parts = if ipam.enable_overlapping_ranges.unwrap_or(true) {
        vec![part(realm, ranges.sets, pools)]
    } else if scope == Scope::Cluster && ranges.sets.len() > 1 {
        vec![part(of_ranges(&realm, &ranges.sets)?, ranges.sets, pools)]
    } else {
        let of_each = ranges.sets.into_iter().zip(pools);
        let parts =
            of_each.map(|(set, pool)| Ok(part(of_range(&realm, &set)?, vec![set], vec![pool])));
        parts.collect::<Result<_>>()?
    };
    Ok(Conf { parts, assigned, gateway, dns: ipam.dns })
}

fn missing() -> Error {
    Error::missing("ipam", "an object with range").saying("IPAM config missing 'ipam' key")
}

/// The ranges of a configuration: each is a set, since each gives an address.
struct Ranges {
    written: Vec<(String, RangeDocument)>,
    sets: Vec<RangeSet>,
}

impl Ranges {
    fn read(ipam: &Ipam, gateway: Option<IpAddr>) -> Result<Ranges> {
        let written = ipam.ranges();
        if written.is_empty() {
            return Err(no_range(ipam));
        }
        let mut sets = Sets::default();
        for (at, document) in &written {
            let range = range::read(document, gateway, at)?;
            sets.add(at.clone(), RangeSet::of(vec![range], at))?;
        }
        Ok(Ranges { written, sets: sets.into_sets()? })
    }

    /// The allocatable addresses of each set.
    fn pools(&self, assigned: &[IpAddr], slice: &str) -> Result<Vec<Pool>> {
        let assigned: Vec<Span> = assigned.iter().filter_map(|ip| Span::new(*ip, *ip)).collect();
        let mut pools = vec![];
        for ((at, document), set) in self.written.iter().zip(&self.sets) {
            let excluded = [range::excluded(document, at)?, assigned.clone()].concat();
            let size = block_size(slice, set)?;
            pools.push(Pool::new(set, &excluded, size).ok_or_else(|| nothing_left(at, set))?);
        }
        Ok(pools)
    }
}

fn no_range(ipam: &Ipam) -> Error {
    let error = Error::config("ipam.range", "there is none")
        .expecting("a subnet as in 10.1.0.0/16, or ipam.ipRanges");
    if ipam.addresses.is_empty() {
        return error;
    }
    error.with_details("the plugin static serves a network with addresses alone")
}

fn nothing_left(at: &str, set: &RangeSet) -> Error {
    let problem = format_args!("every address of {set} is excluded, assigned or the gateway");
    Error::config(format_args!("{at}.exclude"), problem).expecting("at least one address")
}

/// The size of the blocks of a set: the largest that is not larger than the slice of a node of the
/// original, which may be written with or without the slash.
fn block_size(slice: &str, set: &RangeSet) -> Result<BlockSize> {
    let Some(subnet) = set.ranges().first().map(|range| range.subnet) else {
        return Ok(BlockSize::Auto);
    };
    if slice.is_empty() {
        return Ok(BlockSize::Auto);
    }
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

/// The realm in which only equal ranges exclude each other's addresses.
fn of_range(network: &Name, set: &RangeSet) -> Result<Name> {
    let subnets: Vec<String> = set.ranges().iter().map(|range| range.subnet.to_string()).collect();
    let range = subnets.join("-").replace([':', '/'], "-");
    shared::realm(&format!("{network}.range-{range}"), "ipam.network_name")
}

/// The realm of a network with several ranges, whose file of blocks has one: that of all its ranges,
/// in any order.
fn of_ranges(network: &Name, sets: &[RangeSet]) -> Result<Name> {
    let ranges = sets.iter().flat_map(RangeSet::ranges);
    let mut subnets: Vec<String> = ranges.map(|range| range.subnet.to_string()).collect();
    subnets.sort_unstable();
    let digest = Sha256::digest(format!("{network} {}", subnets.join(" ")));
    let hash: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    let suffix = format!(".ranges-{hash}");
    let readable =
        network.as_str().split_at(network.as_str().len().min(LONGEST_REALM - suffix.len())).0;
    shared::realm(&format!("{readable}{suffix}"), "ipam.network_name")
}
