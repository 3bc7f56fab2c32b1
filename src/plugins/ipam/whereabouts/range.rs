//! The addresses of one range. The rules are the original's.

use std::net::IpAddr;

use ipnet::IpNet;

use super::document::RangeDocument;
use crate::cni::addr;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::plugins::ipam::cluster_local::conf::{excluded_span, not_excludable};
use crate::plugins::ipam::cluster_local::pool::Span;
use crate::steps::allocation::ranges::{Range, RangeConf};

/// What a range has to be written as.
const EXPECTED: &str = "a subnet as in 10.1.0.0/16, or a range as in 10.1.0.9-10.1.0.99/16";

/// A subnet with the ends as written, which may be outside of it.
struct Written {
    subnet: IpNet,
    start: Option<IpAddr>,
    end: Option<IpAddr>,
}

/// The range at this path. Without a gateway of its family it has the subnet's own address in its
/// place, which is never allocated either.
pub fn read(document: &RangeDocument, gateway: Option<IpAddr>, at: &str) -> Result<Range> {
    let written = written(document, at)?;
    refuse_l3(document, at)?;
    let subnet = written.subnet;
    require_room(subnet, at)?;
    let (first, last) = written.ends();
    let gateway = gateway.filter(|ip| Family::of(*ip) == Family::of_net(subnet));
    let conf = RangeConf {
        subnet: Some(subnet),
        range_start: Some(first),
        range_end: Some(last),
        gateway: gateway.or(Some(subnet.network())),
    };
    Range::new(&conf, at)
}

impl Written {
    /// The first and the last address. The subnet's own address and its last one are not allocated,
    /// also of IPv6. An end that is outside of the rest counts as not written.
    fn ends(&self) -> (IpAddr, IpAddr) {
        let mut hosts = Span::of_prefix(self.subnet);
        hosts = hosts.without_ends().unwrap_or(hosts); // a checked subnet has four addresses
        let first = self.start.filter(|ip| hosts.contains(*ip)).unwrap_or(hosts.first());
        let is_end = |ip: &IpAddr| hosts.contains(*ip) && first <= *ip;
        (first, self.end.filter(is_end).unwrap_or(hosts.last()))
    }
}

/// Reads `A/len` with the ends beside it, or `A-B/len`, whose ends take precedence.
fn written(document: &RangeDocument, at: &str) -> Result<Written> {
    let path = format!("{at}.range");
    if let Some((first, rest)) = document.range.split_once('-') {
        let last = net(rest).ok_or_else(|| no_range(&path, &document.range))?;
        let first = ip(first).ok_or_else(|| no_range(&path, &document.range))?;
        let subnet = last.trunc();
        require_inside(first, subnet, &path)?;
        return Ok(Written { subnet, start: Some(first), end: Some(last.addr()) });
    }
    let net = net(&document.range).ok_or_else(|| no_range(&path, &document.range))?;
    let start = address(&document.range_start, &format!("{at}.range_start"))?;
    let end = address(&document.range_end, &format!("{at}.range_end"))?;
    Ok(Written { subnet: net.trunc(), start, end })
}

fn no_range(path: &str, text: &str) -> Error {
    if text.is_empty() {
        return Error::missing(path, EXPECTED);
    }
    let error = Error::config(path, format_args!("{text:?} is not a range")).expecting(EXPECTED);
    error.saying(format_args!("invalid CIDR {text}"))
}

fn require_inside(first: IpAddr, subnet: IpNet, path: &str) -> Result<()> {
    if subnet.contains(&first) {
        return Ok(());
    }
    Err(Error::config(path, format_args!("{first} is outside subnet {subnet}"))
        .saying(format_args!("invalid range start for CIDR {subnet}: {first}")))
}

fn require_room(subnet: IpNet, at: &str) -> Result<()> {
    if subnet.prefix_len() + 2 <= subnet.max_prefix_len() {
        return Ok(());
    }
    Err(Error::config(format_args!("{at}.range"), format_args!("{subnet} is too small"))
        .expecting("at least 4 addresses")
        .saying(format_args!("net mask is too short, subnet {subnet} has no usable IP addresses")))
}

fn refuse_l3(document: &RangeDocument, at: &str) -> Result<()> {
    if !document.enable_l3 {
        return Ok(());
    }
    let problem = "true is not supported: the first and the last address are never allocated";
    Err(Error::config(format_args!("{at}.enable_l3"), problem)
        .expecting("false")
        .with_details("remove the key, and exclude no address for it"))
}

/// The addresses of the range that are never allocated.
pub fn excluded(document: &RangeDocument, at: &str) -> Result<Vec<Span>> {
    let spans = document.exclude.iter().enumerate().map(|(i, text)| {
        let span = excluded_span(&without_leading_zeros(text));
        span.ok_or_else(|| not_excludable(&format!("{at}.exclude[{i}]"), text))
    });
    spans.collect()
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
    let octets: Vec<&str> = address.split('.').map(without_zeros).collect();
    octets.join(".") + rest
}

/// The digits without zeros before them; a zero alone stays.
fn without_zeros(octet: &str) -> &str {
    match octet.trim_start_matches('0') {
        "" => &octet[..octet.len().min(1)],
        digits => digits,
    }
}
