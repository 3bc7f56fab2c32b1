//! Address ranges: which addresses may be allocated. Pure arithmetic; the rules are the
//! reference's.
//!
//! The range sets of a configuration: no two have a common address.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use crate::cni::addr;
use crate::error::{Error, Result};
use crate::family::{Family, address, number};

/// A range as configured.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RangeConf {
    /// The subnet that contains the addresses. Required.
    #[serde(with = "addr::opt_cidr")]
    pub subnet: Option<IpNet>,
    /// The first address to allocate; default the one after the subnet's own.
    #[serde(with = "addr::ip")]
    pub range_start: Option<IpAddr>,
    /// The last address to allocate; default the one before an IPv4 subnet's broadcast address, or
    /// the last of an IPv6 subnet.
    #[serde(with = "addr::ip")]
    pub range_end: Option<IpAddr>,
    /// The gateway, which is never allocated; default the address after the subnet's own. It may be
    /// outside the subnet.
    #[serde(with = "addr::ip")]
    pub gateway: Option<IpAddr>,
}

impl RangeConf {
    /// The rows of `ipam.ranges` for `KEYS` of plugins.
    pub const KEYS: &'static str = "ipam.ranges | list of lists | required, or `ipam.subnet` | Range sets. One address is taken from each; the ranges of a set are of one family and do not overlap, nor do sets.
        ipam.ranges[][].subnet | subnet | required | The subnet of the range, of at least four addresses, without host bits.
        ipam.ranges[][].rangeStart | address | the one after the subnet's own | The first address of the range.
        ipam.ranges[][].rangeEnd | address | the one before the broadcast address, the last of an IPv6 subnet | The last address of the range.
        ipam.ranges[][].gateway | address | the one after the subnet's own | The gateway, returned with each address and never allocated. It may be outside the subnet.
        runtimeConfig.ipRanges | list of lists | none | Range sets that come before the configured ones; capability `ipRanges`.";

    /// The rows of the single range of the first versions.
    pub const KEYS_OF_SINGLE: &'static str = "ipam.subnet | subnet | none | A single range, as in the first versions. It comes before `ranges`.
        ipam.rangeStart | address | as above | Of the single range; no effect without `ipam.subnet`.
        ipam.rangeEnd | address | as above | Of the single range.
        ipam.gateway | address | as above | Of the single range.";
}

/// Addresses of one subnet, from `start` to `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The subnet.
    pub subnet: IpNet,
    /// The first address.
    pub start: IpAddr,
    /// The last address.
    pub end: IpAddr,
    /// The gateway, which is returned with each address.
    pub gateway: IpAddr,
}

impl Range {
    /// Checks a range and fills in its defaults. `at` is its path in the configuration. The sentences
    /// are the reference's.
    pub fn new(conf: &RangeConf, at: &str) -> Result<Range> {
        let subnet = conf.subnet.ok_or_else(|| {
            Error::missing(format_args!("{at}.subnet"), "a subnet as in 10.1.0.0/16")
                .saying("IP <nil> not v4 nor v6")
        })?;
        let (length, network) = (subnet.prefix_len(), subnet.network());
        if length > subnet.max_prefix_len() - 2 {
            return Err(invalid(at, "subnet", format!("{subnet} is too small"))
                .expecting("at least 4 addresses")
                .saying(format_args!("Network {subnet} too small to allocate from")));
        }
        if subnet.addr() != network {
            return Err(invalid(at, "subnet", format!("{subnet} has host bits set"))
                .expecting(format_args!("{}", subnet.trunc()))
                .saying(format_args!(
                    "Network has host bits set. For a subnet mask of length {length} the network address is {network}"
                )));
        }
        let second = address(Family::of(network), number(network) + 1);
        let last = subnet.broadcast();
        let usual_end = match last {
            IpAddr::V4(_) => address(Family::V4, number(last) - 1),
            IpAddr::V6(_) => last, // IPv6 has no broadcast address; ipnet uses the name for the last one
        };
        let start = conf.range_start.unwrap_or(second);
        let end = conf.range_end.unwrap_or(usual_end);
        for (key, name, ip) in [("rangeStart", "RangeStart", start), ("rangeEnd", "RangeEnd", end)]
        {
            if !subnet.contains(&ip) {
                return Err(invalid(at, key, format!("{ip} is outside subnet {subnet}"))
                    .saying(format_args!("{name} {ip} not in network {subnet}")));
            }
        }
        if start > end && conf.range_end.is_none() {
            let problem = format!("{start} is after the last address {end}");
            return Err(invalid(at, "rangeStart", problem));
        }
        if start > end {
            let problem = format!("{end} is before the first address {start}");
            let (name, ip) = match conf.range_start {
                Some(_) => ("RangeStart", start),
                None => ("RangeEnd", end),
            };
            return Err(invalid(at, "rangeEnd", problem)
                .saying(format_args!("{name} {ip} not in network {subnet}")));
        }
        Ok(Range { subnet, start, end, gateway: conf.gateway.unwrap_or(second) })
    }

    /// Whether the address is in the range.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.subnet.contains(&ip) && (self.start..=self.end).contains(&ip)
    }

    /// Whether the address may be allocated from this range.
    pub fn allocates(&self, ip: IpAddr) -> bool {
        self.contains(ip) && ip != self.gateway
    }

    /// How many addresses may be allocated; the largest number for more.
    pub fn size(&self) -> u64 {
        let last = number(self.end) - number(self.start);
        let count = last.saturating_add(u128::from(!self.contains(self.gateway)));
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    fn overlaps(&self, other: &Range) -> bool {
        self.contains(other.start) || self.contains(other.end) || other.contains(self.start)
    }

    fn family(&self) -> Family {
        Family::of(self.start)
    }

    /// The address with the subnet's prefix length, as results contain it.
    pub fn with_prefix(&self, ip: IpAddr) -> IpNet {
        IpNet::new(ip, self.subnet.prefix_len()).unwrap_or(self.subnet) // of one family, so the length is in bounds
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.start, self.end)
    }
}

/// The error for a key of the range at the path `at`.
fn invalid(at: &str, key: &str, problem: String) -> Error {
    Error::config(format_args!("{at}.{key}"), problem)
}

/// Ranges of one family, from which an attachment gets one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

impl RangeSet {
    /// Checks a set. `at` is its path in the configuration.
    pub fn new(confs: &[RangeConf], at: &str) -> Result<RangeSet> {
        let ranges = (0..).zip(confs).map(|(i, conf)| Range::new(conf, &format!("{at}[{i}]")));
        RangeSet::of(ranges.collect::<Result<_>>()?, at)
    }

    /// A set of checked ranges.
    pub fn of(ranges: Vec<Range>, at: &str) -> Result<RangeSet> {
        let Some(first) = ranges.first() else {
            return Err(Error::config(at, "empty")
                .expecting("at least one range with a subnet")
                .saying("empty range set"));
        };
        for (i, range) in ranges.iter().enumerate() {
            let at = format!("{at}[{i}]");
            if range.family() != first.family() {
                let problem = format!("{} and {} are of two families", first.subnet, range.subnet);
                return Err(Error::config(at, problem).saying("mixed address families"));
            }
            if let Some(other) = ranges[..i].iter().find(|other| other.overlaps(range)) {
                return Err(Error::config(at, format_args!("{range} overlaps with {other}"))
                    .saying(format_args!("subnets {other} and {range} overlap")));
            }
        }
        Ok(RangeSet(ranges))
    }

    /// The family of its addresses.
    pub fn family(&self) -> Option<Family> {
        self.0.first().map(Range::family)
    }

    /// The range that contains the address.
    pub fn range_of(&self, ip: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(ip))
    }

    /// Whether a range contains the address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.range_of(ip).is_some()
    }

    /// The ranges, in the order of the configuration.
    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    /// Whether any address is in both sets.
    pub fn overlaps(&self, other: &RangeSet) -> bool {
        self.0.iter().any(|range| other.0.iter().any(|other| range.overlaps(other)))
    }

    /// Every address that may be allocated, once, in the order of the round robin: from the one
    /// after `last`, or from the first if `last` is not in the set. Gateways are skipped.
    pub fn candidates(&self, last: Option<IpAddr>) -> Candidates<'_> {
        let place = last.and_then(|ip| {
            let range = self.0.iter().position(|range| range.contains(ip))?;
            Some(Place { range, number: number(ip) })
        });
        Candidates { ranges: &self.0, place, first: None, done: false }
    }
}

impl fmt::Display for RangeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.0.iter().map(Range::to_string).collect();
        f.write_str(&ranges.join(","))
    }
}

/// The iteration over a range set. It can be as long as an IPv6 subnet is large.
pub struct Candidates<'a> {
    ranges: &'a [Range],
    place: Option<Place>,
    first: Option<Place>,
    done: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    range: usize,
    number: u128,
}

impl Candidates<'_> {
    /// Moves to the next place, that is the first of the next range after the last of a range, in a
    /// circle; None once all have been visited.
    fn advance(&mut self) -> Option<Place> {
        if self.done {
            return None;
        }
        let start_of = |range: usize| Place { range, number: number(self.ranges[range].start) };
        let place = match self.place {
            None => start_of(0),
            Some(place) if place.number == number(self.ranges[place.range].end) => {
                start_of((place.range + 1) % self.ranges.len())
            }
            Some(Place { range, number }) => Place { range, number: number + 1 },
        };
        self.place = Some(place);
        self.done = self.first == Some(place);
        self.first.get_or_insert(place);
        Some(place).filter(|_| !self.done)
    }
}

impl Iterator for Candidates<'_> {
    type Item = IpAddr;

    fn next(&mut self) -> Option<IpAddr> {
        while let Some(place) = self.advance() {
            let range = &self.ranges[place.range];
            let ip = address(range.family(), place.number);
            if ip != range.gateway {
                return Some(ip);
            }
        }
        None
    }
}

/// Range sets without common addresses, each with its path in the configuration.
#[derive(Default)]
pub struct Sets(Vec<(String, RangeSet)>);

impl Sets {
    /// Adds the sets of the list at the path `at`.
    pub fn add_list(&mut self, at: &str, confs: &[Vec<RangeConf>]) -> Result<()> {
        for (i, conf) in confs.iter().enumerate() {
            let at = format!("{at}[{i}]");
            let set = RangeSet::new(conf, &at);
            self.add(at, set)?;
        }
        Ok(())
    }

    /// Adds a set that was checked, or the error of its check.
    pub fn add(&mut self, at: String, set: Result<RangeSet>) -> Result<()> {
        let number = self.0.len();
        let set = set.map_err(|e| e.context(format_args!("invalid range set {number}")))?;
        let mut others = self.0.iter().enumerate();
        if let Some((other, (other_at, other_set))) = others.find(|(_, (_, of))| of.overlaps(&set))
        {
            let problem = format_args!("{set} overlaps with {other_set} of {other_at}");
            return Err(Error::config(at, problem)
                .saying(format_args!("range set {other} overlaps with {number}")));
        }
        self.0.push((at, set));
        Ok(())
    }

    /// The sets, at least one.
    pub fn into_sets(self) -> Result<Vec<RangeSet>> {
        if self.0.is_empty() {
            return Err(Error::config("ipam.ranges", "there is none")
                .expecting("at least one set with a range with a subnet")
                .supplied_by("ipRanges")
                .saying("no IP ranges specified"));
        }
        Ok(self.0.into_iter().map(|(_, set)| set).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
