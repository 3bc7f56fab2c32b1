//! The trace of nf_tables, which `nft monitor trace` prints: which rule, or which chain's policy,
//! dropped a packet.

use std::fmt;
use std::os::fd::AsFd as _;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::batch::{Batch, Hook, Table};
use super::expr::{Header, Meta};
use super::socket::{Nft, open_transport};
use super::uapi::*;
use crate::error::{Error, Result};
use crate::net::netlink::attr::Attrs;
use crate::net::netlink::transport::{Message, Transport};
use crate::net::nfnetlink::{NFNL_SUBSYS_NFTABLES, NfFamily};

/// The tables that mark packets. A run that is killed leaves them to the next one, which removes
/// them.
const TABLES: [Table; 2] = [
    Table { family: NfFamily::Inet, name: "cni_multi_doctor" },
    Table { family: NfFamily::Bridge, name: "cni_multi_doctor" },
];
/// NF_INET_PRE_ROUTING and NF_INET_LOCAL_OUT, and the same numbers for bridges.
const HOOKS: [(&str, u32); 2] = [("prerouting", 0), ("output", 3)];
/// Before all that others do, also before connections are tracked.
const PRIORITY: i32 = -500;
/// The offset of the identifier in the headers of ICMP and ICMPv6.
const IDENTIFIER: u32 = 4;
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
}

impl Trace {
    /// Traces the echo requests and replies of this length, IP header included, of this protocol (ICMP or
    /// ICMPv6) and with this identifier. Returns None if the kernel lacks nf_tables.
    pub fn begin(length: u32, protocol: u8, identifier: [u8; 2]) -> Result<Option<Trace>> {
        let Some(nft) = Nft::open_if_there()? else { return Ok(None) };
        let mut group = open_transport()?;
        group.join(NFNLGRP_NFTRACE).map_err(|e| Error::kernel("listen for nf_tables' trace", e))?;
        let trace = Trace { nft, group };
        for (at, table) in TABLES.into_iter().enumerate() {
            let mut batch = Batch::default();
            batch.table(table, "").delete_table(table).table(table, "cni-multi doctor");
            for (name, number) in HOOKS {
                let hook = Hook { kind: "filter", number, priority: PRIORITY };
                batch.base_chain(table, name, hook).rule(table, name, |rule| {
                    rule.meta(Meta::Length, 1).equal(1, &length.to_ne_bytes());
                    rule.meta(Meta::L4Proto, 1).equal(1, &[protocol]);
                    rule.payload(Header::Transport, IDENTIFIER, 2, 1).equal(1, &identifier).trace();
                });
            }
            match trace.nft.commit(&batch, "trace packets") {
                // Not every kernel has the tables of bridges.
                Err(error) if at == 0 => return Err(error),
                _ => (),
            }
        }
        Ok(Some(trace))
    }

    /// What has dropped packets since the last call, the first first.
    pub fn drops(&self) -> Result<Vec<Dropped>> {
        let mut drops = vec![];
        let socket = self.group.as_fd();
        let failed = |errno| Error::kernel("read nf_tables' trace", errno);
        while poll(&mut [PollFd::new(socket, PollFlags::POLLIN)], PollTimeout::ZERO)
            .map_err(failed)?
            > 0
        {
            match self.group.events(|message| drops.extend(dropped_by(message))) {
                Err(Errno::ENOBUFS) | Ok(()) => (), // others trace as well, and more than fits
                Err(errno) => return Err(failed(errno)),
            }
        }
        Ok(drops)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        for table in TABLES {
            let mut batch = Batch::default();
            batch.table(table, "").delete_table(table);
            let _ = self.nft.commit(&batch, "end the trace"); // the next run does it
        }
    }
}

/// What the message says has dropped a packet; None if it passed.
fn dropped_by(message: Message<'_>) -> Option<Dropped> {
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
    let handle = attrs.be64(NFTA_TRACE_RULE_HANDLE);
    (code == NF_DROP as u32).then_some(Dropped { family, table, chain, handle })
}
