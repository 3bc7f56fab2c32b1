//! The client (RFC 8415, section 18): a state machine that takes the time and the received packets,
//! and returns actions. Servers grant addresses and routers advertise the rest (RFC 4861, section
//! 6.3): it asks both at once.

mod phase;
mod routers;
mod search;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::net::Ipv6Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha512};

use self::phase::{Holding, Phase, Stage, Timer};
use self::routers::Routers;
use crate::hex;
use crate::plugins::ipam::dhcp::client::{
    self, Action, Heard, Outgoing, Reason, State, Troubles, Turn,
};
use crate::plugins::ipam::dhcp::v6::lease::{Intent, Lease};
use crate::plugins::ipam::dhcp::v6::options::{self, Options};
use crate::plugins::ipam::dhcp::v6::{Kind, Message, asking_for};
use crate::sys::clock::{Moment, NEVER};
use crate::sys::random::Random;

/// SOL_MAX_RT of RFC 8415, section 7.6.
const SOL_MAX_RT: Duration = Duration::from_secs(3600);
/// The pause before servers are asked again after a refusal.
const AFTER_REFUSAL: Duration = Duration::from_secs(1);
/// How long to listen for answers once the container must not hold open sockets until the next
/// message.
const LISTENING: Duration = Duration::from_secs(5);

/// A DHCPv6 or SLAAC client on one link.
#[derive(Clone, Debug)]
pub struct Client {
    setup: Setup,
    phase: Phase,
    /// The message of the phase, if it has one.
    timer: Option<Timer>,
    holding: Holding,
    routers: Routers,
    /// The address to ask servers for.
    wanted: Option<Ipv6Addr>,
    /// When the search for a lease ends.
    limit: Moment,
    /// When the client stops listening for answers.
    listening: Option<Moment>,
    sol_max_rt: Duration,
    /// Why there is no lease yet.
    troubles: Troubles,
}

impl Client {
    /// Creates a client that tries to acquire a lease, preferably with the address `wanted`, until
    /// `latest`, if not for a shorter time: it may have been queued for part of it.
    pub fn acquire(
        setup: Setup,
        wanted: Option<Ipv6Addr>,
        latest: Moment,
        turn: Turn<'_>,
    ) -> (Client, Vec<Action>) {
        let mut client = Client::new(setup);
        client.wanted = wanted;
        client.limit = latest.min(turn.now + client.setup.within);
        client.routers.ask(turn.now);
        client.search(turn.now);
        let actions = client::Client::on_time(&mut client, turn);
        (client, actions)
    }

    /// Creates a client for a lease that was held, or `lost`, when the daemon exited. The first
    /// [`Client::on_time`] finds out what is due.
    pub fn resume(setup: Setup, lease: Lease, lost: bool, now: Moment) -> Client {
        let mut client = Client::new(setup);
        client.wanted = Some(lease.net.addr());
        if lost {
            client.holding = Holding::Lost(lease);
            client.search(now);
        } else {
            client.holding = Holding::Lease(lease, Stage::Bound);
        }
        client
    }

    fn new(setup: Setup) -> Client {
        Client {
            setup,
            phase: Phase::Quiet,
            timer: None,
            holding: Holding::Nothing,
            routers: Routers::default(),
            wanted: None,
            limit: NEVER,
            listening: None,
            sol_max_rt: SOL_MAX_RT,
            troubles: Troubles::default(),
        }
    }

    /// The container's lease, or the one it has lost.
    pub fn lease(&self) -> Option<&Lease> {
        match &self.holding {
            Holding::Nothing => None,
            Holding::Lease(lease, _) | Holding::Lost(lease) => Some(lease),
        }
    }

    /// Begins a phase whose message is first sent at `start`.
    fn begin(&mut self, phase: Phase, kind: Kind, start: Moment) {
        self.phase = phase;
        self.timer = Some(Timer::of_kind(kind, self.sol_max_rt, start));
    }

    /// Begins a phase without a message.
    fn fall_silent(&mut self, phase: Phase) {
        self.phase = phase;
        self.timer = None;
    }

    /// Takes the next step of a phase whose message is due.
    fn go_on(&mut self, turn: &mut Turn<'_>) {
        let is_exhausted = self.timer.as_ref().is_some_and(Timer::is_exhausted);
        match &self.phase {
            // The time for all servers to answer is over.
            Phase::Soliciting { best: Some((_, intent)) } => {
                let intent = intent.clone();
                self.request(intent, turn);
            }
            Phase::Declining { .. } if is_exhausted => self.search(turn.now),
            Phase::Requesting { intent, .. } if is_exhausted => {
                self.troubles.note(format!("no answer of {} to Request", name_of(&intent.server)));
                self.start_over(turn.now);
            }
            _ => self.send(turn),
        }
    }

    /// Starts over after a Request that failed.
    fn start_over(&mut self, start: Moment) {
        match self.holding {
            Holding::Lease(_, stage) => self.begin(Phase::Extending, stage.kind(), start),
            Holding::Nothing | Holding::Lost(_) => self.search(start),
        }
    }

    /// Sends the message of the phase.
    fn send(&mut self, turn: &mut Turn<'_>) {
        let Some(timer) = &mut self.timer else { return };
        timer.sends(turn.now, turn.random);
        self.listening = Some(turn.now + LISTENING);
        let (kind, server, address) = match (&self.phase, &self.holding) {
            (Phase::Soliciting { .. }, _) => (Kind::Solicit, &[][..], self.wanted),
            (Phase::Requesting { intent, .. }, _) => {
                (Kind::Request, &intent.server[..], Some(intent.address))
            }
            (Phase::Declining { intent }, _) => {
                (Kind::Decline, &intent.server[..], Some(intent.address))
            }
            (Phase::Extending, Holding::Lease(lease, stage)) => {
                let is_for_any = *stage == Stage::Rebinding;
                let server = if is_for_any { &[][..] } else { &lease.server };
                (stage.kind(), server, Some(lease.net.addr()))
            }
            _ => return,
        };
        let content = Content { kind, server, address };
        let message = self.setup.message(&content, timer.transaction, turn.now - timer.began);
        turn.actions.push(Action::Send(Outgoing::V6(message)));
    }
}

impl client::Client for Client {
    fn deadline(&self) -> Moment {
        let of_lease = match &self.holding {
            Holding::Lease(lease, stage) => Some(stage.end(lease)),
            Holding::Nothing | Holding::Lost(_) => None,
        };
        let of_phase = match &self.phase {
            Phase::Settling { next, .. } => Some(*next),
            _ => self.timer.as_ref().map(|timer| timer.due),
        };
        let of_routers = self.routers.asking.as_ref().map(|timer| match self.setup.mode {
            Mode::Dhcp => timer.due.min(self.routers.until),
            Mode::Slaac => timer.due,
        });
        let all = [of_lease, of_phase, of_routers, self.listening];
        all.into_iter().flatten().fold(self.limit, Moment::min)
    }

    /// Until a container has its first address, this is always so; later its sockets must not stay
    /// open for days.
    fn needs_sockets(&self, now: Moment) -> bool {
        let is_first = matches!(self.holding, Holding::Nothing);
        let is_listening = self.listening.is_some_and(|until| now < until);
        (is_first && !matches!(self.phase, Phase::Ended))
            || is_listening
            || self.phase.is_settling()
            || now >= self.deadline()
    }

    fn state(&self) -> State {
        match (&self.holding, &self.phase) {
            (_, Phase::Ended) => State::Ended,
            (Holding::Lost(_), _) => State::Expired,
            (Holding::Lease(_, Stage::Bound), _) => State::Bound,
            (Holding::Lease(_, Stage::Renewing), _) => State::Renewing,
            (Holding::Lease(_, Stage::Rebinding), _) => State::Rebinding,
            (_, Phase::Requesting { .. } | Phase::Declining { .. }) => State::Requesting,
            // A router's prefix is not requested.
            (_, Phase::Settling { .. }) if self.setup.mode == Mode::Dhcp => State::Requesting,
            _ => State::Selecting,
        }
    }

    fn on_time(&mut self, mut turn: Turn<'_>) -> Vec<Action> {
        self.listening = self.listening.filter(|until| turn.now < *until);
        self.settle(&mut turn);
        if turn.now >= self.limit {
            self.give_up(&mut turn);
        }
        self.keep(&mut turn);
        while self.timer.as_ref().is_some_and(|timer| turn.now >= timer.due) {
            self.go_on(&mut turn);
        }
        self.go_on_with_routers(&mut turn);
        turn.actions
    }

    fn on_heard(&mut self, heard: Heard, mut turn: Turn<'_>) -> Vec<Action> {
        match heard {
            Heard::V6(message) => self.take_message(&message, &mut turn),
            Heard::Router(told, own) => self.take_advertisement(told, own, &mut turn),
            Heard::ClaimV6(address) => match &mut self.phase {
                Phase::Requesting { probe: Some(probe), .. } | Phase::Settling { probe, .. }
                    if probe.address == address =>
                {
                    probe.is_claimed = true;
                }
                _ => (),
            },
            _ => return vec![],
        }
        self.on_time(turn)
    }

    fn release(&mut self, random: &mut Random) -> Option<Outgoing> {
        let owed = match (&self.holding, &self.phase) {
            (Holding::Lease(lease, _), _) | (_, Phase::Settling { lease, .. }) => {
                Some(Intent::of(lease))
            }
            (_, Phase::Requesting { intent, .. }) => Some(intent.clone()),
            _ => None,
        };
        self.fall_silent(Phase::Ended);
        self.holding = Holding::Nothing;
        self.routers.asking = None;
        self.limit = NEVER;
        self.listening = None;
        let intent = owed.filter(|_| self.setup.mode == Mode::Dhcp)?;
        Some(self.setup.release(&intent, random))
    }
}

/// A server's name in error messages: its DUID.
fn name_of(server: &[u8]) -> String {
    format!("server {}", hex::encode(server))
}

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
