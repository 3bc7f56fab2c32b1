//! rtnetlink(7): links, addresses, routes, rules. The rtnetlink crate builds the messages, this
//! folder sends and reads them; none of the crate's types leave it.

mod addr;
pub mod attr;
mod bond;
mod bridge_vlan;
mod entry;
mod filter;
mod kind;
mod link;
mod link_change;
mod memory;
mod neighbour;
mod qdisc;
mod route;
mod rule;
mod socket;
pub mod transport;
mod watch;

pub use self::addr::{Address, AddressOptions, KeptAddress};
pub use self::bond::{Bond, BondMode, FailOverMac, XmitHashPolicy};
pub use self::bridge_vlan::{VlanFlags, VlanRange};
pub use self::entry::{AddressEntry, RouteEntry};
pub use self::filter::{Filter, Side, Verdict};
pub use self::kind::{IpvlanMode, LinkKind, LinkSpec, MacvlanMode};
pub use self::link::{BridgeSpec, Link, PeerSpec, VethSpec};
pub use self::link_change::LinkChange;
pub use self::neighbour::Neighbour;
pub use self::qdisc::{Bucket, FQ_CODEL, Handle, HtbClass, Qdisc, QdiscKind};
pub use self::route::{FoundRoute, Question, Route, Scope, Way};
pub use self::rule::Rule;
pub use self::socket::Netlink;
pub(super) use self::socket::{never_consistent, refused};
pub use self::watch::Watch;
