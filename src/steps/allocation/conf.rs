//! The configuration that plugins with lease files have in common.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;

use super::ranges::{Range, RangeConf, RangeSet, Sets};
use super::requested;
use crate::cni::addr;
use crate::cni::conf::Config;
use crate::cni::result::Route;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::plugin::Context;
use crate::steps::ipam;

/// Advice for a configuration that an old version has no room for.
const ADVICE: &str = "set cniVersion to 0.3.0 or later, or use one range set per family";

/// What an attachment gets, beside what only one plugin knows.
#[derive(Debug, Default)]
pub struct AllocationConf {
    /// The range sets; the attachment gets one address from each.
    pub sets: Vec<RangeSet>,
    /// The addresses that the runtime or the user requests.
    pub requested: Vec<IpAddr>,
    /// Routes for the result.
    pub routes: Vec<Route>,
    /// The file with the resolver settings for the result, if any.
    pub resolv_conf: Option<PathBuf>,
}

/// The keys that are decoded; `KEYS` of the plugins describe them.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    ipam: Option<Ipam>,
    runtime_config: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Ipam {
    #[serde(with = "addr::opt_cidr")]
    subnet: Option<ipnet::IpNet>,
    #[serde(with = "addr::ip")]
    range_start: Option<IpAddr>,
    #[serde(with = "addr::ip")]
    range_end: Option<IpAddr>,
    #[serde(with = "addr::ip")]
    gateway: Option<IpAddr>,
    ranges: Vec<Vec<RangeConf>>,
    routes: Vec<Route>,
    resolv_conf: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    ip_ranges: Vec<Vec<RangeConf>>,
}

impl AllocationConf {
    /// Reads a configuration; the plugin knows these keys of CNI_ARGS beside `IP`.
    pub fn read(cx: &Context<'_>, keys: &[&str]) -> Result<AllocationConf> {
        data_dir(cx.config)?;
        let document: Document = cx.config.decode()?;
        let requested = requested::addresses(cx, keys)?;
        let ipam = document.ipam.ok_or_else(|| {
            Error::missing("ipam", "an object with ranges").saying("IPAM config missing 'ipam' key")
        })?;
        // The set index in messages for the user counts in the merged list.
        let mut sets = Sets::default();
        sets.add_list("runtimeConfig.ipRanges", &document.runtime_config.ip_ranges)?;
        let Ipam { subnet, range_start, range_end, gateway, .. } = ipam;
        if subnet.is_some() {
            let range = Range::new(&RangeConf { subnet, range_start, range_end, gateway }, "ipam");
            let set = range.and_then(|range| RangeSet::of(vec![range], "ipam"));
            sets.add("ipam".to_owned(), set)?;
        }
        sets.add_list("ipam.ranges", &ipam.ranges)?;
        let sets = sets.into_sets()?;
        let families: Vec<Family> = sets.iter().filter_map(RangeSet::family).collect();
        ipam::refuse_several_of_one(&families, &cx.config.version, ADVICE)?;
        let resolv_conf = Some(ipam.resolv_conf).filter(|path| !path.is_empty()).map(PathBuf::from);
        Ok(AllocationConf { sets, requested, routes: ipam.routes, resolv_conf })
    }
}

/// The parent of the networks' directories, from `ipam.dataDir` alone, so that DEL and GC work even if the
/// rest of the configuration is invalid.
pub fn directory(config: &Config, usual: &str) -> PathBuf {
    // If `dataDir` does not decode, ADD fails, so leases can only be in the usual directory.
    let data_dir = data_dir(config).ok().filter(|dir| !dir.is_empty());
    data_dir.map_or_else(|| PathBuf::from(usual), PathBuf::from)
}

fn data_dir(config: &Config) -> Result<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Document {
        ipam: Ipam,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Ipam {
        data_dir: String,
    }
    Ok(config.decode::<Document>()?.ipam.data_dir)
}
