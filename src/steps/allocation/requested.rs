//! Addresses that the runtime or the user requests, in place of the next free ones.

use std::net::IpAddr;

use serde::Deserialize;

use crate::cni::addr;
use crate::cni::args::Args;
use crate::cni::conf::ConfArgs;
use crate::error::{Code, Error, Result};
use crate::plugin::Context;

/// The rows of requested addresses for `KEYS` of plugins.
pub const KEYS: &str = "runtimeConfig.ips | list of strings | none | Requested addresses, with or without a prefix length; capability `ips`.
    args.cni.ips | list of strings | none | Requested addresses.
    CNI_ARGS: IP | string | none | One requested address. `IgnoreUnknown=1` allows other arguments, which are an error otherwise on ADD and CHECK.";

/// The keys that are read.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    runtime_config: Requested,
    args: ConfArgs<Requested>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Requested {
    ips: Vec<String>,
}

/// The requested addresses, in this order: `IP` of CNI_ARGS, `args.cni.ips`, capability `ips`. The plugin
/// knows these keys of CNI_ARGS as well.
pub fn addresses(cx: &Context<'_>, keys: &[&str]) -> Result<Vec<IpAddr>> {
    let document: Document = cx.config.decode()?;
    let args = Args::parse(cx.args, &[&["IP"], keys].concat())?;
    let mut ips = vec![];
    if let Some(text) = args.get("IP").filter(|text| !text.is_empty()) {
        ips.push(parse_requested(text).ok_or_else(|| {
            let pair = format!("IP={text}");
            let msg = format!(
                "CNI_ARGS: error parsing value of pair {pair:?}: invalid IP address {text}"
            );
            Error::new(Code::INVALID_ENVIRONMENT, msg)
        })?);
    }
    document.args.cni.read("args.cni.ips", &mut ips)?;
    document.runtime_config.read("runtimeConfig.ips", &mut ips)?;
    Ok(ips)
}

impl Requested {
    /// Appends the addresses to `ips`. `at` is their path in the configuration.
    fn read(&self, at: &str, ips: &mut Vec<IpAddr>) -> Result<()> {
        for (i, text) in self.ips.iter().enumerate() {
            ips.push(parse_requested(text).ok_or_else(|| {
                let problem = format_args!("{text:?} is not an IP address");
                Error::config(format_args!("{at}[{i}]"), problem)
                    .saying(format_args!("invalid IP address {text}"))
            })?);
        }
        Ok(())
    }
}

/// An address with or without a prefix length, which is dropped.
fn parse_requested(text: &str) -> Option<IpAddr> {
    if text.contains('/') {
        addr::parse_cidr(text).ok().map(|net| net.addr())
    } else {
        addr::parse_ip(text).ok().flatten()
    }
}
