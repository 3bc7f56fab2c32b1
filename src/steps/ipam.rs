//! Addresses from the IPAM plugin that `ipam.type` names (specification, section 4).
//!
//! [`delegation`](super::delegation) finds and runs it.

use std::net::IpAddr;

use super::delegation::{Delegate, Named};
use crate::cni::conf::{Config, ValidAttachments};
use crate::cni::json::Value;
use crate::cni::result::AddResult;
use crate::cni::version;
use crate::error::{Code, Error, ErrorList, Result};
use crate::family::Family;
use crate::plugin::owned::{Owned, Removal, Rest};
use crate::plugin::{Attachment, Call, Context, Detachment, Kind};
use crate::repair::Repairs;
use crate::rollback::Rollback;

/// The IPAM plugin of a configuration.
pub struct Ipam<'a> {
    cx: &'a Context<'a>,
    delegate: Delegate,
}

impl<'a> Ipam<'a> {
    /// The plugin that `ipam.type` names; None where the configuration names no plugin.
    pub fn find(cx: &'a Context<'a>) -> Result<Option<Ipam<'a>>> {
        let name = cx.config.ipam_type()?;
        if name.is_empty() {
            return Ok(None);
        }
        let named = Named { path: "ipam.type", name: &name, kind: Kind::Ipam };
        let delegate = Delegate::find(cx, &named)?;
        Ok(Some(Ipam { cx, delegate }))
    }

    /// The plugin that `ipam.type` names, which is required.
    pub fn require(cx: &'a Context<'a>) -> Result<Ipam<'a>> {
        Ipam::find(cx)?.ok_or_else(missing)
    }

    /// For ADD: the plugin that `ipam.type` names, which is required and must accept the
    /// configuration before anything is changed.
    pub fn require_valid(cx: &'a Context<'a>) -> Result<Ipam<'a>> {
        let ipam = Ipam::require(cx)?;
        ipam.delegate.validate(cx)?;
        Ok(ipam)
    }

    /// For ADD: as [`Ipam::require_valid`], but without `ipam.type` the network is a layer 2
    /// network, see [`require_type_or_layer_two`].
    pub fn find_valid(cx: &'a Context<'a>) -> Result<Option<Ipam<'a>>> {
        let ipam = Ipam::find(cx)?;
        ipam.as_ref().map_or(Ok(()), |ipam| ipam.delegate.validate(cx))?;
        Ok(ipam)
    }

    /// ADD: allocates at least one address, which is released if a later step fails.
    pub fn add(&self, at: &'a Attachment, rb: &mut Rollback<'a>) -> Result<AddResult>
    where
        Self: 'a,
    {
        let result = self.delegate.add(self.cx, at, rb)?;
        if result.ips.is_empty() {
            let msg = "IPAM plugin returned missing IP config";
            return Err(Error::new(Code::ADDRESS_UNAVAILABLE, msg)
                .with_details(format_args!("the plugin is {}", self.delegate.name())));
        }
        Ok(result)
    }

    /// CHECK.
    pub fn check(&self, at: &Attachment) -> Result<()> {
        self.delegate.run(self.cx, Call::Check(at))
    }

    /// STATUS.
    pub fn status(&self) -> Result<()> {
        self.delegate.run(self.cx, Call::Status)
    }

    /// Repairs the lease, if the plugin is ours.
    pub fn repair(&self, at: &Attachment, repairs: &Repairs) -> Result<()> {
        self.delegate.repair(self.cx, at, repairs)
    }

    /// Whether the plugin sends packets over the interface.
    pub fn needs_link(&self) -> bool {
        self.delegate.needs_link()
    }
}

fn missing() -> Error {
    Error::missing("ipam.type", "the name of an ipam plugin").saying("no plugin name provided")
}

/// Requires the configuration to name an IPAM plugin.
pub fn require_type(cx: &Context<'_>) -> Result<()> {
    if cx.config.ipam_type()?.is_empty() { Err(missing()) } else { Ok(()) }
}

/// For ADD: without an IPAM plugin the network is a layer 2 network, whose result the oldest
/// versions cannot express.
pub fn require_type_or_layer_two(cx: &Context<'_>) -> Result<()> {
    let version = &cx.config.version;
    if !cx.config.ipam_type()?.is_empty()
        || version::Number::parse(version)? >= version::WITH_MANY_ADDRESSES
    {
        return Ok(());
    }
    Err(Error::new(Code::INVALID_CONFIG, "cannot convert: no valid IP addresses").with_details(
        format_args!("a result without addresses has no form in cniVersion {version}"),
    ))
}

/// CHECK of the IPAM plugin, if the configuration names one.
pub fn check_if_any(cx: &Context<'_>, at: &Attachment) -> Result<()> {
    Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.check(at))
}

/// Repairs the lease of the IPAM plugin, if the configuration names one.
pub fn repair_if_any(cx: &Context<'_>, at: &Attachment, repairs: &Repairs) -> Result<()> {
    Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.repair(at, repairs))
}

/// Repairs the lease, if the configuration names an IPAM plugin, and then the rest. If the address has
/// another owner by now, skips the rest: it would connect two containers with one address.
pub fn repair_before(
    cx: &Context<'_>,
    at: &Attachment,
    repairs: &Repairs,
    rest: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match repair_if_any(cx, at, repairs) {
        Err(error) if error.code == Code::CONFLICT => Err(error),
        lease => ErrorList::of([lease, rest()]),
    }
}

/// The leases of attachments at the IPAM plugin, if any. What else they own is removed first, since
/// the next ADD may be allocated the same addresses; unless the plugin needs the link to release them.
pub struct Leases;

impl Owned for Leases {
    fn remove(&self, cx: &Context<'_>, at: &Detachment) -> Result<()> {
        Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.delegate.run(cx, Call::Del(at)))
    }

    fn collect(&self, cx: &Context<'_>, valid: &ValidAttachments) -> Result<()> {
        Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.delegate.run(cx, Call::Gc(valid)))
    }

    fn surround(&self, cx: &Context<'_>, removal: Removal<'_>, rest: Rest<'_>) -> Result<()> {
        let mut errors = ErrorList::default();
        let ipam = errors.push(Ipam::find(cx)).flatten();
        let needs_link = ipam.as_ref().is_some_and(Ipam::needs_link);
        if !needs_link {
            errors.push(rest());
        }
        errors.push(ipam.map_or(Ok(()), |ipam| match removal {
            Removal::Del(at) => ipam.delegate.run(cx, Call::Del(at)),
            Removal::Gc(valid) => ipam.delegate.run(cx, Call::Gc(valid)),
        }));
        if needs_link {
            errors.push(rest());
        }
        errors.finish()
    }
}

/// STATUS of the IPAM plugin, if any.
pub fn status_if_any(cx: &Context<'_>) -> Result<()> {
    Ipam::find(cx)?.map_or(Ok(()), |ipam| ipam.status())
}

/// Refuses several addresses of one family for results before CNI 0.3.0, which have room for only
/// one. `advice` goes into the error.
pub fn refuse_several_of_one(
    families: &[Family],
    config_version: &str,
    advice: &'static str,
) -> Result<()> {
    let count = |family| families.iter().filter(|found| **found == family).count();
    if Family::ALL.into_iter().any(|family| count(family) > 1)
        && version::Number::parse(config_version)? < version::WITH_MANY_ADDRESSES
    {
        let msg =
            format!("CNI version {config_version} does not support more than 1 address per family");
        return Err(Error::new(Code::INVALID_CONFIG, msg).with_details(advice));
    }
    Ok(())
}

/// The sections in which IPAM plugins read gateways, and the names of the keys.
const SECTIONS: [&str; 3] = ["runtimeConfig", "args", "ipam"];
const KEYS: [&str; 2] = ["gateway", "gw"];

/// The configuration field that a gateway came from, for errors: the path of the field that has this
/// gateway (`ipam.ranges[0][0].gateway`), or else its path in the IPAM plugin's result.
pub fn gateway_field(config: &Config, result: &AddResult, gateway: IpAddr) -> String {
    let in_section = |section: &&str| find_gateway(config.value.get(section)?, section, gateway);
    SECTIONS.iter().find_map(in_section).unwrap_or_else(|| {
        match result.ips.iter().position(|ip| ip.gateway == Some(gateway)) {
            Some(index) => format!("ips[{index}].gateway of the IPAM plugin's result"),
            None => "routes[].gw of the IPAM plugin's result".to_owned(),
        }
    })
}

fn find_gateway(value: &Value, path: &str, gateway: IpAddr) -> Option<String> {
    let is = |value: &Value| value.as_str().and_then(|text| text.parse().ok()) == Some(gateway);
    match value {
        Value::Array(items) => items.iter().enumerate().find_map(|(index, item)| {
            let is_hop = path.ends_with(".gws") && is(item);
            let path = format!("{path}[{index}]");
            if is_hop { Some(path) } else { find_gateway(item, &path, gateway) }
        }),
        Value::Object(pairs) => pairs.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            let is_it = KEYS.iter().any(|name| key.eq_ignore_ascii_case(name)) && is(value);
            if is_it { Some(path) } else { find_gateway(value, &path, gateway) }
        }),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cni::result::IpConfig;

    #[test]
    fn a_gateway_is_found_in_the_configuration_or_in_the_result() {
        let mut ip = IpConfig::new("10.1.0.2/24".parse().unwrap());
        ip.gateway = Some("10.8.0.9".parse().unwrap());
        let result = AddResult { ips: vec![ip], ..AddResult::default() };
        for (ipam, path) in [
            (r#"{"gateway": "10.8.0.9"}"#, "ipam.gateway"),
            (
                r#"{"ranges": [[{"gateway": "10.1.0.1"}, {"Gateway": "10.8.0.9"}]]}"#,
                "ipam.ranges[0][1].Gateway",
            ),
            (r#"{"addresses": [{"gateway": "10.8.0.9"}]}"#, "ipam.addresses[0].gateway"),
            (r#"{"routes": [{"dst": "0.0.0.0/0", "gw": "10.8.0.9"}]}"#, "ipam.routes[0].gw"),
            (r#"{"routes": [{"gws": ["10.8.0.8", "10.8.0.9"]}]}"#, "ipam.routes[0].gws[1]"),
            (r#"{"subnet": "10.8.0.9"}"#, "ips[0].gateway of the IPAM plugin's result"),
        ] {
            let config =
                Config::parse(format!(r#"{{"name": "net", "ipam": {ipam}}}"#).into_bytes())
                    .unwrap();
            assert_eq!(gateway_field(&config, &result, "10.8.0.9".parse().unwrap()), path);
        }
    }
}
