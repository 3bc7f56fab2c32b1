//! A client's settings, and the messages that it sends.

use std::net::Ipv6Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha512};

use crate::hex;
use crate::plugins::ipam::dhcp::v6::message::{Kind, Message, asking_for};
use crate::plugins::ipam::dhcp::v6::options::{self, Options};
use crate::sys::random::Random;

/// The id of a client's only association: each attachment is a client of its own.
pub(super) const IAID: u32 = 1;
/// DUID-UUID (RFC 6355).
const DUID_UUID: [u8; 2] = [0, 4];

/// The source of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A DHCPv6 server.
    Dhcp,
    /// A router's prefix; no server grants it (RFC 4862).
    Slaac,
}

/// The settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The source of the address.
    pub mode: Mode,
    /// The client's DUID.
    pub duid: Vec<u8>,
    /// How long to try to get a lease.
    pub within: Duration,
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

/// The DUID of the client with this key, always the same: a UUID of version 8 (RFC 9562), made by a
/// hash.
pub fn duid(key: &str) -> Vec<u8> {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&Sha512::digest(key.as_bytes())[..16]);
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    [&DUID_UUID[..], &uuid].concat()
}

/// The message that releases a requested address when the outcome is unknown.
pub fn release_of(intent: &Intent, setup: &Setup, random: &mut Random) -> Message {
    setup.message(
        Kind::Release,
        random.word(),
        Duration::ZERO,
        &intent.server,
        Some(intent.address),
    )
}

impl Setup {
    /// A message about an address, or about any if there is none. An empty `server` means all of
    /// them. `elapsed` is the age of the exchange.
    pub(super) fn message(
        &self,
        kind: Kind,
        transaction: u32,
        elapsed: Duration,
        server: &[u8],
        address: Option<Ipv6Addr>,
    ) -> Message {
        let mut options = Options::default();
        options.push(options::CLIENT_ID, self.duid.clone());
        if !server.is_empty() {
            options.push(options::SERVER_ID, server.to_vec());
        }
        let hundredths = u16::try_from(elapsed.as_millis() / 10).unwrap_or(u16::MAX);
        options.push(options::ELAPSED_TIME, hundredths.to_be_bytes().to_vec());
        options.push(options::IA_NA, asking_for(IAID, address));
        if !matches!(kind, Kind::Release | Kind::Decline) {
            let wanted = [options::DNS_SERVERS, options::DOMAIN_LIST, options::SOL_MAX_RT];
            options.push(options::OPTION_REQUEST, wanted.map(u16::to_be_bytes).concat());
        }
        Message { kind, transaction: transaction & 0xff_ffff, options }
    }
}
