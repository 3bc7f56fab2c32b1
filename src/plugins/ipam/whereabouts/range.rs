//! The addresses of one range. The rules are the original's.

use std::net::IpAddr;

use ipnet::IpNet;

use super::document::RangeDocument;
use crate::cni::addr;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::plugins::ipam::cluster_local::conf::span;
use crate::plugins::ipam::cluster_local::pool::Span;
use crate::steps::allocation::ranges::{Range, RangeConf};

/// The range at this path: `A/len` with the ends beside it, or `A-B/len`, whose ends take precedence. Without
/// a gateway of its family it has the subnet's own address in its place, which is never allocated either.
pub fn read(document: &RangeDocument, gateway: Option<IpAddr>, at: &str) -> Result<Range> {
    let (path, text) = (format!("{at}.range"), &document.range);
    let ends = text.split_once('-');
    let last = net(ends.map_or(text, |(_, last)| last));
    let first = ends.map(|(first, _)| ip(first));
    let (Some(last), false) = (last, first == Some(None)) else {
        let expected = "a subnet as in 10.1.0.0/16, or a range as in 10.1.0.9-10.1.0.99/16";
        if text.is_empty() {
            return Err(Error::missing(path, expected));
        }
        return Err(Error::config(path, format_args!("{text:?} is not a range"))
            .expecting(expected)
            .saying(format_args!("invalid CIDR {text}")));
    };
    let subnet = last.trunc();
    let (start, end) = match first.flatten() {
        Some(first) if !subnet.contains(&first) => {
            return Err(Error::config(path, format_args!("{first} is outside subnet {subnet}"))
                .saying(format_args!("invalid range start for CIDR {subnet}: {first}")));
        }
        Some(first) => (Some(first), Some(last.addr())),
        None => (
            address(&document.range_start, &format!("{at}.range_start"))?,
            address(&document.range_end, &format!("{at}.range_end"))?,
        ),
    };
    if document.enable_l3 {
        let problem = "true is not supported: the first and the last address are never allocated";
        return Err(Error::config(format_args!("{at}.enable_l3"), problem)
            .expecting("false")
            .with_details("remove the key, and exclude no address for it"));
    }
    // The subnet's own address and its last one are not allocated, also of IPv6.
    let Some(hosts) = Span::of_prefix(subnet).without_ends() else {
        return Err(Error::config(path, format_args!("{subnet} is too small"))
            .expecting("at least 4 addresses")
            .saying(format_args!(
                "net mask is too short, subnet {subnet} has no usable IP addresses"
            )));
    };
    // An end that is outside of the rest counts as not written.
    let first = start.filter(|ip| hosts.contains(*ip)).unwrap_or(hosts.first());
    let last = end.filter(|ip| hosts.contains(*ip) && first <= *ip).unwrap_or(hosts.last());
    let gateway = gateway.filter(|ip| Family::of(*ip) == Family::of_net(subnet));
    let conf = RangeConf {
        subnet: Some(subnet),
        range_start: Some(first),
        range_end: Some(last),
        gateway: gateway.or(Some(subnet.network())),
    };
    Range::new(&conf, at)
}

/// The addresses that a text of `exclude` has.
pub fn excluded(text: &str) -> Option<Span> {
    span(&without_leading_zeros(text))
}

/// The address at this path; None for an empty text.
pub fn address(text: &str, path: &str) -> Result<Option<IpAddr>> {
    if text.is_empty() {
        return Ok(None);
    }
    let no_address = || Error::config(path, format_args!("{text:?} is not an IP address"));
    ip(text).map(Some).ok_or_else(|| no_address().expecting("one as in 10.1.0.9 or fd00::9"))
}

fn ip(text: &str) -> Option<IpAddr> {
    addr::parse_ip(&without_leading_zeros(text)).ok().flatten()
}

fn net(text: &str) -> Option<IpNet> {
    addr::parse_cidr(&without_leading_zeros(text)).ok()
}

/// The original reads `10.01.2.003` as `10.1.2.3`, as Go did before 1.17.
fn without_leading_zeros(text: &str) -> String {
    if text.contains(':') {
        return text.to_owned();
    }
    let (address, rest) = text.split_at(text.find('/').unwrap_or(text.len()));
    let without_zeros = |octet: &str| match octet.trim_start_matches('0') {
        "" => octet[..octet.len().min(1)].to_owned(),
        digits => digits.to_owned(),
    };
    let octets: Vec<String> = address.split('.').map(without_zeros).collect();
    octets.join(".") + rest
}
