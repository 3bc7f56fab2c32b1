//! nf_tables over netlink: what `nft` does, without `nft`. Batches are applied as a whole or not at
//! all; lookups are by key, never of whole tables.

pub mod batch;
pub mod expr;
mod meaning;
mod objects;
pub mod owned;
mod ruleset;
mod socket;
pub mod trace;
mod uapi;
pub mod wire;
pub mod xtables;

pub use self::objects::{ChainInfo, ElementInfo, LINKS_OF_REQUEST, RuleInfo, TableInfo};
pub use self::socket::Nft;
pub use crate::net::nfnetlink::NfFamily;
