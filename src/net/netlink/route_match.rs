//! Whether a route of the kernel is the one that a request adds.

use super::entry::RouteEntry;
use super::route::{MAIN, Route, Scope};
use crate::family::Family;

// linux/rtnetlink.h
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;
/// IP6_RT_PRIO_USER of linux/ipv6_route.h: the metric of an IPv6 route that names none.
const USUAL_V6_METRIC: u32 = 1024;

impl Route {
    /// Whether the kernel has it so: the same table, destination, next hop, metric, MTU and segment
    /// size. A scope counts only if it is another than the usual one, since a route that the kernel
    /// made may have a narrower one. Its origin does not count.
    pub fn is(&self, found: &RouteEntry) -> bool {
        let mut wanted: Vec<_> = self.gateways().collect();
        let mut present = found.gateways();
        wanted.sort_unstable(); // the kernel need not keep the order of IPv6 hops
        present.sort_unstable();
        let is_v6 = Family::of_net(self.dst) == Family::V6;
        let usual_metric = if is_v6 { USUAL_V6_METRIC } else { 0 };
        let has_scope = self.scope == Scope::UNIVERSE || is_v6 || self.scope == found.scope();
        self.is_to(found)
            && present == wanted
            && self.priority.unwrap_or(usual_metric) == found.priority().unwrap_or_default()
            && has_scope
            && self.mtu == found.metric(RTAX_MTU)
            && self.advmss == found.metric(RTAX_ADVMSS)
    }

    /// Whether the route of the kernel has the same destination in the same table.
    pub fn is_to(&self, found: &RouteEntry) -> bool {
        found.dst == self.dst && found.table == self.table.unwrap_or(MAIN)
    }
}
