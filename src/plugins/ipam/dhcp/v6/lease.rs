//! A DHCPv6 or SLAAC lease: what a server or a router has granted, and the result of ADD that
//! follows from it.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use ipnet::Ipv6Net;
use serde::{Deserialize, Serialize};

use super::Grant;
use super::router::Advertisement;
use crate::cni::result::{AddResult, Dns, IpConfig, Route};
use crate::hex;
use crate::plugins::ipam::dhcp::times::Times;
use crate::sys::clock::{Moment, NEVER};

/// A lifetime without end.
const INFINITE: u32 = u32::MAX;

/// A lease as granted, and as journalled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// The address with the length of the on-link prefix. A renewal does not change it: it is part
    /// of the address on the link.
    #[serde(rename = "address")]
    pub net: Ipv6Net,
    /// The DUID of the server to send renewals to; empty for an address made from a router's
    /// prefix.
    #[serde(with = "hex")]
    pub server: Vec<u8>,
    /// The prefixes that are reached through the router.
    #[serde(default)]
    pub routes: Vec<Ipv6Net>,
    /// The link's MTU in bytes; 0 if no router has advertised it.
    pub mtu: u32,
    /// Name servers.
    #[serde(default)]
    pub name_servers: Vec<String>,
    /// Domains to search.
    #[serde(default)]
    pub domains: Vec<String>,
    /// The default router.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub router: Option<Ipv6Addr>,
    /// When it was granted, is due and ends.
    #[serde(flatten)]
    pub times: Times,
}

impl Lease {
    /// The lease granted at `now`, without what routers advertise. If T1 or T2 is 0 or not before
    /// the end, it is half or four fifths of the preferred lifetime (RFC 8415, section 21.4).
    pub fn of_grant(grant: &Grant, t1: u32, t2: u32, now: Moment) -> Lease {
        let t1 = renewal_time(grant, t1, 5, now);
        let t2 = renewal_time(grant, t2, 8, now).max(t1);
        Lease {
            net: grant.address.into(),
            server: vec![],
            routes: vec![],
            mtu: 0,
            name_servers: vec![],
            domains: vec![],
            router: None,
            times: Times { acquired: now, t1, t2, expires: after(now, grant.valid) },
        }
    }

    /// Adds what the link's routers advertise. What none of them advertises this time stays as
    /// `before`.
    pub fn learn(&mut self, routers: &[Advertisement], before: Option<&Lease>) {
        // The default router with the highest preference; the known one unless another has a higher
        // preference.
        let known = before.and_then(|lease| lease.router);
        let default_routers = routers.iter().filter(|router| router.lifetime != 0);
        let best =
            default_routers.min_by_key(|told| (-told.preference, Some(told.router) != known));
        if let Some(best) = best {
            self.router = Some(best.router);
            self.routes.clone_from(&best.routes);
            self.mtu = best.mtu.unwrap_or_default();
        } else if let Some(before) = before {
            (self.router, self.mtu) = (before.router, before.mtu);
            self.routes.clone_from(&before.routes);
        }
        let address = self.net.addr();
        let prefixes = routers.iter().flat_map(|told| &told.prefixes);
        let on_link = prefixes.filter(|prefix| prefix.on_link && prefix.net.contains(&address));
        let longest = on_link.map(|prefix| prefix.net.prefix_len()).max();
        let prefix_len = before.map(|lease| lease.net.prefix_len()).or(longest);
        self.net = Ipv6Net::new_assert(address, prefix_len.unwrap_or(128));
        // The names of routers, or of the lease before, count only if the server sends none.
        let before = before.filter(|_| routers.is_empty());
        if self.name_servers.is_empty() {
            self.name_servers.extend(routers.iter().flat_map(|told| told.name_servers.clone()));
            self.name_servers.extend(before.into_iter().flat_map(|told| told.name_servers.clone()));
        }
        if self.domains.is_empty() {
            self.domains.extend(routers.iter().flat_map(|told| told.domains.clone()));
            self.domains.extend(before.into_iter().flat_map(|told| told.domains.clone()));
        }
    }

    /// The result of ADD. A `priority` of 0 means no metric.
    pub fn result(&self, priority: i64) -> AddResult {
        let gateway = self.router.map(IpAddr::V6);
        let mtu = self.mtu.into();
        let route = |to: Ipv6Net| Route { gw: gateway, priority, mtu, ..Route::to(to.into()) };
        let destinations = self.routes.iter().copied().chain([Ipv6Net::default()]);
        AddResult {
            ips: vec![IpConfig { interface: None, address: self.net.into(), gateway }],
            routes: destinations.filter(|_| gateway.is_some()).map(route).collect(),
            dns: Dns {
                nameservers: self.name_servers.clone(),
                search: self.domains.clone(),
                ..Dns::default()
            },
            ..AddResult::default()
        }
    }
}

/// T1 or T2: as the server says, else `tenths` of the preferred lifetime.
fn renewal_time(grant: &Grant, given: u32, tenths: u32, now: Moment) -> Moment {
    let basis = if grant.preferred == 0 { grant.valid } else { grant.preferred };
    if given != 0 && (given < grant.valid || grant.valid == INFINITE) {
        after(now, given)
    } else if basis == INFINITE {
        NEVER
    } else {
        now + Duration::from_secs(basis.into()) * tenths / 10
    }
}

/// The moment `seconds` after `now`.
fn after(now: Moment, seconds: u32) -> Moment {
    if seconds == INFINITE { NEVER } else { now + Duration::from_secs(seconds.into()) }
}

/// An address that is about to be requested. It must be released if the outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    /// The address.
    pub address: Ipv6Addr,
    /// The DUID of the server that has offered it.
    #[serde(with = "hex")]
    pub server: Vec<u8>,
}

impl Intent {
    /// What releases or declines a lease.
    pub fn of(lease: &Lease) -> Intent {
        Intent { address: lease.net.addr(), server: lease.server.clone() }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::plugins::ipam::dhcp::v6::router::Prefix;

    const NOW: Moment = Duration::from_secs(1000);

    fn address(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn granted(preferred: u32, valid: u32, t1: u32, t2: u32) -> Lease {
        Lease::of_grant(&Grant { address: address("2001:db8::10"), preferred, valid }, t1, t2, NOW)
    }

    fn router(last: u16, preference: i8, prefixes: &[&str]) -> Advertisement {
        let prefix = |net: &&str| Prefix {
            net: net.parse().unwrap(),
            on_link: true,
            autonomous: false,
            preferred: 60,
            valid: 60,
        };
        Advertisement {
            router: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last),
            lifetime: 1800,
            preference,
            mtu: None,
            prefixes: prefixes.iter().map(prefix).collect(),
            routes: vec![],
            name_servers: vec![],
            domains: vec![],
        }
    }

    #[test]
    fn times_are_those_of_the_server_where_they_make_sense() {
        let seconds =
            |moment: Moment| if moment == NEVER { u64::MAX } else { (moment - NOW).as_secs() };
        let infinite = u32::MAX;
        let never = u64::MAX;
        let cases = [
            ((60, 120, 30, 48), (30, 48, 120)),
            ((60, 120, 0, 0), (30, 48, 120)),
            ((60, 120, 0, 100), (30, 100, 120)),
            ((60, 120, 50, 0), (50, 50, 120)), // T2 is never before T1
            ((60, 120, 120, 130), (30, 48, 120)),
            ((60, 120, infinite, infinite), (30, 48, 120)),
            ((0, 120, 0, 0), (60, 96, 120)),
            ((60, infinite, 0, 0), (30, 48, never)),
            ((infinite, infinite, 0, 0), (never, never, never)),
            ((infinite, infinite, 30, 48), (30, 48, never)),
            ((infinite, infinite, infinite, infinite), (never, never, never)),
            ((infinite - 1, infinite - 1, 0, 0), (2_147_483_647, 3_435_973_835, 4_294_967_294)),
        ];
        for ((preferred, valid, t1, t2), expected) in cases {
            let lease = granted(preferred, valid, t1, t2);
            let times = lease.times;
            let found = (seconds(times.t1), seconds(times.t2), seconds(times.expires));
            assert_eq!(found, expected, "{preferred} {valid} {t1} {t2}");
        }
    }

    #[test]
    fn routers_tell_prefix_gateway_and_routes() {
        let mut lease = granted(60, 120, 0, 0);
        lease.learn(&[], None);
        assert_eq!(
            (lease.net.to_string().as_str(), lease.result(0).routes),
            ("2001:db8::10/128", vec![])
        );
        let silent =
            Advertisement { lifetime: 0, preference: 1, ..router(9, 1, &["2001:db8::/56"]) };
        let best = Advertisement {
            routes: vec!["2001:db9::/32".parse().unwrap()],
            mtu: Some(1400),
            domains: vec!["lan".to_owned()],
            ..router(2, 0, &["2001:db8::/64", "2001:db8:0:1::/64"])
        };
        lease.name_servers = vec!["2001:db8::53".to_owned()];
        lease.learn(&[silent, router(1, -1, &[]), best], None);
        let result = lease.result(7);
        assert_eq!(result.ips[0].address.to_string(), "2001:db8::10/64");
        assert_eq!(result.ips[0].gateway, Some(IpAddr::V6(address("fe80::2"))));
        let routes: Vec<_> =
            result.routes.iter().map(|r| (r.dst.to_string(), r.gw, r.mtu, r.priority)).collect();
        let gw = Some(IpAddr::V6(address("fe80::2")));
        assert_eq!(
            routes,
            [("2001:db9::/32".to_owned(), gw, 1400, 7), ("::/0".to_owned(), gw, 1400, 7)]
        );
        assert_eq!(
            (result.dns.nameservers, result.dns.search),
            (vec!["2001:db8::53".into()], vec!["lan".into()])
        );
    }

    #[test]
    fn a_router_that_is_known_stays_unless_another_is_better() {
        let mut before = granted(60, 120, 0, 0);
        before.learn(&[router(2, 0, &["2001:db8::/64"])], None);
        let cases = [
            (vec![], 2),
            (vec![router(1, 0, &[]), router(2, 0, &[])], 2),
            (vec![router(1, 1, &[]), router(2, 0, &[])], 1),
            (vec![router(1, 0, &[])], 1),
            (vec![Advertisement { lifetime: 0, ..router(1, 0, &["2001:db8::/60"]) }], 2),
        ];
        for (routers, last) in cases {
            let mut lease = granted(60, 120, 0, 0);
            lease.learn(&routers, Some(&before));
            assert_eq!(
                lease.router,
                Some(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last)),
                "{routers:?}"
            );
            assert_eq!(lease.net.prefix_len(), 64, "the link has the address with it");
        }
    }

    #[test]
    fn a_lease_is_journalled_whole() {
        let mut lease = granted(60, 120, 30, 48);
        lease.learn(&[router(2, 0, &["2001:db8::/64"])], None);
        (lease.server, lease.mtu) = (vec![0, 1, 0xff], 1400);
        lease.routes = vec!["2001:db9::/32".parse().unwrap()];
        (lease.name_servers, lease.domains) =
            (vec!["2001:db8::53".to_owned()], vec!["lan".to_owned()]);
        let endless = Lease { router: None, ..granted(u32::MAX, u32::MAX, 0, 0) };
        for lease in [lease, endless] {
            let text = serde_json::to_string(&lease).unwrap();
            assert_eq!(serde_json::from_str::<Lease>(&text).unwrap(), lease);
        }
        for torn in [
            "{}",
            r#"{"address":"10.0.0.1/8"}"#,
            r#"{"address":"2001:db8::1/64","server":"0"}"#,
            "[]",
        ] {
            assert!(serde_json::from_str::<Lease>(torn).is_err(), "{torn}");
        }
    }
}
