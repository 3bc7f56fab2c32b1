//! The configuration of `bond`.

use std::net::Ipv4Addr;

use serde::Deserialize;

use super::BONDS;
use super::miimon::Miimon;
use crate::error::{Error, Expected, Result, Word};
use crate::net::netlink::{Bond, BondMode, FailOverMac, Link, LinkKind, LinkSpec, XmitHashPolicy};
use crate::plugin::{Context, PluginConf};
use crate::steps::container_link::{Birthplace, Plan};
use crate::steps::dns::DnsConf;
use crate::steps::ipam;
use crate::steps::router_advertisements::AcceptRa;

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
    fail_over_mac: i64,
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
        refuse_own_ipam(cx)?;
        self.validate_links()?;
        self.validate_mtu()?;
        self.bond = self.settings()?;
        Ok(())
    }

    fn validate_add(&self, cx: &Context<'_>) -> Result<()> {
        ipam::require_type_or_layer_two(cx)
    }
}

fn refuse_own_ipam(cx: &Context<'_>) -> Result<()> {
    if cx.config.ipam_type()? != BONDS.plugin {
        return Ok(());
    }
    Err(Error::config("ipam.type", "\"bond\" allocates no addresses")
        .expecting("the name of an ipam plugin")
        .saying("bond is not a suitable IPAM type"))
}

impl Conf {
    fn validate_links(&self) -> Result<()> {
        if let Some(index) = self.links.iter().position(|link| link.name.is_empty()) {
            return Err(nameless(index));
        }
        let number = self.links.len();
        if number < 2 {
            return Err(too_few(number));
        }
        self.names().enumerate().try_for_each(|(index, name)| self.refuse_repeated(index, name))
    }

    fn refuse_repeated(&self, index: usize, name: &str) -> Result<()> {
        match self.names().position(|other| other == name) {
            Some(first) if first < index => Err(repeated(index, name, first)),
            _ => Ok(()),
        }
    }

    /// The names of the links.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.links.iter().map(|link| link.name.as_str())
    }

    fn validate_mtu(&self) -> Result<()> {
        if self.mtu == 0 || (MTU_LEAST..=MTU_MOST).contains(&self.mtu) {
            return Ok(());
        }
        let error = Error::out_of_range("mtu", self.mtu, [0..=0, MTU_LEAST..=MTU_MOST]);
        Err(error
            .saying(format_args!("invalid bond MTU value ({}), should be 68 or bigger", self.mtu)))
    }

    /// The MTU of the bond on these links; None for the kernel's, 1500.
    pub fn mtu_on(&self, links: &[Link]) -> Result<Option<u32>> {
        if self.mtu == 0 {
            let least = links.iter().map(|link| link.mtu).min();
            return Ok(least.filter(|mtu| *mtu < MTU_USUAL));
        }
        match links.iter().find(|link| i64::from(link.mtu) < self.mtu) {
            Some(smaller) => Err(self.above(smaller)),
            None => Ok(u32::try_from(self.mtu).ok()),
        }
    }

    fn above(&self, link: &Link) -> Error {
        let Link { name, mtu: most, .. } = link;
        let expected = format_args!("{MTU_LEAST} to {most}, the MTU of {name:?}, or 0");
        Error::out_of_range("mtu", self.mtu, expected).saying(format_args!(
            "invalid MTU ({}). The requested MTU for bond is bigger than that of the slave link ({name}), slave MTU ({most})",
            self.mtu
        ))
    }

    /// Whether the bond's hardware address changes with its active link.
    pub fn follows_active_link(&self) -> bool {
        self.fail_over_mac == 1
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
        Plan { links: BONDS, birthplace: Birthplace::Container, spec, accept_ra }
    }

    fn settings(&self) -> Result<Bond> {
        let mode = self.read_mode()?;
        self.validate_primary()?;
        Ok(Bond {
            mode,
            miimon: Some(self.read_miimon()?),
            fail_over_mac: self.read_fail_over_mac()?,
            xmit_hash_policy: self.read_xmit_hash_policy()?,
            all_ports_active: self.read_all_slaves_active()?,
            tlb_dynamic_lb: self.read_tlb_dynamic_lb()?,
            lacp_rate: self.of_lacp("lacpRate", &self.lacp_rate)?,
            ad_select: self.of_lacp("adSelect", &self.ad_select)?,
            min_links: self.read_min_links()?,
            arp_interval: Some(self.arp_interval).filter(|interval| *interval != 0),
            arp_ip_targets: self.read_targets()?,
            primary: None,
        })
    }

    fn read_mode(&self) -> Result<BondMode> {
        let mode = &self.mode;
        BondMode::of(mode).ok_or_else(|| {
            unknown("mode", mode, BondMode::WORDS)
                .saying(format_args!("bonding mode ({mode}) is not supported"))
        })
    }

    fn read_fail_over_mac(&self) -> Result<Option<FailOverMac>> {
        let number = self.fail_over_mac;
        match usize::try_from(number).ok().and_then(|at| FailOverMac::WORDS.get(at)) {
            Some(word) => Ok(FailOverMac::of(word).filter(|_| number != 0)),
            None => Err(Error::out_of_range("failOverMac", number, 0..=2)
                .saying(format_args!("FailOverMac mode should be 0, 1 or 2 actual: {number}"))),
        }
    }

    fn read_xmit_hash_policy(&self) -> Result<Option<XmitHashPolicy>> {
        let policy = &self.xmit_hash_policy;
        word_if_given("xmitHashPolicy", policy).map_err(|e| {
            e.saying(format_args!("xmitHashPolicy is not supported, actual: {policy}"))
        })
    }

    fn read_all_slaves_active(&self) -> Result<Option<bool>> {
        switch("allSlavesActive", self.all_slaves_active)
    }

    fn read_tlb_dynamic_lb(&self) -> Result<Option<bool>> {
        let on = switch("tlbDynamicLb", self.tlb_dynamic_lb)?;
        if on.is_some() && !["balance-tlb", "balance-alb"].contains(&self.mode.as_str()) {
            let mode = &self.mode;
            return Err(self.of_other_modes("tlbDynamicLb", "balance-tlb or balance-alb").saying(format_args!(
                "tlbDynamicLb is only supported in balance-tlb or balance-alb mode, actual: {mode}"
            )));
        }
        Ok(on)
    }

    /// One of the words of a setting of LACP, if given.
    fn of_lacp<T: Word>(&self, path: &'static str, word: &str) -> Result<Option<T>> {
        let value = word_if_given(path, word)?;
        self.require_lacp(path, value.is_some())?;
        Ok(value)
    }

    fn read_min_links(&self) -> Result<Option<u32>> {
        let links = Some(self.min_links).filter(|links| *links != 0);
        self.require_lacp("minLinks", links.is_some())?;
        Ok(links)
    }

    fn require_lacp(&self, path: &'static str, is_given: bool) -> Result<()> {
        if is_given && self.mode != "802.3ad" {
            return Err(self.of_other_modes(path, "802.3ad"));
        }
        Ok(())
    }

    /// The error for a key that has an effect in other modes only.
    fn of_other_modes(&self, path: &'static str, modes: &str) -> Error {
        let problem = format_args!("it has no effect in mode {:?}", self.mode);
        Error::config(path, problem).expecting(format_args!("mode {modes}, or no such key"))
    }

    fn validate_primary(&self) -> Result<()> {
        let primary = &self.primary;
        if primary.is_empty() {
            return Ok(());
        }
        if !["active-backup", "balance-tlb", "balance-alb"].contains(&self.mode.as_str()) {
            return Err(self.of_other_modes("primary", "active-backup, balance-tlb or balance-alb"));
        }
        if self.names().any(|name| name == primary) { Ok(()) } else { Err(foreign(primary)) }
    }

    /// The looks at the carriers, which the kernel does not do beside ARP requests.
    fn read_miimon(&self) -> Result<u32> {
        let given = self.miimon.milliseconds()?;
        if self.arp_interval == 0 {
            return Ok(given.unwrap_or(MIIMON));
        }
        match given {
            None | Some(0) => Ok(0),
            Some(_) => Err(Error::exclusive("arpInterval", "miimon")),
        }
    }

    fn read_targets(&self) -> Result<Vec<Ipv4Addr>> {
        let number = self.arp_ip_targets.len();
        if self.arp_interval == 0 && number != 0 {
            return Err(Error::missing("arpInterval", "milliseconds, beside arpIpTargets"));
        }
        if self.arp_interval != 0 {
            self.require_arp(number)?;
        }
        self.arp_ip_targets.iter().enumerate().map(|(index, text)| target(index, text)).collect()
    }

    fn require_arp(&self, targets: usize) -> Result<()> {
        if ["802.3ad", "balance-tlb", "balance-alb"].contains(&self.mode.as_str()) {
            return Err(self.of_other_modes(
                "arpInterval",
                "balance-rr, active-backup, balance-xor or broadcast",
            ));
        }
        match targets {
            1..=MOST_TARGETS => Ok(()),
            0 => Err(Error::missing("arpIpTargets", "IPv4 addresses, beside arpInterval")),
            _ => Err(Error::config("arpIpTargets", format_args!("{targets} addresses"))
                .expecting(format_args!("{MOST_TARGETS} at most"))),
        }
    }
}

fn nameless(index: usize) -> Error {
    Error::missing(format_args!("links[{index}].name"), "the name of a link")
        .saying("failed to find link name")
}

fn too_few(number: usize) -> Error {
    Error::config("links", format_args!("{number} given"))
        .expecting("two at least")
        .saying(format_args!("bonding requires at least two links, we have {number}"))
}

fn repeated(index: usize, name: &str, first: usize) -> Error {
    Error::config(format_args!("links[{index}].name"), format_args!("{name:?} is links[{first}]"))
        .expecting("another link")
}

fn foreign(primary: &str) -> Error {
    Error::config("primary", format_args!("{primary:?} is not one of links"))
        .expecting("the name of one")
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

fn target(index: usize, text: &str) -> Result<Ipv4Addr> {
    text.parse().map_err(|_| {
        let path = format!("arpIpTargets[{index}]");
        Error::config(path, format_args!("{text:?} is not an IPv4 address"))
            .expecting("one like 10.0.0.1")
    })
}
