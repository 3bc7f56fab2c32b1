//! What makes an attachment's rules, where a configuration can choose.

use serde::Deserializer;

use crate::cni::decode;
use crate::error::{Result, Word, warn};
use crate::plugin::Handles;

/// A way to make rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// nftables over netlink.
    Nftables,
    /// The host's iptables programs.
    Iptables,
}

impl Word for Backend {
    const WORDS: &'static [&'static str] = &["nftables", "iptables"];

    fn of(word: &str) -> Option<Backend> {
        match word {
            "nftables" => Some(Backend::Nftables),
            "iptables" => Some(Backend::Iptables),
            _ => None,
        }
    }
}

impl Backend {
    /// For `deserialize_with`. `refusal` is the start of the reference plugin's sentence about an
    /// unknown word.
    pub fn decode<'de, D: Deserializer<'de>>(
        deserializer: D,
        refusal: &'static str,
    ) -> Result<Option<Backend>, D::Error> {
        decode::word_or(deserializer, refusal).map(Some)
    }

    /// This host's default: nftables, or iptables on a kernel without nf_tables. The fallback is
    /// reported, because the operator then has to look for the rules of this `work` elsewhere.
    pub fn of_host(handles: &Handles, work: &str) -> Result<Backend> {
        if handles.nft()?.is_some() {
            return Ok(Backend::Nftables);
        }
        warn(format_args!("{work} with iptables, this kernel has no nf_tables"));
        Ok(Backend::Iptables)
    }
}
