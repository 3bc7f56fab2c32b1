//! Messages from servers (RFC 8415, sections 18.2.9 and 18.2.10).

use std::net::Ipv6Addr;
use std::time::Duration;

use super::phase::{Holding, Phase};
use super::setup::IAID;
use super::{AFTER_REFUSAL, Action, Client, Reason, Turn, name_of};
use crate::plugins::ipam::dhcp::reader::Reader;
use crate::plugins::ipam::dhcp::v6::lease::{Intent, Lease};
use crate::plugins::ipam::dhcp::v6::message::{Association, Grant, Kind, Message, Status};
use crate::plugins::ipam::dhcp::v6::options;

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
    /// A request of an address to this server.
    fn intent(&self, address: Ipv6Addr) -> Intent {
        Intent { address, server: self.server.to_vec() }
    }
}

impl Client {
    /// Takes a server's message; ignores those for other clients and those not expected (RFC 8415,
    /// section 16).
    pub(super) fn take_message(&mut self, message: &Message, turn: &mut Turn<'_>) {
        let Some(timer) = self.timer.as_ref().filter(|timer| timer.sent != 0) else { return };
        let options = &message.options;
        let is_ours = message.transaction == timer.transaction
            && options.get(options::CLIENT_ID) == Some(&self.setup.duid);
        let server = options.get(options::SERVER_ID).unwrap_or_default();
        if !is_ours || server.is_empty() {
            return;
        }
        let longest = options.get(options::SOL_MAX_RT).and_then(|value| Reader::new(value).u32());
        if let Some(longest) = longest.filter(|seconds| SOL_MAX_RT_RANGE.contains(seconds)) {
            self.sol_max_rt = Duration::from_secs(longest.into());
        }
        let answer = Answer { message, server, association: message.association(IAID) };
        match (&self.phase, message.kind) {
            (Phase::Soliciting { .. }, Kind::Advertise) => self.take_offer(&answer, turn),
            (Phase::Requesting { .. } | Phase::Extending, Kind::Reply) => {
                self.take_reply(&answer, turn)
            }
            (Phase::Declining { .. }, Kind::Reply) => self.search(turn.now + AFTER_REFUSAL),
            _ => (),
        }
    }

    /// Takes an Advertise. If the container has had an address, only an offer of that address
    /// counts. The best offer is the one with the highest preference, and the first of these; it is
    /// requested at once if no other is worth waiting for.
    fn take_offer(&mut self, answer: &Answer<'_>, turn: &mut Turn<'_>) {
        let name = name_of(answer.server);
        let status = answer.association.as_ref().map(|told| told.status);
        if [Some(answer.message.status()), status].contains(&Some(Status::NO_ADDRESSES)) {
            self.troubles.note(format!("{name} has no address left (NoAddrsAvail)"));
        }
        let Some(told) = &answer.association else { return };
        let held = self.lease().map(|lease| lease.net.addr());
        let is_fit =
            |grant: &&Grant| grant.valid != 0 && held.is_none_or(|held| held == grant.address);
        let Some(grant) = told.addresses.iter().find(is_fit) else {
            if let Some(offered) = told.offered {
                self.troubles.note(format!("{name} offers {offered}, which is not usable"));
            }
            return;
        };
        let preference = answer.message.preference();
        let is_last =
            preference == AT_ONCE || self.timer.as_ref().is_some_and(|timer| timer.sent > 1);
        let Phase::Soliciting { best } = &mut self.phase else { return };
        let (_, intent) = match best {
            Some(best) if preference <= best.0 => best,
            _ => best.insert((preference, answer.intent(grant.address))),
        };
        if is_last {
            let intent = intent.clone();
            self.request(intent, turn);
        }
    }

    /// Takes the answer to Request, Renew or Rebind (RFC 8415, section 18.2.10). After any other
    /// Reply the client keeps waiting.
    fn take_reply(&mut self, answer: &Answer<'_>, turn: &mut Turn<'_>) {
        let is_requesting = matches!(self.phase, Phase::Requesting { .. });
        let status = match (answer.message.status(), &answer.association) {
            (Status::SUCCESS, Some(association)) => association.status,
            (status, _) => status,
        };
        match (status, &answer.association) {
            (Status::SUCCESS, Some(association)) => {
                self.take_association(association, answer, turn)
            }
            (Status::NO_BINDING, _) if !is_requesting => {
                // The server has lost the lease, or never had it: it may grant it again.
                if let Some(lease) = self.lease() {
                    let intent = answer.intent(lease.net.addr());
                    self.request(intent, turn);
                }
            }
            (Status::NO_ADDRESSES | Status::NOT_ON_LINK | Status::NO_BINDING, _)
                if is_requesting =>
            {
                let name = name_of(answer.server);
                self.troubles.note(format!("{name} has refused the Request (status {})", status.0));
                self.take_refusal(answer.server, turn);
            }
            _ => (),
        }
    }

    /// Takes a granted address. If there is a lease, only its address counts.
    fn take_association(&mut self, told: &Association, answer: &Answer<'_>, turn: &mut Turn<'_>) {
        let held = self.lease().map(|lease| lease.net.addr());
        let is_fit = |grant: &&Grant| held.map_or(grant.valid != 0, |held| held == grant.address);
        match told.addresses.iter().find(is_fit) {
            Some(grant) if grant.valid != 0 => {
                let lease = Lease {
                    server: answer.server.to_vec(),
                    name_servers: answer.message.name_servers(),
                    domains: answer.message.domains(),
                    ..Lease::of_grant(grant, told.t1, told.t2, turn.now)
                };
                self.take_lease(lease, turn);
            }
            Some(_) => self.take_refusal(answer.server, turn), // its lifetime is over
            None if matches!(self.phase, Phase::Requesting { .. }) => {
                // Release an address that was granted in place of the requested one.
                if let Some(other) = told.addresses.first() {
                    let release = self.setup.release(&answer.intent(other.address), turn.random);
                    turn.actions.push(Action::Send(release));
                }
                self.take_refusal(answer.server, turn);
            }
            None => (),
        }
    }

    /// The container cannot have the address, or not any longer. For a leased address, only its own
    /// server can decide that.
    fn take_refusal(&mut self, server: &[u8], turn: &mut Turn<'_>) {
        match &self.holding {
            Holding::Lease(lease, _) if lease.server == server => self.lose(Reason::Refused, turn),
            Holding::Lease(..) if matches!(self.phase, Phase::Requesting { .. }) => {
                self.start_over(turn.now + AFTER_REFUSAL);
            }
            Holding::Lease(..) => (), // other servers are asked too
            Holding::Nothing | Holding::Lost(_) => self.search(turn.now + AFTER_REFUSAL),
        }
    }
}
