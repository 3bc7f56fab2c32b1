//! The chains of iptables-legacy, written as nf_tables has those of iptables-nft.

use super::{Base, Chain, Rule};
use crate::error::Result;
use crate::family::Family;
use crate::net::nft::expr::{Expressions, Header, Meta, Verdict};
use crate::net::xtables_legacy::{self, Entry, Goal, LegacyChain, Matched, Table};

/// The tables, and where their chains are at each hook (NF_IP_PRI_*): those of `nat` are in order
/// of their hook alone.
const TABLES: [(&str, i32); 4] = [("raw", -300), ("mangle", -150), ("nat", 0), ("filter", 0)];

/// The register that everything is loaded into.
const REGISTER: u32 = 1;

/// The chains of the family's tables; only those that exist are read.
pub(super) fn chains(family: Family) -> Result<Vec<Chain>> {
    let existing = xtables_legacy::tables(family)?;
    let mut chains = vec![];
    for (name, priority) in TABLES {
        if !existing.iter().any(|table| table == name) {
            continue;
        }
        let table = Table { family, name };
        for chain in xtables_legacy::read(table)? {
            chains.push(written(table, priority, &chain));
        }
    }
    Ok(chains)
}

fn written(table: Table<'_>, priority: i32, chain: &LegacyChain) -> Chain {
    let is_nat = table.name == "nat";
    let base = chain.hook.map(|hook| Base { hook, priority, drops: chain.drops, is_nat });
    let numbered = chain.entries.iter().zip(1..);
    let rule = |(entry, handle)| Rule { handle, expressions: expressions(table.family, entry) };
    Chain {
        family: table.family.into(),
        is_legacy: true,
        table: table.name.to_owned(),
        name: chain.name.clone(),
        base,
        rules: numbered.map(rule).collect(),
    }
}

fn expressions(family: Family, entry: &Entry) -> Vec<u8> {
    let (source, width) = match family {
        Family::V4 => (12, 4),
        Family::V6 => (8, 16),
    };
    let expressions = Expressions::of(|all| {
        for (matched, offset) in [(&entry.source, source), (&entry.destination, source + width)] {
            all.payload(Header::Network, offset, width, REGISTER).mask(REGISTER, &matched.mask);
            compare(all, matched);
        }
        for (matched, meta) in [(&entry.from, Meta::IifName), (&entry.to, Meta::OifName)] {
            if !matched.value.is_empty() {
                all.meta(meta, REGISTER);
                compare(all, matched);
            }
        }
        if let Some(protocol) = &entry.protocol {
            all.meta(Meta::L4Proto, REGISTER);
            compare(all, protocol);
        }
        for extension in &entry.matches {
            all.xtables_match(&extension.name, extension.revision.into(), &extension.info);
        }
        pursue(all, &entry.goal);
    });
    expressions.bytes().to_vec()
}

fn pursue(all: &mut Expressions, goal: &Goal) {
    let verdict = match goal {
        Goal::Accept => Verdict::Accept,
        Goal::Drop => Verdict::Drop,
        Goal::Return => Verdict::Return,
        Goal::Jump(chain) => Verdict::Jump(chain.clone()),
        Goal::Goto(chain) => Verdict::Goto(chain.clone()),
        Goal::Target(target) => {
            all.xtables_target(&target.name, target.revision.into(), &target.info);
            return;
        }
        Goal::Nothing => return,
    };
    all.verdict(&verdict);
}

fn compare(all: &mut Expressions, matched: &Matched) {
    if matched.is_inverted {
        all.not_equal(REGISTER, &matched.value);
    } else {
        all.equal(REGISTER, &matched.value);
    }
}
