//! Any octets: they are rejected, or are a message that is unchanged when encoded and parsed again,
//! and whose lease makes a result.

use std::net::Ipv4Addr;
use std::time::Duration;

use cni_multi::plugins::ipam::dhcp::v4::lease::Lease;
use cni_multi::plugins::ipam::dhcp::v4::Message;

/// Runs the target on one input.
pub fn run(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else { return };
    assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message));
    let Some(lease) = Lease::of_ack(&message, Ipv4Addr::LOCALHOST, Duration::from_secs(1), None) else { return };
    assert!(lease.times.t1 <= lease.times.t2 && lease.times.t2 <= lease.times.expires);
    let result = lease.result(1);
    assert!(result.routes.iter().all(|route| route.dst == route.dst.trunc()));
    let domains = result.dns.search.iter().chain([&result.dns.domain]);
    assert!(domains.flat_map(|domain| domain.bytes()).all(|byte| byte.is_ascii_graphic()));
    result.into_document("1.1.0").expect("1.1.0 has room for everything").to_text();
    let text = serde_json::to_string(&lease).expect("it is plain data");
    let journalled: Lease = serde_json::from_str(&text).expect("what is journalled is read");
    assert_eq!((journalled.net, journalled.options), (lease.net, lease.options));
}
