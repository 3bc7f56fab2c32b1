//! The configuration of `bond`.

use std::fmt;
use std::net::Ipv4Addr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

use super::BONDS;
use crate::error::{Error, Expected, Result, Word};
use crate::net::netlink::{Bond, BondMode, FailOverMac, Link, LinkKind, LinkSpec};
use crate::plugin::{Context, PluginConf};
use crate::steps::container_link::{NetnsOf, Plan};
use crate::steps::dns::DnsConf;
use crate::steps::ipam;
use crate::steps::settings::AcceptRa;

/// The smallest MTU of a bond.
const MTU_LEAST: i64 = 68;
/// The MTU of a bond, unless one is given.
const MTU_USUAL: u32 = 1500;
/// The largest MTU of a bond.
const MTU_MOST: i64 = 65535;
/// The interval of looks at the carriers, unless one is given: without any, a bond does not notice
/// that a link has lost its carrier.
const MIIMON: u32 = 100;
/// How many addresses of `arpIpTargets` a bond takes (BOND_MAX_ARP_TARGETS).
const MOST_TARGETS: usize = 16;

/// The keys of the configuration, which `KEYS` describes.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    mode: String,
    miimon: Miimon,
    links: Vec<LinkConf>,
    pub(super) links_in_container: bool,
    mtu: i64,
    pub(super) fail_over_mac: i64,
    all_slaves_active: Option<i64>,
    tlb_dynamic_lb: Option<i64>,
    xmit_hash_policy: String,
    lacp_rate: String,
    ad_select: String,
    min_links: u32,
    primary: String,
    arp_interval: u32,
    arp_ip_targets: Vec<String>,
    #[serde(rename = "acceptRA")]
    pub(super) accept_ra: AcceptRa,
    pub(super) dns: DnsConf,
    /// What these keys say.
    #[serde(skip)]
    bond: Bond,
}

/// A link of the bond.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LinkConf {
    name: String,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "mode | string | required | `balance-rr`, `active-backup`, `balance-xor`, `broadcast`, `802.3ad`, `balance-tlb` or `balance-alb`, as in the kernel's [documentation](https://docs.kernel.org/networking/bonding.html).
        links | list | required | The links, two at least, each with its `name`.
        links[].name | string | required | Name or altname of a link of the host, or of the container with `linksInContainer`.
        linksInContainer | boolean | false | The links are the container's. Otherwise they are the host's and move into the container, with their names.
        miimon | integer or string | 100 | How often the bond looks at the carriers of its links, in milliseconds. With `arpInterval` it is 0.
        mtu | integer | 0 | MTU in bytes, 68 to the least of the links'. 0: 1500, or the least of the links' if that is smaller.
        failOverMac | integer | 0 | 0: all links have the bond's hardware address. 1: the bond has that of its active link. 2: a link gets the bond's while it is active.
        primary | string | none | The link, one of `links`, that is used while it works. In `active-backup`, `balance-tlb` and `balance-alb`.
        xmitHashPolicy | string | `layer2` | What chooses the link of a packet: `layer2`, `layer3+4`, `layer2+3`, `encap2+3`, `encap3+4` or `vlan+srcmac`.
        allSlavesActive | integer | 0 | 1: links that are not active receive as well.
        tlbDynamicLb | integer | 1 | 0: flows do not move by load. In `balance-tlb` and `balance-alb`.
        lacpRate | string | `slow` | How often the other side sends LACPDUs: `slow` or `fast`. In `802.3ad`.
        adSelect | string | `stable` | How one of several aggregators is chosen: `stable`, `bandwidth` or `count`. In `802.3ad`.
        minLinks | integer | 0 | With how many links the bond has a carrier. In `802.3ad`.
        arpInterval | integer | 0 | How often the bond asks for `arpIpTargets` by ARP, in milliseconds; 0 for never. In `balance-rr`, `active-backup`, `balance-xor` and `broadcast`. Excludes `miimon`.
        arpIpTargets | list of strings | none | 1 to 16 IPv4 addresses. A link over which none of them is heard does not work.",
        AcceptRa::KEY,
        DnsConf::KEYS,
        "ipam.type | string | none | The IPAM plugin. Without it the bond is up and has no addresses.",
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        if cx.config.ipam_type()? == BONDS.plugin {
            return Err(Error::config("ipam.type", "\"bond\" allocates no addresses")
                .expecting("the name of an ipam plugin")
                .saying("bond is not a suitable IPAM type"));
        }
        let names: Vec<&str> = self.names().collect();
        if let Some(index) = names.iter().position(|name| name.is_empty()) {
            return Err(Error::missing(format_args!("links[{index}].name"), "the name of a link")
                .saying("failed to find link name"));
        }
        let number = names.len();
        if number < 2 {
            return Err(Error::config("links", format_args!("{number} given"))
                .expecting("two at least")
                .saying(format_args!("bonding requires at least two links, we have {number}")));
        }
        for (index, name) in names.iter().enumerate() {
            if let Some(first) = names[..index].iter().position(|other| other == name) {
                let path = format!("links[{index}].name");
                return Err(Error::config(path, format_args!("{name:?} is links[{first}]"))
                    .expecting("another link"));
            }
        }
        let mtu = self.mtu;
        if mtu != 0 && !(MTU_LEAST..=MTU_MOST).contains(&mtu) {
            return Err(Error::out_of_range("mtu", mtu, [0..=0, MTU_LEAST..=MTU_MOST])
                .saying(format_args!("invalid bond MTU value ({mtu}), should be 68 or bigger")));
        }
        self.bond = self.settings()?;
        Ok(())
    }

    fn validate_add(&self, cx: &Context<'_>) -> Result<()> {
        ipam::require_type_or_layer_two(cx)
    }
}

impl Conf {
    /// What the keys say of the bond. Each key is checked, also against the mode.
    fn settings(&self) -> Result<Bond> {
        let word = &self.mode;
        let mode = BondMode::of(word).ok_or_else(|| {
            unknown("mode", word, BondMode::WORDS)
                .saying(format_args!("bonding mode ({word}) is not supported"))
        })?;
        if !self.primary.is_empty() {
            self.require_mode("primary", &["active-backup", "balance-tlb", "balance-alb"])?;
            if !self.names().any(|name| name == self.primary) {
                let problem = format_args!("{:?} is not one of links", self.primary);
                return Err(Error::config("primary", problem).expecting("the name of one"));
            }
        }
        let miimon = self.miimon()?;
        let number = self.fail_over_mac;
        let fail_over_mac = usize::try_from(number).ok().and_then(|at| FailOverMac::WORDS.get(at));
        let fail_over_mac = fail_over_mac.ok_or_else(|| {
            Error::out_of_range("failOverMac", number, 0..=2)
                .saying(format_args!("FailOverMac mode should be 0, 1 or 2 actual: {number}"))
        })?;
        let policy = &self.xmit_hash_policy;
        let xmit_hash_policy = word_if_given("xmitHashPolicy", policy).map_err(|e| {
            e.saying(format_args!("xmitHashPolicy is not supported, actual: {policy}"))
        })?;
        let all_ports_active = switch("allSlavesActive", self.all_slaves_active)?;
        let tlb_dynamic_lb = switch("tlbDynamicLb", self.tlb_dynamic_lb)?;
        if tlb_dynamic_lb.is_some() {
            self.require_mode("tlbDynamicLb", &["balance-tlb", "balance-alb"]).map_err(|e| {
                e.saying(format_args!(
                    "tlbDynamicLb is only supported in balance-tlb or balance-alb mode, actual: {word}"
                ))
            })?;
        }
        let lacp_rate = self.word_of_lacp("lacpRate", &self.lacp_rate)?;
        let ad_select = self.word_of_lacp("adSelect", &self.ad_select)?;
        if self.min_links != 0 {
            self.require_mode("minLinks", &["802.3ad"])?;
        }
        Ok(Bond {
            mode,
            miimon: Some(miimon),
            fail_over_mac: FailOverMac::of(fail_over_mac).filter(|_| number != 0),
            xmit_hash_policy,
            all_ports_active,
            tlb_dynamic_lb,
            lacp_rate,
            ad_select,
            min_links: Some(self.min_links).filter(|links| *links != 0),
            arp_interval: Some(self.arp_interval).filter(|interval| *interval != 0),
            arp_ip_targets: self.arp_targets()?,
            primary: None,
        })
    }

    /// One of the words of a setting of LACP, if given.
    fn word_of_lacp<T: Word>(&self, path: &str, word: &str) -> Result<Option<T>> {
        let value = word_if_given(path, word)?;
        if value.is_some() {
            self.require_mode(path, &["802.3ad"])?;
        }
        Ok(value)
    }

    /// Requires one of the modes for a key that has an effect in these only.
    fn require_mode(&self, path: &str, modes: &[&str]) -> Result<()> {
        let mode = self.mode.as_str();
        if modes.contains(&mode) {
            return Ok(());
        }
        let expected = match modes {
            [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
            modes => modes.concat(),
        };
        Err(Error::config(path, format_args!("it has no effect in mode {mode:?}"))
            .expecting(format_args!("mode {expected}, or no such key")))
    }

    /// The looks at the carriers, which the kernel does not do beside ARP requests.
    fn miimon(&self) -> Result<u32> {
        let given = self.miimon.milliseconds()?;
        if self.arp_interval == 0 {
            return Ok(given.unwrap_or(MIIMON));
        }
        match given {
            None | Some(0) => Ok(0),
            Some(_) => Err(Error::exclusive("arpInterval", "miimon")),
        }
    }

    fn arp_targets(&self) -> Result<Vec<Ipv4Addr>> {
        let number = self.arp_ip_targets.len();
        if self.arp_interval != 0 {
            let modes = ["balance-rr", "active-backup", "balance-xor", "broadcast"];
            self.require_mode("arpInterval", &modes)?;
        }
        match (self.arp_interval, number) {
            (0, 0) | (1.., 1..=MOST_TARGETS) => (),
            (0, _) => {
                return Err(Error::missing("arpInterval", "milliseconds, beside arpIpTargets"));
            }
            (_, 0) => {
                return Err(Error::missing("arpIpTargets", "IPv4 addresses, beside arpInterval"));
            }
            _ => {
                return Err(Error::config("arpIpTargets", format_args!("{number} addresses"))
                    .expecting(format_args!("{MOST_TARGETS} at most")));
            }
        }
        let target = |(index, text): (usize, &String)| {
            text.parse().map_err(|_| {
                let path = format!("arpIpTargets[{index}]");
                Error::config(path, format_args!("{text:?} is not an IPv4 address"))
                    .expecting("one like 10.0.0.1")
            })
        };
        self.arp_ip_targets.iter().enumerate().map(target).collect()
    }

    /// The MTU of the bond on these links; None for the kernel's, 1500.
    pub fn mtu_on(&self, links: &[Link]) -> Result<Option<u32>> {
        if self.mtu == 0 {
            let least = links.iter().map(|link| link.mtu).min();
            return Ok(least.filter(|mtu| *mtu < MTU_USUAL));
        }
        let smaller = links.iter().find(|link| i64::from(link.mtu) < self.mtu);
        let Some(Link { name, mtu: most, .. }) = smaller else { return Ok(self.mtu()) };
        let expected = format_args!("{MTU_LEAST} to {most}, the MTU of {name:?}, or 0");
        Err(Error::out_of_range("mtu", self.mtu, expected).saying(format_args!(
            "invalid MTU ({}). The requested MTU for bond is bigger than that of the slave link ({name}), slave MTU ({most})",
            self.mtu
        )))
    }

    /// The names of the links.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.links.iter().map(|link| link.name.as_str())
    }

    /// How the bond distributes packets.
    pub fn mode(&self) -> BondMode {
        self.bond.mode
    }

    /// The configured MTU, if any.
    pub fn mtu(&self) -> Option<u32> {
        u32::try_from(self.mtu).ok().filter(|mtu| *mtu != 0)
    }

    /// The bond of these ports, which are in the container.
    pub fn plan(&self, ports: &[Link], mtu: Option<u32>) -> Plan {
        let primary = self.names().position(|name| name == self.primary);
        let primary = primary.and_then(|index| ports.get(index)).map(|port| port.index);
        let kind = LinkKind::Bond(Box::new(Bond { primary, ..self.bond.clone() }));
        let spec = LinkSpec { mtu, ..LinkSpec::of(kind) };
        let accept_ra = self.accept_ra;
        Plan { links: BONDS, created_from: NetnsOf::Container, spec, accept_ra }
    }
}

fn unknown(path: &str, word: &str, words: &'static [&'static str]) -> Error {
    if word.is_empty() {
        return Error::missing(path, Expected::OneOf(words));
    }
    Error::config(path, format_args!("{word:?} is unknown")).expecting(Expected::OneOf(words))
}

/// One of the words of a setting; None for the empty text.
fn word_if_given<T: Word>(path: &str, word: &str) -> Result<Option<T>> {
    if word.is_empty() {
        return Ok(None);
    }
    T::of(word).map(Some).ok_or_else(|| unknown(path, word, T::WORDS))
}

/// A setting that is 0 or 1, if given.
fn switch(path: &str, number: Option<i64>) -> Result<Option<bool>> {
    match number {
        None => Ok(None),
        Some(number @ (0 | 1)) => Ok(Some(number == 1)),
        Some(number) => Err(Error::out_of_range(path, number, 0..=1)
            .saying(format_args!("{path} should be 0 or 1, actual: {number}"))),
    }
}

/// The value, as it is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Miimon {
    /// It is not given.
    #[default]
    Default,
    /// A number.
    Number(i64),
    /// A number in quotes, or another text.
    Text(String),
}

impl Miimon {
    /// The milliseconds, if given; the kernel's limit is an int. Fails for what is no number of them.
    pub fn milliseconds(&self) -> Result<Option<u32>> {
        let number = match self {
            Miimon::Default => return Ok(None),
            Miimon::Number(number) => *number,
            Miimon::Text(text) => text.parse().map_err(|_| {
                Error::config("miimon", format_args!("{text:?} is not a number"))
                    .expecting("milliseconds such as 100 or \"100\"")
                    .saying(format_args!(
                        "failed to convert bondMiimon value ({text}) to an int, error: strconv.Atoi: parsing {text:?}: invalid syntax"
                    ))
            })?,
        };
        let most = i64::from(i32::MAX);
        match u32::try_from(number) {
            Ok(fitting) if number <= most => Ok(Some(fitting)),
            _ => Err(Error::out_of_range("miimon", number, 0..=most)),
        }
    }
}

impl<'de> Deserialize<'de> for Miimon {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Miimon, D::Error> {
        deserializer.deserialize_any(MiimonVisitor)
    }
}

struct MiimonVisitor;

impl Visitor<'_> for MiimonVisitor {
    type Value = Miimon;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an integer, or one in a string")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Miimon, E> {
        Ok(Miimon::Number(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Miimon, E> {
        Ok(Miimon::Number(number))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Miimon, E> {
        Ok(Miimon::Text(text.to_owned()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cni::decode;
    use crate::cni::json::Value;

    /// The original's decoder refuses a number.
    #[test]
    fn a_number_counts_with_and_without_quotes() {
        let read = |json: &str| {
            let miimon: Miimon = decode::from_value(&Value::parse(json.as_bytes()).unwrap())
                .map_err(|e| e.to_string())?;
            miimon.milliseconds().map_err(|e| e.to_string())
        };
        assert_eq!([read("100"), read("\"100\"")], [Ok(Some(100)), Ok(Some(100))]);
        let text = read("\"\"").unwrap_err();
        assert!(text.starts_with("failed to convert bondMiimon value () to an int, error: strconv.Atoi: parsing \"\": invalid syntax; miimon: \"\""), "{text}");
        let text = read("-1").unwrap_err();
        assert_eq!(text, "miimon: -1 is out of range, expected 0 to 2147483647");
        assert!(read("[1]").is_err() && read("1.5").is_err() && read("4294967296").is_err());
    }
}
