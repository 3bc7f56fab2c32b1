//! One thing an attachment needs, each in one file: how it is done, verified and undone.

pub mod addresses;
pub mod allocation;
pub mod backend;
pub mod container_link;
pub mod dns;
pub mod families;
pub mod forwarding;
pub mod gateway_field;
pub mod hardware_address;
pub mod interface;
pub mod ipam;
pub mod kept_routes;
pub mod link_alias;
pub mod link_kind;
pub mod link_record;
pub mod lower_link;
pub mod masquerade;
pub mod nft_owner;
pub mod prev_result;
pub mod records;
pub mod router_advertisements;
pub mod routing_table;
pub mod source_routing;
pub mod spoofcheck;
pub mod veth;
pub mod vrf;
