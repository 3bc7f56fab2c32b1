//! What an attachment needs: how each thing is done, verified and undone, in one file.

pub mod addresses;
pub mod allocation;
pub mod assigned;
pub mod container_link;
pub mod delegation;
pub mod dns;
pub mod fastpath;
pub mod hardware_address;
pub mod interface;
pub mod ipam;
pub mod link_alias;
pub mod link_record;
pub mod lower_link;
pub mod masquerade;
pub mod moved_link;
pub mod nft_owner;
pub mod prev_result;
pub mod records;
pub mod routes;
pub mod rules;
pub mod settings;
pub mod veth;
pub mod vlan_trunk;
