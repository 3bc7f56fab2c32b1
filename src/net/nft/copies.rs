//! Copies of the tables that plugins use, for a replica of the host: the objects as the kernel
//! lists them, sent back as requests.

use super::batch::Batch;
use super::flowtable;
use super::socket::{Nft, Query};
use super::uapi::*;
use super::wire::Attributes;
use crate::error::Result;
use crate::net::netlink::attr::Attrs;
use crate::net::nfnetlink::NfFamily;

const FAMILIES: [NfFamily; 4] = [NfFamily::Inet, NfFamily::Ip, NfFamily::Ip6, NfFamily::Bridge];
/// How the names of tables begin: ours, the reference's, and those of iptables.
const TABLES: [&str; 5] = ["cni_", "nat", "filter", "mangle", "raw"];

/// How the names of our tables begin.
const OWN: &str = "cni_multi_";

/// A table with everything in it.
pub struct Copy {
    table: String,
    batch: Batch,
}

/// A kind of object: the requests that list and make it, the attribute that names its table, and
/// those that a request may have. The kernel lists more, and newer kernels more still.
struct Kind {
    list: u16,
    make: u16,
    table: u16,
    chosen: &'static [u16],
}

/// In the order in which they depend on each other.
const KINDS: [Kind; 3] = [
    Kind {
        list: NFT_MSG_GETTABLE,
        make: NFT_MSG_NEWTABLE,
        table: NFTA_TABLE_NAME,
        chosen: &[NFTA_TABLE_NAME, NFTA_TABLE_FLAGS, NFTA_TABLE_USERDATA],
    },
    Kind {
        list: NFT_MSG_GETCHAIN,
        make: NFT_MSG_NEWCHAIN,
        table: NFTA_CHAIN_TABLE,
        chosen: &[
            NFTA_CHAIN_TABLE,
            NFTA_CHAIN_NAME,
            NFTA_CHAIN_HOOK,
            NFTA_CHAIN_POLICY,
            NFTA_CHAIN_TYPE,
            NFTA_CHAIN_USERDATA,
        ],
    },
    Kind {
        list: NFT_MSG_GETSET,
        make: NFT_MSG_NEWSET,
        table: NFTA_SET_TABLE,
        chosen: &[
            NFTA_SET_TABLE,
            NFTA_SET_NAME,
            NFTA_SET_FLAGS,
            NFTA_SET_KEY_TYPE,
            NFTA_SET_KEY_LEN,
            NFTA_SET_DATA_TYPE,
            NFTA_SET_DATA_LEN,
            NFTA_SET_USERDATA,
        ],
    },
];

const RULES: Kind = Kind {
    list: NFT_MSG_GETRULE,
    make: NFT_MSG_NEWRULE,
    table: NFTA_RULE_TABLE,
    chosen: &[
        NFTA_RULE_TABLE,
        NFTA_RULE_CHAIN,
        NFTA_RULE_EXPRESSIONS,
        NFTA_RULE_COMPAT,
        NFTA_RULE_USERDATA,
    ],
};

/// What a request for elements has.
const ELEMENTS: [u16; 3] =
    [NFTA_SET_ELEM_LIST_TABLE, NFTA_SET_ELEM_LIST_SET, NFTA_SET_ELEM_LIST_ELEMENTS];

impl Nft {
    /// A copy of each table that a plugin may read or change.
    pub fn copies(&self) -> Result<Vec<Copy>> {
        let mut copies = vec![];
        for family in FAMILIES {
            for table in self.tables(family)? {
                let batch = self.copy_of(family, &table)?;
                copies.push(Copy { table, batch });
            }
        }
        Ok(copies)
    }

    /// Makes the tables. One of another program that the kernel refuses, since it refers to what no
    /// copy has, is left out.
    pub fn make_copies(&self, copies: &[Copy]) -> Result<()> {
        for Copy { table, batch } in copies {
            let made = self.commit(batch, format_args!("copy table {table:?}"));
            if made.is_err() && table.starts_with(OWN) {
                return made;
            }
        }
        Ok(())
    }

    fn tables(&self, family: NfFamily) -> Result<Vec<String>> {
        let query = Query::new(NFT_MSG_GETTABLE, family, format_args!("list tables"), |_| ());
        let mut names =
            self.dump(&query, |attrs, names| names.extend(attrs.text(NFTA_TABLE_NAME)))?;
        names.retain(|name: &String| TABLES.iter().any(|known| name.starts_with(known)));
        Ok(names)
    }

    fn copy_of(&self, family: NfFamily, table: &str) -> Result<Batch> {
        let mut batch = Batch::default();
        for kind in &KINDS {
            self.copy_objects(family, table, kind, &mut batch)?;
        }
        for set in self.sets_of(family, table)? {
            self.copy_elements(family, table, &set, &mut batch)?;
        }
        self.copy_flowtables(family, table, &mut batch)?;
        self.copy_objects(family, table, &RULES, &mut batch)?;
        Ok(batch)
    }

    fn copy_objects(
        &self,
        family: NfFamily,
        table: &str,
        kind: &Kind,
        batch: &mut Batch,
    ) -> Result<()> {
        let what = format_args!("list {table:?}");
        let query = Query::new(kind.list, family, what, |body| {
            body.text(kind.table, table);
        });
        let bodies: Vec<Vec<u8>> = self.dump(&query, |attrs, bodies| {
            if attrs.is_text(kind.table, table) {
                bodies.push(kept(attrs, kind.chosen));
            }
        })?;
        bodies.iter().for_each(|body| batch.repeat(family, kind.make, body));
        Ok(())
    }

    fn copy_flowtables(&self, family: NfFamily, table: &str, batch: &mut Batch) -> Result<()> {
        let what = format_args!("list the flowtables of {table:?}");
        let query = Query::new(NFT_MSG_GETFLOWTABLE, family, what, |body| {
            body.text(NFTA_FLOWTABLE_TABLE, table);
        });
        let bodies: Vec<Vec<u8>> = self.dump(&query, |attrs, bodies| {
            if attrs.is_text(NFTA_FLOWTABLE_TABLE, table) {
                bodies.extend(flowtable::requests(attrs));
            }
        })?;
        bodies.iter().for_each(|body| batch.repeat(family, NFT_MSG_NEWFLOWTABLE, body));
        Ok(())
    }

    fn sets_of(&self, family: NfFamily, table: &str) -> Result<Vec<String>> {
        let query = Query::new(NFT_MSG_GETSET, family, format_args!("list sets"), |body| {
            body.text(NFTA_SET_TABLE, table);
        });
        self.dump(&query, |attrs, names| {
            let name = attrs.text(NFTA_SET_NAME);
            names.extend(name.filter(|_| attrs.is_text(NFTA_SET_TABLE, table)));
        })
    }

    fn copy_elements(
        &self,
        family: NfFamily,
        table: &str,
        set: &str,
        batch: &mut Batch,
    ) -> Result<()> {
        let what = format_args!("list the elements of {set:?}");
        let query = Query::new(NFT_MSG_GETSETELEM, family, what, |body| {
            body.text(NFTA_SET_ELEM_LIST_TABLE, table).text(NFTA_SET_ELEM_LIST_SET, set);
        });
        let bodies: Vec<Vec<u8>> =
            self.dump(&query, |attrs, bodies| bodies.push(kept(attrs, &ELEMENTS)))?;
        bodies.iter().for_each(|body| batch.repeat(family, NFT_MSG_NEWSETELEM, body));
        Ok(())
    }
}

/// The attributes that a request repeats.
fn kept(attrs: Attrs<'_>, chosen: &[u16]) -> Vec<u8> {
    let mut body = Attributes::default();
    for (kind, value) in attrs.iter().filter(|(kind, _)| chosen.contains(kind)) {
        body.raw(kind, value);
    }
    body.bytes().to_vec()
}
