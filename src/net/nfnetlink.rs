//! The header that nf_tables and connection tracking share: nfgenmsg behind nlmsghdr, and a
//! subsystem in the message type.

use std::fmt;

pub use rtnetlink::packet_core::{
    NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REQUEST,
};

/// nlmsghdr.
const NLMSG_HEADER: usize = 16;
/// nfgenmsg: family, version, resource id.
pub const HEADER: usize = 4;
/// The only version of nfgenmsg.
const NFNETLINK_V0: u8 = 0;

// linux/netfilter/nfnetlink.h
/// The connection tracking table.
pub const NFNL_SUBSYS_CTNETLINK: u8 = 1;
/// nf_tables.
pub const NFNL_SUBSYS_NFTABLES: u8 = 10;
/// Begins a transaction of the subsystem that the resource id names.
pub const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
/// Ends a transaction.
pub const NFNL_MSG_BATCH_END: u16 = 0x11;
/// The generation that a transaction is bound to.
pub const NFNL_BATCH_GENID: u16 = 1;

/// The family of packets that a message is about (NFPROTO_*).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// For messages that are about no table.
    Unspec = 0,
    /// IPv4 and IPv6.
    Inet = 1,
    /// IPv4.
    Ip = 2,
    /// Frames that a bridge forwards.
    Bridge = 7,
    /// IPv6.
    Ip6 = 10,
}

/// As nft(8) names it.
impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Unspec => "unspec",
            Family::Inet => "inet",
            Family::Ip => "ip",
            Family::Bridge => "bridge",
            Family::Ip6 => "ip6",
        })
    }
}

/// A message's two headers.
pub struct Header {
    kind: u16,
    flags: u16,
    seq: u32,
    family: Family,
    resource: u16,
}

impl Header {
    /// The header of a subsystem's message.
    pub fn new(subsystem: u8, kind: u16, flags: u16, seq: u32, family: Family) -> Header {
        Header { kind: u16::from(subsystem) << 8 | kind, flags, seq, family, resource: 0 }
    }

    /// The header of NFNL_MSG_BATCH_BEGIN or NFNL_MSG_BATCH_END.
    pub fn of_batch(kind: u16, seq: u32, subsystem: u8) -> Header {
        Header { kind, flags: 0, seq, family: Family::Unspec, resource: subsystem.into() }
    }

    /// Appends the message with this body. Its port id is 0: the kernel knows the sender.
    pub fn append(&self, body: &[u8], bytes: &mut Vec<u8>) {
        let length = NLMSG_HEADER + HEADER + body.len();
        bytes.extend((length as u32).to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend((self.flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend(self.seq.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend([self.family as u8, NFNETLINK_V0]);
        bytes.extend(self.resource.to_be_bytes());
        bytes.extend(body);
    }
}
