//! The expressions of a rule, as `nft --debug=netlink` names them.

use super::wire::Attributes;
use crate::net::netlink::attr::Attrs;

/// A register of the rule's virtual machine: 1 to 4 have 128 bits, and from [`WORD`] on the same
/// are numbered by words.
pub type Register = u32;

/// The first word of register 1 (NFT_REG32_00), for keys of several fields.
pub const WORD: Register = 8;

/// The verdict register.
pub(super) const VERDICT: Register = 0;

/// Where a payload's offset begins (`enum nft_payload_bases`).
#[derive(Clone, Copy, Debug)]
pub enum Header {
    /// The link layer's header.
    Link = 0,
    /// The network layer's header.
    Network = 1,
    /// The transport layer's header.
    Transport = 2,
}

/// What `meta` reads (`enum nft_meta_keys`).
#[derive(Clone, Copy, Debug)]
pub enum Meta {
    /// The packet's mark, in the machine's byte order.
    Mark = 3,
    /// The name of the link a packet came in by, 16 bytes.
    IifName = 6,
    /// The name of the link a packet goes out by, 16 bytes.
    OifName = 7,
    /// The family of a packet in an inet table, one byte.
    NfProto = 15,
    /// The transport protocol, one byte.
    L4Proto = 16,
}

/// NF_ACCEPT.
pub(super) const ACCEPT: i32 = 1;
/// NFT_JUMP.
pub(super) const JUMP: i32 = -3;

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes this hook of this table.
    Accept,
    /// It is dropped.
    Drop,
    /// It goes on behind the chain that this one was reached from.
    Return,
    /// It goes on in another chain, and behind this rule where that one does not decide.
    Jump(String),
    /// It goes on in another chain and does not come back.
    Goto(String),
}

impl Verdict {
    pub(super) fn write(&self, attributes: &mut Attributes) {
        // NF_DROP and NF_ACCEPT, NFT_RETURN, NFT_JUMP and NFT_GOTO of linux/netfilter/nf_tables.h
        let (code, chain) = match self {
            Verdict::Accept => (ACCEPT, None),
            Verdict::Jump(chain) => (JUMP, Some(chain)),
            Verdict::Drop => (0, None),
            Verdict::Return => (-5_i32, None),
            Verdict::Goto(chain) => (-4, Some(chain)),
        };
        attributes.nest(2, |verdict| {
            verdict.be32(1, code as u32);
            if let Some(chain) = chain {
                verdict.text(2, chain);
            }
        });
    }
}

/// The expressions of a rule under construction, each seeing what the one before it left in the
/// registers.
#[derive(Clone, Debug, Default)]
pub struct Expressions(Attributes);

impl Expressions {
    pub(super) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The same, to be read.
    pub(super) fn attrs(&self) -> Attrs<'_> {
        Attrs::of(self.bytes())
    }

    fn push(&mut self, name: &str, fill: impl FnOnce(&mut Attributes)) -> &mut Expressions {
        self.0.nest(1, |element| {
            element.text(1, name).nest(2, fill);
        });
        self
    }

    /// Loads something about a packet.
    pub fn meta(&mut self, key: Meta, into: Register) -> &mut Expressions {
        self.push("meta", |meta| {
            meta.be32(1, into).be32(2, key as u32);
        })
    }

    /// Loads bytes of a packet.
    pub fn payload(
        &mut self,
        header: Header,
        offset: u32,
        length: u32,
        into: Register,
    ) -> &mut Expressions {
        self.push("payload", |payload| {
            payload.be32(1, into).be32(2, header as u32).be32(3, offset).be32(4, length);
        })
    }

    /// Keeps only the bits of `mask`.
    pub fn mask(&mut self, register: Register, mask: &[u8]) -> &mut Expressions {
        self.push("bitwise", |bitwise| {
            bitwise.be32(1, register).be32(2, register).be32(3, mask.len() as u32);
            bitwise.nest(4, |data| {
                data.raw(1, mask);
            });
            bitwise.nest(5, |data| {
                data.raw(1, &vec![0; mask.len()]);
            });
        })
    }

    /// Goes on only if the register holds these bytes.
    pub fn equal(&mut self, register: Register, bytes: &[u8]) -> &mut Expressions {
        self.compare(register, 0, bytes) // NFT_CMP_EQ
    }

    /// Goes on only if the register holds other bytes.
    pub fn not_equal(&mut self, register: Register, bytes: &[u8]) -> &mut Expressions {
        self.compare(register, 1, bytes) // NFT_CMP_NEQ
    }

    fn compare(&mut self, register: Register, how: u32, bytes: &[u8]) -> &mut Expressions {
        self.push("cmp", |cmp| {
            cmp.be32(1, register).be32(2, how).nest(3, |data| {
                data.raw(1, bytes);
            });
        })
    }

    /// Loads the status bits of the packet's connection (IPS_*), in the machine's byte order.
    pub fn connection_status(&mut self, into: Register) -> &mut Expressions {
        self.push("ct", |ct| {
            ct.be32(1, into).be32(2, 2); // NFT_CT_STATUS
        })
    }

    /// Loads the destination that a connection was begun with, 4 or 16 bytes; `family` is
    /// NFPROTO_IPV4 or NFPROTO_IPV6.
    pub fn original_destination(&mut self, family: u8, into: Register) -> &mut Expressions {
        const NFPROTO_IPV4: u8 = 2;
        self.original(if family == NFPROTO_IPV4 { 20 } else { 22 }, into) // NFT_CT_DST_IP, NFT_CT_DST_IP6
    }

    /// Loads the destination port that a connection was begun with, 2 bytes.
    pub fn original_port(&mut self, into: Register) -> &mut Expressions {
        self.original(12, into) // NFT_CT_PROTO_DST
    }

    fn original(&mut self, key: u32, into: Register) -> &mut Expressions {
        self.push("ct", |ct| {
            ct.be32(1, into).be32(2, key).raw(3, &[0]); // IP_CT_DIR_ORIGINAL
        })
    }

    /// Loads what the routing table says of the destination (RTN_*), in the machine's byte order.
    pub fn type_of_destination(&mut self, into: Register) -> &mut Expressions {
        self.push("fib", |fib| {
            fib.be32(1, into).be32(2, 3).be32(3, 2); // NFT_FIB_RESULT_ADDRTYPE, NFTA_FIB_F_DADDR
        })
    }

    /// Counts packets and bytes, as every rule of iptables does.
    pub fn counter(&mut self) -> &mut Expressions {
        self.push("counter", |counter| {
            counter.be64(1, 0).be64(2, 0);
        })
    }

    /// Goes on only if an extension of x_tables says so.
    pub fn xtables_match(&mut self, name: &str, revision: u32, info: &[u8]) -> &mut Expressions {
        self.push("match", |extension| {
            extension.text(1, name).be32(2, revision).raw(3, info);
        })
    }

    /// Goes on only if the set has (or with `inverted`, has not) what begins in the register.
    pub fn in_set(&mut self, set: &str, register: Register, inverted: bool) -> &mut Expressions {
        self.push("lookup", |lookup| {
            lookup.text(1, set).be32(2, register).be32(5, u32::from(inverted));
        })
    }

    /// Does what the map says about what begins in the register.
    pub fn verdict_of(&mut self, map: &str, register: Register) -> &mut Expressions {
        self.push("lookup", |lookup| {
            lookup.text(1, map).be32(2, register).be32(3, VERDICT);
        })
    }

    /// Loads what the map has for what begins in the register, or ends.
    pub fn value_of(&mut self, map: &str, register: Register, into: Register) -> &mut Expressions {
        self.push("lookup", |lookup| {
            lookup.text(1, map).be32(2, register).be32(3, into);
        })
    }

    /// Ends with a verdict.
    pub fn verdict(&mut self, verdict: &Verdict) -> &mut Expressions {
        self.push("immediate", |immediate| {
            immediate.be32(1, VERDICT).nest(2, |data| verdict.write(data));
        })
    }

    /// Sends the connection to the address and port in these registers; `family` is NFPROTO_IPV4 or
    /// NFPROTO_IPV6.
    pub fn destination_nat(
        &mut self,
        family: u8,
        address: Register,
        port: Register,
    ) -> &mut Expressions {
        self.push("nat", |nat| {
            nat.be32(1, 1).be32(2, u32::from(family)).be32(3, address).be32(5, port); // NFT_NAT_DNAT
        })
    }

    /// Gives the connection the address of the link it leaves by as its source.
    pub fn masquerade(&mut self) -> &mut Expressions {
        self.push("masq", |_| ())
    }
}
