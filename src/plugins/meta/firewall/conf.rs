//! The configuration of `firewall`, and what it requests for the addresses of a result.

use std::net::IpAddr;

use serde::{Deserialize, Deserializer};

use super::{firewalld, rules};
use crate::cni::attachment::IfName;
use crate::cni::decode;
use crate::cni::result::AddResult;
use crate::error::{Error, Mistake, Result, Word, warn};
use crate::family::Family;
use crate::net::filter_rule::FilterRule;
use crate::plugin::{Context, PluginConf};

/// The configuration of `firewall`; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    #[serde(deserialize_with = "decode::word")]
    pub(super) backend: Option<Backend>,
    pub(super) iptables_admin_chain_name: ChainName,
    pub(super) firewalld_zone: Zone,
    pub(super) ingress_policy: Policy,
    accept_published_ports: bool,
}

/// `backend`. Default: firewalld if it is running; else nftables, or iptables on a kernel without
/// nf_tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Everything over netlink; programs run only to change tables of iptables-legacy.
    Nftables,
    /// The host's iptables programs.
    Iptables,
    /// firewalld over D-Bus.
    Firewalld,
}

/// `ingressPolicy`: which containers may talk to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// All containers may talk to each other.
    #[default]
    Open,
    /// Containers on different bridges must not talk to each other.
    SameBridge,
    /// Nor must containers on one bridge.
    Isolated,
}

impl Policy {
    /// The word in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Policy::Open => "open",
            Policy::SameBridge => "same-bridge",
            Policy::Isolated => "isolated",
        }
    }
}

/// The longest zone name that can be recorded: in two fields for names of links. firewalld's own
/// limit is 17.
pub const ZONE_MAX: usize = 32;

/// The name of a firewalld zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone(pub String);

impl Default for Zone {
    fn default() -> Zone {
        Zone("trusted".to_owned())
    }
}

/// A chain name that iptables accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainName(pub String);

impl Default for ChainName {
    fn default() -> ChainName {
        ChainName("CNI-ADMIN".to_owned())
    }
}

/// An empty string means that no backend is configured.
impl Word for Option<Backend> {
    const WORDS: &'static [&'static str] = &["nftables", "iptables", "firewalld"];

    fn of(word: &str) -> Option<Option<Backend>> {
        match word {
            "" => Some(None),
            "nftables" => Some(Some(Backend::Nftables)),
            "iptables" => Some(Some(Backend::Iptables)),
            "firewalld" => Some(Some(Backend::Firewalld)),
            _ => None,
        }
    }
}

impl Word for Policy {
    const REFUSAL: &'static str = "unknown ingress policy:";
    const WORDS: &'static [&'static str] = &["open", "same-bridge", "isolated"];

    fn of(word: &str) -> Option<Policy> {
        match word {
            "" | "open" => Some(Policy::Open),
            "same-bridge" => Some(Policy::SameBridge),
            "isolated" => Some(Policy::Isolated),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Policy, D::Error> {
        decode::word(deserializer)
    }
}

impl<'de> Deserialize<'de> for ChainName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ChainName, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name.is_empty() {
            return Ok(ChainName::default());
        }
        match rules::mistake_in_chain_name(&name) {
            Some(mistake) => Err(mistake.refuse()),
            None => Ok(ChainName(name)),
        }
    }
}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Zone, D::Error> {
        let name = String::deserialize(deserializer)?;
        let is_of_zone = |c: char| c.is_ascii_alphanumeric() || "_-/".contains(c);
        if name.len() > ZONE_MAX {
            let mistake = Mistake::new(format_args!("zone {name:?} has {} bytes", name.len()));
            return Err(mistake.expecting(format_args!("at most {ZONE_MAX}")).refuse());
        }
        if !name.chars().all(is_of_zone) {
            let mistake = Mistake::new(format_args!("zone {name:?}"));
            return Err(mistake.expecting("letters, digits, \"_\", \"-\" and \"/\"").refuse());
        }
        Ok(Zone(name))
    }
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "backend | string | by host | `nftables`, `iptables` or `firewalld`, see below.
        iptablesAdminChainName | string | `CNI-ADMIN` | The iptables chain for rules of the administrator, before those of the containers. At most 28 letters, digits, `_`, `.` and `-`; no name with another meaning to iptables, such as `LOG`.
        firewalldZone | string | `trusted` | The zone in which the addresses become sources. At most 32 bytes; empty is firewalld's default zone.
        ingressPolicy | string | `open` | `open`, `same-bridge` or `isolated`.
        acceptPublishedPorts | boolean | false | Accepts new connections to published ports, which a host that drops what it forwards refuses otherwise. firewalld accepts them anyway.",
    ];
}

impl Conf {
    /// Returns the configured backend, or the default of this host. An unusual default is reported,
    /// because the operator then has to look for the rules elsewhere.
    pub(super) fn resolve_backend(&self, cx: &Context<'_>) -> Result<Backend> {
        if let Some(backend) = self.backend {
            return Ok(backend);
        }
        let asked = firewalld::find(cx).map(|found| found.is_some());
        if let Ok(true) = asked {
            return Ok(Backend::Firewalld);
        }
        let has_nf_tables = cx.handles().nft()?.is_some();
        match asked {
            // A host with a broken bus can still have containers, as with the reference.
            Err(error) => {
                let chosen = if has_nf_tables { "nftables" } else { "iptables" };
                warn(format_args!(
                    "firewall with {chosen}, whether firewalld runs cannot be asked: {error}"
                ));
            }
            Ok(_) if has_nf_tables => (),
            Ok(_) => warn("firewall with iptables, this kernel has no nf_tables"),
        }
        Ok(if has_nf_tables { Backend::Nftables } else { Backend::Iptables })
    }
}

/// What to do for a result.
#[derive(Debug)]
pub(super) struct Wish {
    /// The addresses whose packets are to pass.
    pub ips: Vec<IpAddr>,
    /// See [`Conf`].
    pub admin_chain: String,
    /// The bridge whose containers are to be isolated from those of other bridges.
    pub isolation: Option<Isolation>,
    /// Whether new connections to published ports are to pass, too.
    pub is_published: bool,
}

/// The bridge of a container, and the policy for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Isolation {
    pub bridge: IfName,
    pub policy: Policy,
}

impl Wish {
    pub fn of(conf: &Conf, result: &AddResult) -> Result<Wish> {
        Ok(Wish {
            ips: addresses(result).collect(),
            admin_chain: conf.iptables_admin_chain_name.0.clone(),
            isolation: isolation(conf.ingress_policy, result)?,
            is_published: conf.accept_published_ports,
        })
    }

    /// Returns the rules that let the packets of these addresses pass.
    pub fn rules_of(&self, ips: &[IpAddr]) -> Vec<FilterRule> {
        let of_published = |ip: &IpAddr| self.is_published.then(|| rules::of_published_ports(*ip));
        let accepted =
            ips.iter().flat_map(|ip| rules::of_address(*ip).into_iter().chain(of_published(ip)));
        accepted.collect()
    }

    /// Returns the addresses of one family.
    pub fn ips_of(&self, family: Family) -> Vec<IpAddr> {
        self.ips.iter().copied().filter(|ip| Family::of(*ip) == family).collect()
    }
}

/// Returns all addresses of a result, whichever interface they are on, as the reference does.
pub(super) fn addresses(result: &AddResult) -> impl Iterator<Item = IpAddr> {
    result.ips.iter().map(|ip| ip.address.addr())
}

/// Takes the first interface of the result as the bridge, as the reference does.
fn isolation(policy: Policy, result: &AddResult) -> Result<Option<Isolation>> {
    if policy == Policy::Open {
        return Ok(None);
    }
    let word = policy.as_str();
    let Some(first) = result.interfaces.first() else {
        let sentence = format!("interface needs to be set for ingress policy {word:?}, {HINT}");
        return Err(Error::missing("prevResult.interfaces", "those of bridge").saying(sentence));
    };
    let name = &first.name;
    let field = "prevResult.interfaces[0].name";
    let reason = format!("ingressPolicy {word:?} is about the bridge that is named there");
    if name.is_empty() {
        let error = Error::config(field, format_args!("missing, {reason}"));
        return Err(error.saying("got empty bridge name"));
    }
    let bridge = IfName::parse(name).map_err(|e| {
        Error::config(field, format_args!("{name:?} is not a bridge, {reason}: {}", e.msg))
            .with_details(HINT)
    })?;
    Ok(Some(Isolation { bridge, policy }))
}

/// The reference's advice.
const HINT: &str = "make sure to chain \"firewall\" plugin with \"bridge\"";
