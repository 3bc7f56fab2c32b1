//! What to tune: the settings of the configuration, CNI_ARGS, `runtimeConfig` and `args`, merged
//! into one list.

use std::{fmt, iter};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::attributes::{Attributes, MTU_MOST};
use super::backups::Backups;
use super::sysctls::{PLACEHOLDER, Setting};
use crate::cni::conf::ConfArgs;
use crate::error::{Error, Result};
use crate::net::mac::{self, MacAddr};
use crate::net::sysctl::Sysctl;
use crate::plugin::{Context, PluginConf};
use crate::steps::hardware_address::{self, MacConf};

/// The configuration of `tuning`; `KEYS` describes the keys.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    #[serde(deserialize_with = "pairs")]
    sysctl: Pairs,
    #[serde(deserialize_with = "mac::optional")]
    mac: Option<MacAddr>,
    mtu: u32,
    promisc: Option<bool>,
    allmulti: Option<bool>,
    tx_q_len: Option<u32>,
    data_dir: String,
    runtime_config: MacConf,
    args: ConfArgs<Overrides>,
    /// All sysctls in their order.
    #[serde(skip)]
    pub settings: Vec<Setting>,
    /// All attributes of the link.
    #[serde(skip)]
    pub attributes: Attributes,
}

/// `args.cni`, which the operator sets for a pod: the same keys again; a value here takes precedence.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Overrides {
    #[serde(deserialize_with = "pairs")]
    sysctl: Pairs,
    #[serde(deserialize_with = "given_mac")]
    mac: Option<Option<MacAddr>>,
    mtu: Option<u32>,
    promisc: Option<bool>,
    allmulti: Option<bool>,
    tx_q_len: Option<u32>,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "sysctl | object | none | Sysctls below `net` and their values, which are strings. They are set in this order, those ending in `disable_ipv6` last.
        mac | string | none | Hardware address.
        mtu | integer | 0 | MTU in bytes, within the interface's limits; 0 leaves it unchanged. Below 1280 the kernel disables IPv6 on the interface and removes its addresses.
        promisc | boolean | none | Receive every packet, or only those for the interface.
        allmulti | boolean | none | Receive every multicast packet, or only those of joined groups.
        txQLen | integer | none | Length of the transmit queue, in packets.
        dataDir | string | `/run/cni/tuning` | Directory of backups: an absolute path that is not a symbolic link.
        runtimeConfig.mac | string | none | Hardware address; capability `mac`.
        args.cni.sysctl | object | none | Sysctls in addition to `sysctl`, or in place of the same ones; set after them.
        args.cni.mac | string | none | Hardware address, in place of all others; an empty one removes them.
        args.cni.mtu | integer | none | In place of `mtu`, also when it is 0.
        args.cni.promisc | boolean | none | In place of `promisc`.
        args.cni.allmulti | boolean | none | In place of `allmulti`.
        args.cni.txQLen | integer | none | In place of `txQLen`.
        CNI_ARGS: MAC | string | none | Hardware address, before `mac` and after `runtimeConfig.mac`.",
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        Backups::parse(&self.data_dir)?;
        self.settings = self.settings(&cx.env.get("CNI_IFNAME"))?;
        self.attributes = self.attributes(cx)?;
        Ok(())
    }

    fn validate_add(&self, _cx: &Context<'_>) -> Result<()> {
        let given = self.args.cni.mtu.unwrap_or_default();
        match [("mtu", self.mtu), ("args.cni.mtu", given)].into_iter().find(|it| it.1 > MTU_MOST) {
            Some((path, mtu)) => Err(Error::out_of_range(path, mtu, 0..=i64::from(MTU_MOST))),
            None => Ok(()),
        }
    }
}

impl Conf {
    /// Whether there is nothing to tune.
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.attributes.is_empty()
    }

    /// Merges the sysctls of all sources.
    fn settings(&self, ifname: &str) -> Result<Vec<Setting>> {
        let given = settings("args.cni.sysctl", &self.args.cni.sysctl, ifname)?;
        Ok(merged(settings("sysctl", &self.sysctl, ifname)?, given, ifname))
    }

    /// Merges the attributes of all sources.
    fn attributes(&self, cx: &Context<'_>) -> Result<Attributes> {
        let given = &self.args.cni;
        Ok(Attributes {
            mac: self.mac(cx)?.filter(|_| given.mac != Some(None)),
            promisc: given.promisc.or(self.promisc),
            mtu: Some(given.mtu.unwrap_or(self.mtu)).filter(|mtu| *mtu != 0),
            allmulti: given.allmulti.or(self.allmulti),
            txqlen: given.tx_q_len.or(self.tx_q_len),
        })
    }

    /// Returns the hardware address of the source that takes precedence.
    fn mac(&self, cx: &Context<'_>) -> Result<Option<MacAddr>> {
        let of_args = hardware_address::of_args(cx.args)?;
        hardware_address::strongest([
            ("args.cni.mac", self.args.cni.mac.as_ref().and_then(Option::as_ref)),
            ("runtimeConfig.mac", self.runtime_config.mac.as_ref()),
            ("CNI_ARGS: MAC", of_args.as_ref()),
            ("mac", self.mac.as_ref()),
        ])
    }
}

fn given_mac<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<MacAddr>>, D::Error> {
    mac::optional(deserializer).map(Some)
}

/// Parses the sysctls at `path`. `ifname` is empty in STATUS, which concerns no link.
fn settings(path: &str, pairs: &[(String, String)], ifname: &str) -> Result<Vec<Setting>> {
    let mut settings: Vec<Setting> = vec![];
    for (name, value) in pairs {
        let path = format!("{path}.{name}");
        let sysctl = Sysctl::parse(name).ok_or_else(|| {
            Error::config(&path, "not a sysctl of a network")
                .expecting("one that begins with net.")
                .saying(format_args!("invalid net sysctl key: {name:?}"))
        })?;
        if let Some(twin) = settings.iter().find(|other| is_same(&other.sysctl, &sysctl, ifname)) {
            return Err(Error::config(&path, format_args!("{} is the same sysctl", twin.path))
                .saying("duplicated sysctl keys are not allowed"));
        }
        settings.push(Setting { path, name: name.clone(), sysctl, value: value.clone() });
    }
    Ok(settings)
}

/// Whether both are the same sysctl; one may have the link's name and the other the placeholder.
fn is_same(one: &Sysctl, other: &Sysctl, ifname: &str) -> bool {
    one.of_link(PLACEHOLDER, ifname) == other.of_link(PLACEHOLDER, ifname)
}

/// Replaces settings with those given later for the same sysctl, in any spelling.
fn merged(mut settings: Vec<Setting>, given: Vec<Setting>, ifname: &str) -> Vec<Setting> {
    let is_replaced =
        |old: &Setting| given.iter().any(|new| is_same(&new.sysctl, &old.sysctl, ifname));
    settings.retain(|setting| !is_replaced(setting));
    settings.extend(given);
    settings
}

/// A map of strings in document order, with its duplicates.
type Pairs = Vec<(String, String)>;

fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
    struct PairsVisitor;

    impl<'de> Visitor<'de> for PairsVisitor {
        type Value = Pairs;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Pairs, A::Error> {
            iter::from_fn(|| members.next_entry().transpose()).collect()
        }
    }

    deserializer.deserialize_map(PairsVisitor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cni::decode;
    use crate::cni::json::Value;

    fn parsed(text: &str) -> Result<Vec<String>> {
        let conf: Conf = decode::from_value(&Value::parse(text.as_bytes())?)?;
        let given = settings("args.cni.sysctl", &conf.args.cni.sysctl, "eth0")?;
        let all = merged(settings("sysctl", &conf.sysctl, "eth0")?, given, "eth0");
        Ok(all.iter().map(|setting| format!("{} = {}", setting.sysctl, setting.value)).collect())
    }

    #[test]
    fn sysctls_keep_their_order_and_args_count() {
        let text = r#"{"sysctl":{"net.b":"1","net.a":"2","net.c":"3"},"args":{"cni":{"Sysctl":{"net/a":"4","net.d":"5"}}}}"#;
        assert_eq!(parsed(text).unwrap(), ["net/b = 1", "net/c = 3", "net/a = 4", "net/d = 5"]);
    }

    #[test]
    fn the_link_s_name_may_be_written_out() {
        let text = r#"{"sysctl":{"net.ipv4.conf.IFNAME.x":"1"},"args":{"cni":{"sysctl":{"net/ipv4/conf/eth0/x":"2"}}}}"#;
        assert_eq!(parsed(text).unwrap(), ["net/ipv4/conf/eth0/x = 2"]);
        let twins = r#"{"sysctl":{"net.ipv4.conf.IFNAME.x":"1","net.ipv4.conf.eth0.x":"2"}}"#;
        assert_eq!(
            parsed(twins).unwrap_err().details(),
            "sysctl.net.ipv4.conf.eth0.x: sysctl.net.ipv4.conf.IFNAME.x is the same sysctl"
        );
        let others = r#"{"sysctl":{"net.ipv4.conf.IFNAME.x":"1","net.ipv4.conf.eth1.x":"2"}}"#;
        assert_eq!(parsed(others).unwrap().len(), 2);
    }

    #[test]
    fn mistakes_name_their_key() {
        let cases = [
            (
                r#"{"sysctl":{"net.a":"1","net.a":"2"}}"#,
                7,
                "duplicated sysctl keys are not allowed; sysctl.net.a: sysctl.net.a is the same sysctl",
            ),
            (
                r#"{"sysctl":{"net.a":"1","net/a":"2"}}"#,
                7,
                "duplicated sysctl keys are not allowed; sysctl.net/a: sysctl.net.a is the same sysctl",
            ),
            (r#"{"sysctl":{"net.a":1}}"#, 6, "sysctl.net.a: expected a string, found integer 1"),
            (r#"{"sysctl":["net.a"]}"#, 6, "sysctl: expected an object, found a list"),
            (
                r#"{"args":{"cni":{"sysctl":{"kernel.x":"1"}}}}"#,
                7,
                "invalid net sysctl key: \"kernel.x\"; args.cni.sysctl.kernel.x: not a sysctl of a network, expected one that begins with net.",
            ),
        ];
        for (text, code, msg) in cases {
            let error = parsed(text).unwrap_err();
            assert_eq!((error.code.0, error.to_string().as_str()), (code, msg), "{text}");
        }
    }
}
