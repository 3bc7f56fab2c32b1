//! The expressions of a rule, as `nft --debug=netlink` names them.

use ipnet::IpNet;

use super::uapi::*;
use super::wire::{Attributes, octets};
use crate::family::Family;
use crate::net::netlink::attr::Attrs;
use crate::net::nfnetlink::NfFamily;

/// A register of the rule's virtual machine: 1 to 4 have 128 bits each, and from [`WORD`] on the
/// same registers are numbered by words.
pub type Register = u32;

/// The first word of register 1, for keys of several fields.
pub const WORD: Register = NFT_REG32_00;

/// What a payload's offset is relative to (`enum nft_payload_bases`).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Header {
    /// The link layer's header.
    Link = NFT_PAYLOAD_LL_HEADER,
    /// The network layer's header.
    Network = NFT_PAYLOAD_NETWORK_HEADER,
    /// The transport layer's header.
    Transport = NFT_PAYLOAD_TRANSPORT_HEADER,
}

/// What `meta` reads (`enum nft_meta_keys`).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Meta {
    /// The packet's length from the header of IP on, in the machine's byte order.
    Length = NFT_META_LEN,
    /// The packet's mark, in the machine's byte order.
    Mark = NFT_META_MARK,
    /// The name of the link a packet came in by, 16 bytes.
    IifName = NFT_META_IIFNAME,
    /// The name of the link a packet goes out by, 16 bytes.
    OifName = NFT_META_OIFNAME,
    /// The family of a packet in an inet table, one byte.
    NfProto = NFT_META_NFPROTO,
    /// The transport protocol, one byte.
    L4Proto = NFT_META_L4PROTO,
}

/// What `ct` reads of a packet's connection (`enum nft_ct_keys`).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Connection {
    /// Its state (NF_CT_STATE_BIT), in the machine's byte order.
    State = NFT_CT_STATE,
    /// The direction of the packet in it (IP_CT_DIR_*), one byte.
    Direction = NFT_CT_DIRECTION,
    /// Its status bits (IPS_*), in the machine's byte order.
    Status = NFT_CT_STATUS,
}

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes this hook of this table.
    Accept,
    /// It is dropped.
    Drop,
    /// It returns to the chain that this one was called from.
    Return,
    /// It continues in another chain, and after this rule if that chain does not decide.
    Jump(String),
    /// It continues in another chain and does not return.
    Goto(String),
}

impl Verdict {
    pub(super) fn write(&self, attributes: &mut Attributes) {
        attributes.nest(NFTA_DATA_VERDICT, |verdict| {
            let code = match self {
                Verdict::Accept => NF_ACCEPT,
                Verdict::Drop => NF_DROP,
                Verdict::Return => NFT_RETURN,
                Verdict::Jump(_) => NFT_JUMP,
                Verdict::Goto(_) => NFT_GOTO,
            };
            verdict.be32(NFTA_VERDICT_CODE, code as u32);
            if let Verdict::Jump(chain) | Verdict::Goto(chain) = self {
                verdict.text(NFTA_VERDICT_CHAIN, chain);
            }
        });
    }
}

/// The expressions of a rule under construction, each of which sees what the one before it left in
/// the registers.
#[derive(Clone, Debug, Default)]
pub struct Expressions(Attributes);

impl Expressions {
    /// The expressions that `fill` adds.
    pub(super) fn of(fill: impl FnOnce(&mut Expressions)) -> Expressions {
        let mut expressions = Expressions::default();
        fill(&mut expressions);
        expressions
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The expressions, for reading.
    pub(super) fn attrs(&self) -> Attrs<'_> {
        Attrs::of(self.bytes())
    }

    fn push(&mut self, name: &str, fill: impl FnOnce(&mut Attributes)) -> &mut Expressions {
        self.0.nest(NFTA_LIST_ELEM, |element| {
            element.text(NFTA_EXPR_NAME, name).nest(NFTA_EXPR_DATA, fill);
        });
        self
    }

    /// Loads something about a packet.
    pub fn meta(&mut self, key: Meta, into: Register) -> &mut Expressions {
        self.push("meta", |meta| {
            meta.be32(NFTA_META_DREG, into).be32(NFTA_META_KEY, key as u32);
        })
    }

    /// From here on nf_tables' trace shows the packet.
    pub fn trace(&mut self) -> &mut Expressions {
        self.push("immediate", |immediate| {
            immediate.be32(NFTA_IMMEDIATE_DREG, 1).value(NFTA_IMMEDIATE_DATA, &[1]);
        });
        self.push("meta", |meta| {
            meta.be32(NFTA_META_KEY, NFT_META_NFTRACE).be32(NFTA_META_SREG, 1);
        })
    }

    /// Continues only for packets of this family.
    pub fn family(&mut self, family: Family) -> &mut Expressions {
        self.meta(Meta::NfProto, 1).equal(1, &[NfFamily::from(family) as u8])
    }

    /// Loads the source address of a packet.
    pub fn source(&mut self, family: Family) -> &mut Expressions {
        match family {
            Family::V4 => self.payload(Header::Network, 12, 4, 1),
            Family::V6 => self.payload(Header::Network, 8, 16, 1),
        }
    }

    /// Loads the destination address of a packet.
    pub fn destination(&mut self, family: Family) -> &mut Expressions {
        match family {
            Family::V4 => self.payload(Header::Network, 16, 4, 1),
            Family::V6 => self.payload(Header::Network, 24, 16, 1),
        }
    }

    /// Continues only if the loaded address is in this network.
    pub fn is_in(&mut self, net: IpNet) -> &mut Expressions {
        self.mask(1, &octets(net.netmask())).equal(1, &octets(net.network()))
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
            payload.be32(NFTA_PAYLOAD_DREG, into).be32(NFTA_PAYLOAD_BASE, header as u32);
            payload.be32(NFTA_PAYLOAD_OFFSET, offset).be32(NFTA_PAYLOAD_LEN, length);
        })
    }

    /// Keeps only the bits of `mask`.
    pub fn mask(&mut self, register: Register, mask: &[u8]) -> &mut Expressions {
        self.push("bitwise", |bitwise| {
            bitwise.be32(NFTA_BITWISE_SREG, register).be32(NFTA_BITWISE_DREG, register);
            bitwise.be32(NFTA_BITWISE_LEN, mask.len() as u32);
            bitwise.value(NFTA_BITWISE_MASK, mask);
            bitwise.value(NFTA_BITWISE_XOR, &vec![0; mask.len()]);
        })
    }

    /// Continues only if the register holds these bytes.
    pub fn equal(&mut self, register: Register, bytes: &[u8]) -> &mut Expressions {
        self.compare(register, NFT_CMP_EQ, bytes)
    }

    /// Continues only if the register holds other bytes.
    pub fn not_equal(&mut self, register: Register, bytes: &[u8]) -> &mut Expressions {
        self.compare(register, NFT_CMP_NEQ, bytes)
    }

    /// Continues only if the register holds these bytes or greater ones.
    pub fn at_least(&mut self, register: Register, bytes: &[u8]) -> &mut Expressions {
        self.compare(register, NFT_CMP_GTE, bytes)
    }

    /// Continues only if the register holds these bytes or smaller ones.
    pub fn at_most(&mut self, register: Register, bytes: &[u8]) -> &mut Expressions {
        self.compare(register, NFT_CMP_LTE, bytes)
    }

    /// Continues only if the register holds less than `from` or more than `to`.
    pub fn outside(&mut self, register: Register, from: &[u8], to: &[u8]) -> &mut Expressions {
        self.push("range", |range| {
            range.be32(NFTA_RANGE_SREG, register).be32(NFTA_RANGE_OP, NFT_RANGE_NEQ);
            range.value(NFTA_RANGE_FROM_DATA, from).value(NFTA_RANGE_TO_DATA, to);
        })
    }

    /// Puts a number of this many bytes into network byte order.
    pub fn network_order(&mut self, register: Register, length: u32) -> &mut Expressions {
        self.push("byteorder", |order| {
            order.be32(NFTA_BYTEORDER_SREG, register).be32(NFTA_BYTEORDER_DREG, register);
            order.be32(NFTA_BYTEORDER_OP, NFT_BYTEORDER_HTON);
            order.be32(NFTA_BYTEORDER_LEN, length).be32(NFTA_BYTEORDER_SIZE, length);
        })
    }

    fn compare(&mut self, register: Register, how: u32, bytes: &[u8]) -> &mut Expressions {
        self.push("cmp", |cmp| {
            cmp.be32(NFTA_CMP_SREG, register).be32(NFTA_CMP_OP, how).value(NFTA_CMP_DATA, bytes);
        })
    }

    /// Loads something about the packet's connection.
    pub fn connection(&mut self, key: Connection, into: Register) -> &mut Expressions {
        self.push("ct", |ct| {
            ct.be32(NFTA_CT_DREG, into).be32(NFTA_CT_KEY, key as u32);
        })
    }

    /// Loads the destination address that a connection was opened to, 4 or 16 bytes.
    pub fn original_destination(&mut self, family: Family, into: Register) -> &mut Expressions {
        let key = match family {
            Family::V4 => NFT_CT_DST_IP,
            Family::V6 => NFT_CT_DST_IP6,
        };
        self.original(key, into)
    }

    /// Loads the destination port that a connection was opened to, 2 bytes.
    pub fn original_port(&mut self, into: Register) -> &mut Expressions {
        self.original(NFT_CT_PROTO_DST, into)
    }

    fn original(&mut self, key: u32, into: Register) -> &mut Expressions {
        self.push("ct", |ct| {
            ct.be32(NFTA_CT_DREG, into).be32(NFTA_CT_KEY, key);
            ct.raw(NFTA_CT_DIRECTION, &[IP_CT_DIR_ORIGINAL]);
        })
    }

    /// Loads the type of the destination in the routing table (RTN_*), in the machine's byte order.
    /// With `on_link` an address is local only on the link that the packet arrives by, which the
    /// kernel takes in prerouting, input and forward.
    pub fn type_of_destination(&mut self, on_link: bool, into: Register) -> &mut Expressions {
        let link = if on_link { NFTA_FIB_F_IIF } else { 0 };
        self.push("fib", |fib| {
            fib.be32(NFTA_FIB_DREG, into).be32(NFTA_FIB_RESULT, NFT_FIB_RESULT_ADDRTYPE);
            fib.be32(NFTA_FIB_FLAGS, NFTA_FIB_F_DADDR | link);
        })
    }

    /// Loads whether IPsec is going to transform the packet, one byte.
    pub fn is_for_ipsec(&mut self, into: Register) -> &mut Expressions {
        self.push("rt", |rt| {
            rt.be32(NFTA_RT_DREG, into).be32(NFTA_RT_KEY, NFT_RT_XFRM);
        })
    }

    /// Counts packets and bytes, as every rule of iptables does.
    pub fn counter(&mut self) -> &mut Expressions {
        self.push("counter", |counter| {
            counter.be64(NFTA_COUNTER_BYTES, 0).be64(NFTA_COUNTER_PACKETS, 0);
        })
    }

    /// Continues only if an extension of x_tables matches.
    pub fn xtables_match(&mut self, name: &str, revision: u32, info: &[u8]) -> &mut Expressions {
        self.push("match", |extension| {
            extension.text(NFTA_MATCH_NAME, name).be32(NFTA_MATCH_REV, revision);
            extension.raw(NFTA_MATCH_INFO, info);
        })
    }

    /// Continues only if the set contains (with `inverted`: lacks) the key that begins in the
    /// register.
    pub fn in_set(&mut self, set: &str, register: Register, inverted: bool) -> &mut Expressions {
        self.lookup(set, register, |lookup| {
            lookup.be32(NFTA_LOOKUP_FLAGS, if inverted { NFT_LOOKUP_F_INV } else { 0 });
        })
    }

    /// Applies the map's verdict for the key that begins in the register.
    pub fn verdict_of(&mut self, map: &str, register: Register) -> &mut Expressions {
        self.value_of(map, register, NFT_REG_VERDICT)
    }

    /// Loads the map's value for the key that begins in the register, or ends the rule.
    pub fn value_of(&mut self, map: &str, register: Register, into: Register) -> &mut Expressions {
        self.lookup(map, register, |lookup| {
            lookup.be32(NFTA_LOOKUP_DREG, into);
        })
    }

    fn lookup(
        &mut self,
        set: &str,
        register: Register,
        fill: impl FnOnce(&mut Attributes),
    ) -> &mut Expressions {
        self.push("lookup", |lookup| {
            fill(lookup.text(NFTA_LOOKUP_SET, set).be32(NFTA_LOOKUP_SREG, register));
        })
    }

    /// Ends the rule with a verdict.
    pub fn verdict(&mut self, verdict: &Verdict) -> &mut Expressions {
        self.push("immediate", |immediate| {
            immediate.be32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
            immediate.nest(NFTA_IMMEDIATE_DATA, |data| verdict.write(data));
        })
    }

    /// Translates the connection's destination to the address and port in these registers.
    pub fn destination_nat(
        &mut self,
        family: Family,
        address: Register,
        port: Register,
    ) -> &mut Expressions {
        self.push("nat", |nat| {
            nat.be32(NFTA_NAT_TYPE, NFT_NAT_DNAT)
                .be32(NFTA_NAT_FAMILY, NfFamily::from(family) as u32);
            nat.be32(NFTA_NAT_REG_ADDR_MIN, address).be32(NFTA_NAT_REG_PROTO_MIN, port);
        })
    }

    /// Adds the packet's connection to a flowtable, or ends the rule if it cannot be in one.
    pub fn flow_add(&mut self, flowtable: &str) -> &mut Expressions {
        self.push("flow_offload", |flow| {
            flow.text(NFTA_FLOW_TABLE_NAME, flowtable);
        })
    }

    /// Translates the connection's source to the address of the link that it leaves by.
    pub fn masquerade(&mut self) -> &mut Expressions {
        self.push("masq", |_| ())
    }
}
