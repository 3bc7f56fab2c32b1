//! A table as the kernel writes it: struct ipt_getinfo, and entries one behind the other.

use nix::libc;

use super::{Entry, LegacyChain};
use crate::family::Family;
use crate::net::filter_rule::{Condition, Field, PacketRule};
use crate::net::netlink::attr::{read_text, read_u16, read_u32, read_u64};
use crate::net::nft::expr::Verdict;

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
// IPT_INV_*
const NOT_FROM: u8 = 1;
const NOT_TO: u8 = 2;
const NOT_SOURCE: u8 = 8;
const NOT_DESTINATION: u8 = 16;
// Verdicts of the standard target: -NF_DROP - 1 and so on
const DROP: i32 = -1;
const ACCEPT: i32 = -2;
const RETURN: i32 = -5;
/// The target that begins a chain, and the one that ends the table.
const ERROR: &str = "ERROR";
/// The target that drops a packet and reports it to its sender.
const REJECT: &str = "REJECT";

/// Where the fields of an entry are.
pub(super) struct Layout {
    pub(super) level: libc::c_int,
    width: usize,
    protocol: usize,
    flags: usize,
    inversions: usize,
    /// The flag of a rule that does not return (IPT_F_GOTO, IP6T_F_GOTO). All others are conditions.
    goto: u8,
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
    goto: 2,
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
    goto: 4,
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

impl<'b> Blob<'b> {
    /// The chains; None if it is not understood.
    pub(super) fn chains(&self) -> Option<Vec<LegacyChain>> {
        let heads = self.heads()?;
        let mut chains = vec![];
        let valid = read_u32(self.info, VALID_HOOKS)?;
        let hooks = HOOKS.into_iter().enumerate();
        for (hook, name) in hooks.filter(|(hook, _)| valid & (1 << hook) != 0) {
            let field = |at| Some(read_u32(self.info, at + 4 * hook)? as usize);
            let end = field(UNDERFLOWS)?;
            chains.push(LegacyChain {
                name: name.to_owned(),
                drops: self.number(end)? == DROP,
                packets: self.packets(end)?,
                entries: self.between(field(HOOK_ENTRIES)?, end, &heads)?,
            });
        }
        for head in &heads {
            let mut entries = self.between(head.begin, head.end, &heads)?;
            entries.pop(); // the end of the chain, which returns
            let name = head.name.clone();
            chains.push(LegacyChain { name, drops: false, packets: 0, entries });
        }
        Some(chains)
    }

    /// The chains of users, each from its head to the next one.
    fn heads(&self) -> Option<Vec<Head>> {
        let mut heads: Vec<Head> = vec![];
        let mut at = 0;
        while at < self.entries.len() {
            let next = self.next(at)?;
            let (target, data) = self.target(at)?;
            if target == ERROR {
                if let Some(last) = heads.last_mut() {
                    last.end = at;
                }
                heads.push(Head { name: read_text(data), begin: next, end: next });
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
        let Layout { width, protocol, goto, .. } = *self.layout;
        let flags = *self.entries.get(at + self.layout.flags)?;
        let inverted = *self.entries.get(at + self.layout.inversions)?;
        // Two fields of one length are followed by their masks.
        let condition = |field, from: usize, length: usize, inversion: u8| {
            let bytes = |from| Some(self.entries.get(from..from + length)?.to_vec());
            let (value, mask) = (bytes(at + from)?, bytes(at + from + 2 * length)?);
            Some(Condition { field, value, mask, is_inverted: inverted & inversion != 0 })
        };
        let conditions = vec![
            condition(Field::Addresses(0), 0, width, NOT_SOURCE)?,
            condition(Field::Addresses(width), width, width, NOT_DESTINATION)?,
            condition(Field::IifName, 4 * width, LINK, NOT_FROM)?,
            condition(Field::OifName, 4 * width + LINK, LINK, NOT_TO)?,
        ];
        let has_protocol = read_u16(self.entries, at + protocol)? != 0;
        let has_others = has_protocol || flags & !goto != 0 || self.has_matches(at)?;
        let rule = PacketRule {
            conditions: (!has_others).then_some(conditions),
            verdict: self.verdict(at, flags & goto != 0, heads)?,
        };
        Some(Entry { rule, packets: self.packets(at)? })
    }

    /// How many packets the entry has matched, as the kernel has added up the counters of all CPUs.
    fn packets(&self, at: usize) -> Option<u64> {
        read_u64(self.entries, at + self.layout.size - COUNTERS)
    }

    /// Whether it has matches other than comments.
    fn has_matches(&self, at: usize) -> Option<bool> {
        let (mut from, end) = (at + self.layout.size, self.target_at(at)?);
        while from < end {
            if self.extension(from)?.0 != "comment" {
                return Some(true);
            }
            from += usize::from(read_u16(self.entries, from)?);
        }
        Some(false)
    }

    fn target_at(&self, at: usize) -> Option<usize> {
        let offset = read_u16(self.entries, at + self.layout.target_offset)?;
        Some(at + usize::from(offset))
    }

    fn target(&self, at: usize) -> Option<(String, &'b [u8])> {
        self.extension(self.target_at(at)?)
    }

    /// The name of a match or a target, and its data.
    fn extension(&self, at: usize) -> Option<(String, &'b [u8])> {
        let size = usize::from(read_u16(self.entries, at)?);
        let all = self.entries.get(at..at + size)?;
        Some((read_text(all.get(2..REVISION)?), all.get(EXTENSION..)?))
    }

    /// What the standard target has: a negative verdict, or the offset of a chain.
    fn number(&self, at: usize) -> Option<i32> {
        let (_, data) = self.target(at)?;
        Some(i32::from_ne_bytes(data.get(..4)?.try_into().ok()?))
    }

    /// What the rule does; Some(None) if the packet continues with the next rule.
    fn verdict(&self, at: usize, is_goto: bool, heads: &[Head]) -> Option<Option<Verdict>> {
        let (target, _) = self.target(at)?;
        if !target.is_empty() {
            return Some((target == REJECT).then_some(Verdict::Drop));
        }
        let chain = |begin: usize| heads.iter().find(|head| head.begin == begin);
        let next = self.next(at)?;
        Some(match self.number(at)? {
            DROP => Some(Verdict::Drop),
            ACCEPT => Some(Verdict::Accept),
            RETURN => Some(Verdict::Return),
            offset => match usize::try_from(offset).ok()? {
                offset if offset == next => None,
                offset if is_goto => Some(Verdict::Goto(chain(offset)?.name.clone())),
                offset => Some(Verdict::Jump(chain(offset)?.name.clone())),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Ending, endings_of};
    use super::*;

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

    #[test]
    fn conditions_about_addresses_and_links_are_read() {
        for layout in [&V4, &V6] {
            let width = layout.width;
            let read = |change: &dyn Fn(&mut [u8])| {
                let mut entries = entry(layout, 0, "", &DROP.to_ne_bytes());
                change(&mut entries);
                let rule =
                    Blob { layout, info: &[], entries: &entries }.entry(0, &[]).unwrap().rule;
                assert_eq!(rule.verdict, Some(Verdict::Drop));
                rule.conditions
            };
            let conditions = read(&|entry| {
                (entry[width], entry[3 * width]) = (10, 0xff);
                entry[4 * width + LINK..][..3].copy_from_slice(b"eth");
                entry[4 * width + 3 * LINK..][..3].fill(0xff);
                (entry[layout.inversions], entry[layout.flags]) = (NOT_TO, layout.goto);
            });
            let condition = |field, length: usize, value: &[u8], is_inverted| {
                let (mut all, mut mask) = (value.to_vec(), vec![0xff; value.len()]);
                all.resize(length, 0);
                mask.resize(length, 0);
                Condition { field, value: all, mask, is_inverted }
            };
            let expected = [
                condition(Field::Addresses(0), width, &[], false),
                condition(Field::Addresses(width), width, &[10], false),
                condition(Field::IifName, LINK, &[], false),
                condition(Field::OifName, LINK, b"eth", true),
            ];
            assert_eq!(conditions.as_deref(), Some(&expected[..]));
            for other in [layout.protocol, layout.flags, layout.size + 2] {
                assert_eq!(read(&|entry| entry[other] ^= 1), None, "byte {other}");
            }
        }
    }
}
