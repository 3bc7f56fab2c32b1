//! Makes the clients of new and journalled leases, and releases a lease: for the daemon, and for a
//! DEL that finds no daemon.

use std::net::IpAddr;

use super::exchange::{Exchange, send_once};
use super::flags::Flags;
use super::interface::Absent;
use super::journal::Record;
use super::table::{Entry, name_of};
use crate::cni::attachment::Key;
use crate::family::Family;
use crate::plugins::ipam::dhcp::client::dhcpv6::{self, Mode};
use crate::plugins::ipam::dhcp::client::{Action, Client, Intent, Lease, Turn, dhcpv4};
use crate::sys::clock::{Moment, since_boot};
use crate::sys::random::Random;

/// The longest client id, without its type octet.
const CLIENT_ID_MAX: usize = 254;

/// A client that tries to acquire the lease of an entry until its limit, preferably with the address
/// that it had.
pub fn acquire(
    entry: &Entry,
    flags: &Flags,
    now: Moment,
    random: &mut Random,
) -> (Box<dyn Client>, Vec<Action>) {
    let turn = Turn::new(now, random);
    let record = &entry.record;
    match record.family() {
        Family::V4 => {
            let wanted = if let Some(IpAddr::V4(ip)) = entry.wanted { Some(ip) } else { None };
            let setup = setup_v4(record, flags);
            let (client, actions) = dhcpv4::Client::acquire(setup, wanted, entry.limit, turn);
            (Box::new(client), actions)
        }
        Family::V6 => {
            let wanted = if let Some(IpAddr::V6(ip)) = entry.wanted { Some(ip) } else { None };
            let setup = setup_v6(record, flags);
            let (client, actions) = dhcpv6::Client::acquire(setup, wanted, entry.limit, turn);
            (Box::new(client), actions)
        }
    }
}

/// The client of a journalled lease.
pub fn resume(record: &Record, lease: &Lease, flags: &Flags, now: Moment) -> Box<dyn Client> {
    let lost = record.lost;
    match lease.clone() {
        Lease::V4(lease) => {
            Box::new(dhcpv4::Client::resume(setup_v4(record, flags), lease, lost, now))
        }
        Lease::V6(lease) => {
            Box::new(dhcpv6::Client::resume(setup_v6(record, flags), lease, lost, now))
        }
    }
}

/// The settings of the client of an IPv4 lease.
fn setup_v4(record: &Record, flags: &Flags) -> dhcpv4::Setup {
    dhcpv4::Setup {
        mac: record.place.mac.clone(),
        client_id: client_id(&record.key),
        broadcast: flags.broadcast || record.place.broadcast,
        probe: record.place.probe,
        provide: record.terms.provide.clone(),
        request: record.terms.request.clone(),
        timeout: flags.timeout,
        resend_max: flags.resendmax,
        resend_timeout: flags.resendtimeout,
    }
}

/// The settings of the client of an IPv6 lease.
fn setup_v6(record: &Record, flags: &Flags) -> dhcpv6::Setup {
    dhcpv6::Setup {
        mode: record.terms.v6.unwrap_or(Mode::Dhcp),
        duid: dhcpv6::duid(&name_of(&record.key, Family::V6)),
        within: flags.resendtimeout,
    }
}

/// The value of option 61: the name of the lease, cut to the octets that fit; a hash of the key
/// keeps cut names distinct.
fn client_id(key: &Key) -> Vec<u8> {
    let mut name = name_of(key, Family::V4);
    if name.len() > CLIENT_ID_MAX {
        let hash = key.identity();
        name.truncate(CLIENT_ID_MAX - 1 - hash.len()); // names are ASCII
        name = format!("{name}/{hash}");
    }
    let mut id = vec![0]; // type 0: not a hardware address
    id.extend(name.bytes());
    id
}

/// Releases the record's lease from the container's namespace, with one message that no server
/// answers. False if there was nothing to send: nothing was granted, or it is lost. Sockets in
/// `open` still work if the path of the namespace is gone.
pub fn give_back(
    record: &Record,
    open: Option<&mut Box<dyn Exchange>>,
    flags: &Flags,
    random: &mut Random,
) -> Result<bool, Absent> {
    let message = match (&record.lease, &record.intent) {
        (Some(lease), _) => resume(record, lease, flags, since_boot()).release(random),
        (None, Some(Intent::V4(intent))) => Some(setup_v4(record, flags).release(intent, random)),
        (None, Some(Intent::V6(intent))) => Some(setup_v6(record, flags).release(intent, random)),
        (None, None) => None,
    };
    let Some(message) = message else { return Ok(false) };
    match open {
        Some(exchange) => exchange.send(&message, &record.place)?,
        None => send_once(&message, &record.place)?,
    }
    Ok(true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The reference truncates the id: two interfaces may be one client.
    #[test]
    fn long_names_are_told_apart() {
        let id = |ifname: &str| {
            client_id(&Key::parse(&"n".repeat(100), &"c".repeat(180), ifname).unwrap())
        };
        assert_eq!([id("eth0").len(), id("eth1").len()], [1 + CLIENT_ID_MAX; 2]);
        assert_ne!(id("eth0"), id("eth1"));
        let key = Key::parse("net", "one", "eth0").unwrap();
        assert_eq!(client_id(&key), b"\0one/net/eth0");
    }
}
