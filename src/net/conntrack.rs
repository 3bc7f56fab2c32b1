//! The kernel's table of connections, over netlink: `conntrack -D`, without `conntrack`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use netlink_sys::protocols::NETLINK_NETFILTER;
use nix::errno::Errno;

use super::netlink::attr::Attrs;
use super::netlink::refused;
use super::netlink::transport::Transport;
use super::nft::Family;
use super::nft::batch::message;
use super::nft::wire::Attributes;
use crate::error::{Error, Result};

/// NFNL_SUBSYS_CTNETLINK in the upper byte of a message's type.
const SUBSYSTEM: u16 = 1 << 8;
// enum cntl_msg_types
const GET: u16 = 1;
const DELETE: u16 = 2;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// nfgenmsg.
const HEADER: usize = 4;
/// How often an interrupted dump is begun again; what was seen of it is dealt with each time.
const TRIES: usize = 5;

// enum ctattr_type
const TUPLE_ORIG: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
// enum ctattr_tuple, ctattr_ip, ctattr_l4proto
const TUPLE_IP: u16 = 1;
const TUPLE_PROTO: u16 = 2;
const PROTO_NUM: u16 = 1;
const PROTO_DST_PORT: u16 = 3;
/// CTA_FILTER_ORIG_FLAGS with CTA_FILTER_F_CTA_PROTO_NUM and _DST_PORT.
const FILTER_ORIG_FLAGS: u16 = 1;
const BY_PROTOCOL: u32 = 1 << 3;
const BY_PORT: u32 = 1 << 5;

const UDP: u8 = 17;

/// A connection, as far as it is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Which port it was addressed to.
    pub port: u16,
    /// Whom it was addressed to.
    pub destination: IpAddr,
    /// Who answers.
    pub answering: IpAddr,
    /// What the kernel deletes it by: attributes as they came.
    identity: Vec<(u16, Vec<u8>)>,
}

impl Flow {
    /// A flow of UDP.
    fn read(payload: &[u8]) -> Option<Flow> {
        let attrs = Attrs::after(payload, HEADER);
        let (original, reply) = (attrs.nested(TUPLE_ORIG)?, attrs.nested(TUPLE_REPLY)?);
        let protocol = original.nested(TUPLE_PROTO)?;
        let port = u16::from_be(protocol.u16(PROTO_DST_PORT)?);
        // CTA_IP_V4_DST is 2, _V6_DST 4; sources are 1 and 3.
        let ip = |tuple: Attrs<'_>, v4, v6| {
            tuple.nested(TUPLE_IP).and_then(|ip| ip.ip(v4).or_else(|| ip.ip(v6)))
        };
        let identity = [TUPLE_ORIG, ID, ZONE]
            .into_iter()
            .filter_map(|kind| Some((kind, attrs.bytes(kind)?.to_vec())));
        let (destination, answering) = (ip(original, 2, 4)?, ip(reply, 1, 3)?);
        (protocol.u8(PROTO_NUM)? == UDP).then(|| Flow {
            port,
            destination,
            answering,
            identity: identity.collect(),
        })
    }
}

/// A socket to the connections of one namespace, the one it was opened in.
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

    /// Asks somebody else than the kernel, see [`Transport::over`].
    pub fn over(socket: OwnedFd) -> Conntrack {
        Conntrack { transport: Transport::over(socket) }
    }

    /// Makes the kernel forget the UDP flows of one family that were addressed to one of the ports
    /// and that `is_stale` accepts: the next packet of each is looked at anew. A kernel that
    /// cannot be asked has nothing to forget.
    ///
    /// The kernel looks at its whole table of all namespaces for it, which takes milliseconds: so
    /// once for all ports.
    pub fn forget_udp(
        &self,
        is_v6: bool,
        ports: &BTreeSet<u16>,
        is_stale: impl Fn(&Flow) -> bool,
    ) -> Result<()> {
        let family = if is_v6 { Family::Ip6 } else { Family::Ip };
        let what = format!("list the UDP flows to {ports:?}");
        for _ in 0..TRIES {
            let mut flows = vec![];
            let seq = self
                .send(GET, NLM_F_DUMP, family, &to_ports(ports))
                .map_err(|e| Error::kernel(&what, e))?;
            let listed = self.transport.dump(seq, |reply| {
                let found = Flow::read(reply.payload);
                flows.extend(found.filter(|flow| ports.contains(&flow.port) && is_stale(flow)));
            });
            let consistent = match listed {
                Err(refusal) if [Errno::EINVAL, Errno::EOPNOTSUPP].contains(&refusal.errno) => {
                    return Ok(());
                }
                listed => listed.map_err(|refusal| refused(&what, refusal))?,
            };
            flows.iter().try_for_each(|flow| self.forget(family, flow))?;
            if consistent {
                break;
            }
        }
        Ok(())
    }

    fn forget(&self, family: Family, flow: &Flow) -> Result<()> {
        let what = format_args!("delete the UDP flow to {}", flow.destination);
        let mut body = Attributes::default();
        for (kind, bytes) in &flow.identity {
            let nested = if *kind == TUPLE_ORIG { 0x8000 } else { 0 }; // NLA_F_NESTED
            body.raw(kind | nested, bytes);
        }
        let seq =
            self.send(DELETE, NLM_F_ACK, family, &body).map_err(|e| Error::kernel(what, e))?;
        match self.transport.acknowledged(seq, |_| ()) {
            Err(refusal) if refusal.errno == Errno::ENOENT => Ok(()), // it ended by itself
            done => done.map_err(|refusal| refused(what, refusal)),
        }
    }

    fn send(&self, kind: u16, flags: u16, family: Family, body: &Attributes) -> Result<u32, Errno> {
        let seq = self.transport.next_seq();
        let mut bytes = vec![];
        message(&mut bytes, SUBSYSTEM | kind, flags, seq, family, 0, body.bytes());
        self.transport.send(&bytes)?;
        Ok(seq)
    }
}

/// Kernels before 5.8 do not filter, so what they send is looked at as well. It is one port that
/// they can filter by.
fn to_ports(ports: &BTreeSet<u16>) -> Attributes {
    let only = ports.first().filter(|_| ports.len() == 1);
    let mut body = Attributes::default();
    body.nest(TUPLE_ORIG, |tuple| {
        tuple.nest(TUPLE_PROTO, |protocol| {
            protocol.raw(PROTO_NUM, &[UDP]);
            if let Some(port) = only {
                protocol.raw(PROTO_DST_PORT, &port.to_be_bytes());
            }
        });
    });
    let flags = BY_PROTOCOL | if only.is_some() { BY_PORT } else { 0 };
    body.nest(FILTER, |filter| {
        filter.raw(FILTER_ORIG_FLAGS, &flags.to_ne_bytes());
    });
    body
}
