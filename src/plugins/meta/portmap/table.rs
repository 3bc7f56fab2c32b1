//! The table of published ports.
//!
//! ```text
//! table inet cni_multi_portmap {
//!   map port4 { type inet_proto . inet_service : ipv4_addr . inet_service; elements = { tcp . 8080 comment "…" : 10.1.0.7 . 80 } }
//!   map hostport4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; … }
//!   map snat4 { type ipv4_addr : verdict; elements = { 10.1.0.7 : goto net-10.1.0.0/24 } }
//!   … the same for IPv6, and the ports that have conditions
//!   map known4 { type inet_proto . inet_service : verdict; … }    # see publication.rs
//!   set attachments { … }                       # the owner of each element
//!   chain admin { }                             # the administrator's: we only jump to it
//!   chain prerouting {
//!     type nat hook prerouting priority dstnat + 1; policy accept;
//!     jump admin
//!     ip daddr 127.0.0.0/8 return               # the host's own, even if sent from outside
//!     fib daddr type local fib daddr . iif type local goto ports
//!     fib daddr type local goto elsewhere
//!   }
//!   chain output { … the first rule and the last, for packets that the host itself sends … }
//!   chain elsewhere { jump known; goto ports }
//!   chain known { meta l4proto . th dport vmap @known4; … }
//!   chain known4-… { ip daddr 198.51.100.1 return; …; accept }
//!   chain ports {
//!     dnat ip to ip daddr . meta l4proto . th dport map @hostport4
//!     dnat ip to meta l4proto . th dport map @port4
//!     …
//!   }
//!   chain postrouting {
//!     type nat hook postrouting priority srcnat; policy accept;
//!     ct status dnat ct original ip daddr . meta l4proto . ct original proto-dst map @hostport4 … ip daddr vmap @snat4
//!     ct status dnat meta l4proto . ct original proto-dst map @port4 … ip daddr vmap @snat4
//!     …
//!   }
//!   chain net-10.1.0.0/24 { ip saddr 10.1.0.0/24 masquerade; ip saddr 127.0.0.0/8 masquerade }
//!   set localnet { type ifname; elements = { "br0" comment "shared" } }
//!   chain guard {                               # see localnet.rs
//!     type filter hook prerouting priority raw; policy accept;
//!     ip saddr 127.0.0.0/8 iifname @localnet drop
//!     ip daddr 127.0.0.0/8 iifname @localnet drop
//!   }
//! }
//! ```
//! A packet costs a few lookups, however many ports there are. The hooks come after foreign ones at
//! the usual priority, so that a foreign service at the same port is not taken over
//! (CVE-2019-9946), and only packets addressed to the host are considered (CVE-2025-67499).

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::localnet;
use super::mapping::Forward;
use crate::family::Family;
use crate::net::nft::NfFamily;
use crate::net::nft::batch::{Batch, Holds, Hook, KeyType, Set, Table};
use crate::net::nft::expr::{Connection, Expressions, Header, Meta, Register, Verdict, WORD};
use crate::net::nft::owned::{self, Layout};

/// The layout of the table.
pub const LAYOUT: Layout = Layout {
    table: Table { family: NfFamily::Inet, name: "cni_multi_portmap" },
    comment: "cni-multi: published ports of containers",
    sets: &[
        &V4.at_address.ports,
        &V4.at_all.ports,
        &V4.at_address.conditional,
        &V4.at_all.conditional,
        &V4.snat,
        &V4.known,
        &V6.at_address.ports,
        &V6.at_all.ports,
        &V6.at_address.conditional,
        &V6.at_all.conditional,
        &V6.snat,
        &V6.known,
        &localnet::LINKS,
    ],
    lay_out,
    reliance: Some(localnet::RELIANCE),
};

const PREROUTING: &str = "prerouting";
const OUTPUT: &str = "output";
const POSTROUTING: &str = "postrouting";
const GUARD: &str = "guard";
const PORTS: &str = "ports";
/// Packets to an address of the host that is not one of the link they arrive by.
const ELSEWHERE: &str = "elsewhere";
const KNOWN: &str = "known";

/// NF_INET_PRE_ROUTING, at raw: the link is the one that the packet arrives on, also in a VRF, and
/// answers through a port do not have the address 127.0.0.1 yet.
const AT_GUARD: Hook = Hook { kind: "filter", number: 0, priority: -300 };
/// NF_INET_PRE_ROUTING, after dstnat of nft(8).
const AT_PREROUTING: Hook = Hook { kind: "nat", number: 0, priority: -99 };
/// NF_INET_LOCAL_OUT.
const AT_OUTPUT: Hook = Hook { kind: "nat", number: 3, priority: -99 };
/// NF_INET_POST_ROUTING, at srcnat.
const AT_POSTROUTING: Hook = Hook { kind: "nat", number: 4, priority: 100 };

/// RTN_LOCAL of linux/rtnetlink.h.
const LOCAL: u32 = 2;
/// IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const DST_NAT: u32 = 1 << 5;

/// The maps of ports at one address of the host, or of those at all.
pub struct Maps {
    /// Whether the address is the beginning of their keys.
    has_address: bool,
    /// To the container's address and port.
    pub ports: Set,
    /// For ports with conditions, to the chains with the conditions.
    pub conditional: Set,
}

/// The sets and rules of one address family.
pub struct OfFamily {
    pub ip: Family,
    /// The first register after an address in register 1.
    after_address: Register,
    pub at_address: Maps,
    pub at_all: Maps,
    /// Containers that see a source address other than the client's.
    pub snat: Set,
    /// Ports at all addresses of which some may be those of services.
    pub known: Set,
    /// The host's own network.
    pub loopback: IpNet,
}

use KeyType::{Ipv4, Ipv6, Protocol, Service};

const PORT: &[KeyType] = &[Protocol, Service];
const PORT4: &[KeyType] = &[Ipv4, Protocol, Service];
const PORT6: &[KeyType] = &[Ipv6, Protocol, Service];
const TO4: Holds = Holds::Values(&[Ipv4, Service]);
const TO6: Holds = Holds::Values(&[Ipv6, Service]);

pub static V4: OfFamily = OfFamily {
    ip: Family::V4,
    after_address: WORD + 1,
    at_address: Maps {
        has_address: true,
        ports: Set { name: "hostport4", key: PORT4, holds: TO4 },
        conditional: Set { name: "conditional_hostport4", key: PORT4, holds: Holds::Verdicts },
    },
    at_all: Maps {
        has_address: false,
        ports: Set { name: "port4", key: PORT, holds: TO4 },
        conditional: Set { name: "conditional_port4", key: PORT, holds: Holds::Verdicts },
    },
    snat: Set { name: "snat4", key: &[Ipv4], holds: Holds::Verdicts },
    known: Set { name: "known4", key: PORT, holds: Holds::Verdicts },
    loopback: IpNet::V4(ipnet::Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8)),
};

pub static V6: OfFamily = OfFamily {
    ip: Family::V6,
    after_address: WORD + 4,
    at_address: Maps {
        has_address: true,
        ports: Set { name: "hostport6", key: PORT6, holds: TO6 },
        conditional: Set { name: "conditional_hostport6", key: PORT6, holds: Holds::Verdicts },
    },
    at_all: Maps {
        has_address: false,
        ports: Set { name: "port6", key: PORT, holds: TO6 },
        conditional: Set { name: "conditional_port6", key: PORT, holds: Holds::Verdicts },
    },
    snat: Set { name: "snat6", key: &[Ipv6], holds: Holds::Verdicts },
    known: Set { name: "known6", key: PORT, holds: Holds::Verdicts },
    loopback: IpNet::V6(ipnet::Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128)),
};

impl OfFamily {
    pub fn of(forward: &Forward) -> &'static OfFamily {
        match forward.family() {
            Family::V4 => &V4,
            Family::V6 => &V6,
        }
    }

    /// The maps, in the order in which they are looked up.
    pub fn maps(&self) -> [&Maps; 2] {
        [&self.at_address, &self.at_all]
    }

    /// The maps that the forward's port is in.
    pub fn maps_of(&self, forward: &Forward) -> &Maps {
        if forward.at.is_some() { &self.at_address } else { &self.at_all }
    }

    /// The registers of protocol and port in a key, which has an address in the first ones or none.
    fn registers(&self, maps: &Maps) -> [Register; 2] {
        match maps.has_address {
            true => [self.after_address, self.after_address + 1],
            false => [1, WORD + 1],
        }
    }
}

fn lay_out(batch: &mut Batch, table: Table) {
    // In the order of a packet's path, in which damage is reported.
    batch.base_chain(table, GUARD, AT_GUARD).flush_chain(table, GUARD);
    for load in [Expressions::source, Expressions::destination] {
        // as the kernel does while the link's setting is off
        batch.rule(table, GUARD, |rule| {
            load(rule.family(V4.ip), V4.ip).is_in(V4.loopback).meta(Meta::IifName, 1);
            rule.in_set(localnet::LINKS.name, 1, false).verdict(&Verdict::Drop);
        });
    }
    batch.base_chain(table, PREROUTING, AT_PREROUTING).flush_chain(table, PREROUTING);
    batch.base_chain(table, OUTPUT, AT_OUTPUT).flush_chain(table, OUTPUT);
    owned::jump_to_admin(batch, table, PREROUTING);
    owned::jump_to_admin(batch, table, OUTPUT);
    batch.chain(table, PORTS).flush_chain(table, PORTS);
    for family in [&V4, &V6] {
        for maps in family.maps() {
            batch.rule(table, PORTS, |rule| {
                load_port(rule.family(family.ip), family, maps);
                rule.verdict_of(maps.conditional.name, 1);
            });
            batch.rule(table, PORTS, |rule| redirect(rule.family(family.ip), family, maps));
        }
    }
    lay_out_elsewhere(batch, table);
    batch.rule(table, PREROUTING, |rule| {
        // The kernel itself refuses packets to ::1 that come from elsewhere.
        rule.family(V4.ip).destination(V4.ip).is_in(V4.loopback).verdict(&Verdict::Return);
    });
    batch.rule(table, PREROUTING, |rule| {
        let to = Verdict::Goto(PORTS.to_owned());
        // The second condition alone is true of an address of the link's VRF as well.
        rule.type_of_destination(false, 1).equal(1, &LOCAL.to_ne_bytes());
        rule.type_of_destination(true, 1).equal(1, &LOCAL.to_ne_bytes()).verdict(&to);
    });
    for chain in [PREROUTING, OUTPUT] {
        batch.rule(table, chain, |rule| {
            let to = Verdict::Goto(ELSEWHERE.to_owned());
            rule.type_of_destination(false, 1).equal(1, &LOCAL.to_ne_bytes()).verdict(&to);
        });
    }
    batch.base_chain(table, POSTROUTING, AT_POSTROUTING).flush_chain(table, POSTROUTING);
    for family in [&V4, &V6] {
        for maps in family.maps() {
            lay_out_snat(batch, table, family, maps);
        }
    }
}

/// Leads to the ports unless the destination may be a service's.
fn lay_out_elsewhere(batch: &mut Batch, table: Table) {
    batch.chain(table, KNOWN).flush_chain(table, KNOWN);
    for family in [&V4, &V6] {
        batch.rule(table, KNOWN, |rule| {
            load_port(rule.family(family.ip), family, &family.at_all);
            rule.verdict_of(family.known.name, 1);
        });
    }
    batch.chain(table, ELSEWHERE).flush_chain(table, ELSEWHERE);
    for verdict in [Verdict::Jump(KNOWN.to_owned()), Verdict::Goto(PORTS.to_owned())] {
        batch.rule(table, ELSEWHERE, |rule| {
            rule.verdict(&verdict);
        });
    }
}

/// Masquerades connections that began at a port of these maps, according to the container's address.
/// Other programs redirect to containers as well.
fn lay_out_snat(batch: &mut Batch, table: Table, family: &OfFamily, maps: &Maps) {
    let [protocol, port] = family.registers(maps);
    batch.rule(table, POSTROUTING, |rule| {
        rule.family(family.ip);
        rule.connection(Connection::Status, 1)
            .mask(1, &DST_NAT.to_ne_bytes())
            .not_equal(1, &[0; 4]);
        if maps.has_address {
            rule.original_destination(family.ip, 1);
        }
        rule.meta(Meta::L4Proto, protocol).original_port(port).value_of(maps.ports.name, 1, 1);
        rule.destination(family.ip).verdict_of(family.snat.name, 1);
    });
}

/// `dnat to [ip daddr .] meta l4proto . th dport map @MAP`.
pub fn redirect(rule: &mut Expressions, family: &OfFamily, maps: &Maps) {
    load_port(rule, family, maps);
    rule.value_of(maps.ports.name, 1, 1).destination_nat(family.ip, 1, family.after_address);
}

/// `[ip daddr .] meta l4proto . th dport`.
fn load_port(rule: &mut Expressions, family: &OfFamily, maps: &Maps) {
    let [protocol, port] = family.registers(maps);
    if maps.has_address {
        rule.destination(family.ip);
    }
    rule.meta(Meta::L4Proto, protocol).payload(Header::Transport, 2, 2, port);
}
