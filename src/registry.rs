//! Every plugin of the binary, in the order of the README and `cni-multi list`.

use crate::plugin::Entry;
use crate::plugins::ipam::{
    cluster_local::ClusterLocal, dhcp::Dhcp, host_local::HostLocal, r#static::Static,
    whereabouts::Whereabouts,
};
use crate::plugins::main::{
    bond::Bond, bridge::Bridge, dummy::Dummy, flannel::Flannel, host_device::HostDevice,
    ipvlan::Ipvlan, loopback::Loopback, macvlan::Macvlan, ovs::Ovs, ptp::Ptp, tap::Tap, vlan::Vlan,
};
use crate::plugins::meta::{
    bandwidth::Bandwidth, firewall::Firewall, portmap::Portmap, route_override::RouteOverride,
    sbr::Sbr, tuning::Tuning, vrf::Vrf,
};

/// The plugins, one line each.
pub static PLUGINS: &[Entry] = &[
    Entry::of::<Bridge>(),
    Entry::of::<Ptp>(),
    Entry::of::<Macvlan>(),
    Entry::of::<Ipvlan>(),
    Entry::of::<Vlan>(),
    Entry::of::<HostDevice>(),
    Entry::of::<Dummy>(),
    Entry::of::<Tap>(),
    Entry::of::<Loopback>(),
    Entry::of::<Flannel>(),
    Entry::of::<Bond>(),
    Entry::of::<Ovs>(),
    Entry::of::<HostLocal>(),
    Entry::of::<Static>(),
    Entry::of::<Dhcp>(),
    Entry::of::<ClusterLocal>(),
    Entry::of::<Whereabouts>(),
    Entry::of::<Portmap>(),
    Entry::of::<Firewall>(),
    Entry::of::<Tuning>(),
    Entry::of::<Bandwidth>(),
    Entry::of::<Sbr>(),
    Entry::of::<Vrf>(),
    Entry::of::<RouteOverride>(),
];

/// The plugin of exactly this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    PLUGINS.iter().find(|entry| entry.name == name)
}
