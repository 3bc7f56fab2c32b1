//! A client's settings, and the messages that it sends.

use std::net::Ipv6Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha512};

use crate::plugins::ipam::dhcp::client::Outgoing;
use crate::plugins::ipam::dhcp::v6::lease::Intent;
use crate::plugins::ipam::dhcp::v6::message::{Kind, Message, asking_for};
use crate::plugins::ipam::dhcp::v6::options::{self, Options};
use crate::sys::random::Random;

/// The id of a client's only association: each attachment is a client of its own.
pub(super) const IAID: u32 = 1;
/// DUID-UUID (RFC 6355).
const DUID_UUID: [u8; 2] = [0, 4];

/// The source of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", try_from = "String")]
pub enum Mode {
    /// A DHCPv6 server.
    Dhcp,
    /// A router's prefix; no server grants it (RFC 4862).
    Slaac,
}

impl TryFrom<String> for Mode {
    type Error = String;

    fn try_from(word: String) -> Result<Mode, String> {
        match word.as_str() {
            "dhcp" => Ok(Mode::Dhcp),
            "slaac" => Ok(Mode::Slaac),
            _ => Err(format!("{word:?} is unknown, expected \"dhcp\" or \"slaac\"")),
        }
    }
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

/// The DUID of the client with this key, always the same: a UUID of version 8 (RFC 9562), made by a
/// hash.
pub fn duid(key: &str) -> Vec<u8> {
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&Sha512::digest(key.as_bytes())[..16]);
    uuid[6] = uuid[6] & 0x0f | 0x80;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    [&DUID_UUID[..], &uuid].concat()
}

/// What a message says.
pub(super) struct Content<'a> {
    pub kind: Kind,
    /// Empty means all servers.
    pub server: &'a [u8],
    /// None means any address.
    pub address: Option<Ipv6Addr>,
}

impl Setup {
    /// A message of an exchange that began `elapsed` ago.
    pub(super) fn message(
        &self,
        content: &Content<'_>,
        transaction: u32,
        elapsed: Duration,
    ) -> Message {
        let mut options = Options::default();
        options.push(options::CLIENT_ID, self.duid.clone());
        if !content.server.is_empty() {
            options.push(options::SERVER_ID, content.server.to_vec());
        }
        let hundredths = u16::try_from(elapsed.as_millis() / 10).unwrap_or(u16::MAX);
        options.push(options::ELAPSED_TIME, hundredths.to_be_bytes().to_vec());
        options.push(options::IA_NA, asking_for(IAID, content.address));
        let kind = content.kind;
        if !matches!(kind, Kind::Release | Kind::Decline) {
            let wanted = [options::DNS_SERVERS, options::DOMAIN_LIST, options::SOL_MAX_RT];
            options.push(options::OPTION_REQUEST, wanted.map(u16::to_be_bytes).concat());
        }
        Message { kind, transaction: transaction & 0xff_ffff, options }
    }

    /// The message that releases an address that is leased, or was requested and may be granted by
    /// now.
    pub fn release(&self, intent: &Intent, random: &mut Random) -> Outgoing {
        let Intent { address, server } = intent;
        let content = Content { kind: Kind::Release, server, address: Some(*address) };
        Outgoing::V6(self.message(&content, random.word(), Duration::ZERO))
    }
}
