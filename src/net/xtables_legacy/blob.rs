//! A table as the kernel writes it: struct ipt_getinfo, and entries one behind the other.

use nix::libc;

use super::{Entry, Extension, Goal, LegacyChain, Matched};
use crate::family::Family;
use crate::net::netlink::attr::{read_text, read_u16, read_u32, read_u64};

// struct ipt_getinfo: the name, the hooks that are valid, where the chain of each begins, where its
// policy is
const VALID_HOOKS: usize = 32;
const HOOK_ENTRIES: usize = 36;
const UNDERFLOWS: usize = 56;
/// The chains of the kernel's own, by hook (NF_INET_*).
const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];
/// The length of a link's name.
const LINK: usize = 16;
/// struct xt_entry_match and xt_entry_target: size, name, revision.
const EXTENSION: usize = 32;
const REVISION: usize = 31;
/// struct xt_counters: packets and bytes. It is the end of an entry's fixed part.
const COUNTERS: usize = 16;
/// IPT_F_GOTO.
const GOTO: u8 = 2;
/// IP6T_F_PROTO: the protocol is compared, also if it is 0.
const BY_PROTOCOL: u8 = 1;
// IPT_INV_*
const NOT_FROM: u8 = 1;
const NOT_TO: u8 = 2;
const NOT_SOURCE: u8 = 8;
const NOT_DESTINATION: u8 = 16;
const NOT_PROTOCOL: u8 = 0x40;
// Verdicts of the standard target: -NF_DROP - 1 and so on
const DROP: i32 = -1;
const ACCEPT: i32 = -2;
const RETURN: i32 = -5;
/// The target that begins a chain, and the one that ends the table.
const ERROR: &str = "ERROR";

/// Where the fields of an entry are.
pub(super) struct Layout {
    pub(super) level: libc::c_int,
    width: usize,
    protocol: usize,
    flags: usize,
    inversions: usize,
    target_offset: usize,
    size: usize,
}

/// struct ipt_entry.
const V4: Layout = Layout {
    level: libc::SOL_IP,
    width: 4,
    protocol: 80,
    flags: 82,
    inversions: 83,
    target_offset: 88,
    size: 112,
};
/// struct ip6t_entry.
const V6: Layout = Layout {
    level: libc::SOL_IPV6,
    width: 16,
    protocol: 128,
    flags: 131,
    inversions: 132,
    target_offset: 140,
    size: 168,
};

impl Layout {
    pub(super) fn of(family: Family) -> &'static Layout {
        match family {
            Family::V4 => &V4,
            Family::V6 => &V6,
        }
    }
}

/// What the kernel has written.
pub(super) struct Blob<'b> {
    pub(super) layout: &'static Layout,
    /// struct ipt_getinfo.
    pub(super) info: &'b [u8],
    pub(super) entries: &'b [u8],
}

/// The beginning of a chain that others jump to.
struct Head {
    name: String,
    begin: usize,
    end: usize,
}

impl Blob<'_> {
    /// The chains; None if it is not understood.
    pub(super) fn chains(&self) -> Option<Vec<LegacyChain>> {
        let heads = self.heads()?;
        let mut chains = vec![];
        let valid = read_u32(self.info, VALID_HOOKS)?;
        for (hook, name) in (0..).zip(HOOKS).filter(|(hook, _)| valid & (1 << hook) != 0) {
            let field = |at| Some(read_u32(self.info, at + 4 * hook as usize)? as usize);
            let end = field(UNDERFLOWS)?;
            chains.push(LegacyChain {
                name: name.to_owned(),
                hook: Some(hook),
                drops: self.verdict(end)? == DROP,
                packets: self.packets(end)?,
                entries: self.between(field(HOOK_ENTRIES)?, end, &heads)?,
            });
        }
        for head in &heads {
            let mut entries = self.between(head.begin, head.end, &heads)?;
            entries.pop(); // the end of the chain, which returns
            let name = head.name.clone();
            chains.push(LegacyChain { name, hook: None, drops: false, packets: 0, entries });
        }
        Some(chains)
    }

    /// The chains of users, each from its head to the next one.
    fn heads(&self) -> Option<Vec<Head>> {
        let mut heads: Vec<Head> = vec![];
        let mut at = 0;
        while at < self.entries.len() {
            let next = self.next(at)?;
            let target = self.target(at)?;
            if target.name == ERROR {
                if let Some(last) = heads.last_mut() {
                    last.end = at;
                }
                heads.push(Head { name: read_text(&target.info), begin: next, end: next });
            }
            at = next;
        }
        heads.pop(); // the end of the table
        Some(heads)
    }

    /// The entries from one offset to another.
    fn between(&self, begin: usize, end: usize, heads: &[Head]) -> Option<Vec<Entry>> {
        let mut entries = vec![];
        let mut at = begin;
        while at < end {
            entries.push(self.entry(at, heads)?);
            at = self.next(at)?;
        }
        Some(entries)
    }

    /// The offset of the next entry.
    fn next(&self, at: usize) -> Option<usize> {
        let size = read_u16(self.entries, at + self.layout.target_offset + 2)?;
        (usize::from(size) >= self.layout.size).then_some(at + usize::from(size))
    }

    fn entry(&self, at: usize, heads: &[Head]) -> Option<Entry> {
        let Layout { width, protocol, inversions, .. } = *self.layout;
        let inverted = *self.entries.get(at + inversions)?;
        let address = |field, bit| self.address(at, field, inverted & bit != 0);
        let link = |field, bit| self.link(at + 4 * width + field, inverted & bit != 0);
        let number = read_u16(self.entries, at + protocol)? as u8;
        let flags = *self.entries.get(at + self.layout.flags)?;
        let is_for_protocol = number != 0 || width == V6.width && flags & BY_PROTOCOL != 0;
        let protocol = Matched {
            value: vec![number],
            mask: vec![],
            is_inverted: inverted & NOT_PROTOCOL != 0,
        };
        Some(Entry {
            source: address(0, NOT_SOURCE)?,
            destination: address(width, NOT_DESTINATION)?,
            from: link(0, NOT_FROM)?,
            to: link(LINK, NOT_TO)?,
            protocol: is_for_protocol.then_some(protocol),
            matches: self.matches(at)?,
            goal: self.goal(at, flags & GOTO != 0, heads)?,
            packets: self.packets(at)?,
        })
    }

    /// How many packets the entry has matched, as the kernel has added up the counters of all CPUs.
    fn packets(&self, at: usize) -> Option<u64> {
        read_u64(self.entries, at + self.layout.size - COUNTERS)
    }

    /// An address, with its mask behind both addresses.
    fn address(&self, at: usize, field: usize, is_inverted: bool) -> Option<Matched> {
        let width = self.layout.width;
        let bytes = |from: usize| Some(self.entries.get(from..from + width)?.to_vec());
        let value = bytes(at + field)?;
        Some(Matched { value, mask: bytes(at + field + 2 * width)?, is_inverted })
    }

    /// The name of a link, as far as its mask behind both names reaches.
    fn link(&self, at: usize, is_inverted: bool) -> Option<Matched> {
        let mask = self.entries.get(at + 2 * LINK..at + 3 * LINK)?;
        let length = mask.iter().take_while(|byte| **byte != 0).count();
        let value = self.entries.get(at..at + length)?.to_vec();
        Some(Matched { value, mask: vec![], is_inverted })
    }

    fn matches(&self, at: usize) -> Option<Vec<Extension>> {
        let mut matches = vec![];
        let (mut from, end) = (at + self.layout.size, self.target_at(at)?);
        while from < end {
            let size = usize::from(read_u16(self.entries, from)?);
            matches.push(self.extension(from)?);
            from += size;
        }
        Some(matches)
    }

    fn target_at(&self, at: usize) -> Option<usize> {
        let offset = read_u16(self.entries, at + self.layout.target_offset)?;
        Some(at + usize::from(offset))
    }

    fn target(&self, at: usize) -> Option<Extension> {
        self.extension(self.target_at(at)?)
    }

    fn extension(&self, at: usize) -> Option<Extension> {
        let size = usize::from(read_u16(self.entries, at)?);
        let all = self.entries.get(at..at + size)?;
        Some(Extension {
            name: read_text(all.get(2..REVISION)?),
            revision: *all.get(REVISION)?,
            info: all.get(EXTENSION..)?.to_vec(),
        })
    }

    /// The verdict of the standard target: negative, or the offset of a chain.
    fn verdict(&self, at: usize) -> Option<i32> {
        let target = self.target(at)?;
        let bytes = target.info.get(..4)?;
        Some(i32::from_ne_bytes(bytes.try_into().ok()?))
    }

    fn goal(&self, at: usize, is_goto: bool, heads: &[Head]) -> Option<Goal> {
        let target = self.target(at)?;
        if !target.name.is_empty() {
            return Some(Goal::Target(target));
        }
        let chain = |begin: usize| heads.iter().find(|head| head.begin == begin);
        let next = self.next(at)?;
        Some(match self.verdict(at)? {
            DROP => Goal::Drop,
            ACCEPT => Goal::Accept,
            RETURN => Goal::Return,
            offset => match usize::try_from(offset).ok()? {
                offset if offset == next => Goal::Nothing,
                offset if is_goto => Goal::Goto(chain(offset)?.name.clone()),
                offset => Goal::Jump(chain(offset)?.name.clone()),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ending, endings_of};
    use super::*;

    const REJECT: &str = "REJECT";

    /// An entry as the kernel writes it: a match of 40 bytes, and a target with four bytes of data.
    fn entry(layout: &Layout, packets: u64, target: &str, data: &[u8; 4]) -> Vec<u8> {
        let mut entry = vec![0; layout.size];
        let target_offset = layout.size + 40;
        for (number, at) in [(target_offset, 0), (target_offset + 40, 2)] {
            let at = layout.target_offset + at;
            entry[at..at + 2].copy_from_slice(&(number as u16).to_ne_bytes());
        }
        entry[layout.size - COUNTERS..][..8].copy_from_slice(&packets.to_ne_bytes());
        for (name, data) in [("comment", &[0; 4]), (target, data)] {
            let mut extension = vec![0; EXTENSION];
            extension[..2].copy_from_slice(&40u16.to_ne_bytes());
            extension[2..2 + name.len()].copy_from_slice(name.as_bytes());
            entry.extend(extension.into_iter().chain(*data).chain([0; 4]));
        }
        entry
    }

    #[test]
    fn rules_and_policies_that_end_packets_are_counted() {
        for layout in [&V4, &V6] {
            let verdict =
                |packets, verdict: i32| entry(layout, packets, "", &verdict.to_ne_bytes());
            let length = verdict(0, DROP).len();
            let jump = 6 * length as i32;
            let all = [
                verdict(90, ACCEPT), // FORWARD
                verdict(5, DROP),
                verdict(6, jump),
                entry(layout, 7, REJECT, &[0; 4]),
                verdict(8, DROP),
                entry(layout, 0, ERROR, b"own\0"),
                verdict(9, DROP),
                verdict(91, RETURN),
                entry(layout, 0, ERROR, b"ERR\0"),
            ]
            .concat();
            let mut info = vec![0; UNDERFLOWS + 4 * HOOKS.len()];
            info[VALID_HOOKS] = 1 << 2;
            let policy = (4 * length as u32).to_ne_bytes();
            info[UNDERFLOWS + 4 * 2..][..4].copy_from_slice(&policy);
            let chains = |entries| Blob { layout, info: &info, entries }.chains();
            let ending = |chain: &str, rule, packets| {
                let (table, chain) = ("filter".to_owned(), chain.to_owned());
                Ending { table, chain, rule, packets }
            };
            let found = endings_of("filter", &chains(&all).unwrap());
            let forward = |rule, packets| ending("FORWARD", rule, packets);
            let own = ending("own", Some(1), 9);
            let expected = [forward(Some(2), 5), forward(Some(4), 7), forward(None, 8), own];
            assert_eq!(found, expected, "{} bytes", layout.size);
            assert!(chains(&all[..all.len() - 1]).is_none(), "the kernel wrote less");
        }
    }
}
