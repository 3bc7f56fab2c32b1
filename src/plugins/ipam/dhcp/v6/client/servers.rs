//! Messages from servers (RFC 8415, sections 18.2.9 and 18.2.10).

use std::net::Ipv6Addr;
use std::time::Duration;

use super::phase::{Holding, Offer, Phase};
use super::setup::{IAID, Intent, release_of};
use super::{AFTER_REFUSAL, Action, Client, Outgoing, Reason, Turn, name_of};
use crate::plugins::ipam::dhcp::v6::lease::Lease;
use crate::plugins::ipam::dhcp::v6::message::{Association, Grant, Kind, Message, Status};
use crate::plugins::ipam::dhcp::v6::options;
use crate::sys::clock::Moment;

/// The preference of a server to choose at once, without waiting for others (RFC 8415, section
/// 18.2.9).
const AT_ONCE: u8 = 255;
/// The valid range for SOL_MAX_RT from a server (RFC 8415, section 21.24), in seconds.
const SOL_MAX_RT_RANGE: std::ops::RangeInclusive<u32> = 60..=86_400;

/// A server's message to this client.
struct Answer<'a> {
    message: &'a Message,
    server: &'a [u8],
    association: Option<Association>,
}

impl Answer<'_> {
    /// The status of the message; of its association, if the message has none.
    fn status(&self) -> Status {
        match (self.message.status(), &self.association) {
            (Status::SUCCESS, Some(association)) => association.status,
            (status, _) => status,
        }
    }

    /// Whether the server has no address left.
    fn has_none_left(&self) -> bool {
        let association = self.association.as_ref().map(|told| told.status);
        [Some(self.message.status()), association].contains(&Some(Status::NO_ADDRESSES))
    }

    /// A request of an address to this server.
    fn intent(&self, address: Ipv6Addr) -> Intent {
        Intent { address, server: self.server.to_vec() }
    }

    /// The lease that it grants at `now`.
    fn lease(&self, grant: &Grant, now: Moment) -> Lease {
        let told = self.association.as_ref();
        let t1 = told.map_or(0, |told| told.t1);
        let t2 = told.map_or(0, |told| told.t2);
        Lease {
            server: self.server.to_vec(),
            name_servers: self.message.name_servers(),
            domains: self.message.domains(),
            ..Lease::of_grant(grant, t1, t2, now)
        }
    }
}

impl Client {
    /// Takes a server's message; ignores those for other clients and those not expected (RFC 8415,
    /// section 16).
    pub(super) fn take_message(&mut self, message: &Message, turn: &mut Turn<'_>) {
        let Some(answer) = self.answer(message) else { return };
        self.sol_max_rt = sol_max_rt(message).unwrap_or(self.sol_max_rt);
        match (&self.phase, message.kind) {
            (Phase::Soliciting { .. }, Kind::Advertise) => self.take_offer(&answer, turn),
            (Phase::Requesting { .. } | Phase::Extending(_), Kind::Reply) => {
                self.take_reply(&answer, turn)
            }
            (Phase::Declining { .. }, Kind::Reply) => self.search(turn.now + AFTER_REFUSAL),
            _ => (),
        }
    }

    /// The message, if it may answer the exchange.
    fn answer<'a>(&self, message: &'a Message) -> Option<Answer<'a>> {
        let exchange = self.phase.exchange().filter(|exchange| exchange.timer.sent != 0)?;
        let server = message.options.get(options::SERVER_ID).filter(|server| !server.is_empty())?;
        let is_ours = message.transaction == exchange.transaction
            && message.options.get(options::CLIENT_ID) == Some(&self.setup.duid);
        let association = message.association(IAID);
        is_ours.then_some(Answer { message, server, association })
    }

    /// Takes an Advertise.
    fn take_offer(&mut self, answer: &Answer<'_>, turn: &mut Turn<'_>) {
        if answer.has_none_left() {
            let name = name_of(answer.server);
            self.troubles.note(format!("{name} has no address left (NoAddrsAvail)"));
        }
        let Some(intent) = self.usable_offer(answer) else { return };
        self.compare(Offer { intent, preference: answer.message.preference() }, turn);
    }

    /// The offered address. If the container has had one, only an offer of that address counts.
    fn usable_offer(&mut self, answer: &Answer<'_>) -> Option<Intent> {
        let Association { addresses, offered, .. } = answer.association.as_ref()?;
        let held = self.lease().map(|lease| lease.address);
        let is_fit =
            |grant: &&Grant| grant.valid != 0 && held.is_none_or(|held| held == grant.address);
        if let Some(grant) = addresses.iter().find(is_fit) {
            return Some(answer.intent(grant.address));
        }
        let name = name_of(answer.server);
        let offered = (*offered)?;
        self.troubles.note(format!("{name} offers {offered}, which is not usable"));
        None
    }

    /// Keeps the better offer, and requests it at once if no other is worth waiting for. The best
    /// offer is the one with the highest preference, and the first of these.
    fn compare(&mut self, offer: Offer, turn: &mut Turn<'_>) {
        let Phase::Soliciting { exchange, best } = &mut self.phase else { return };
        let is_last = offer.preference == AT_ONCE || exchange.timer.sent > 1;
        let best = match best {
            Some(best) if offer.preference <= best.preference => best,
            _ => best.insert(offer),
        };
        if is_last {
            let intent = best.intent.clone();
            self.request(intent, turn);
        }
    }

    /// Takes the answer to Request, Renew or Rebind (RFC 8415, section 18.2.10). After any other
    /// Reply the client keeps waiting.
    fn take_reply(&mut self, answer: &Answer<'_>, turn: &mut Turn<'_>) {
        match (answer.status(), &answer.association) {
            (Status::SUCCESS, Some(association)) => {
                self.take_association(association, answer, turn)
            }
            (Status::NO_BINDING, _) if !self.is_requesting() => self.request_again(answer, turn),
            (status @ (Status::NO_ADDRESSES | Status::NOT_ON_LINK | Status::NO_BINDING), _)
                if self.is_requesting() =>
            {
                let name = name_of(answer.server);
                self.troubles.note(format!("{name} has refused the Request (status {})", status.0));
                self.take_refusal(answer.server, turn);
            }
            _ => (),
        }
    }

    /// Requests the leased address of a server that has lost the lease, or never had it: it may
    /// grant it again.
    fn request_again(&mut self, answer: &Answer<'_>, turn: &mut Turn<'_>) {
        if let Some(lease) = self.lease() {
            self.request(answer.intent(lease.address), turn);
        }
    }

    fn is_requesting(&self) -> bool {
        matches!(self.phase, Phase::Requesting { .. })
    }

    /// Takes a granted address. If there is a lease, only its address counts.
    fn take_association(&mut self, told: &Association, answer: &Answer<'_>, turn: &mut Turn<'_>) {
        let held = self.lease().map(|lease| lease.address);
        let is_fit = |grant: &&Grant| held.map_or(grant.valid != 0, |held| held == grant.address);
        match told.addresses.iter().find(is_fit) {
            Some(grant) if grant.valid != 0 => self.take_lease(answer.lease(grant, turn.now), turn),
            Some(_) => self.take_refusal(answer.server, turn), // its lifetime is over
            None if self.is_requesting() => {
                self.release_other(told, answer, turn);
                self.take_refusal(answer.server, turn);
            }
            None => (),
        }
    }

    /// Releases an address that was granted in place of the requested one.
    fn release_other(&self, told: &Association, answer: &Answer<'_>, turn: &mut Turn<'_>) {
        let Some(other) = told.addresses.first() else { return };
        let release = release_of(&answer.intent(other.address), &self.setup, turn.random);
        turn.actions.push(Action::Send(Outgoing::Message(release)));
    }

    /// The container cannot have the address, or not any longer. For a leased address, only its own
    /// server can decide that.
    fn take_refusal(&mut self, server: &[u8], turn: &mut Turn<'_>) {
        match &self.holding {
            Holding::Lease(lease, _) if lease.server == server => self.lose(Reason::Refused, turn),
            Holding::Lease(..) if self.is_requesting() => {
                self.start_over(turn.now + AFTER_REFUSAL);
            }
            Holding::Lease(..) => (), // other servers are asked too
            Holding::Nothing | Holding::Lost(_) => self.search(turn.now + AFTER_REFUSAL),
        }
    }
}

/// The longest wait between two Solicit messages that a server sets, if it is valid.
fn sol_max_rt(message: &Message) -> Option<Duration> {
    let seconds = message.options.number(options::SOL_MAX_RT)?;
    SOL_MAX_RT_RANGE.contains(&seconds).then(|| Duration::from_secs(seconds.into()))
}
