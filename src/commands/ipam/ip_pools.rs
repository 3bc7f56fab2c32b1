//! The allocations of a cluster with whereabouts, as `kubectl get
//! ippools.whereabouts.cni.cncf.io -A -o json` prints them.
//!
//! An allocation names its container and its pod, and neither node nor network. So a machine takes
//! over those of which it has the record of an attachment: the same container with the same address.
//! All others are of other machines, or of containers that are gone, and are left out.

use std::net::IpAddr;

use ipnet::IpNet;

use super::import::{Section, items, text};
use super::networks::{Host, Leased};
use crate::cni::addr;
use crate::cni::attachment::{Key, NetworkName};
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::family::Family;
use crate::plugin::leases::Holding;
use crate::runtime::find::{self, Recorded};

/// The kind of the objects.
const KIND: &str = "IPPool";

/// An address that a container holds in the cluster.
struct Allocation {
    address: IpAddr,
    container_id: String,
    /// Empty in pools of old versions.
    ifname: String,
}

/// The leases of this machine's attachments, by network, and a line about the rest.
pub fn sections(
    host: &Host<'_>,
    document: &[u8],
    wanted: Option<&NetworkName>,
) -> Result<(Vec<Section>, String)> {
    let allocations = read(document)?;
    let recorded = find::recorded(&find::caches(&host.cache)?)?;
    let mut own: Vec<(Key, IpAddr)> = vec![];
    let mut rest = 0;
    for allocation in allocations {
        match recorded.iter().find(|recorded| allocation.is_of(recorded)) {
            Some(holder) => own.push((holder.at.key.clone(), allocation.address)),
            None => rest += 1,
        }
    }
    let (own, others): (Vec<_>, Vec<_>) =
        own.into_iter().partition(|(key, _)| wanted.is_none_or(|wanted| key.network == *wanted));
    let mut note = match own.is_empty() && others.is_empty() && rest == 0 {
        true => "the pools have no allocations: nothing is to be done\n".to_owned(),
        false => format!("left out {rest}: no attachment of this machine holds them\n"),
    };
    if !others.is_empty() {
        note += &format!("left out {}: of other networks\n", others.len());
    }
    Ok((by_network(host, own)?, note))
}

impl Allocation {
    /// Whether the attachment holds the address.
    fn is_of(&self, recorded: &Recorded) -> bool {
        let key = &recorded.at.key;
        // No addresses if the record or its result cannot be read.
        let result = || {
            let result = recorded.found.record.as_ref().ok()?.result.clone().ok()??;
            result.into_add_result().ok()
        };
        let mut addresses = std::iter::once_with(result)
            .flatten()
            .flat_map(|result| result.ips)
            .map(|ip| ip.address.addr());
        key.container_id.as_str() == self.container_id
            && (self.ifname.is_empty() || key.ifname.as_str() == self.ifname)
            && addresses.any(|address| address == self.address)
    }
}

/// The sections of these holders' networks. Each must be configured here: an address that is left
/// out would be allocated again while its container has it.
fn by_network(host: &Host<'_>, own: Vec<(Key, IpAddr)>) -> Result<Vec<Section>> {
    let here = host.leased(None)?;
    let mut sections: Vec<Section> = vec![];
    for (key, address) in own {
        let lease = Holding {
            address,
            container_id: key.container_id.to_string(),
            ifname: key.ifname.to_string(),
            since: None,
            netns_path: String::new(),
        };
        match sections.iter_mut().find(|section| section.network == key.network) {
            Some(section) if section.leases.iter().any(|held| held.address == address) => {
                let msg = format!("{address} is there twice in network {:?}", key.network.as_str());
                return Err(Error::new(Code::CONFLICT, msg).with_details(
                    "two containers of this machine have it: detach one of them first",
                ));
            }
            Some(section) => section.leases.push(lease),
            None => {
                let ipam = ipam_of(&here, &key.network, host)?;
                sections.push(Section { network: key.network, ipam, leases: vec![lease] });
            }
        }
    }
    Ok(sections)
}

/// The IPAM plugin of the network here.
fn ipam_of(here: &[Leased], network: &NetworkName, host: &Host<'_>) -> Result<String> {
    let found = here.iter().find(|leased| leased.network == *network);
    found.map(|leased| leased.ipam.to_owned()).ok_or_else(|| {
        let msg = format!(
            "attachments of this machine hold addresses of {:?}, which is not configured here",
            network.as_str()
        );
        Error::new(Code::INVALID_CONFIG, msg).with_details(format_args!(
            "expected it in {}, with the ipam type whereabouts or cluster-local; \
             --conf-dir names a directory with the configurations of Multus' networks",
            host.conf_dir.display()
        ))
    })
}

/// The allocations of all pools.
fn read(document: &[u8]) -> Result<Vec<Allocation>> {
    let document = Value::parse(document)?;
    if document.get("kind").and_then(Value::as_str) == Some(KIND) {
        return read_pool(&document, "");
    }
    let mut all = vec![];
    for (place, pool) in items(&document, "", "items")? {
        let kind = text(pool, &place, "kind")?;
        if kind != KIND {
            let problem = format!("{kind:?} found");
            return Err(Error::config(format_args!("{place}.kind"), problem).expecting(KIND));
        }
        all.extend(read_pool(pool, &format!("{place}."))?);
    }
    Ok(all)
}

/// The allocations of the pool at this place, which is empty or ends with a point.
fn read_pool(pool: &Value, place: &str) -> Result<Vec<Allocation>> {
    let none = Value::Null;
    let spec = pool.get("spec").unwrap_or(&none);
    let at = format!("{place}spec");
    let range = text(spec, &at, "range")?;
    let range = addr::parse_cidr(range).map_err(|_| {
        Error::config(format_args!("{at}.range"), format_args!("{range:?} is not a subnet"))
            .expecting("one as in 10.1.0.0/16")
    })?;
    let members = match spec.get("allocations") {
        Some(Value::Object(members)) => &members[..],
        None | Some(Value::Null) => &[], // kubectl prints no empty map
        Some(other) => {
            let problem = format!("{} found", other.kind());
            return Err(
                Error::config(format_args!("{at}.allocations"), problem).expecting("an object")
            );
        }
    };
    let read = |(offset, holder): &(String, Value)| {
        read_allocation(range, (offset, holder), &format!("{at}.allocations.{offset}"))
    };
    members.iter().map(read).collect()
}

fn read_allocation(range: IpNet, (offset, holder): (&str, &Value), at: &str) -> Result<Allocation> {
    let address = offset.parse().ok().and_then(|offset| nth(range, offset));
    let address = address.ok_or_else(|| {
        Error::config(at, format_args!("{offset:?} is no offset in {range}"))
            .expecting("a whole number within the range")
    })?;
    let ifname = if holder.get("ifname").is_some() { text(holder, at, "ifname")? } else { "" };
    let container_id = text(holder, at, "id")?.to_owned();
    Ok(Allocation { address, container_id, ifname: ifname.to_owned() })
}

/// The address at this offset from the range's own one; None outside of it.
fn nth(range: IpNet, offset: u128) -> Option<IpAddr> {
    let address = match (range.addr(), Family::of_net(range)) {
        (IpAddr::V4(first), _) => {
            IpAddr::V4(u32::from(first).checked_add(u32::try_from(offset).ok()?)?.into())
        }
        (IpAddr::V6(first), _) => IpAddr::V6(u128::from(first).checked_add(offset)?.into()),
    };
    range.contains(&address).then_some(address)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn list(spec: &str) -> String {
        format!(r#"{{"kind":"List","items":[{{"kind":"IPPool","spec":{spec}}}]}}"#)
    }

    #[test]
    fn offsets_count_from_the_address_of_the_range() {
        let read_all = |document: &str| -> Vec<String> {
            let all = read(document.as_bytes()).unwrap();
            let words =
                |it: Allocation| format!("{} {} {}", it.address, it.container_id, it.ifname);
            all.into_iter().map(words).collect()
        };
        let spec = r#"{"range":"192.168.2.224/28","allocations":{
            "1":{"id":"a","podref":"shop/till","ifname":"net1"},"14":{"id":"b","podref":"shop/desk"}}}"#;
        assert_eq!(read_all(&list(spec)), ["192.168.2.225 a net1", "192.168.2.238 b "]);
        let single = r#"{"kind":"IPPool","spec":{"range":"fd00::/64",
            "allocations":{"18446744073709551615":{"id":"c","podref":"x/y"}}}}"#;
        assert_eq!(read_all(single), ["fd00::ffff:ffff:ffff:ffff c "]);
        assert_eq!(read_all(&list(r#"{"range":"10.0.0.0/8"}"#)), [""; 0]);
        assert_eq!(read_all(r#"{"kind":"List","items":[]}"#), [""; 0]);
    }

    #[test]
    fn a_wrong_document_is_named_by_its_place() {
        let error = |document: &str| read(document.as_bytes()).err().unwrap().msg.clone();
        let of_spec = |spec: &str| error(&list(spec));
        let path = "items[0].spec";
        for (message, expected) in [
            (error("{"), "EOF while parsing".to_owned()),
            (error("{}"), "items: missing".to_owned()),
            (error(r#"{"items":[{"kind":"Pod"}]}"#), "items[0].kind: \"Pod\" found".to_owned()),
            (of_spec("{}"), format!("{path}.range: missing")),
            (
                of_spec(r#"{"range":"10.0.0.0"}"#),
                format!("{path}.range: \"10.0.0.0\" is not a subnet"),
            ),
            (
                of_spec(r#"{"range":"10.0.0.0/30","allocations":[]}"#),
                format!("{path}.allocations: array found"),
            ),
            (
                of_spec(r#"{"range":"10.0.0.0/30","allocations":{"4":{"id":"a"}}}"#),
                format!("{path}.allocations.4: \"4\" is no offset in 10.0.0.0/30"),
            ),
            (
                of_spec(r#"{"range":"10.0.0.0/30","allocations":{"-1":{"id":"a"}}}"#),
                format!("{path}.allocations.-1: \"-1\" is no offset"),
            ),
            (
                of_spec(r#"{"range":"10.0.0.0/30","allocations":{"1":{"podref":"a/b"}}}"#),
                format!("{path}.allocations.1.id: missing"),
            ),
        ] {
            let begin = message.get(..expected.len());
            assert_eq!(begin, Some(expected.as_str()), "{message:?}");
        }
    }
}
