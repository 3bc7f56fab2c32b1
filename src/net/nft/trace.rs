//! The trace of nf_tables, which `nft monitor trace` prints: which rule, or which chain's policy,
//! dropped a packet, and with which addresses one left.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process;

use nix::errno::Errno;
use nix::libc::{IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_TCP, IPPROTO_UDP};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::batch::{Batch, Hook, Table};
use super::expr::{Header, Meta};
use super::socket::{Nft, open_transport};
use super::uapi::*;
use crate::error::{Error, Result};
use crate::net::echo;
use crate::net::netlink::attr::{Attrs, read_ip};
use crate::net::netlink::transport::{Message, Transport};
use crate::net::nfnetlink::{NFNL_SUBSYS_NFTABLES, NfFamily};

/// The families whose tables mark packets, the first on every kernel.
const FAMILIES: [NfFamily; 2] = [NfFamily::Inet, NfFamily::Bridge];
/// How the names of these tables begin; the process number follows.
const PREFIX: &str = "cni_multi_doctor_";
/// NF_INET_PRE_ROUTING and NF_INET_LOCAL_OUT, before all that others do, also before connections are
/// tracked; and NF_INET_POST_ROUTING, after all. Bridges have the same numbers.
const HOOKS: [(&str, u32, i32); 3] =
    [("prerouting", 0, -500), ("output", 3, -500), (LAST, 4, 10_000)];
/// The chain that sees packets as they leave.
const LAST: &str = "postrouting";
/// The offset of the identifier in the headers of ICMP and ICMPv6.
const IDENTIFIER: u32 = 4;
/// How many times a call reads messages: a container may send to the port without end.
const MOST: usize = 1000;
/// The length of nfgenmsg.
const HEADER: usize = 4;

/// What has dropped a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The family of the table, as nft(8) names it.
    pub family: &'static str,
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The rule's handle; None for the policy of the chain.
    pub handle: Option<u64>,
}

/// What has happened to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It was dropped.
    Dropped(Dropped),
    /// It leaves this namespace, with addresses that may have been translated.
    Left {
        /// Its source.
        from: IpAddr,
        /// Its destination.
        to: IpAddr,
    },
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Dropped { family, table, chain, handle } = self;
        match handle {
            Some(handle) => write!(f, "a rule: {family} {table} {chain}, handle {handle}"),
            None => write!(f, "the policy of a chain: {family} {table} {chain}"),
        }
    }
}

/// A trace of packets in the namespace of the thread that began it, until it is dropped.
pub struct Trace {
    nft: Nft,
    group: Transport,
    /// The name of its tables.
    name: &'static str,
    length: u32,
    port: u16,
    /// The kernel's numbers of the packets of this trace at their hooks: others trace as well.
    own: RefCell<HashSet<u32>>,
}

impl Trace {
    /// Traces this process's echo requests of this length, IP header included, and the replies to them,
    /// and what is sent from and to this port. Returns None if the kernel lacks nf_tables.
    pub fn begin(length: u32, port: u16) -> Result<Option<Trace>> {
        let Some(nft) = Nft::open_if_there()? else { return Ok(None) };
        let mut group = open_transport()?;
        group.join(NFNLGRP_NFTRACE).map_err(|e| Error::kernel("listen for nf_tables' trace", e))?;
        remove_stale(&nft)?;
        let name = format!("{PREFIX}{}", process::id()).leak(); // names of tables live as long as this process
        let trace = Trace { nft, group, name, length, port, own: RefCell::default() };
        let (length, identifier, port) =
            (length.to_ne_bytes(), echo::identifier(), port.to_be_bytes());
        for family in FAMILIES {
            let mut batch = Batch::default();
            let table = Table { family, name };
            batch.table(table, "").delete_table(table).table(table, "cni-multi doctor");
            for (name, number, priority) in HOOKS {
                let hook = Hook { kind: "filter", number, priority };
                batch.base_chain(table, name, hook);
                for protocol in [IPPROTO_ICMP, IPPROTO_ICMPV6] {
                    batch.rule(table, name, |rule| {
                        rule.meta(Meta::Length, 1).equal(1, &length);
                        rule.meta(Meta::L4Proto, 1).equal(1, &[protocol as u8]);
                        rule.payload(Header::Transport, IDENTIFIER, 2, 1).equal(1, &identifier);
                        rule.trace();
                    });
                }
                for (protocol, side) in
                    [IPPROTO_TCP, IPPROTO_UDP].into_iter().flat_map(|it| [(it, 0), (it, 2)])
                {
                    batch.rule(table, name, |rule| {
                        rule.meta(Meta::L4Proto, 1).equal(1, &[protocol as u8]);
                        rule.payload(Header::Transport, side, 2, 1).equal(1, &port).trace();
                    });
                }
            }
            match trace.nft.commit(&batch, "trace packets") {
                Err(error) if family == FAMILIES[0] => return Err(error),
                _ => (),
            }
        }
        Ok(Some(trace))
    }

    /// What has happened to packets since the last call, in order.
    pub fn steps(&self) -> Result<Vec<Step>> {
        let mut steps = vec![];
        let socket = self.group.as_fd();
        let failed = |errno| Error::kernel("read nf_tables' trace", errno);
        let has_more = || {
            poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], PollTimeout::ZERO).map_err(failed)
        };
        for _ in 0..MOST {
            if has_more()? == 0 {
                break;
            }
            match self.group.events(|message| steps.extend(self.step(message))) {
                Err(Errno::ENOBUFS) | Ok(()) => (), // others trace as well, and more than fits
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(steps)
    }

    /// What the message says; None if the packet goes on.
    fn step(&self, message: Message<'_>) -> Option<Step> {
        if message.kind != u16::from(NFNL_SUBSYS_NFTABLES) << 8 | NFT_MSG_TRACE {
            return None;
        }
        let family = match i32::from(*message.payload.first()?) {
            1 => "inet",
            2 => "ip",
            3 => "arp",
            5 => "netdev",
            7 => "bridge",
            10 => "ip6",
            _ => return None,
        };
        let attrs = Attrs::after(message.payload, HEADER);
        let code = match attrs.be32(NFTA_TRACE_TYPE)? {
            NFT_TRACETYPE_RULE => attrs.nested(NFTA_TRACE_VERDICT)?.be32(NFTA_VERDICT_CODE)?,
            NFT_TRACETYPE_POLICY => attrs.be32(NFTA_TRACE_POLICY)?,
            _ => return None,
        };
        let (table, chain) = (attrs.text(NFTA_TRACE_TABLE)?, attrs.text(NFTA_TRACE_CHAIN)?);
        let id = attrs.be32(NFTA_TRACE_ID)?;
        // The first message of a chain at a hook has the packet's headers.
        let header = attrs.bytes(NFTA_TRACE_NETWORK_HEADER);
        if let Some(header) = header {
            let transport = attrs.bytes(NFTA_TRACE_TRANSPORT_HEADER).unwrap_or_default();
            match self.is_own(header, transport) {
                true => self.own.borrow_mut().insert(id),
                false => self.own.borrow_mut().remove(&id),
            };
        }
        if code == NF_DROP as u32 && self.own.borrow().contains(&id) {
            let handle = attrs.be64(NFTA_TRACE_RULE_HANDLE);
            return Some(Step::Dropped(Dropped { family, table, chain, handle }));
        }
        let is_last = table == self.name && chain == LAST && family == "inet";
        let (from, to) = ends(header.filter(|_| is_last)?)?;
        Some(Step::Left { from, to })
    }

    /// Whether these are the headers of a packet that the rules select.
    fn is_own(&self, network: &[u8], transport: &[u8]) -> bool {
        let word = |bytes: &[u8], at: usize| bytes.get(at..)?.first_chunk().copied();
        let (length, protocol) = match network.first().map(|first| first >> 4) {
            Some(4) => (word(network, 2).map(u16::from_be_bytes), network.get(9)),
            _ => (
                word(network, 4).map(|it| u16::from_be_bytes(it).saturating_add(40)),
                network.get(6),
            ),
        };
        match protocol.map(|it| i32::from(*it)) {
            Some(IPPROTO_ICMP | IPPROTO_ICMPV6) => {
                length.map(u32::from) == Some(self.length)
                    && word(transport, IDENTIFIER as usize) == Some(echo::identifier())
            }
            Some(IPPROTO_TCP | IPPROTO_UDP) => {
                [0, 2].iter().any(|at| word(transport, *at) == Some(self.port.to_be_bytes()))
            }
            _ => false,
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        for family in FAMILIES {
            let _ = remove(&self.nft, Table { family, name: self.name }); // the next run does it
        }
    }
}

fn remove(nft: &Nft, table: Table) -> Result<()> {
    let mut batch = Batch::default();
    batch.table(table, "").delete_table(table);
    nft.commit(&batch, "end the trace")
}

/// Removes the tables of processes that are gone.
fn remove_stale(nft: &Nft) -> Result<()> {
    for family in FAMILIES {
        for name in nft.tables(family)? {
            let id = name.strip_prefix(PREFIX).filter(|id| id.parse::<u32>().is_ok());
            if id.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
                remove(nft, Table { family, name: name.leak() })?;
            }
        }
    }
    Ok(())
}

/// Source and destination in a header of IP.
fn ends(header: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let (at, length) = if header.first()? >> 4 == 4 { (12, 4) } else { (8, 16) };
    let ip = |at: usize| read_ip(header.get(at..at + length)?);
    Some((ip(at)?, ip(at + length)?))
}
