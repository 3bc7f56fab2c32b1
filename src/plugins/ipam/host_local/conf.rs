//! The configuration of host-local: the keys as written, and the values that they resolve to.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cni::addr;
use crate::cni::conf::Config;
use crate::cni::result::Route;
use crate::cni::version;
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::plugin::{Context, PluginConf};
use crate::steps::allocation::files::Place;
use crate::steps::allocation::ranges::{Range, RangeConf, RangeSet};
use crate::steps::allocation::requested;

const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// The settings that ADD, CHECK and STATUS use. DEL and GC use none of them, so an invalid one does
/// not fail DEL or GC.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    /// The range sets; the attachment gets one address from each.
    #[serde(skip)]
    pub sets: Vec<RangeSet>,
    /// The addresses that the runtime or the user requests.
    #[serde(skip)]
    pub requested: Vec<IpAddr>,
    /// Routes for the result.
    #[serde(skip)]
    pub routes: Vec<Route>,
    /// The file with the resolver settings for the result, if any.
    #[serde(skip)]
    pub resolv_conf: Option<PathBuf>,
}

impl PluginConf for Conf {
    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        data_dir(cx.config)?;
        let document: Document = cx.config.decode()?;
        self.requested = requested::addresses(cx)?;
        let ipam = document.ipam.ok_or_else(missing)?;
        self.sets = range_sets(&document.runtime_config.ip_ranges, &ipam)?;
        refuse_several_of_a_family(&self.sets, &cx.config.version)?;
        self.routes = ipam.routes;
        self.resolv_conf =
            Some(ipam.resolv_conf).filter(|path| !path.is_empty()).map(PathBuf::from);
        Ok(())
    }
}

/// The keys that are decoded.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    ipam: Option<Ipam>,
    runtime_config: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Ipam {
    /// A single range, the form of the first versions: `subnet`, `rangeStart`, `rangeEnd` and
    /// `gateway` beside `type`. It comes before `ranges`; without `subnet` the other three are
    /// ignored.
    #[serde(with = "addr::opt_cidr")]
    subnet: Option<ipnet::IpNet>,
    /// See `subnet`.
    #[serde(with = "addr::ip")]
    range_start: Option<IpAddr>,
    /// See `subnet`.
    #[serde(with = "addr::ip")]
    range_end: Option<IpAddr>,
    /// See `subnet`.
    #[serde(with = "addr::ip")]
    gateway: Option<IpAddr>,
    /// Range sets; one address is taken from each.
    ranges: Vec<Vec<RangeConf>>,
    /// Routes for the result.
    routes: Vec<Route>,
    /// A resolv.conf(5) whose settings go into the result.
    resolv_conf: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    /// Capability `ipRanges`: range sets that come before the configured ones.
    ip_ranges: Vec<Vec<RangeConf>>,
}

fn missing() -> Error {
    Error::missing("ipam", "an object with ranges").saying("IPAM config missing 'ipam' key")
}

/// Returns the network's place on disk, from `name` and `ipam.dataDir` alone, so that DEL and GC
/// work even if the rest of the configuration is invalid.
pub fn place(cx: &Context<'_>) -> Place {
    // If `dataDir` does not decode, ADD fails, so leases can only be in the default directory.
    let data_dir = data_dir(cx.config).ok().filter(|dir| !dir.is_empty());
    let data_dir = Path::new(data_dir.as_deref().unwrap_or(DEFAULT_DATA_DIR));
    Place::new(data_dir, &cx.config.name, cx.deadline())
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
        /// The parent of the networks' directories; default `/var/lib/cni/networks`.
        data_dir: String,
    }
    Ok(config.decode::<Document>()?.ipam.data_dir)
}

/// Returns the range sets, merged in this order: the runtime's, the single range, `ranges`. The set
/// index in messages for the user counts in the merged list.
fn range_sets(runtime: &[Vec<RangeConf>], ipam: &Ipam) -> Result<Vec<RangeSet>> {
    let mut sets = vec![];
    for (i, set) in runtime.iter().enumerate() {
        push_set(&mut sets, format!("runtimeConfig.ipRanges[{i}]"), |at| RangeSet::new(set, at))?;
    }
    if ipam.subnet.is_some() {
        let conf = RangeConf {
            subnet: ipam.subnet,
            range_start: ipam.range_start,
            range_end: ipam.range_end,
            gateway: ipam.gateway,
        };
        push_set(&mut sets, "ipam".to_owned(), |at| {
            RangeSet::of(vec![Range::new(&conf, at)?], at)
        })?;
    }
    for (i, set) in ipam.ranges.iter().enumerate() {
        push_set(&mut sets, format!("ipam.ranges[{i}]"), |at| RangeSet::new(set, at))?;
    }
    if sets.is_empty() {
        return Err(Error::config("ipam.ranges", "there is none")
            .expecting("at least one set with a range with a subnet")
            .saying("no IP ranges specified"));
    }
    Ok(sets.into_iter().map(|(_, set)| set).collect())
}

fn push_set(
    sets: &mut Vec<(String, RangeSet)>,
    at: String,
    make: impl FnOnce(&str) -> Result<RangeSet>,
) -> Result<()> {
    let number = sets.len();
    let set =
        make(&at).map_err(|error| error.context(format_args!("invalid range set {number}")))?;
    if let Some(other) = sets.iter().position(|(_, other)| other.overlaps(&set)) {
        let (other_at, other_set) = &sets[other];
        return Err(Error::config(
            at,
            format_args!("{set} overlaps with {other_set} of {other_at}"),
        )
        .saying(format_args!("range set {other} overlaps with {number}")));
    }
    sets.push((at, set));
    Ok(())
}

/// Results before CNI 0.3.0 have room for only one address per family.
fn refuse_several_of_a_family(sets: &[RangeSet], config_version: &str) -> Result<()> {
    let has_several = |family| sets.iter().filter(|set| set.is_of(family)).count() > 1;
    if Family::ALL.into_iter().any(has_several)
        && version::Number::parse(config_version)? < version::WITH_MANY_ADDRESSES
    {
        let msg =
            format!("CNI version {config_version} does not support more than 1 address per family");
        return Err(Error::new(Code::INVALID_CONFIG, msg)
            .with_details("set cniVersion to 0.3.0 or later, or use one range set per family"));
    }
    Ok(())
}
