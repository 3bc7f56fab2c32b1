//! The configuration of cluster-local: the keys as written, and the values that they resolve to.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

use super::machine_scope;
use super::name::{LONGEST_REALM, Name};
use super::pool::{BlockSize, Pool, Span};
use super::sticky::{self, Sticky};
use crate::cni::addr;
use crate::cni::conf::Config;
use crate::cni::json::Value;
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
pub const DEFAULT_DATA_DIR: &str = "/var/lib/cni/cluster-local";
/// Advice for a configuration that an old version has no room for.
const ADVICE: &str = "set cniVersion to 0.3.0 or later, or use one range set per family";
/// The realm of a network that names none.
pub const DEFAULT_REALM: &str = "default";
/// How many free blocks a pool keeps by default.
pub const DEFAULT_SPARE: u32 = 1;
/// The most free blocks that a pool may keep.
const MOST_SPARE: u32 = 64;
/// How many seconds an ADD waits for a free address by default.
pub const DEFAULT_PATIENCE: u64 = 10;
/// The most seconds: runtimes kill a plugin after two minutes.
pub const MOST_PATIENCE: u64 = 60;

/// The settings that ADD, CHECK and STATUS use. DEL and GC use none of them, so an invalid one does
/// not fail DEL or GC.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    /// Where the addresses are unique.
    #[serde(skip)]
    pub scope: Scope,
    /// The range sets; the attachment gets one address from each.
    #[serde(skip)]
    pub sets: Vec<RangeSet>,
    /// What is allocated from each set.
    #[serde(skip)]
    pub terms: Terms,
    /// The addresses that the runtime or the user requests.
    #[serde(skip)]
    pub requested: Vec<IpAddr>,
    /// The addresses that results have beside the allocated ones. They have no leases, also where a
    /// set contains them.
    #[serde(skip)]
    pub assigned: Vec<IpAddr>,
    /// What an attachment's name is made of, if it keeps its address.
    #[serde(skip)]
    pub sticky: Sticky,
    /// How long an ADD waits for a daemon.
    #[serde(skip)]
    pub patience: Duration,
    /// Routes for the result.
    #[serde(skip)]
    pub routes: Vec<Route>,
    /// The file with the resolver settings for the result, if any.
    #[serde(skip)]
    pub resolv_conf: Option<PathBuf>,
}

/// Where the addresses of a network are unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// In the cluster: a daemon claims blocks of addresses in its store.
    #[default]
    Cluster,
    /// On this machine, without a daemon.
    Machine,
}

impl Scope {
    /// Reads `ipam.scope`.
    pub fn read(text: &str) -> Result<Scope> {
        match text {
            "" | "cluster" => Ok(Scope::Cluster),
            "machine" => Ok(Scope::Machine),
            _ => Err(Error::config("ipam.scope", format_args!("unknown scope {text:?}"))
                .expecting("cluster or machine")),
        }
    }
}

/// What a network allocates, and from where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// The realm; always there once validated.
    pub realm: Option<Name>,
    /// The addresses of each set that any attachment may get.
    pub pools: Vec<Pool>,
    /// The addresses of each set that are kept for names; empty if the network keeps none.
    pub names: Vec<Pool>,
    /// How many free blocks a pool keeps.
    pub spare: u32,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        RangeConf::KEYS,
        "ipam.ranges[][].exclude | list of strings | none | Addresses and subnets that are never allocated.
        ipam.subnet | subnet | none | A single range. It comes before `ranges`.
        ipam.rangeStart | address | as above | Of the single range; no effect without `ipam.subnet`.
        ipam.rangeEnd | address | as above | Of the single range.
        ipam.gateway | address | as above | Of the single range.
        ipam.exclude | list of strings | as above | Of the single range.
        ipam.realm | string | `default` | The name of the address plan. Addresses exclude each other within one realm. With scope `cluster`, a network with leases stays in its realm.
        ipam.scope | string | `cluster` | Where addresses are unique: `cluster`, or `machine`, which needs no daemon. ADD sees no leases of the other scope.
        ipam.blockSize | string or number | `auto` | How many addresses a block has: 1, 8, 64, or `auto`. `auto` is 1 up to 4096 addresses, 8 up to a /14, and 64 beyond and in IPv6. No effect with scope `machine`.
        ipam.spare | integer | 1 | How many free blocks of each range set the node keeps, 0 to 64. No effect with scope `machine`.
        ipam.sticky | string | `none` | Which attachments get the same address again: `none`, `pod`, or `arg:` and a key of CNI_ARGS.
        ipam.takeover | string | `none` | `none` alone: a name moves when the node that has it gives it up.
        ipam.patience | integer | 10 | How many seconds an ADD waits for the daemon, 0 to 60. A daemon that is stuck is awaited for at least 5. No effect with scope `machine`.",
        Route::KEYS,
        "ipam.resolvConf | path | none | A file in the format of resolv.conf(5); its settings go into the result.
        ipam.dataDir | path | `/var/lib/cni/cluster-local` | The parent of the networks' directories. The networks of a realm need one.
        runtimeConfig.ipRanges | list of lists | none | Range sets that come before the configured ones; capability `ipRanges`.",
        requested::KEYS,
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        data_dir(cx.config)?;
        let document: Document = cx.config.decode()?;
        let sticky = document.ipam.as_ref().map(|ipam| sticky::read(&ipam.sticky));
        document.ipam.as_ref().map_or(Ok(()), |ipam| sticky::read_takeover(&ipam.takeover))?;
        self.sticky = sticky.transpose()?.unwrap_or_default();
        self.requested = requested::addresses_beside(cx, &self.sticky.args())?;
        let ipam = document.ipam.ok_or_else(missing)?;
        self.scope = Scope::read(&ipam.scope)?;
        let written = written(document.runtime_config.ip_ranges, &ipam);
        self.sets = range_sets(&written)?;
        let families: Vec<Family> = self.sets.iter().filter_map(RangeSet::family).collect();
        ipam::refuse_several_of_one(&families, &cx.config.version, ADVICE)?;
        self.terms = terms(&ipam, &self.sets, &excluded(&written)?)?;
        self.patience = patience(ipam.patience)?;
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
    subnet: Option<IpNet>,
    #[serde(with = "addr::ip")]
    range_start: Option<IpAddr>,
    #[serde(with = "addr::ip")]
    range_end: Option<IpAddr>,
    #[serde(with = "addr::ip")]
    gateway: Option<IpAddr>,
    exclude: Vec<String>,
    ranges: Vec<Vec<RangeDocument>>,
    realm: String,
    scope: String,
    block_size: Value,
    spare: Option<u32>,
    sticky: String,
    takeover: String,
    patience: Option<u64>,
    routes: Vec<Route>,
    resolv_conf: String,
}

/// A range as configured.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RangeDocument {
    #[serde(with = "addr::opt_cidr")]
    subnet: Option<IpNet>,
    #[serde(with = "addr::ip")]
    range_start: Option<IpAddr>,
    #[serde(with = "addr::ip")]
    range_end: Option<IpAddr>,
    #[serde(with = "addr::ip")]
    gateway: Option<IpAddr>,
    exclude: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    ip_ranges: Vec<Vec<RangeDocument>>,
}

impl Ipam {
    /// The single range beside `type`.
    fn single_range(&self) -> RangeDocument {
        RangeDocument {
            subnet: self.subnet,
            range_start: self.range_start,
            range_end: self.range_end,
            gateway: self.gateway,
            exclude: self.exclude.clone(),
        }
    }
}

impl RangeDocument {
    fn to_conf(&self) -> RangeConf {
        RangeConf {
            subnet: self.subnet,
            range_start: self.range_start,
            range_end: self.range_end,
            gateway: self.gateway,
        }
    }
}

/// A range set as written, with its path; a single range has the path of its object.
struct Written {
    at: String,
    is_single: bool,
    ranges: Vec<RangeDocument>,
}

impl Written {
    fn range_at(&self, index: usize) -> String {
        if self.is_single { self.at.clone() } else { format!("{}[{index}]", self.at) }
    }

    fn set(&self) -> Result<RangeSet> {
        let ranges = self.ranges.iter().enumerate();
        let ranges = ranges.map(|(i, range)| Range::new(&range.to_conf(), &self.range_at(i)));
        RangeSet::of(ranges.collect::<Result<_>>()?, &self.at)
    }
}

/// The sets as written, in this order: the runtime's, the single range, `ranges`.
fn written(of_runtime: Vec<Vec<RangeDocument>>, ipam: &Ipam) -> Vec<Written> {
    let mut all = listed("runtimeConfig.ipRanges", of_runtime);
    if ipam.subnet.is_some() {
        let ranges = vec![ipam.single_range()];
        all.push(Written { at: "ipam".to_owned(), is_single: true, ranges });
    }
    all.extend(listed("ipam.ranges", ipam.ranges.clone()));
    all
}

fn listed(at: &str, sets: Vec<Vec<RangeDocument>>) -> Vec<Written> {
    let sets = sets.into_iter().enumerate();
    let written = |(i, ranges)| Written { at: format!("{at}[{i}]"), is_single: false, ranges };
    sets.map(written).collect()
}

fn range_sets(written: &[Written]) -> Result<Vec<RangeSet>> {
    let mut sets = Sets::default();
    for one in written {
        sets.add(one.at.clone(), one.set())?;
    }
    sets.into_sets()
}

/// The excluded addresses of all ranges.
fn excluded(written: &[Written]) -> Result<Vec<Span>> {
    let mut all = vec![];
    for set in written {
        for (index, range) in set.ranges.iter().enumerate() {
            for (i, text) in range.exclude.iter().enumerate() {
                let span = excluded_span(text);
                all.push(span.ok_or_else(|| {
                    not_excludable(&format!("{}.exclude[{i}]", set.range_at(index)), text)
                })?);
            }
        }
    }
    Ok(all)
}

/// An address, or a subnet; host bits count for nothing.
pub fn excluded_span(text: &str) -> Option<Span> {
    if text.contains('/') {
        return addr::parse_cidr(text).ok().map(Span::of_prefix);
    }
    let ip = addr::parse_ip(text).ok().flatten()?;
    Span::new(ip, ip)
}

/// The error for a text that is neither.
pub fn not_excludable(path: &str, text: &str) -> Error {
    let problem = format_args!("{text:?} is neither an address nor a subnet");
    Error::config(path, problem).expecting("one as in 10.88.7.7 or 10.88.9.0/24")
}

fn missing() -> Error {
    Error::missing("ipam", "an object with ranges")
}

/// The pools of the sets.
fn terms(ipam: &Ipam, sets: &[RangeSet], excluded: &[Span]) -> Result<Terms> {
    let mut terms = Terms {
        realm: Some(realm(&ipam.realm, "ipam.realm")?),
        spare: spare(ipam.spare)?,
        ..Terms::default()
    };
    let size = block_size(&ipam.block_size)?;
    let is_sticky = sticky::read(&ipam.sticky)? != Sticky::None;
    for (number, set) in sets.iter().enumerate() {
        let whole = Pool::new(set, excluded, size).ok_or_else(|| nothing_left(number, set))?;
        if is_sticky {
            let parts = sticky::parts(set, excluded, size);
            let (free, names) = parts.ok_or_else(|| no_room_for_names(number, set))?;
            terms.pools.push(free);
            terms.names.push(names);
        } else {
            terms.pools.push(whole);
        }
    }
    Ok(terms)
}

fn nothing_left(number: usize, set: &RangeSet) -> Error {
    let problem = format_args!("every address of range set {number} ({set}) is excluded");
    Error::config("ipam.ranges", problem).expecting("at least one address besides the gateway")
}

fn no_room_for_names(number: usize, set: &RangeSet) -> Error {
    let problem = format_args!("range set {number} ({set}) has one address");
    Error::config("ipam.sticky", problem)
        .expecting("at least two: the last eighth is kept for names")
}

/// The realm at this path.
pub fn realm(text: &str, path: &str) -> Result<Name> {
    let text = if text.is_empty() { DEFAULT_REALM } else { text };
    if text.len() > LONGEST_REALM {
        let problem = format_args!("{text:?} has {} bytes", text.len());
        return Err(Error::config(path, problem).expecting("at most 63"));
    }
    text.parse().map_err(|e| Error::config(path, e))
}

fn block_size(written: &Value) -> Result<BlockSize> {
    let text = written.as_str().map_or_else(|| written.to_text(), str::to_owned);
    match text.as_str() {
        "" | "null" | "auto" => Ok(BlockSize::Auto),
        "1" => Ok(BlockSize::One),
        "8" => Ok(BlockSize::Eight),
        "64" => Ok(BlockSize::Chunk),
        _ => {
            let problem = format_args!("{} is not a size of blocks", written.to_text());
            Err(Error::config("ipam.blockSize", problem).expecting("auto, 1, 8 or 64"))
        }
    }
}

fn spare(written: Option<u32>) -> Result<u32> {
    match written.unwrap_or(DEFAULT_SPARE) {
        spare if spare <= MOST_SPARE => Ok(spare),
        spare => Err(Error::out_of_range("ipam.spare", spare, 0..=i64::from(MOST_SPARE))),
    }
}

fn patience(written: Option<u64>) -> Result<Duration> {
    match written.unwrap_or(DEFAULT_PATIENCE) {
        seconds if seconds <= MOST_PATIENCE => Ok(Duration::from_secs(seconds)),
        seconds => Err(Error::out_of_range("ipam.patience", seconds, 0..=MOST_PATIENCE as i64)),
    }
}

impl Conf {
    /// Where the network's leases are.
    pub fn place(&self, cx: &Context<'_>) -> Place {
        match (self.scope, &self.terms.realm) {
            (Scope::Machine, Some(realm)) => machine_scope::place(cx, realm),
            _ => place(cx), // only a configuration that was not validated has no realm
        }
    }
}

/// Every place where the network may have leases: the scope and the realm may have been others at
/// ADD.
pub fn places(cx: &Context<'_>) -> Result<Vec<Place>> {
    let mut places = machine_scope::places(cx)?;
    places.insert(0, place(cx));
    Ok(places)
}

/// Returns the network's place with scope `cluster`, from `name` and `ipam.dataDir` alone, so that DEL and GC
/// work even if the rest of the configuration is invalid.
pub fn place(cx: &Context<'_>) -> Place {
    Place::new(&directory(cx), &cx.config.name, cx.deadline()).of_this_boot()
}

/// The parent of the networks' directories.
pub fn directory(cx: &Context<'_>) -> PathBuf {
    // If `dataDir` does not decode, ADD fails, so leases can only be in the default directory.
    let data_dir = data_dir(cx.config).ok().filter(|dir| !dir.is_empty());
    Path::new(data_dir.as_deref().unwrap_or(DEFAULT_DATA_DIR)).to_owned()
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_numbers_or_auto() {
        for (text, size) in [
            ("null", BlockSize::Auto),
            ("\"\"", BlockSize::Auto),
            ("\"auto\"", BlockSize::Auto),
            ("1", BlockSize::One),
            ("\"8\"", BlockSize::Eight),
            ("64", BlockSize::Chunk),
        ] {
            assert_eq!(
                block_size(&Value::parse(text.as_bytes()).unwrap()).unwrap(),
                size,
                "{text}"
            );
        }
        for text in ["\"/26\"", "2", "-1", "1.5", "true", "[8]", "\"Auto\""] {
            let error = block_size(&Value::parse(text.as_bytes()).unwrap()).unwrap_err();
            let expected = format!(
                "ipam.blockSize: {text} is not a size of blocks, expected auto, 1, 8 or 64"
            );
            assert_eq!((error.code.0, error.to_string()), (7, expected));
        }
    }

    #[test]
    fn a_realm_is_a_label() {
        assert_eq!(realm("", "ipam.realm").unwrap().as_str(), "default");
        assert_eq!(realm(&"a".repeat(63), "ipam.realm").unwrap().as_str().len(), 63);
        for text in [&"a".repeat(64), "A", "a_b", "a/b", "-"] {
            let error = realm(text, "ipam.realm").unwrap_err();
            assert!(error.to_string().starts_with("ipam.realm: "), "{error}");
        }
    }
}
