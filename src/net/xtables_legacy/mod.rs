//! The tables of iptables-legacy, which has kernel tables of its own: read with getsockopt(2), as
//! `iptables-legacy-save` does, without a program. linux/netfilter_ipv4/ip_tables.h.

mod blob;

use std::fs;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::libc;

use self::blob::{Blob, Layout};
use super::filter_rule::PacketRule;
use super::netlink::attr::read_u32;
use super::netlink::transport::errno_of;
use super::nft::expr::Verdict;
use crate::error::{Error, Result};
use crate::family::Family;

/// IPT_SO_GET_INFO and IP6T_SO_GET_INFO, of struct ipt_getinfo.
const GET_INFO: libc::c_int = 64;
/// IPT_SO_GET_ENTRIES and IP6T_SO_GET_ENTRIES, of struct ipt_get_entries.
const GET_ENTRIES: libc::c_int = 65;
/// The length of a table's name.
const NAME: usize = 32;
/// The size of all entries in struct ipt_getinfo.
const SIZE: usize = 80;
/// struct ipt_getinfo.
const INFO: usize = 84;
/// struct ipt_get_entries without its entries.
const ENTRIES: usize = 40;
/// How often a table is read again that changed between its size and its entries.
const TRIES: usize = 20;

/// A table of one family.
#[derive(Clone, Copy, Debug)]
pub struct Table<'n> {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: &'n str,
}

/// A chain with its rules.
#[derive(Debug)]
pub struct LegacyChain {
    /// Its name.
    pub name: String,
    /// Whether its policy is DROP.
    pub drops: bool,
    /// How many packets had the policy; 0 for a chain without one.
    pub packets: u64,
    /// Its rules.
    pub entries: Vec<Entry>,
}

/// A rule, with its counter.
#[derive(Debug)]
pub struct Entry {
    /// The rule.
    pub rule: PacketRule,
    /// How many packets it has matched.
    pub packets: u64,
}

/// A rule, or a policy, that ends packets: it drops or rejects them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The table.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The rule's number in the chain, from 1 on, as `iptables-legacy -L --line-numbers` prints it;
    /// None for the policy of the chain.
    pub rule: Option<usize>,
    /// How many packets it has ended.
    pub packets: u64,
}

/// The rules and policies that end packets, in all of the family's tables in this thread's namespace.
/// An error is that of [`tables`] or [`read`].
pub fn endings(family: Family) -> Result<Vec<Ending>> {
    let mut endings = vec![];
    for name in tables(family)? {
        endings.extend(endings_of(&name, &read(Table { family, name: &name })?));
    }
    Ok(endings)
}

fn endings_of(table: &str, chains: &[LegacyChain]) -> Vec<Ending> {
    let mut endings = vec![];
    for chain in chains {
        let ending = |rule, packets| Ending {
            table: table.to_owned(),
            chain: chain.name.clone(),
            rule,
            packets,
        };
        for (number, entry) in (1..).zip(&chain.entries) {
            if entry.rule.verdict == Some(Verdict::Drop) {
                endings.push(ending(Some(number), entry.packets));
            }
        }
        if chain.drops {
            endings.push(ending(None, chain.packets));
        }
    }
    endings
}

/// The names of the family's tables in this thread's namespace.
pub fn tables(family: Family) -> Result<Vec<String>> {
    let names = format!("/proc/thread-self/net/{}_tables_names", family.word());
    match fs::read_to_string(&names) {
        Ok(tables) => Ok(tables.lines().map(str::to_owned).collect()),
        // No such file means no such tables. An ordinary user may not read it, and cannot have made
        // any.
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            Ok(vec![])
        }
        Err(e) => Err(Error::io(format_args!("read {names}"), &e)),
    }
}

/// The chains of a table that exists. To ask for another one would make the kernel create it.
pub fn read(table: Table<'_>) -> Result<Vec<LegacyChain>> {
    let failed = |e| {
        let program = table.family.word();
        Error::kernel(format_args!("read table {:?} of {program}tables-legacy", table.name), e)
    };
    let mut read = read_once(table);
    for _ in 1..TRIES {
        match read {
            Err(Errno::EAGAIN) => read = read_once(table),
            _ => break,
        }
    }
    let (info, entries) = read.map_err(failed)?;
    let blob = Blob { layout: Layout::of(table.family), info: &info, entries: &entries };
    blob.chains().ok_or_else(|| failed(Errno::EBADMSG))
}

fn read_once(table: Table<'_>) -> nix::Result<(Vec<u8>, Vec<u8>)> {
    let unspecified = table.family.unspecified();
    let socket = UdpSocket::bind((unspecified, 0)).map_err(errno_of)?;
    let level = Layout::of(table.family).level;
    let mut info = vec![0; INFO];
    info[..table.name.len()].copy_from_slice(table.name.as_bytes());
    get(&socket, (level, GET_INFO), &mut info)?;
    let size = read_u32(&info, SIZE).ok_or(Errno::EBADMSG)?;
    let mut entries = vec![0; ENTRIES + size as usize];
    entries[..NAME].copy_from_slice(&info[..NAME]);
    entries[NAME..NAME + 4].copy_from_slice(&size.to_ne_bytes());
    get(&socket, (level, GET_ENTRIES), &mut entries)?;
    Ok((info, entries.split_off(ENTRIES)))
}

/// getsockopt(2).
fn get(
    socket: &UdpSocket,
    (level, option): (libc::c_int, libc::c_int),
    buffer: &mut [u8],
) -> nix::Result<()> {
    let mut length = libc::socklen_t::try_from(buffer.len()).map_err(|_| Errno::E2BIG)?;
    // SAFETY: the kernel writes at most `length` bytes, which the buffer has.
    let got = unsafe {
        let buffer = buffer.as_mut_ptr().cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, buffer, &raw mut length)
    };
    Errno::result(got).map(drop)
}
