//! Rules that select the table in which a packet's route is looked up: `ip rule`.

use std::net::IpAddr;

use ipnet::IpNet;
use nix::errno::Errno;
use nix::libc::RTPROT_UNSPEC;
use rtnetlink::packet_core::NLM_F_DUMP;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleHeader, RuleMessage};

use super::attr::Attrs;
use super::socket::{Netlink, RTM_DELRULE, RTM_GETRULE, RTM_NEWRULE, Request, refused};
use crate::error::{Error, Result};
use crate::family::Family;

/// fib_rule_hdr.
const HEADER: usize = 12;

// linux/fib_rules.h
const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_SUPPRESS_PREFIXLEN: u16 = 14;
const FRA_TABLE: u16 = 15;
const FRA_PAD: u16 = 18;
const FRA_PROTOCOL: u16 = 21;
const FIB_RULE_INVERT: u32 = 2;
/// The action: look the route up in the table.
const FR_ACT_TO_TBL: u8 = 1;

/// A routing policy rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Rules with a lower priority are tried first.
    pub priority: u32,
    /// The table in which routes are looked up.
    pub table: u32,
    /// The single source address that it matches, if it has no other condition.
    pub source: Option<IpAddr>,
    /// Whether its creator left a mark, as routing daemons do; this program, the reference and `ip
    /// rule` do not.
    pub is_signed: bool,
}

impl Rule {
    /// Reads a rule; the kernel can filter rules by family only.
    fn read(payload: &[u8], family: Family) -> Option<Rule> {
        let header =
            RuleHeader::parse(payload).ok().filter(|header| header.family == family.into())?;
        let attrs = Attrs::after(payload, HEADER);
        let source = attrs.ip(FRA_SRC).filter(|_| is_plain(&header, attrs));
        let table = attrs.u32(FRA_TABLE).unwrap_or(u32::from(header.table));
        let is_signed = attrs.u8(FRA_PROTOCOL).is_some_and(|protocol| protocol != RTPROT_UNSPEC);
        Some(Rule {
            priority: attrs.u32(FRA_PRIORITY).unwrap_or_default(),
            table,
            source,
            is_signed,
        })
    }

    fn message(source: IpAddr, table: u32) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = Family::of(source).into();
        message.header.src_len = IpNet::from(source).prefix_len();
        message.header.action = RuleAction::ToTable;
        message.header.table = u8::try_from(table).unwrap_or_default(); // RT_TABLE_UNSPEC: the attribute says which
        message.attributes = vec![RuleAttribute::Source(source), RuleAttribute::Table(table)];
        message
    }
}

/// The operation, as errors name it.
const LIST: &str = "list the rules";

/// The request for the rules of one family.
fn listing(family: Family) -> Request {
    let mut message = RuleMessage::default();
    message.header.family = family.into();
    Request::new(RTM_GETRULE, &message)
}

/// Whether the rule matches one source address and has no other condition.
fn is_plain(header: &RuleHeader, attrs: Attrs<'_>) -> bool {
    let whole = if header.family == AddressFamily::Inet { 32 } else { 128 };
    (header.src_len, header.dst_len, header.tos) == (whole, 0, 0)
        && u8::from(header.action) == FR_ACT_TO_TBL
        && header.flags.bits() & FIB_RULE_INVERT == 0
        && attrs.iter().all(|(kind, value)| match kind {
            FRA_SRC | FRA_PRIORITY | FRA_TABLE | FRA_PAD | FRA_PROTOCOL => true,
            FRA_SUPPRESS_PREFIXLEN => value.iter().all(|byte| *byte == 0xff), // none is suppressed
            _ => false,
        })
}

impl Netlink {
    /// The rules of both families.
    pub fn rules(&self) -> Result<Vec<Rule>> {
        let mut all = vec![];
        for family in Family::ALL {
            let listed = self.dump(&listing(family), LIST, |payload| Rule::read(payload, family));
            match listed {
                // A kernel without IPv6 has no rules for it.
                Err(e) if family == Family::V6 && e.is_errno(Errno::EAFNOSUPPORT) => (),
                listed => all.extend(listed?),
            }
        }
        Ok(all)
    }

    /// Whether the namespace has rules at all; a kernel without policy routing has none. Reads only
    /// the first one, and the socket is unusable afterwards.
    pub fn into_has_rules(self) -> Result<bool> {
        let seq =
            self.send(&listing(Family::V4), NLM_F_DUMP).map_err(|e| Error::kernel(LIST, e))?;
        let mut found = false;
        let read = self.transport.dump_until(seq, |_| {
            found = true;
            true
        });
        match read {
            Err(refusal) if matches!(refusal.errno, Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT) => {
                Ok(false)
            }
            read => read.map(|()| found).map_err(|refusal| refused(LIST, refusal)),
        }
    }

    /// Looks up the routes of packets from `source` in the table: `ip rule add from SOURCE lookup
    /// TABLE`. The kernel gives the rule a priority before all others of its kind. The same rule
    /// must not exist.
    pub fn add_rule(&self, source: IpAddr, table: u32) -> Result<()> {
        let what = format_args!("add rule from {source} lookup {table}");
        self.add(&Request::new(RTM_NEWRULE, &Rule::message(source, table)), what)
    }

    /// Removes the rule about `source` with this priority, if it exists.
    pub fn delete_rule(&self, source: IpAddr, table: u32, priority: u32) -> Result<()> {
        let mut message = Rule::message(source, table);
        message.attributes.push(RuleAttribute::Priority(priority));
        let what = format_args!("delete rule {priority} from {source} lookup {table}");
        self.remove(&Request::new(RTM_DELRULE, &message), what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(source_length: u8, more: &[u8]) -> Option<Rule> {
        let mut payload = vec![2, 0, source_length, 0, 100, 0, 0, 1, 0, 0, 0, 0];
        payload.extend([8, 0, 2, 0, 10, 1, 2, 3, 8, 0, 6, 0]);
        payload.extend(32765u32.to_ne_bytes());
        payload.extend([8, 0, 14, 0, 255, 255, 255, 255]);
        payload.extend(more);
        Rule::read(&payload, Family::V4)
    }

    #[test]
    fn a_rule_about_more_than_one_source_address_is_another_s() {
        let plain = rule(32, &[]).unwrap();
        let source = Some("10.1.2.3".parse().unwrap());
        assert_eq!(plain, Rule { priority: 32765, table: 100, source, is_signed: false });
        let protocol = |number: u8| [5, 0, 21, 0, number, 0, 0, 0];
        assert_eq!(
            [0, 3].map(|number| rule(32, &protocol(number)).unwrap().is_signed),
            [false, true]
        );
        assert_eq!(rule(24, &[]).unwrap().source, None);
        let mark = [8, 0, 10, 0, 1, 0, 0, 0];
        assert_eq!(rule(32, &mark).unwrap().source, None);
    }

    #[test]
    fn a_table_beyond_a_byte_is_in_the_attribute() {
        let table = [8, 0, 15, 0, 0x88, 0x13, 0, 0];
        assert_eq!(rule(32, &table).unwrap().table, 5000);
        let message = Rule::message("::1".parse().unwrap(), 5000);
        assert_eq!((message.header.table, message.header.src_len), (0, 128));
    }
}
