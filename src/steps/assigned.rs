//! Addresses that a configuration or CNI_ARGS assigns: nothing allocates them.

use std::fmt;
use std::net::IpAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use serde::Deserialize;

use crate::cni::addr;
use crate::cni::args::Args;
use crate::cni::result::IpConfig;
use crate::error::{Code, Error, Result};
use crate::family::Family;

/// The rows of the members of `ipam.addresses` for `KEYS` of plugins.
pub const KEYS: &str = "ipam.addresses[].address | string | required | An address with its prefix length.
    ipam.addresses[].gateway | address | none | Its gateway, inside or outside the subnet.
    ipam.addresses[].Address | object | none | Output of Go's `json.Marshal` for the reference's own type beside `address`, in exactly this case.
    ipam.addresses[].Address.IP | address | none | The address, in place of that in `address`.
    ipam.addresses[].Address.Mask | string | none | Its mask, four or sixteen bytes in base64; required with `IP`.";

/// An address of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Address {
    /// The address with its prefix length.
    address: String,
    /// The gateway, if any; it need not be in the subnet.
    #[serde(with = "addr::ip")]
    gateway: Option<IpAddr>,
    /// The parsed `address`, which the reference's Go type marshals beside the text. If it has an
    /// IP, it takes precedence over `address`.
    #[serde(rename = "Address")]
    read: IpNetOfGo,
}

/// Go's `net.IPNet`, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct IpNetOfGo {
    #[serde(rename = "IP", with = "addr::ip")]
    ip: Option<IpAddr>,
    /// The bytes of the mask, in base64.
    #[serde(rename = "Mask")]
    mask: String,
}

/// The addresses of `ipam.addresses`.
pub fn configured(addresses: &[Address]) -> Result<Vec<IpConfig>> {
    let mut ips = vec![];
    for (at, Address { address: text, gateway, read }) in addresses.iter().enumerate() {
        let net = match read.ip {
            Some(ip) => net_of_go(ip, &read.mask).ok_or_else(|| {
                let problem = format!("{:?} is not a mask of {ip}", read.mask);
                Error::config(format_args!("ipam.addresses[{at}].Address.Mask"), problem)
                    .expecting("its bytes in base64")
            })?,
            None => parse_cidr(text).ok_or_else(|| {
                no_cidr(format_args!("ipam.addresses[{at}].address"), text).saying(format_args!(
                    "the 'address' field is expected to be in CIDR notation, got: '{text}'"
                ))
            })?,
        };
        ips.push(ip_config(net, *gateway));
    }
    Ok(ips)
}

/// An address of Go's `net.IPNet`, whose mask is 4 or 16 bytes in base64.
fn net_of_go(ip: IpAddr, mask: &str) -> Option<IpNet> {
    let bytes = STANDARD.decode(mask).ok()?;
    let of_v4 = <[u8; 4]>::try_from(&bytes[..]).map(IpAddr::from);
    let mask = of_v4.or_else(|_| <[u8; 16]>::try_from(&bytes[..]).map(IpAddr::from)).ok()?;
    let length = ipnet::ip_mask_to_prefix(mask).ok()?;
    (Family::of(mask) == Family::of(ip)).then(|| IpNet::new(ip, length).ok())?
}

/// The error for a text that is no address with a prefix length.
pub fn no_cidr(path: impl fmt::Display, text: &str) -> Error {
    match text {
        "" => Error::missing(path, "an address with its prefix length, as in 10.1.2.3/24"),
        text => Error::config(path, format_args!("{text:?} is not understood"))
            .expecting("one as in 10.1.2.3/24"),
    }
}

/// Adds those of CNI_ARGS: `IP=<address>/<length>,…;GATEWAY=<address>,…`. A gateway belongs to every
/// address of the list whose subnet contains it. `known` are the keys that may be there.
pub fn add_cni_args(ips: &mut Vec<IpConfig>, args: &str, known: &[&str]) -> Result<()> {
    let args = Args::parse(args, known)?;
    let mistake = |sentence: String| {
        Error::new(Code::INVALID_ENVIRONMENT, sentence).with_details("it stands in CNI_ARGS")
    };
    for text in list(args.get("IP")) {
        let net = parse_cidr(text).ok_or_else(|| {
            mistake(format!("the 'ip' field is expected to be in CIDR notation, got: '{text}'"))
        })?;
        ips.push(ip_config(net, None));
    }
    for text in list(args.get("GATEWAY")) {
        let gateway = addr::parse_ip(text).ok().flatten();
        let gateway = gateway.ok_or_else(|| mistake(format!("invalid gateway address: {text}")))?;
        for ip in ips.iter_mut().filter(|ip| ip.address.contains(&gateway)) {
            ip.gateway = Some(gateway);
        }
    }
    Ok(())
}

fn list(text: Option<&str>) -> impl Iterator<Item = &str> {
    text.filter(|text| !text.is_empty()).into_iter().flat_map(|text| text.split(',')).map(str::trim)
}

/// Reads an address with its prefix length.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    addr::parse_cidr(text).ok()
}

/// The address as results have it.
pub fn ip_config(address: IpNet, gateway: Option<IpAddr>) -> IpConfig {
    IpConfig { interface: None, address, gateway }
}
