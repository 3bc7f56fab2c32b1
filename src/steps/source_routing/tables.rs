//! The tables of the reference's rules: where they begin, and which ones a DEL without a record
//! finds.

use std::net::IpAddr;

use crate::error::Result;
use crate::net::netlink::{Link, Netlink, Rule};
use crate::steps::routing_table;

/// Where the search for a free table begins, as in the reference.
pub const FIRST_TABLE: u32 = 100;

/// The tables that a rule of the reference may lead to.
pub enum Tables {
    /// The configured one.
    Configured(u32),
    /// One without routes of another interface.
    Own {
        /// The tables of the interface's routes.
        of_link: Vec<u32>,
        /// The tables of all routes.
        of_all: Vec<u32>,
    },
}

impl Tables {
    /// The tables for the rules of this link.
    pub fn find(
        container: &Netlink,
        link: Option<&Link>,
        configured: Option<u32>,
    ) -> Result<Tables> {
        if let Some(table) = configured {
            return Ok(Tables::Configured(table));
        }
        let own = link.map_or(Ok(vec![]), |link| container.routes_through(link))?;
        let all = container.routes()?;
        Ok(Tables::Own {
            of_link: own.iter().map(|route| route.table).collect(),
            of_all: all.iter().map(|route| route.table).collect(),
        })
    }

    /// The tables that were created for these rules.
    pub fn made_for(&self, rules: &[(IpAddr, u32)]) -> Vec<u32> {
        match self {
            Tables::Configured(_) => vec![],
            Tables::Own { .. } => rules.iter().map(|(_, table)| *table).collect(),
        }
    }

    fn may_have(&self, table: u32) -> bool {
        match self {
            Tables::Configured(configured) => table == *configured,
            Tables::Own { of_link, of_all } => {
                let count = |list: &[u32]| list.iter().filter(|of| **of == table).count();
                table >= FIRST_TABLE
                    && table != routing_table::MAIN
                    && count(of_all) == count(of_link)
            }
        }
    }

    /// The rules without a signature that lead from the addresses to these tables.
    pub fn rules_of_reference(&self, rules: &[Rule], ips: &[IpAddr]) -> Vec<(IpAddr, u32)> {
        let unsigned = rules.iter().filter(|rule| !rule.is_signed && self.may_have(rule.table));
        let pairs = unsigned.filter_map(|rule| Some((rule.source?, rule.table)));
        pairs.filter(|(source, _)| ips.contains(source)).collect()
    }
}
