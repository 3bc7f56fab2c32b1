//! The configuration of host-local: the keys as written, and the values that they resolve to.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cni::addr;
use crate::cni::conf::Config;
use crate::cni::result::Route;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::plugin::{Context, PluginConf};
use crate::steps::allocation::files::Place;
use crate::steps::allocation::ranges::Sets;
use crate::steps::allocation::ranges::{Range, RangeConf, RangeSet};
use crate::steps::allocation::requested;
use crate::steps::ipam;

/// The parent of the networks' directories.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";
/// Advice for a configuration that an old version has no room for.
const ADVICE: &str = "set cniVersion to 0.3.0 or later, or use one range set per family";

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
    const KEYS: &'static [&'static str] = &[
        RangeConf::KEYS,
        "ipam.subnet | subnet | none | A single range, as in the first versions. It comes before `ranges`.
        ipam.rangeStart | address | as above | Of the single range; no effect without `ipam.subnet`.
        ipam.rangeEnd | address | as above | Of the single range.
        ipam.gateway | address | as above | Of the single range.",
        Route::KEYS,
        "ipam.resolvConf | path | none | A file in the format of resolv.conf(5); its settings go into the result.
        ipam.dataDir | path | `/var/lib/cni/networks` | The parent of the networks' directories.
        runtimeConfig.ipRanges | list of lists | none | Range sets that come before the configured ones; capability `ipRanges`.",
        requested::KEYS,
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        data_dir(cx.config)?;
        let document: Document = cx.config.decode()?;
        self.requested = requested::addresses(cx)?;
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
        self.sets = sets.into_sets()?;
        let families: Vec<Family> = self.sets.iter().filter_map(RangeSet::family).collect();
        ipam::refuse_several_of_one(&families, &cx.config.version, ADVICE)?;
        self.routes = ipam.routes;
        self.resolv_conf =
            Some(ipam.resolv_conf).filter(|path| !path.is_empty()).map(PathBuf::from);
        Ok(())
    }
}

/// The keys that are decoded; `KEYS` describes them.
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
        data_dir: String,
    }
    Ok(config.decode::<Document>()?.ipam.data_dir)
}
