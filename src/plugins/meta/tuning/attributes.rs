//! The attributes of a link that can be tuned.

use crate::error::{Error, ErrorList, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::{Link, LinkChange, Netlink};

/// A set of attributes of a link. One that is `None` is not in the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The hardware address.
    pub mac: Option<MacAddr>,
    /// Promiscuous mode: receive every packet.
    pub promisc: Option<bool>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Receive every multicast packet.
    pub allmulti: Option<bool>,
    /// Length of the transmit queue, in packets.
    pub txqlen: Option<u32>,
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
        match self.mtu.filter(|mtu| !(link.min_mtu..=most).contains(mtu)) {
            Some(mtu) => Err(Error::config(
                "mtu",
                format_args!("{mtu} is out of range of interface {:?}", link.name),
            )
            .expecting(i64::from(link.min_mtu)..=i64::from(most))),
            None => Ok(()),
        }
    }

    /// Sets all but the MTU, in one message.
    pub fn set_all_but_mtu(&self, netlink: &Netlink, link: &Link) -> Result<()> {
        let Attributes { mac, promisc, mtu: _, allmulti, txqlen } = self.clone();
        match (Attributes { mtu: None, ..self.clone() }).is_empty() {
            true => Ok(()),
            false => netlink.change_link(
                link,
                &LinkChange { mac, promisc, allmulti, txqlen, ..LinkChange::default() },
            ),
        }
    }

    /// Sets the MTU.
    pub fn set_mtu(&self, netlink: &Netlink, link: &Link) -> Result<()> {
        match self.mtu {
            Some(mtu) => {
                netlink.change_link(link, &LinkChange { mtu: Some(mtu), ..LinkChange::default() })
            }
            None => Ok(()),
        }
    }

    /// Restores the link's attributes, each by its own message, so that a refused one does not
    /// prevent the others.
    pub fn restore(&self, netlink: &Netlink, link: &Link) -> Result<()> {
        let none = Attributes::default;
        let mut errors = ErrorList::default();
        errors.push(self.set_mtu(netlink, link));
        errors.push(Attributes { mac: self.mac.clone(), ..none() }.set_all_but_mtu(netlink, link));
        errors.push(Attributes { promisc: self.promisc, ..none() }.set_all_but_mtu(netlink, link));
        errors
            .push(Attributes { allmulti: self.allmulti, ..none() }.set_all_but_mtu(netlink, link));
        errors.push(Attributes { txqlen: self.txqlen, ..none() }.set_all_but_mtu(netlink, link));
        errors.finish()
    }

    /// Compares with the link, and reports the first difference.
    pub fn verify(&self, link: &Link) -> Result<()> {
        let found = self.on(link);
        let words = |attributes: &Attributes| {
            [
                ("Ethernet", attributes.mac.as_ref().map(MacAddr::to_string)),
                ("promisc", attributes.promisc.map(|on| on.to_string())),
                ("MTU", attributes.mtu.map(|mtu| mtu.to_string())),
                ("all-multicast mode", attributes.allmulti.map(|on| on.to_string())),
                ("Transmit Queue Length", attributes.txqlen.map(|length| length.to_string())),
            ]
        };
        for ((what, expected), (_, found)) in words(self).into_iter().zip(words(&found)) {
            if let (Some(expected), Some(found)) = (expected, found)
                && expected != found
            {
                let name = &link.name;
                return Err(Error::check(match what {
                    "promisc" => {
                        format!(
                            "Error: Tuning link {name} configured promisc is {expected}, current value is {found}"
                        )
                    }
                    _ => format!(
                        "Error: Tuning configured {what} of {name} is {expected}, current value is {found}"
                    ),
                }));
            }
        }
        Ok(())
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
