//! Changes of a link: `ip link set`.

use std::os::fd::RawFd;

use nix::errno::Errno;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, LinkAttribute, LinkFlags, LinkMessage,
};

use super::link::Link;
use super::socket::{Netlink, RTM_SETLINK, Request};
use crate::error::Result;
use crate::net::mac::MacAddr;

/// Changes of a link, made by one message. The kernel moves the link first, then renames it, and
/// may refuse the rename after it has done the move.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkChange<'a> {
    /// The namespace it moves to, where it arrives down and without addresses.
    pub netns: Option<RawFd>,
    /// Its new name.
    pub name: Option<&'a str>,
    /// Set up (true) or down.
    pub up: Option<bool>,
    /// ifindex of the bridge it becomes a port of.
    pub master: Option<u32>,
    /// Text to attach; an empty one removes it.
    pub alias: Option<&'a str>,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Hardware address.
    pub mac: Option<MacAddr>,
    /// Promiscuous mode on or off.
    pub promisc: Option<bool>,
    /// All-multicast mode on or off.
    pub allmulti: Option<bool>,
    /// How many packets may be queued for sending.
    pub txqlen: Option<u32>,
    /// Without an IPv6 link-local address from the kernel, for a link that only hands frames on:
    /// the mode `none` of `addrgenmode` of ip-link(8). It has to be set before the link runs. The
    /// kernel walks the routes of all link-local addresses whenever it deletes a link.
    pub without_link_local: bool,
}

impl Netlink {
    /// Changes a link: `ip link set`.
    pub fn change_link(&self, link: &Link, change: &LinkChange<'_>) -> Result<()> {
        match self.request_change(link, change) {
            // The kernel refuses the mode for a link without IPv6, which gets no address anyway.
            Err(e) if change.without_link_local && e.is_errno(Errno::EAFNOSUPPORT) => {
                let rest = LinkChange { without_link_local: false, ..change.clone() };
                self.request_change(link, &rest)
            }
            done => done,
        }
    }

    fn request_change(&self, link: &Link, change: &LinkChange<'_>) -> Result<()> {
        let what = format_args!("set link {:?}: {}", link.name, change.text());
        self.request(&Request::new(RTM_SETLINK, &change.message(link)), 0, what)
    }

    /// Sets a link up: `ip link set NAME up`.
    pub fn set_up(&self, link: &Link) -> Result<()> {
        self.change_link(link, &LinkChange { up: Some(true), ..LinkChange::default() })
    }
}

impl LinkChange<'_> {
    fn message(&self, link: &Link) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = link.index;
        let flags = [
            (LinkFlags::Up, self.up),
            (LinkFlags::Promisc, self.promisc),
            (LinkFlags::Allmulti, self.allmulti),
        ];
        for (flag, on) in flags.into_iter().filter_map(|(flag, on)| Some((flag, on?))) {
            message.header.flags.set(flag, on);
            message.header.change_mask |= flag;
        }
        let without_link_local = || {
            let of_ipv6 = vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)];
            LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(of_ipv6)])
        };
        let attributes = [
            self.netns.map(LinkAttribute::NetNsFd),
            self.name.map(|name| LinkAttribute::IfName(name.to_owned())),
            self.mtu.map(LinkAttribute::Mtu),
            self.txqlen.map(LinkAttribute::TxQueueLen),
            self.master.map(LinkAttribute::Controller),
            self.alias.map(|alias| LinkAttribute::IfAlias(alias.to_owned())),
            self.mac.as_ref().map(|mac| LinkAttribute::Address(mac.octets().to_vec())),
            self.without_link_local.then(without_link_local),
        ];
        message.attributes = attributes.into_iter().flatten().collect();
        message
    }

    /// The change as error messages describe it.
    fn text(&self) -> String {
        let mut parts = vec![];
        parts.extend(self.netns.map(|_| "another netns".to_owned()));
        parts.extend(self.name.map(|name| format!("name {name:?}")));
        parts.extend(self.mtu.map(|mtu| format!("mtu {mtu}")));
        parts.extend(self.up.map(|up| if up { "up".to_owned() } else { "down".to_owned() }));
        parts.extend(self.promisc.map(|on| format!("promisc {on}")));
        parts.extend(self.allmulti.map(|on| format!("allmulti {on}")));
        parts.extend(self.txqlen.map(|length| format!("txqlen {length}")));
        parts.extend(self.master.map(|index| format!("master {index}")));
        parts.extend(self.alias.map(|alias| format!("alias {alias:?}")));
        parts.extend(self.mac.as_ref().map(|mac| format!("address {mac}")));
        parts.extend(self.without_link_local.then(|| "addrgenmode none".to_owned()));
        parts.join(", ")
    }
}
