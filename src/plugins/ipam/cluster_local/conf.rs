//! The configuration of cluster-local: the keys as written, and the values that they resolve to.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::held::Blocks;
use super::machine_scope;
use super::name::{LONGEST_REALM, Name};
use super::pool::{BlockSize, Pool, Span};
use super::sticky;
use crate::cni::addr;
use crate::cni::json::Value;
use crate::cni::result::Route;
use crate::error::{Error, Result};
use crate::plain_file;
use crate::plugin::{Context, PluginConf};
use crate::steps::allocation::conf::{self, AllocationConf};
use crate::steps::allocation::files::Place;
use crate::steps::allocation::ranges::RangeConf;
use crate::steps::allocation::requested;

/// The parent of the networks' directories.
pub const DEFAULT_DATA_DIR: &str = "/var/lib/cni/cluster-local";
/// How many free blocks a pool keeps by default.
pub const DEFAULT_SPARE: u32 = 1;
/// The most free blocks that a pool may keep.
const MOST_SPARE: u64 = 64;
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
    /// What an attachment gets.
    #[serde(skip)]
    pub allocation: AllocationConf,
    /// What is allocated from each set: the network's file of blocks before it has any.
    #[serde(skip)]
    pub terms: Blocks,
    /// The addresses that results have beside the allocated ones. They have no leases, also where a
    /// set contains them.
    #[serde(skip)]
    pub assigned: Vec<IpAddr>,
    /// The keys of CNI_ARGS that an attachment's name is made of, if it keeps its address.
    #[serde(skip)]
    pub sticky: Vec<String>,
    /// How long an ADD waits for a daemon.
    #[serde(skip)]
    pub patience: Duration,
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

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        RangeConf::KEYS,
        "ipam.ranges[][].exclude | list of strings | none | Addresses and subnets that are never allocated.",
        RangeConf::KEYS_OF_SINGLE,
        "ipam.exclude | list of strings | as above | Of the single range.
        ipam.realm | string | `default` | The name of the address plan. Addresses exclude each other within one realm. With scope `cluster`, a network with leases stays in its realm.
        ipam.scope | string | `cluster` | Where addresses are unique: `cluster`, or `machine`, which needs no daemon. ADD sees no leases of the other scope.
        ipam.blockSize | string or number | `auto` | How many addresses a block has: 1, 8, 64, or `auto`. `auto` is 1 up to 4096 addresses, 8 up to a /14, and 64 beyond and in IPv6. No effect with scope `machine`.
        ipam.spare | integer | 1 | How many free blocks of each range set the node keeps, 0 to 64. No effect with scope `machine`.
        ipam.sticky | string | `none` | Which attachments get the same address again: `none`, `pod`, or `arg:` and a key of CNI_ARGS.
        ipam.takeover | string | `none` | `none` alone: a name moves when the node that has it gives it up.
        ipam.patience | integer | 10 | How many seconds an ADD waits for the daemon, 0 to 60. A daemon that is stuck is awaited for at least 5. No effect with scope `machine`.",
        Route::KEYS,
        "ipam.resolvConf | path | none | A file in the format of resolv.conf(5); its settings go into the result.
        ipam.dataDir | path | `/var/lib/cni/cluster-local` | The parent of the networks' directories. The networks of a realm need one.",
        requested::KEYS,
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        let Document { ipam, runtime_config } = cx.config.decode()?;
        self.sticky = sticky::read(&ipam.sticky)?;
        sticky::read_takeover(&ipam.takeover)?;
        let keys: Vec<&str> = self.sticky.iter().map(String::as_str).collect();
        self.allocation = AllocationConf::read(cx, &keys)?;
        self.scope = Scope::read(&ipam.scope)?;
        let realm = realm(&ipam.realm, "ipam.realm")?;
        let spare = at_most(MOST_SPARE, ipam.spare, "ipam.spare")?;
        self.terms = Blocks::new(realm, vec![], spare.map_or(DEFAULT_SPARE, |spare| spare as u32));
        let patience = at_most(MOST_PATIENCE, ipam.patience, "ipam.patience")?;
        self.patience = Duration::from_secs(patience.unwrap_or(DEFAULT_PATIENCE));
        let mut excluded = vec![];
        let lists =
            [("runtimeConfig.ipRanges", runtime_config.ip_ranges), ("ipam.ranges", ipam.ranges)];
        for (at, sets) in &lists {
            for (i, ranges) in sets.iter().enumerate() {
                for (j, range) in ranges.iter().enumerate() {
                    excluded.extend(spans(&range.exclude, &format!("{at}[{i}][{j}]"), span)?);
                }
            }
        }
        if ipam.subnet.is_some() {
            excluded.extend(spans(&ipam.exclude, "ipam", span)?);
        }
        self.divide(&excluded, block_size(&ipam.block_size)?)
    }
}

/// The keys that are decoded beside those of [`AllocationConf`]; `KEYS` describes them.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    ipam: Ipam,
    runtime_config: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Ipam {
    subnet: Option<IgnoredAny>,
    exclude: Vec<String>,
    ranges: Vec<Vec<Exclusions>>,
    realm: String,
    scope: String,
    block_size: Value,
    spare: Option<u64>,
    sticky: String,
    takeover: String,
    patience: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConfig {
    ip_ranges: Vec<Vec<Exclusions>>,
}

/// What a range has beside the keys of [`RangeConf`].
#[derive(Default, Deserialize)]
#[serde(default)]
struct Exclusions {
    exclude: Vec<String>,
}

impl Conf {
    /// Fills in the pools of the sets.
    fn divide(&mut self, excluded: &[Span], size: BlockSize) -> Result<()> {
        for (number, set) in self.allocation.sets.iter().enumerate() {
            let whole = Pool::new(set, excluded, size).ok_or_else(|| {
                let problem =
                    format_args!("every address of range set {number} ({set}) is excluded");
                Error::config("ipam.ranges", problem)
                    .expecting("at least one address besides the gateway")
            })?;
            if self.sticky.is_empty() {
                self.terms.pools.push(whole);
                continue;
            }
            let (free, names) = sticky::parts(&whole).ok_or_else(|| {
                let problem = format_args!("range set {number} ({set}) has one address");
                Error::config("ipam.sticky", problem)
                    .expecting("at least two: the last eighth is kept for names")
            })?;
            self.terms.pools.push(free);
            self.terms.names.push(names);
        }
        Ok(())
    }

    /// Where the leases are.
    pub fn place(&self, cx: &Context<'_>) -> Place {
        match self.scope {
            Scope::Machine => machine_scope::place(cx, &self.terms.realm),
            Scope::Cluster => place(cx),
        }
    }
}

/// Reads the list `exclude` of the object at this path.
pub fn spans(texts: &[String], at: &str, read: impl Fn(&str) -> Option<Span>) -> Result<Vec<Span>> {
    let spans = texts.iter().enumerate().map(|(i, text)| {
        read(text).ok_or_else(|| {
            let problem = format_args!("{text:?} is neither an address nor a subnet");
            Error::config(format_args!("{at}.exclude[{i}]"), problem)
                .expecting("one as in 10.88.7.7 or 10.88.9.0/24")
        })
    });
    spans.collect()
}

/// An address, or a subnet; host bits count for nothing.
pub fn span(text: &str) -> Option<Span> {
    let net = match text.contains('/') {
        true => addr::parse_cidr(text).ok()?,
        false => addr::parse_ip(text).ok()??.into(),
    };
    Some(Span::of_prefix(net))
}

/// The realm at this path.
pub fn realm(text: &str, path: &str) -> Result<Name> {
    if text.is_empty() {
        return Ok(Name::default());
    }
    if text.len() > LONGEST_REALM {
        let problem = format_args!("{text:?} has {} bytes", text.len());
        return Err(Error::config(path, problem).expecting("at most 63"));
    }
    text.parse().map_err(|e: String| Error::config(path, e))
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

fn at_most(most: u64, written: Option<u64>, path: &str) -> Result<Option<u64>> {
    match written {
        Some(number) if number > most => Err(Error::out_of_range(path, number, 0..=most as i64)),
        _ => Ok(written),
    }
}

/// Every place where the network may have leases: the scope and the realm may have been others at ADD.
/// That of scope `cluster` comes first.
pub fn places(cx: &Context<'_>) -> Vec<Result<Place>> {
    let mut places = vec![Ok(place(cx))];
    match machine_scope::realms(&directory(cx)) {
        Ok(realms) => {
            places.extend(realms.iter().map(|realm| Ok(machine_scope::place(cx, realm))));
        }
        Err(error) => places.push(Err(error)),
    }
    places
}

/// The place of the network with scope `cluster`, from `name` and `ipam.dataDir` alone, so that DEL and GC
/// work even if the rest of the configuration is invalid.
fn place(cx: &Context<'_>) -> Place {
    Place::new(&directory(cx), &cx.config.name, cx.deadline()).of_this_boot()
}

/// The parent of the networks' directories.
pub fn directory(cx: &Context<'_>) -> PathBuf {
    conf::directory(cx.config, DEFAULT_DATA_DIR)
}

/// The names in a directory; none if there is none.
pub fn names_in(dir: &Path) -> Result<Vec<String>> {
    let paths = plain_file::entries(dir).map_err(Error::at_path("open", dir))?;
    Ok(paths.iter().filter_map(|path| path.file_name()?.to_str().map(str::to_owned)).collect())
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
