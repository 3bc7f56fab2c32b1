//! The configuration of `portmap`.

use serde::{Deserialize, Deserializer};

use super::condition::Condition;
use super::mapping::{Given, Mapping};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::plugin::{Context, Handles, PluginConf};
use crate::steps::rules::Backend;

/// The default bit of the reference's mark.
const MARK_BIT: i64 = 13;
/// XT_EXTENSION_MAXNAMELEN, without the NUL.
const CHAIN_MAX: usize = 28;

/// The short options of iptables that are matches; all others are about what to do with a packet, a
/// rule or the program.
const SHORT_MATCHES: &str = "sdpmiof";
/// The long options that are not matches. iptables accepts them abbreviated, and with a value after
/// `=`.
const ORDERS: &str = "jump goto table append insert delete delete-chain replace list-rules flush zero \
    new-chain policy rename-chain check modprobe exact wait";

/// The configuration of `portmap`; `KEYS` describes the keys.
#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    #[serde(deserialize_with = "backend")]
    backend: Option<Backend>,
    pub(super) snat: bool,
    pub(super) masq_all: bool,
    mark_masq_bit: Option<i64>,
    pub(super) external_set_mark_chain: String,
    #[serde(rename = "conditionsV4")]
    pub(super) conditions_v4: Vec<String>,
    #[serde(rename = "conditionsV6")]
    pub(super) conditions_v6: Vec<String>,
    runtime_config: RuntimeConf,
    /// The mappings to make.
    #[serde(skip)]
    pub mappings: Vec<Mapping>,
    /// The conditions for nftables: IPv4's, then IPv6's.
    #[serde(skip)]
    pub conditions: [Vec<Condition>; 2],
}

/// The runtime's part of the configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RuntimeConf {
    port_mappings: Vec<Given>,
}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            backend: None,
            snat: true,
            masq_all: false,
            mark_masq_bit: None,
            external_set_mark_chain: String::new(),
            conditions_v4: vec![],
            conditions_v6: vec![],
            runtime_config: RuntimeConf::default(),
            mappings: vec![],
            conditions: [vec![], vec![]],
        }
    }
}

fn backend<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Backend>, D::Error> {
    Backend::decode(deserializer, "unrecognized backend")
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "runtimeConfig.portMappings | list | none | The capability `portMappings`, from the runtime.
        runtimeConfig.portMappings[].hostPort | integer | required | The port of the host, 1 to 65535.
        runtimeConfig.portMappings[].containerPort | integer | required | The port of the container, 1 to 65535.
        runtimeConfig.portMappings[].protocol | string | `tcp` | `tcp`, `udp` or `sctp`, in any case.
        runtimeConfig.portMappings[].hostIP | string | all | The address of the host for the port. `0.0.0.0` and `::` mean all of one family; without it all of both.
        backend | string | `nftables` | `nftables` or `iptables`. By default nftables, or iptables if another key requires it.
        snat | boolean | true | Clients that would get no answer otherwise are masqueraded, see below.
        masqAll | boolean | false | All clients of a port are masqueraded.
        markMasqBit | integer | 13 | iptables: the bit of the mark for masquerading, 0 to 31.
        externalSetMarkChain | string | none | iptables: an existing chain of table `nat`, such as `KUBE-MARK-MASQ`, that marks for masquerading in place of ours. Excludes `markMasqBit`.
        conditionsV4 | list of strings | none | Further conditions on IPv4 packets. iptables' syntax if the first begins with `-` or `!`, else nftables'.
        conditionsV6 | list of strings | none | The same for IPv6.",
    ];

    fn validate(&mut self, _cx: &Context<'_>) -> Result<()> {
        let chain = &self.external_set_mark_chain;
        if let Some(bit) = self.mark_masq_bit {
            if !(0..=31).contains(&bit) {
                return Err(Error::out_of_range("markMasqBit", bit, 0..=31)
                    .saying("MasqMarkBit must be between 0 and 31"));
            }
            if !chain.is_empty() {
                return Err(Error::exclusive("markMasqBit", "externalSetMarkChain")
                    .saying("Cannot specify externalSetMarkChain and markMasqBit"));
            }
        }
        // The chain's name and the conditions become words in a line of a program's input.
        let is_of_chain = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if chain.len() > CHAIN_MAX || chain.starts_with('-') || !chain.chars().all(is_of_chain) {
            let problem = format_args!("{chain:?} is not a chain name");
            return Err(Error::config("externalSetMarkChain", problem)
                .expecting(format_args!("at most {CHAIN_MAX} letters, digits, - and _")));
        }
        for (path, words, _) in self.conditions_by_key() {
            validate_words(path, words)?;
        }
        // Without a backend, keys of iptables select it.
        let of_iptables = self.keys_of_iptables();
        if self.backend.map_or(of_iptables.is_empty(), |backend| backend == Backend::Nftables) {
            require_none("nftables", "iptables", &of_iptables)?;
        } else {
            require_none("iptables", "nftables", &self.keys_of_nftables())?;
        }
        if self.is_for_nftables() {
            let [v4, v6] = self.conditions_by_key();
            let parse = |(path, words, family)| Condition::parse(path, words, family);
            self.conditions = [parse(v4)?, parse(v6)?];
        }
        self.mappings =
            Mapping::read_all("runtimeConfig.portMappings", &self.runtime_config.port_mappings)?;
        Ok(())
    }
}

impl Conf {
    /// Returns the conditions of each family with their key.
    fn conditions_by_key(&self) -> [(&'static str, &[String], Family); 2] {
        [
            ("conditionsV4", &self.conditions_v4, Family::V4),
            ("conditionsV6", &self.conditions_v6, Family::V6),
        ]
    }

    fn keys_of_iptables(&self) -> Vec<&'static str> {
        let has_chain = !self.external_set_mark_chain.is_empty();
        let mut keys = vec![];
        keys.extend(self.mark_masq_bit.map(|_| "markMasqBit"));
        keys.extend(has_chain.then_some("externalSetMarkChain"));
        keys.extend(self.keys_of_conditions(is_of_iptables));
        keys
    }

    fn keys_of_nftables(&self) -> Vec<&'static str> {
        self.keys_of_conditions(|words| !words.is_empty() && !is_of_iptables(words))
    }

    /// Returns the keys of the conditions that `is_asked` is true for.
    fn keys_of_conditions(&self, is_asked: fn(&[String]) -> bool) -> Vec<&'static str> {
        let conditions = self.conditions_by_key().into_iter();
        conditions.filter(|(_, words, _)| is_asked(words)).map(|(key, ..)| key).collect()
    }

    /// Whether the keys permit nftables.
    fn is_for_nftables(&self) -> bool {
        self.backend != Some(Backend::Iptables) && self.keys_of_iptables().is_empty()
    }

    /// Returns the backend on this host.
    pub fn backend(&self, handles: &Handles) -> Result<Backend> {
        if !self.is_for_nftables() {
            return Ok(Backend::Iptables);
        }
        if self.backend.is_none() && self.keys_of_nftables().is_empty() {
            return Backend::of_host(handles, "publish ports");
        }
        Ok(Backend::Nftables)
    }

    /// Returns the mark of packets to masquerade.
    pub fn mark(&self) -> u32 {
        1 << self.mark_masq_bit.unwrap_or(MARK_BIT)
    }
}

/// Validates the conditions at `path`.
fn validate_words(path: &str, words: &[String]) -> Result<()> {
    if let Some(index) = words.iter().position(|word| word.contains(char::is_control)) {
        let problem = format!("{:?} has control characters", words[index]);
        return Err(
            Error::config(format_args!("{path}[{index}]"), problem).expecting("words of a rule")
        );
    }
    match words.iter().find(|word| is_order(word)).filter(|_| is_of_iptables(words)) {
        Some(word) => Err(Error::config(path, format_args!("{word:?} is not a condition"))
            .expecting("matches of iptables")),
        None => Ok(()),
    }
}

/// Refuses keys of the other backend.
fn require_none(backend: &str, other: &str, keys: &[&str]) -> Result<()> {
    let Some(&first) = keys.first() else { return Ok(()) };
    let keys = keys.join(" ");
    Err(Error::config(first, format_args!("given with backend {backend}"))
        .expecting(format_args!("none of {keys}"))
        .saying(format_args!(
            "{backend} backend was requested but configuration contains {other}-specific options [{keys}]"
        )))
}

/// Whether iptables would take the word for an option that is not a match.
fn is_order(word: &str) -> bool {
    if let Some(long) = word.strip_prefix("--") {
        let name = long.split('=').next().unwrap_or_default();
        return name.is_empty() || ORDERS.split(' ').any(|order| order.starts_with(name));
    }
    let is_match = |c: char| SHORT_MATCHES.contains(c) || c.is_ascii_digit();
    word.strip_prefix('-').is_some_and(|short| !short.starts_with(is_match))
}

/// Whether the conditions are for iptables. The reference decides so too: options begin with a
/// dash.
fn is_of_iptables(conditions: &[String]) -> bool {
    conditions.first().is_some_and(|first| first.starts_with('-') || first.starts_with('!'))
}
