//! The kernel's connection tracking table over netlink: what `conntrack -D` does, without the
//! program.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

use super::netlink::attr::{Attributes, Attrs};
use super::netlink::refused;
use super::netlink::transport::{Refusal, Transport};
use super::nfnetlink::{self, Header, NFNL_SUBSYS_CTNETLINK, NLM_F_ACK, NLM_F_DUMP};
use crate::error::{Error, ErrorList, Result};
use crate::family::Family;

/// How often an interrupted dump is retried; the flows of each attempt are deleted at once.
const TRIES: usize = 5;

// linux/netfilter/nfnetlink_conntrack.h: enum cntl_msg_types
const IPCTNL_MSG_CT_GET: u16 = 1;
const IPCTNL_MSG_CT_DELETE: u16 = 2;
// enum ctattr_type
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
// enum ctattr_tuple
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
// enum ctattr_ip
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
// enum ctattr_l4proto
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_DST_PORT: u16 = 3;
// enum ctattr_filter, and net/netfilter/nf_conntrack_netlink.c for its flags
const CTA_FILTER_ORIG_FLAGS: u16 = 1;
const CTA_FILTER_REPLY_FLAGS: u16 = 2;
const CTA_FILTER_F_CTA_IP_SRC: u32 = 1 << 0;
const CTA_FILTER_F_CTA_IP_DST: u32 = 1 << 1;
const CTA_FILTER_F_CTA_PROTO_NUM: u32 = 1 << 3;
const CTA_FILTER_F_CTA_PROTO_DST_PORT: u32 = 1 << 5;

/// IPPROTO_UDP.
const UDP: u8 = 17;

/// A tracked connection, reduced to the fields that are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The destination port of its first packet.
    pub port: u16,
    /// The destination address of its first packet.
    pub destination: IpAddr,
    /// The source address of the replies.
    pub answering: IpAddr,
    identity: Identity,
}

/// An address of a flow's original or reply tuple, by which the kernel filters flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The source of the original direction.
    SentFrom(Ipv4Addr),
    /// The destination of the original direction.
    SentTo(Ipv4Addr),
    /// The source of the reply direction.
    AnsweredBy(Ipv4Addr),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::SentFrom(ip) => write!(f, "from {ip}"),
            End::SentTo(ip) => write!(f, "of {ip}"),
            End::AnsweredBy(ip) => write!(f, "that {ip} answers"),
        }
    }
}

impl End {
    /// Builds the filter of a deletion of UDP flows to the port.
    fn filter(self, port: u16) -> Attributes {
        let mut body = Attributes::default();
        body.nest(CTA_TUPLE_ORIG, |tuple| {
            match self {
                End::SentFrom(ip) => write_source(tuple, ip),
                End::SentTo(ip) => write_address(tuple, CTA_IP_V4_DST, ip),
                End::AnsweredBy(_) => (),
            }
            tuple.nest(CTA_TUPLE_PROTO, |protocol| write_udp(protocol, Some(&port)));
        });
        if let End::AnsweredBy(ip) = self {
            body.nest(CTA_TUPLE_REPLY, |tuple| write_source(tuple, ip));
        }
        // Which fields the kernel compares: these of the original tuple, and the address.
        let of_port = compared_fields(Some(&port));
        let (of_original, of_reply) = match self {
            End::SentFrom(_) => (of_port | CTA_FILTER_F_CTA_IP_SRC, None),
            End::SentTo(_) => (of_port | CTA_FILTER_F_CTA_IP_DST, None),
            End::AnsweredBy(_) => (of_port, Some(CTA_FILTER_F_CTA_IP_SRC)),
        };
        body.nest(CTA_FILTER, |filter| {
            filter.raw(CTA_FILTER_ORIG_FLAGS, &of_original.to_ne_bytes());
            if let Some(flags) = of_reply {
                filter.raw(CTA_FILTER_REPLY_FLAGS, &flags.to_ne_bytes());
            }
        });
        body
    }
}

/// The attributes that the kernel deletes a flow by, as received.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity(Vec<(u16, Vec<u8>)>);

impl Flow {
    /// Reads a UDP flow; None for other protocols.
    fn read(payload: &[u8]) -> Option<Flow> {
        let attrs = Attrs::after(payload, nfnetlink::HEADER);
        let original = attrs.nested(CTA_TUPLE_ORIG)?;
        let reply = attrs.nested(CTA_TUPLE_REPLY)?;
        let protocol = original.nested(CTA_TUPLE_PROTO)?;
        if protocol.u8(CTA_PROTO_NUM)? != UDP {
            return None;
        }
        Some(Flow {
            port: u16::from_be(protocol.u16(CTA_PROTO_DST_PORT)?),
            destination: address(original, CTA_IP_V4_DST, CTA_IP_V6_DST)?,
            answering: address(reply, CTA_IP_V4_SRC, CTA_IP_V6_SRC)?,
            identity: Identity::read(attrs),
        })
    }
}

impl Identity {
    fn read(attrs: Attrs<'_>) -> Identity {
        let kinds = [CTA_TUPLE_ORIG, CTA_ID, CTA_ZONE].into_iter();
        Identity(kinds.filter_map(|kind| Some((kind, attrs.bytes(kind)?.to_vec()))).collect())
    }
}

/// An address of a tuple, by the types of its attribute in IPv4 and in IPv6.
fn address(tuple: Attrs<'_>, v4: u16, v6: u16) -> Option<IpAddr> {
    let addresses = tuple.nested(CTA_TUPLE_IP)?;
    addresses.ip(v4).or_else(|| addresses.ip(v6))
}

/// The flows that one dump listed.
struct Listing {
    flows: Vec<Identity>,
    /// False if the dump was interrupted: flows may be missing.
    is_consistent: bool,
}

/// A request for flows of one family.
struct List {
    family: Family,
    /// The filter.
    body: Attributes,
    /// The flows, in errors.
    which: String,
}

/// A connection tracking socket of one namespace, the one it was opened in.
pub struct Conntrack {
    transport: Transport,
}

impl Conntrack {
    /// Opens a socket in the namespace of this thread.
    pub fn open() -> Result<Conntrack> {
        let transport = Transport::open(NETLINK_NETFILTER)
            .map_err(|e| Error::kernel("open a netfilter socket", e))?;
        Ok(Conntrack { transport })
    }

    /// Talks to a peer other than the kernel, see [`Transport::over`].
    pub fn over(socket: OwnedFd) -> Conntrack {
        Conntrack { transport: Transport::over(socket) }
    }

    /// Deletes the UDP flows of one family that were sent to one of the ports and that `is_stale`
    /// accepts: the next packet of each is evaluated again. A kernel that does not support the
    /// query has nothing to delete.
    ///
    /// The kernel walks its whole table of all namespaces for it, which takes milliseconds: make
    /// one call for all ports.
    pub fn forget_udp(
        &self,
        family: Family,
        ports: &BTreeSet<u16>,
        is_stale: impl Fn(&Flow) -> bool,
    ) -> Result<()> {
        let which = format!("UDP flows to {ports:?}");
        // The kernel can filter by a single port only, and before 5.8 ignores the filter, so the
        // replies are filtered here as well.
        let only = ports.first().filter(|_| ports.len() == 1);
        let mut body = Attributes::default();
        body.nest(CTA_TUPLE_ORIG, |tuple| {
            tuple.nest(CTA_TUPLE_PROTO, |protocol| write_udp(protocol, only));
        });
        body.nest(CTA_FILTER, |filter| {
            filter.raw(CTA_FILTER_ORIG_FLAGS, &compared_fields(only).to_ne_bytes());
        });
        self.forget_listed(&List { family, body, which }, |payload| {
            let flow = Flow::read(payload)?;
            (ports.contains(&flow.port) && is_stale(&flow)).then_some(flow.identity)
        })
    }

    /// Has the kernel delete the UDP flows to the port that have this address, without a dump; false
    /// if it does not support that, as before Linux 6.11.
    ///
    /// The kernel walks its table here as well, but takes no lock of an empty bucket. Given an IPv6
    /// address, Linux 6.18 deletes the flows of every other address: `ctnetlink_filter_match_tuple`
    /// takes equal addresses for different ones.
    pub fn forget_udp_of(&self, end: End, port: u16) -> Result<bool> {
        let what = format_args!("delete the UDP flows to port {port} {end}");
        let delete = message(IPCTNL_MSG_CT_DELETE, Family::V4).with(NLM_F_ACK);
        let seq = self.send(delete, &end.filter(port)).map_err(|e| Error::kernel(what, e))?;
        match self.transport.acknowledged(seq, |_| ()) {
            // An older kernel ignores the filter, looks for one flow, and misses an address of it.
            Err(refusal) if is_unsupported(&refusal) => Ok(false),
            done => done.map(|()| true).map_err(|refusal| refused(what, refusal)),
        }
    }

    /// Deletes the flows that an address has opened or answers, of every protocol. Fails with EBUSY
    /// if a flow is in a flowtable, after it has deleted the others.
    pub fn forget_address(&self, ip: IpAddr) -> Result<()> {
        let (family, which) = (Family::of(ip), format!("flows of {ip}"));
        let bodies = match ip {
            // A flow has to match both tuples of a filter.
            IpAddr::V4(ip) => vec![from_address(ip, true), from_address(ip, false)],
            // The kernel cannot filter by them: see `forget_udp_answered_by`.
            IpAddr::V6(_) => vec![Attributes::default()],
        };
        ErrorList::of(bodies.into_iter().map(|body| {
            let list = List { family, body, which: which.clone() };
            self.forget_listed(&list, |payload| {
                let attrs = Attrs::after(payload, nfnetlink::HEADER);
                let source = |tuple| address(attrs.within(tuple), CTA_IP_V4_SRC, CTA_IP_V6_SRC);
                let sources = [CTA_TUPLE_ORIG, CTA_TUPLE_REPLY].map(source);
                sources.contains(&Some(ip)).then(|| Identity::read(attrs))
            })
        }))
    }

    /// Deletes the flows of which `read` returns the identity.
    fn forget_listed(&self, list: &List, read: impl Fn(&[u8]) -> Option<Identity>) -> Result<()> {
        for _ in 0..TRIES {
            let Some(listing) = self.list(list, &read)? else { break };
            ErrorList::of(listing.flows.iter().map(|identity| self.forget(list, identity)))?;
            if listing.is_consistent {
                break;
            }
        }
        Ok(())
    }

    /// Lists flows; None if the kernel does not support the query.
    fn list(
        &self,
        list: &List,
        read: &impl Fn(&[u8]) -> Option<Identity>,
    ) -> Result<Option<Listing>> {
        let what = format_args!("list the {}", list.which);
        let request = message(IPCTNL_MSG_CT_GET, list.family).with(NLM_F_DUMP);
        let seq = self.send(request, &list.body).map_err(|e| Error::kernel(what, e))?;
        let mut flows = vec![];
        match self.transport.dump(seq, |reply| flows.extend(read(reply.payload))) {
            Ok(is_consistent) => Ok(Some(Listing { flows, is_consistent })),
            Err(refusal) if is_unsupported(&refusal) => Ok(None),
            Err(refusal) => Err(refused(what, refusal)),
        }
    }

    fn forget(&self, list: &List, identity: &Identity) -> Result<()> {
        let what = format_args!("delete one of the {}", list.which);
        let mut body = Attributes::default();
        for (kind, bytes) in &identity.0 {
            match *kind {
                CTA_TUPLE_ORIG => body.nested(CTA_TUPLE_ORIG, bytes),
                kind => body.raw(kind, bytes),
            };
        }
        let delete = message(IPCTNL_MSG_CT_DELETE, list.family).with(NLM_F_ACK);
        let seq = self.send(delete, &body).map_err(|e| Error::kernel(what, e))?;
        match self.transport.acknowledged(seq, |_| ()) {
            Err(refusal) if refusal.errno == Errno::ENOENT => Ok(()), // it has expired
            done => done.map_err(|refusal| refused(what, refusal)),
        }
    }

    fn send(&self, header: Header, body: &Attributes) -> Result<u32, Errno> {
        let seq = self.transport.next_seq();
        let mut bytes = vec![];
        header.append(seq, body.bytes(), &mut bytes);
        self.transport.send(&bytes)?;
        Ok(seq)
    }
}

/// Whether the kernel lacks connection tracking, or the query.
fn is_unsupported(refusal: &Refusal) -> bool {
    [Errno::EINVAL, Errno::EOPNOTSUPP].contains(&refusal.errno)
}

fn message(kind: u16, family: Family) -> Header {
    Header::new(NFNL_SUBSYS_CTNETLINK, kind, family.into())
}

/// Builds the filter for flows that the address has opened, or for those that it answers.
fn from_address(ip: Ipv4Addr, has_opened: bool) -> Attributes {
    let (tuple, flags) = match has_opened {
        true => (CTA_TUPLE_ORIG, CTA_FILTER_ORIG_FLAGS),
        false => (CTA_TUPLE_REPLY, CTA_FILTER_REPLY_FLAGS),
    };
    let mut body = Attributes::default();
    body.nest(tuple, |tuple| write_source(tuple, ip));
    body.nest(CTA_FILTER, |filter| {
        filter.raw(flags, &CTA_FILTER_F_CTA_IP_SRC.to_ne_bytes());
    });
    body
}

fn write_source(tuple: &mut Attributes, ip: Ipv4Addr) {
    write_address(tuple, CTA_IP_V4_SRC, ip);
}

fn write_address(tuple: &mut Attributes, which: u16, ip: Ipv4Addr) {
    tuple.nest(CTA_TUPLE_IP, |address| {
        address.raw(which, &ip.octets());
    });
}

fn write_udp(protocol: &mut Attributes, port: Option<&u16>) {
    protocol.raw(CTA_PROTO_NUM, &[UDP]);
    if let Some(port) = port {
        protocol.raw(CTA_PROTO_DST_PORT, &port.to_be_bytes());
    }
}

/// The fields of a flow that the kernel compares.
fn compared_fields(port: Option<&u16>) -> u32 {
    match port {
        Some(_) => CTA_FILTER_F_CTA_PROTO_NUM | CTA_FILTER_F_CTA_PROTO_DST_PORT,
        None => CTA_FILTER_F_CTA_PROTO_NUM,
    }
}
