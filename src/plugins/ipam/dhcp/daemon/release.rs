//! Releases a lease: for the daemon, and for a DEL that finds no daemon. Also makes the clients of
//! new and journalled leases.

use std::net::IpAddr;
use std::time::Duration;

use super::exchange::{Exchange, send_once};
use super::flags::Flags;
use super::interface::Absent;
use super::journal::Record;
use super::table::{Entry, name_of};
use crate::cni::attachment::Key;
use crate::family::Family;
use crate::plugins::ipam::dhcp::client::Turn;
use crate::plugins::ipam::dhcp::family::{Action, Client, Intent, Lease, Outgoing, of_v4, of_v6};
use crate::plugins::ipam::dhcp::v4::client::{self, Patience, Setup};
use crate::plugins::ipam::dhcp::v6;
use crate::plugins::ipam::dhcp::v6::client::Mode;
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
) -> (Client, Vec<Action>) {
    match entry.record.family() {
        Family::V4 => acquire_v4(entry, flags, Turn::new(now, random)),
        Family::V6 => acquire_v6(entry, flags, Turn::new(now, random)),
    }
}

fn acquire_v4(entry: &Entry, flags: &Flags, turn: client::Turn<'_>) -> (Client, Vec<Action>) {
    let setup = setup_of(&entry.record, flags);
    let wanted = if let Some(IpAddr::V4(wanted)) = entry.wanted { Some(wanted) } else { None };
    let (mut client, actions) = client::Client::acquire(setup, wanted, turn);
    client.end_by(entry.limit);
    (Client::V4(Box::new(client)), of_v4(actions))
}

fn acquire_v6(entry: &Entry, flags: &Flags, turn: v6::client::Turn<'_>) -> (Client, Vec<Action>) {
    let setup = setup_of_v6(&entry.record, flags);
    let wanted = if let Some(IpAddr::V6(wanted)) = entry.wanted { Some(wanted) } else { None };
    let (mut client, actions) = v6::client::Client::acquire(setup, wanted, turn);
    client.end_by(entry.limit);
    (Client::V6(Box::new(client)), of_v6(actions))
}

/// The client of a journalled lease.
pub fn resume(record: &Record, lease: &Lease, flags: &Flags, now: Moment) -> Client {
    match lease.clone() {
        Lease::V4(lease) => Client::V4(Box::new(client::Client::resume(
            setup_of(record, flags),
            lease,
            record.lost,
            now,
        ))),
        Lease::V6(lease) => Client::V6(Box::new(v6::client::Client::resume(
            setup_of_v6(record, flags),
            lease,
            record.lost,
            now,
        ))),
    }
}

/// The settings of the client of an IPv6 lease.
fn setup_of_v6(record: &Record, flags: &Flags) -> v6::client::Setup {
    v6::client::Setup {
        mode: record.terms.v6.unwrap_or(Mode::Dhcp),
        duid: v6::client::duid(&name_of(&record.key, Family::V6)),
        within: time_of_search(flags),
    }
}

fn time_of_search(flags: &Flags) -> Duration {
    flags.resendtimeout.max(Duration::from_millis(1))
}

/// The settings of the client of an IPv4 lease.
fn setup_of(record: &Record, flags: &Flags) -> Setup {
    Setup {
        mac: record.place.mac.clone(),
        client_id: client_id(&record.key),
        broadcast: flags.broadcast || record.place.broadcast,
        probe: record.place.probe,
        provide: record.terms.provide.clone(),
        request: record.terms.request.clone(),
        patience: patience(flags),
    }
}

fn patience(flags: &Flags) -> Patience {
    Patience {
        timeout: flags.timeout,
        resend_max: flags.resendmax,
        resend_timeout: time_of_search(flags),
    }
}

/// The value of option 61.
fn client_id(key: &Key) -> Vec<u8> {
    let mut id = vec![0]; // type 0: not a hardware address
    id.extend(client_name(&name_of(key, Family::V4), key).bytes());
    id
}

/// The name of the lease, cut to the octets that fit; a hash of the key keeps cut names distinct.
fn client_name(name: &str, key: &Key) -> String {
    if name.len() <= CLIENT_ID_MAX {
        return name.to_owned();
    }
    let hash = key.identity();
    format!("{}/{hash}", &name[..CLIENT_ID_MAX - 1 - hash.len()]) // names are ASCII
}

/// The message that releases the record's lease; `None` if nothing was granted, or it is lost.
fn message_of(record: &Record, flags: &Flags, random: &mut Random) -> Option<Outgoing> {
    match (&record.lease, &record.intent) {
        (Some(lease), _) => resume(record, lease, flags, since_boot()).release(random),
        (None, Some(Intent::V4(intent))) => {
            Some(Outgoing::V4(client::release_of(intent, &setup_of(record, flags), random)))
        }
        (None, Some(Intent::V6(intent))) => {
            Some(Outgoing::V6(v6::client::release_of(intent, &setup_of_v6(record, flags), random)))
        }
        (None, None) => None,
    }
}

/// Releases the record's lease from the container's namespace, with one message that no server
/// answers. False if there was nothing to send. Sockets in `open` still work if the path of the
/// namespace is gone.
pub fn give_back(
    record: &Record,
    open: Option<&mut Exchange>,
    flags: &Flags,
    random: &mut Random,
) -> Result<bool, Absent> {
    let Some(message) = message_of(record, flags, random) else { return Ok(false) };
    match open {
        Some(exchange) => exchange.send(&message, &record.place, &flags.hostprefix)?,
        None => send_once(&message, &record.place, &flags.hostprefix)?,
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
        let name = |ifname: &str| {
            let key = Key::parse(&"n".repeat(100), &"c".repeat(180), ifname).unwrap();
            client_name(&name_of(&key, Family::V4), &key)
        };
        assert_eq!([name("eth0").len(), name("eth1").len()], [CLIENT_ID_MAX; 2]);
        assert_ne!(name("eth0"), name("eth1"));
        let key = Key::parse("net", "one", "eth0").unwrap();
        assert_eq!(client_name("one/net/eth0", &key), "one/net/eth0");
    }
}
