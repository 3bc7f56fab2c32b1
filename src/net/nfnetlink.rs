//! The header that nf_tables and connection tracking share: nfgenmsg behind nlmsghdr, and a
//! subsystem in the message type.

use std::fmt;

use crate::family::Family;
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

/// What packets a message is about, as nfgenmsg numbers it (NFPROTO_*). It is not
/// [`Family`]: tables of both address families and of frames exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NfFamily {
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

impl From<Family> for NfFamily {
    fn from(family: Family) -> NfFamily {
        match family {
            Family::V4 => NfFamily::Ip,
            Family::V6 => NfFamily::Ip6,
        }
    }
}

/// As nft(8) names it.
impl fmt::Display for NfFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NfFamily::Unspec => "unspec",
            NfFamily::Inet => "inet",
            NfFamily::Ip => "ip",
            NfFamily::Bridge => "bridge",
            NfFamily::Ip6 => "ip6",
        })
    }
}

/// What a message's two headers say: its type, what it is about, and its flags.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    kind: u16,
    flags: u16,
    family: NfFamily,
    resource: u16,
}

impl Header {
    /// The header of a subsystem's message, without flags.
    pub fn new(subsystem: u8, kind: u16, family: NfFamily) -> Header {
        Header { kind: u16::from(subsystem) << 8 | kind, flags: 0, family, resource: 0 }
    }

    /// The header of NFNL_MSG_BATCH_BEGIN or NFNL_MSG_BATCH_END.
    pub fn of_batch(kind: u16, subsystem: u8) -> Header {
        Header { kind, flags: 0, family: NfFamily::Unspec, resource: subsystem.into() }
    }

    /// The header with these flags (NLM_F_*) as well.
    pub fn with(self, flags: u16) -> Header {
        Header { flags: self.flags | flags, ..self }
    }

    /// The type of the message within its subsystem.
    pub fn kind(self) -> u16 {
        self.kind & 0xff
    }

    /// Appends the message with this number and body. Its port id is 0: the kernel knows the sender.
    pub fn append(self, seq: u32, body: &[u8], bytes: &mut Vec<u8>) {
        let length = NLMSG_HEADER + HEADER + body.len();
        bytes.extend((length as u32).to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend((self.flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend(seq.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend([self.family as u8, NFNETLINK_V0]);
        bytes.extend(self.resource.to_be_bytes());
        bytes.extend(body);
    }
}
