//! Messages from servers (RFC 8415, sections 18.2.9 and 18.2.10).

use std::time::Duration;

use super::setup::{IAID, Intent, release_of};
use super::{AFTER_REFUSAL, Action, Client, Offer, Outgoing, Reason, State, Turn, name_of};
use crate::plugins::ipam::dhcp::reader::Reader;
use crate::plugins::ipam::dhcp::v6::lease::Lease;
use crate::plugins::ipam::dhcp::v6::message::{Association, Grant, Kind, Message, Status};
use crate::plugins::ipam::dhcp::v6::options;

/// The preference of a server to choose at once, without waiting for others (RFC 8415, section
/// 18.2.9).
const AT_ONCE: u8 = 255;
/// The valid range for SOL_MAX_RT from a server (RFC 8415, section 21.24), in seconds.
const SOL_MAX_RT_RANGE: std::ops::RangeInclusive<u32> = 60..=86_400;

impl Client {
    /// Takes a server's message; ignores those for other clients and those not expected (RFC 8415,
    /// section 16).
    pub(super) fn take_message(&mut self, message: &Message, turn: &mut Turn<'_>) {
        let Some(exchange) = self.exchange.as_ref().filter(|exchange| exchange.timer.sent != 0)
        else {
            return;
        };
        let server = message.options.get(options::SERVER_ID).filter(|server| !server.is_empty());
        let is_ours = message.transaction == exchange.transaction
            && message.options.get(options::CLIENT_ID) == Some(&self.setup.duid);
        let Some(server) = server.filter(|_| is_ours) else { return };
        let told =
            message.options.get(options::SOL_MAX_RT).and_then(|value| Reader::new(value).u32());
        if let Some(seconds) = told.filter(|seconds| SOL_MAX_RT_RANGE.contains(seconds)) {
            self.sol_max_rt = Duration::from_secs(seconds.into());
        }
        match (exchange.kind, message.kind) {
            (Kind::Solicit, Kind::Advertise) => self.take_offer(message, server, turn),
            (Kind::Request | Kind::Renew | Kind::Rebind, Kind::Reply) => {
                self.take_reply(message, server, turn)
            }
            (Kind::Decline, Kind::Reply) => self.search(turn.now + AFTER_REFUSAL),
            _ => (),
        }
    }

    /// Takes an Advertise. The best offer is the one with the highest preference, and the first of
    /// these. If the container has had an address, only an offer of that address counts.
    fn take_offer(&mut self, message: &Message, server: &[u8], turn: &mut Turn<'_>) {
        let association = message.association(IAID);
        if [Some(message.status()), association.as_ref().map(|told| told.status)]
            .contains(&Some(Status::NO_ADDRESSES))
        {
            self.troubles.note(format!("{} has no address left (NoAddrsAvail)", name_of(server)));
        }
        let Some(Association { addresses, offered, .. }) = association else { return };
        let held = self.lease.as_ref().map(|lease| lease.address);
        let is_fit =
            |grant: &&Grant| grant.valid != 0 && held.is_none_or(|held| held == grant.address);
        let Some(Grant { address, .. }) = addresses.iter().find(is_fit).copied() else {
            if let Some(offered) = offered {
                self.troubles
                    .note(format!("{} offers {offered}, which is not usable", name_of(server)));
            }
            return;
        };
        let preference = message.preference();
        if self.offer.as_ref().is_none_or(|best| preference > best.preference) {
            self.offer = Some(Offer { address, server: server.to_vec(), preference });
        }
        let is_first_wait = self.exchange.as_ref().is_some_and(|exchange| exchange.timer.sent == 1);
        if preference == AT_ONCE || !is_first_wait {
            self.request(turn);
        }
    }

    /// Takes the answer to Request, Renew or Rebind (RFC 8415, section 18.2.10). After any other
    /// Reply the client keeps waiting.
    fn take_reply(&mut self, message: &Message, server: &[u8], turn: &mut Turn<'_>) {
        let association = message.association(IAID);
        let status = match (message.status(), &association) {
            (Status::SUCCESS, Some(association)) => association.status,
            (status, _) => status,
        };
        let is_request = self.is_sending(Kind::Request);
        match (status, association) {
            (Status::SUCCESS, Some(association)) => {
                self.take_association(&association, message, server, turn)
            }
            (Status::NO_BINDING, _) if !is_request => {
                // The server has lost the lease, or never had it, and may grant it again.
                let address = self.lease.as_ref().map(|lease| lease.address);
                self.offer = address.map(|address| Offer {
                    address,
                    server: server.to_vec(),
                    preference: 0,
                });
                self.request(turn);
            }
            (Status::NO_ADDRESSES | Status::NOT_ON_LINK | Status::NO_BINDING, _) if is_request => {
                self.troubles.note(format!(
                    "{} has refused the Request (status {})",
                    name_of(server),
                    status.0
                ));
                self.take_refusal(server, turn);
            }
            _ => (),
        }
    }

    /// Takes a granted address. If there is a lease, only its address counts.
    fn take_association(
        &mut self,
        told: &Association,
        message: &Message,
        server: &[u8],
        turn: &mut Turn<'_>,
    ) {
        let is_request = self.is_sending(Kind::Request);
        let held = self.lease.as_ref().map(|lease| lease.address);
        let is_fit = |grant: &&Grant| held.map_or(grant.valid != 0, |held| held == grant.address);
        match told.addresses.iter().find(is_fit) {
            Some(grant) if grant.valid != 0 => {
                let name_servers = message.name_servers();
                let domains = message.domains();
                let lease = Lease::of_grant(grant, told.t1, told.t2, turn.now);
                self.offer =
                    Some(Offer { address: grant.address, server: server.to_vec(), preference: 0 });
                self.take_lease(
                    Lease { server: server.to_vec(), name_servers, domains, ..lease },
                    turn,
                );
            }
            Some(_) => self.take_refusal(server, turn), // its lifetime is over
            None if is_request => {
                if let Some(other) = told.addresses.first() {
                    let other = Intent { address: other.address, server: server.to_vec() };
                    turn.actions.push(Action::Send(Outgoing::Message(release_of(
                        &other,
                        &self.setup,
                        turn.random,
                    ))));
                }
                self.take_refusal(server, turn);
            }
            None => (),
        }
    }

    /// The container cannot have the address, or not any longer. For a leased address, only its own
    /// server can decide that.
    fn take_refusal(&mut self, server: &[u8], turn: &mut Turn<'_>) {
        let is_its_own = self.lease.as_ref().is_some_and(|lease| lease.server == server);
        match self.state {
            State::Renewing | State::Rebinding if is_its_own => self.lose(Reason::Refused, turn),
            State::Renewing | State::Rebinding if self.is_sending(Kind::Request) => {
                self.start_over(turn.now + AFTER_REFUSAL);
            }
            State::Renewing | State::Rebinding => (), // other servers are asked too
            _ => self.search(turn.now + AFTER_REFUSAL),
        }
    }
}
