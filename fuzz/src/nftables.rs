//! Any bytes as the kernel's answers to nf_tables requests: they are parsed or rejected, and a
//! search for an owner's objects never ends only if the kernel's answers never do.
//!
//! The first byte selects the request.

use cni_multi::family::Family;
use cni_multi::net::nft::batch::{Batch, Holds, Hook, KeyType, Set, Table};
use cni_multi::net::nft::expr::Verdict;
use cni_multi::net::nft::owned::{Layout, OwnedElement, Owner, Search};
use cni_multi::net::nft::xtables::filter_table;
use cni_multi::net::nft::{NfFamily, Nft};

use crate::kernel;

const TABLE: Table = Table { family: NfFamily::Inet, name: "cni-multi" };
const NAMES: Set = Set { name: "names", key: &[KeyType::IfName], holds: Holds::Keys };
const LAYOUT: Layout = Layout {
    table: TABLE,
    comment: "one chain and one set",
    sets: &[&NAMES],
    lay_out: |batch, table| {
        batch.table(table, "").set(table, &NAMES);
        batch.base_chain(table, "forward", Hook { kind: "filter", number: 2, priority: 0 });
        batch.rule(table, "forward", |rule| {
            rule.counter().verdict(&Verdict::Accept);
        });
    },
    reliance: None,
};

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let Some((question, answers)) = bytes.split_first() else { return };
    let (ours, _kernel) = kernel::answering(answers);
    ask(*question, &Nft::over(ours));
}

fn ask(question: u8, nft: &Nft) {
    let owner = Owner { id: [7; 16], comment: "0707070707070707-0707070707070707, net: net".to_owned() };
    let element = OwnedElement { set: NAMES.name, key: vec![b'a'; 16], ..OwnedElement::default() };
    let ours = LAYOUT.on(nft);
    let claims = ours.of(&owner);
    match question % 17 {
        0 => drop(nft.generation()),
        1 => drop(nft.is_in_force(TABLE)),
        2 => drop(nft.chain(NfFamily::Inet, TABLE.name, "forward")),
        3 => drop(nft.dropping_chains(NfFamily::Ip, 2)),
        4 => drop(nft.element(TABLE, NAMES.name, &[0; 16])),
        5 => drop(nft.elements(TABLE, NAMES.name)),
        6 => drop(nft.rules(NfFamily::Inet, TABLE.name, "forward")),
        7 => drop(ours.damage()),
        8 => drop(ours.holdings(Some([7; 8]))),
        9 => drop(claims.belongings(Search::Ledger)),
        10 => drop(claims.belongings(Search::Comments)),
        11 => drop(claims.missing(&[element])),
        12 => drop(claims.has_anything()),
        13 => drop(claims.first_taken(&[element])),
        14 => drop(nft.filter_rules(filter_table(Family::V4), "CNI-FORWARD")),
        15 => drop(nft.filter_rule(filter_table(Family::V6), "CNI-FORWARD", 7)),
        _ => {
            let mut batch = Batch::of_generation(7);
            batch.delete_element(TABLE, NAMES.name, &[0; 16]);
            let _ = nft.commit_rules(&batch, "remove an element"); // must return, with any result
        }
    }
}
