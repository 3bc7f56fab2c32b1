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

impl IpNetOfGo {
    fn net(&self, at: usize) -> Result<Option<IpNet>> {
        let Some(ip) = self.ip else { return Ok(None) };
        let net = self.prefix_len(ip).and_then(|length| IpNet::new(ip, length).ok());
        net.map(Some).ok_or_else(|| self.wrong_mask(ip, at))
    }

    fn wrong_mask(&self, ip: IpAddr, at: usize) -> Error {
        let problem = format!("{:?} is not a mask of {ip}", self.mask);
        Error::config(format_args!("ipam.addresses[{at}].Address.Mask"), problem)
            .expecting("its bytes in base64")
    }

    fn prefix_len(&self, ip: IpAddr) -> Option<u8> {
        let mask = address_of(&STANDARD.decode(&self.mask).ok()?)?;
        let is_of_family = Family::of(mask) == Family::of(ip);
        ipnet::ip_mask_to_prefix(mask).ok().filter(|_| is_of_family)
    }
}

/// The address that 4 or 16 bytes are.
fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    let of_v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    of_v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The addresses of `ipam.addresses`.
pub fn configured(addresses: &[Address]) -> Result<Vec<IpConfig>> {
    addresses.iter().enumerate().map(|(i, address)| address.ip_config(i)).collect()
}

impl Address {
    /// The address, which is number `at` in the configuration.
    fn ip_config(&self, at: usize) -> Result<IpConfig> {
        let net = self.read.net(at)?;
        Ok(ip_config(net.map_or_else(|| self.parse(at), Ok)?, self.gateway))
    }

    fn parse(&self, at: usize) -> Result<IpNet> {
        let text = &self.address;
        parse_cidr(text).ok_or_else(|| {
            no_cidr(format_args!("ipam.addresses[{at}].address"), text).saying(format_args!(
                "the 'address' field is expected to be in CIDR notation, got: '{text}'"
            ))
        })
    }
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
    for text in list(args.get("IP")) {
        ips.push(ip_config(net_in_args(text)?, None));
    }
    for text in list(args.get("GATEWAY")) {
        set_gateway(ips, gateway_in_args(text)?);
    }
    Ok(())
}

fn net_in_args(text: &str) -> Result<IpNet> {
    let invalid =
        || in_args(format!("the 'ip' field is expected to be in CIDR notation, got: '{text}'"));
    parse_cidr(text).ok_or_else(invalid)
}

fn gateway_in_args(text: &str) -> Result<IpAddr> {
    let gateway = addr::parse_ip(text).ok().flatten();
    gateway.ok_or_else(|| in_args(format!("invalid gateway address: {text}")))
}

fn set_gateway(ips: &mut [IpConfig], gateway: IpAddr) {
    for ip in ips.iter_mut().filter(|ip| ip.address.contains(&gateway)) {
        ip.gateway = Some(gateway);
    }
}

fn list(text: Option<&str>) -> impl Iterator<Item = &str> {
    text.filter(|text| !text.is_empty()).into_iter().flat_map(|text| text.split(',')).map(str::trim)
}

fn in_args(sentence: String) -> Error {
    Error::new(Code::INVALID_ENVIRONMENT, sentence).with_details("it stands in CNI_ARGS")
}

/// Reads an address with its prefix length.
pub fn parse_cidr(text: &str) -> Option<IpNet> {
    addr::parse_cidr(text).ok()
}

/// The address as results have it.
pub fn ip_config(address: IpNet, gateway: Option<IpAddr>) -> IpConfig {
    IpConfig { interface: None, address, gateway }
}
