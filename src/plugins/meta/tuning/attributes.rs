//! The attributes of a link that can be tuned.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange, Netlink};

/// A set of attributes of a link. One that is `None` is not in the set. In files they have the
/// reference's names and order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Attributes {
    /// The hardware address; in a file, one that cannot be parsed is not in the set.
    #[serde(
        serialize_with = "serialize_mac",
        deserialize_with = "valid_mac",
        skip_serializing_if = "Option::is_none"
    )]
    pub mac: Option<MacAddr>,
    /// Promiscuous mode: receive every packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promisc: Option<bool>,
    /// MTU in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Receive every multicast packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allmulti: Option<bool>,
    /// Length of the transmit queue, in packets.
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    pub txqlen: Option<u32>,
}

fn serialize_mac<S: Serializer>(mac: &Option<MacAddr>, serializer: S) -> Result<S::Ok, S::Error> {
    mac.as_ref().map(MacAddr::to_string).serialize(serializer)
}

fn valid_mac<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MacAddr>, D::Error> {
    Ok(String::deserialize(deserializer)?.parse().ok())
}

/// The largest MTU: the kernel stores the MTU of any link as an `int`.
pub const MTU_MOST: u32 = i32::MAX.unsigned_abs();

impl Attributes {
    /// Whether no attribute is set.
    pub fn is_empty(&self) -> bool {
        *self == Attributes::default()
    }

    /// Returns the link's values of the attributes that are set here.
    pub fn on(&self, link: &Link) -> Attributes {
        Attributes {
            mac: self.mac.as_ref().map(|_| link.mac()),
            promisc: self.promisc.map(|_| link.promisc),
            mtu: self.mtu.map(|_| link.mtu),
            allmulti: self.allmulti.map(|_| link.allmulti),
            txqlen: self.txqlen.map(|_| link.txqlen),
        }
    }

    /// Returns these attributes, with those of `others` where none is set here.
    pub fn or(self, others: Attributes) -> Attributes {
        Attributes {
            mac: self.mac.or(others.mac),
            promisc: self.promisc.or(others.promisc),
            mtu: self.mtu.or(others.mtu),
            allmulti: self.allmulti.or(others.allmulti),
            txqlen: self.txqlen.or(others.txqlen),
        }
    }

    /// Keeps the attributes that `one` and `other` both set to the same value.
    pub fn where_equal(self, one: &Attributes, other: &Attributes) -> Attributes {
        fn equal<T: PartialEq>(one: &Option<T>, other: &Option<T>) -> bool {
            one.is_some() && one == other
        }
        Attributes {
            mac: self.mac.filter(|_| equal(&one.mac, &other.mac)),
            promisc: self.promisc.filter(|_| equal(&one.promisc, &other.promisc)),
            mtu: self.mtu.filter(|_| equal(&one.mtu, &other.mtu)),
            allmulti: self.allmulti.filter(|_| equal(&one.allmulti, &other.allmulti)),
            txqlen: self.txqlen.filter(|_| equal(&one.txqlen, &other.txqlen)),
        }
    }

    /// Refuses an MTU that the link does not support, before anything is changed.
    pub fn validate(&self, link: &Link) -> Result<()> {
        let most = if link.max_mtu == 0 { MTU_MOST } else { link.max_mtu };
        let range = link.min_mtu..=most;
        let Some(mtu) = self.mtu.filter(|mtu| !range.contains(mtu)) else { return Ok(()) };
        let problem = format_args!("{mtu} is out of range of interface {:?}", link.name);
        Err(Error::config("mtu", problem).expecting(i64::from(link.min_mtu)..=i64::from(most)))
    }

    /// Sets them, in one message.
    pub fn set(&self, netlink: &Netlink, link: &Link) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let Attributes { mac, promisc, mtu, allmulti, txqlen } = self.clone();
        let change = LinkChange { mac, promisc, mtu, allmulti, txqlen, ..LinkChange::default() };
        netlink.change_link(link, &change)
    }

    /// Restores the link's attributes, each by its own message, so that a refused one does not
    /// prevent the others.
    pub fn restore(&self, netlink: &Netlink, link: &Link) -> Result<()> {
        let Attributes { mac, promisc, mtu, allmulti, txqlen } = self.clone();
        let each = [
            Attributes { mtu, ..Attributes::default() },
            Attributes { mac, ..Attributes::default() },
            Attributes { promisc, ..Attributes::default() },
            Attributes { allmulti, ..Attributes::default() },
            Attributes { txqlen, ..Attributes::default() },
        ];
        ErrorList::of(each.iter().map(|one| one.set(netlink, link)))
    }

    /// Compares with the link.
    pub fn verify(&self, link: &Link) -> Result<()> {
        let mut differences = ErrorList::default();
        for ((what, expected), (_, found)) in self.words().into_iter().zip(self.on(link).words()) {
            let (Some(expected), Some(found)) = (expected, found) else { continue };
            if expected != found {
                let name = &link.name;
                let subject = match what {
                    "promisc" => format!("link {name} configured promisc"),
                    _ => format!("configured {what} of {name}"),
                };
                differences.add(Error::check(format!(
                    "Error: Tuning {subject} is {expected}, current value is {found}"
                )));
            }
        }
        differences.finish()
    }

    /// Returns the values, each with its name in the reference's errors.
    fn words(&self) -> [(&'static str, Option<String>); 5] {
        [
            ("Ethernet", self.mac.as_ref().map(MacAddr::to_string)),
            ("promisc", self.promisc.map(|on| on.to_string())),
            ("MTU", self.mtu.map(|mtu| mtu.to_string())),
            ("all-multicast mode", self.allmulti.map(|on| on.to_string())),
            ("Transmit Queue Length", self.txqlen.map(|length| length.to_string())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_taken_one_by_one() {
        let told = |mtu, txqlen| Attributes { mtu, txqlen, ..Attributes::default() };
        assert_eq!(told(Some(1), None).or(told(Some(2), Some(3))), told(Some(1), Some(3)));
        let was = told(Some(1500), Some(1000));
        assert_eq!(
            was.where_equal(&told(Some(1400), Some(5)), &told(Some(1400), Some(6))),
            told(Some(1500), None)
        );
        assert_eq!(
            told(Some(1500), None).where_equal(&told(None, None), &told(None, None)),
            told(None, None)
        );
    }

    #[test]
    fn an_mtu_must_be_one_that_the_link_takes() {
        let link = |max_mtu| Link { name: "eth0".into(), min_mtu: 68, max_mtu, ..Link::default() };
        let wanted = |mtu| Attributes { mtu: Some(mtu), ..Attributes::default() };
        assert!(
            wanted(68).validate(&link(1500)).is_ok() && wanted(65536).validate(&link(0)).is_ok()
        );
        assert_eq!(
            wanted(1501).validate(&link(1500)).unwrap_err().msg,
            "mtu: 1501 is out of range of interface \"eth0\", expected 68 to 1500"
        );
        assert!(wanted(67).validate(&link(0)).is_err());
    }
}
