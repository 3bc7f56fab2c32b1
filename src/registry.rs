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

/// The same plugins by how often hosts run them, the most often last.
///
/// The compiler begins at the end of this list: it places the code of the last plugin first, with
/// all that it calls, and of each other plugin what is not there yet. So what most calls run lies
/// close together, and the kernel maps less of the program for them (docs/performance.md, "Where
/// the memory is"). The list is public: the compiler would come upon a private one after
/// [`PLUGINS`].
pub static BY_USE: [Entry; 24] = [
    Entry::of::<ClusterLocal>(),
    Entry::of::<Whereabouts>(),
    Entry::of::<Ovs>(),
    Entry::of::<Bond>(),
    Entry::of::<Dhcp>(),
    Entry::of::<Flannel>(),
    Entry::of::<RouteOverride>(),
    Entry::of::<Vrf>(),
    Entry::of::<Sbr>(),
    Entry::of::<Static>(),
    Entry::of::<Tap>(),
    Entry::of::<Dummy>(),
    Entry::of::<HostDevice>(),
    Entry::of::<Vlan>(),
    Entry::of::<Ipvlan>(),
    Entry::of::<Macvlan>(),
    Entry::of::<Ptp>(),
    Entry::of::<Loopback>(),
    Entry::of::<Bandwidth>(),
    Entry::of::<Tuning>(),
    Entry::of::<Firewall>(),
    Entry::of::<Portmap>(),
    Entry::of::<HostLocal>(),
    Entry::of::<Bridge>(),
];

/// The plugin of exactly this name.
pub fn find(name: &str) -> Option<&'static Entry> {
    BY_USE.iter().rev().find(|entry| entry.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn both_lists_have_the_same_plugins() {
        let names = |list: &[Entry]| list.iter().map(|entry| entry.name).collect::<BTreeSet<_>>();
        assert_eq!(names(&BY_USE), names(PLUGINS));
        assert_eq!(BY_USE.len(), PLUGINS.len());
    }
}
