//! `static` assigns the addresses that its configuration names. It keeps no state.
//!
//! <https://www.cni.dev/plugins/current/ipam/static/>

use std::net::IpAddr;

use serde::Deserialize;

use crate::cni::conf::{ConfArgs, ValidAttachments};
use crate::cni::result::{AddResult, Dns, IpConfig, Route};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::plugin::{Attachment, Context, Detachment, Kind, Plugin, PluginConf};
use crate::repair::Repairs;
use crate::steps::assigned::{self, Address};
use crate::steps::dns::DnsConf;
use crate::steps::{ipam, prev_result};

/// Advice for a configuration that an old version has no room for.
const ADVICE: &str = "set cniVersion to 0.3.0 or later";

/// The `static` plugin.
pub struct Static;

/// The settings that ADD and CHECK use. DEL uses none of them, so an invalid one does not fail it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    #[serde(skip)]
    ips: Vec<IpConfig>,
    #[serde(skip)]
    routes: Vec<Route>,
    #[serde(skip)]
    dns: Dns,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "ipam.addresses | list | none | The addresses.",
        assigned::KEYS,
        "ipam.routes | list | none | Routes for the result, with the same keys as those of [host-local](host-local.md#configuration).",
        DnsConf::KEYS_OF_IPAM,
        "runtimeConfig.ips | list of strings | none | Addresses with their prefix lengths, in place of all others; capability `ips`.
        args.cni.ips | list of strings | none | Addresses with their prefix lengths, in place of those configured and those of CNI_ARGS.
        CNI_ARGS: IP | string | none | Addresses with their prefix lengths and `,` between them, after the configured ones.
        CNI_ARGS: GATEWAY | string | none | A comma-separated list of gateways. The plugin sets each one as the gateway of those addresses in `CNI_ARGS: IP` whose subnet contains this gateway.",
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        let document: Document = cx.config.decode()?;
        self.ips = addresses(&document, cx.args)?;
        let families: Vec<Family> = self.ips.iter().map(|ip| Family::of_net(ip.address)).collect();
        ipam::refuse_several_of_one(&families, &cx.config.version, ADVICE)?;
        let ipam = document.ipam.unwrap_or_default();
        (self.routes, self.dns) = (ipam.routes, ipam.dns);
        Ok(())
    }
}

/// The keys that are decoded; `KEYS` describes them.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Document {
    ipam: Option<Ipam>,
    runtime_config: Ips,
    args: ConfArgs<Ips>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ipam {
    addresses: Vec<Address>,
    routes: Vec<Route>,
    dns: Dns,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ips {
    ips: Vec<String>,
}

impl Plugin for Static {
    const NAME: &'static str = "static";
    const KIND: Kind = Kind::Ipam;
    const ABOUT: &'static str = "the addresses that the configuration names";
    type Conf = Conf;

    fn add(_: &Context<'_>, conf: &Conf, _: &Attachment) -> Result<AddResult> {
        Ok(AddResult {
            ips: conf.ips.clone(),
            routes: conf.routes.clone(),
            dns: conf.dns.clone(),
            ..AddResult::default()
        })
    }

    /// Verifies that prevResult has the addresses with their gateways. The reference accepts a
    /// prevResult without them, although finding that is the purpose of CHECK.
    fn check(cx: &Context<'_>, conf: &Conf, at: &Attachment) -> Result<()> {
        let result = prev_result::require(cx)?;
        for IpConfig { address, gateway, .. } in &conf.ips {
            let ip = address.addr();
            let difference = match result.ips.iter().find(|found| found.address.addr() == ip) {
                None => format!("prevResult does not have {address}"),
                Some(found) => match gateway.filter(|gateway| found.gateway != Some(*gateway)) {
                    None => continue,
                    Some(gateway) => {
                        let found = or_none(found.gateway);
                        format!("the gateway is {found}, expected {gateway}")
                    }
                },
            };
            let ifname = at.ifname();
            return Err(Error::check(difference)
                .saying(format_args!("static: Failed to match addr {ip} on interface {ifname}")));
        }
        Ok(())
    }

    /// There is no state, so there is nothing to release.
    fn del(_: &Context<'_>, _: &Conf, _: &Detachment) -> Result<()> {
        Ok(())
    }

    /// A configuration that decodes is all that ADD needs.
    fn status(_: &Context<'_>, _: &Conf) -> Result<()> {
        Ok(())
    }

    /// There is no state, so nothing can be stale.
    fn gc(_: &Context<'_>, _: &Conf, _: &ValidAttachments) -> Result<()> {
        Ok(())
    }

    /// Nothing is kept on the host.
    fn repair(_: &Context<'_>, _: &Conf, _: &Attachment, _: &Repairs) -> Result<()> {
        Ok(())
    }
}

fn or_none(ip: Option<IpAddr>) -> String {
    ip.map_or_else(|| "none".to_owned(), |ip| ip.to_string())
}

/// Returns the addresses of the first source that has any: `runtimeConfig.ips`, `args.cni.ips`, and
/// last `ipam.addresses` together with CNI_ARGS.
fn addresses(document: &Document, args: &str) -> Result<Vec<IpConfig>> {
    let ipam = document.ipam.as_ref().ok_or_else(|| {
        Error::missing("ipam", "an object with addresses").saying("IPAM config missing 'ipam' key")
    })?;
    let mut ips = assigned::configured(&ipam.addresses)?;
    let mut of_cni_args = vec![];
    assigned::add_cni_args(&mut of_cni_args, args, &["IP", "GATEWAY"])?;
    ips.extend(of_cni_args);
    let read = |at: &str, texts: &[String]| -> Result<Vec<IpConfig>> {
        let each = texts.iter().enumerate().map(|(index, text)| {
            let net = assigned::parse_cidr(text).ok_or_else(|| {
                let sentence =
                    format!("an entry in the 'ips' field is NOT in CIDR notation, got: '{text}'");
                assigned::no_cidr(format_args!("{at}[{index}]"), text).saying(sentence)
            })?;
            Ok(assigned::ip_config(net, None))
        });
        each.collect()
    };
    let of_args = read("args.cni.ips", &document.args.cni.ips)?;
    let of_runtime = read("runtimeConfig.ips", &document.runtime_config.ips)?;
    let sources = [of_runtime, of_args, ips];
    Ok(sources.into_iter().find(|ips| !ips.is_empty()).unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cni::attachment::{ContainerId, IfName, Key};
    use crate::cni::conf::Config;
    use crate::cni::env::Environment;

    fn config(text: &str) -> Config {
        Config::parse(text.as_bytes().to_vec()).unwrap()
    }

    fn key(config: &Config) -> Key {
        Key {
            network: config.name.clone(),
            container_id: ContainerId::parse("c").unwrap(),
            ifname: IfName::parse("eth0").unwrap(),
        }
    }

    fn validated(config: &Config, args: &str) -> Result<Conf> {
        let env = Environment::default();
        let cx = Context::new(&[], config, &env, args, vec![]);
        let mut conf: Conf = config.decode()?;
        conf.validate(&cx)?;
        Ok(conf)
    }

    /// Returns `address gateway` of each address; `members` follow the common keys.
    fn ips(members: &str, args: &str) -> Result<Vec<String>> {
        let config = config(&format!(r#"{{"cniVersion":"1.0.0","name":"n",{members}}}"#));
        let conf = validated(&config, args)?;
        Ok(conf.ips.iter().map(|ip| format!("{} {}", ip.address, or_none(ip.gateway))).collect())
    }

    /// The JSON that Go marshals from the reference's type: first the field with the tag
    /// `json:"address"`, later `Address`, a `net.IPNet` without a tag.
    #[test]
    fn marshalled_type_of_the_reference_is_read_as_go_reads_it() {
        let of = |item: &str| ips(&format!(r#""ipam":{{"addresses":[{item}]}}"#), "");
        let unread = r#"{"address":"10.10.0.5/24","gateway":"10.10.0.1","Address":{"IP":"","Mask":null},"Version":""}"#;
        assert_eq!(of(unread).unwrap(), ["10.10.0.5/24 10.10.0.1"]);
        let read = r#"{"address":"10.10.0.5/24","Address":{"IP":"10.10.0.6","Mask":"//8AAA=="},"Version":"4"}"#;
        assert_eq!(of(read).unwrap(), ["10.10.0.6/16 none"]);
        let v6 =
            r#"{"address":"","Address":{"IP":"2001:db8::6","Mask":"//////////8AAAAAAAAAAA=="}}"#;
        assert_eq!(of(v6).unwrap(), ["2001:db8::6/64 none"]);
        for mask in ["null", r#""?""#, r#""/wD/AA==""#, r#""//////////8AAAAAAAAAAA==""#] {
            let error =
                of(&format!(r#"{{"Address":{{"IP":"10.10.0.6","Mask":{mask}}}}}"#)).unwrap_err();
            assert!(error.msg.starts_with("ipam.addresses[0].Address.Mask: "), "{error}");
        }
    }

    const CONFIGURED: &str = r#""ipam":{"addresses":[{"address":"10.10.0.1/24","gateway":"10.10.0.254"},{"address":"3ffe:ffff:0:01ff::1/64"}]}"#;

    #[test]
    fn sources_count_in_order() {
        let configured = ["10.10.0.1/24 10.10.0.254", "3ffe:ffff:0:1ff::1/64 none"];
        assert_eq!(ips(CONFIGURED, "").unwrap(), configured);
        let args = "IP=10.11.0.1/24, 11.11.0.1/24;GATEWAY=10.11.0.254,10.10.0.9";
        let with_args =
            [configured[0], configured[1], "10.11.0.1/24 10.11.0.254", "11.11.0.1/24 none"];
        assert_eq!(ips(CONFIGURED, args).unwrap(), with_args);
        let conf_args = format!(r#"{CONFIGURED},"args":{{"cni":{{"ips":["10.12.0.1/24"]}}}}"#);
        assert_eq!(ips(&conf_args, args).unwrap(), ["10.12.0.1/24 none"]);
        let runtime =
            format!(r#"{conf_args},"runtimeConfig":{{"ips":["10.13.0.1/24","fd00::1/64"]}}"#);
        assert_eq!(ips(&runtime, args).unwrap(), ["10.13.0.1/24 none", "fd00::1/64 none"]);
        assert_eq!(ips(r#""ipam":{}"#, "").unwrap(), Vec::<String>::new());
        assert_eq!(ips(r#""ipam":{}"#, "IP=;GATEWAY=").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn mistakes_name_their_source() {
        for (members, args, code, msg) in [
            (
                r#""x":1"#,
                "",
                7,
                "IPAM config missing 'ipam' key; ipam: missing, expected an object with addresses",
            ),
            (
                r#""ipam":{"addresses":[{"address":"10.0.0.1"}]}"#,
                "",
                7,
                "the 'address' field is expected to be in CIDR notation, got: '10.0.0.1'; ipam.addresses[0].address: \"10.0.0.1\" is not understood, expected one as in 10.1.2.3/24",
            ),
            (
                r#""ipam":{"addresses":[{"address":"10.0.0.1/8","gateway":"x"}]}"#,
                "",
                7,
                "ipam.addresses[0].gateway: invalid IP address: x",
            ),
            (
                r#""ipam":{},"args":{"cni":{"ips":["10.0.0.1/8","x"]}}"#,
                "",
                7,
                "an entry in the 'ips' field is NOT in CIDR notation, got: 'x'; args.cni.ips[1]: \"x\" is not understood, expected one as in 10.1.2.3/24",
            ),
            (
                r#""ipam":{},"runtimeConfig":{"ips":[""]}"#,
                "",
                7,
                "an entry in the 'ips' field is NOT in CIDR notation, got: ''; runtimeConfig.ips[0]: missing, expected an address with its prefix length, as in 10.1.2.3/24",
            ),
            (
                r#""ipam":{}"#,
                "IP=10.0.0.1",
                4,
                "the 'ip' field is expected to be in CIDR notation, got: '10.0.0.1'; it stands in CNI_ARGS",
            ),
            (r#""ipam":{}"#, "GATEWAY=x", 4, "invalid gateway address: x; it stands in CNI_ARGS"),
        ] {
            let error = ips(members, args).unwrap_err();
            assert_eq!((error.code.0, error.to_string().as_str()), (code, msg), "{members}");
        }
    }

    #[test]
    fn several_addresses_of_a_family_need_0_3_0() {
        let error = |version: &str, addresses: &str| {
            let text = format!(
                r#"{{"cniVersion":"{version}","name":"n","ipam":{{"addresses":[{addresses}]}}}}"#
            );
            validated(&config(&text), "").err().map(|e| e.msg.clone())
        };
        let one = r#"{"address":"10.0.0.1/8"}"#;
        let other = r#"{"address":"10.0.0.2/8"}"#;
        let v6 = r#"{"address":"fd00::1/64"}"#;
        let refused =
            Some("CNI version 0.2.0 does not support more than 1 address per family".to_owned());
        assert_eq!(error("0.2.0", &format!("{one},{other}")), refused);
        assert_eq!(error("0.2.0", &format!("{one},{v6}")), None);
        assert_eq!(error("0.3.0", &format!("{one},{other}")), None);
    }

    #[test]
    fn check_compares_with_prev_result() {
        let check = |result: &str| {
            let config =
                config(&format!(r#"{{"cniVersion":"1.0.0","name":"n",{CONFIGURED}{result}}}"#));
            let env = Environment::default();
            let cx = Context::new(&[], &config, &env, "", vec![]);
            let at = Attachment::new(key(&config), String::new(), None);
            Static::check(&cx, &validated(&config, "").unwrap(), &at)
                .map_err(|e| (e.code.0, e.to_string()))
        };
        let result = |ips: &str| format!(r#","prevResult":{{"cniVersion":"1.0.0","ips":[{ips}]}}"#);
        let v6 = r#"{"address":"3ffe:ffff:0:1ff::1/64","gateway":"3ffe:ffff:0:1ff::9"}"#;
        assert_eq!(
            check(&result(&format!(
                r#"{{"address":"10.10.0.1/24","gateway":"10.10.0.254"}},{v6}"#
            ))),
            Ok(())
        );
        assert_eq!(
            check(""),
            Err((
                7,
                "Required prevResult missing; prevResult: missing, expected the result of ADD"
                    .into()
            ))
        );
        let failed = "static: Failed to match addr 10.10.0.1 on interface eth0; ";
        assert_eq!(
            check(&result(v6)),
            Err((103, format!("{failed}prevResult does not have 10.10.0.1/24")))
        );
        let other = format!(r#"{{"address":"10.10.0.1/24","gateway":"10.10.0.1"}},{v6}"#);
        assert_eq!(
            check(&result(&other)),
            Err((103, format!("{failed}the gateway is 10.10.0.1, expected 10.10.0.254")))
        );
    }

    #[test]
    fn del_and_gc_do_not_need_a_configuration_that_is_right() {
        let config = config(r#"{"name":"n","ipam":{"addresses":7}}"#);
        let env = Environment::default();
        let cx = Context::new(&[], &config, &env, "nonsense", vec![]);
        let conf: Conf = config.decode().unwrap();
        let at = Detachment {
            key: key(&config),
            netns_path: String::new(),
            netns: None,
            prev_result: None,
        };
        assert_eq!(Static::del(&cx, &conf, &at), Ok(()));
        assert_eq!(Static::gc(&cx, &conf, &ValidAttachments::default()), Ok(()));
        assert!(validated(&config, "").is_err());
    }
}
