//! nf_tables over netlink: what `nft` does, without `nft`. All or nothing by batch; lookups by key,
//! never whole tables.

pub mod batch;
pub mod expr;
mod meaning;
mod objects;
pub mod owned;
mod socket;
mod uapi;
pub mod wire;
pub mod xtables;

pub use self::objects::{ChainInfo, ElementInfo, RuleInfo};
pub use self::socket::Nft;
pub use crate::net::nfnetlink::Family;
