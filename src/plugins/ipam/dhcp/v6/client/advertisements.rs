//! Router advertisements (RFC 4861, section 6.3.4), and addresses made from their prefixes (RFC
//! 4862, section 5.5.3).

use std::net::Ipv6Addr;
use std::time::Duration;

use super::phase::{Holding, Stage};
use super::{Action, Client, LISTENING, Mode, Outgoing, Turn};
use crate::plugins::ipam::dhcp::v6::lease::Lease;
use crate::plugins::ipam::dhcp::v6::message::Grant;
use crate::plugins::ipam::dhcp::v6::router::{Advertisement, Prefix};
use crate::sys::clock::Moment;

/// The shortest time that an advertisement can leave an address: any host on the link can send one,
/// and must not be able to end an address sooner (RFC 4862, section 5.5.3).
const TWO_HOURS: Duration = Duration::from_secs(2 * 60 * 60);
/// The only prefix length that fits an identifier of 64 bits.
const SLAAC_PREFIX_LEN: u8 = 64;

impl Client {
    /// Asks the routers again when that is due.
    pub(super) fn go_on_with_routers(&mut self, turn: &mut Turn<'_>) {
        if self.setup.mode == Mode::Dhcp && turn.now >= self.routers.until() {
            self.routers.stop(); // there is no router
        }
        if self.routers.go_on(turn.now, turn.random) {
            turn.actions.push(Action::Send(Outgoing::Routers));
            self.listening = Some(turn.now + LISTENING);
        }
    }

    /// Takes a router's advertisement, if expected.
    pub(super) fn take_advertisement(
        &mut self,
        told: Advertisement,
        link_local: Ipv6Addr,
        turn: &mut Turn<'_>,
    ) {
        if !self.routers.are_asked() && !self.phase.is_settling() {
            return;
        }
        let prefix = self.prefix_of(&told);
        self.routers.learn(told);
        match prefix.filter(|_| !self.phase.is_settling()) {
            Some(prefix) => self.take_prefix(&prefix, link_local, turn),
            None => self.learn(turn),
        }
    }

    /// The advertised prefix to make an address from, if that is what the client does.
    fn prefix_of(&mut self, told: &Advertisement) -> Option<Prefix> {
        if self.setup.mode == Mode::Dhcp {
            return None;
        }
        let usable = told.prefixes.iter().find(|prefix| self.can_use(prefix)).copied();
        if usable.is_none() {
            let router = told.router;
            self.troubles.note(format!("{router} advertises no prefix that addresses are made of"));
        }
        usable
    }

    /// Whether an address can be made from the prefix: the container's, if it has or had one.
    fn can_use(&self, prefix: &Prefix) -> bool {
        let is_fit = prefix.net.prefix_len() == SLAAC_PREFIX_LEN
            && self.lease().is_none_or(|lease| prefix.net.contains(&lease.address));
        prefix.autonomous && prefix.preferred != 0 && is_fit
    }

    /// Makes an address from a prefix, or extends the one that is leased.
    fn take_prefix(&mut self, prefix: &Prefix, link_local: Ipv6Addr, turn: &mut Turn<'_>) {
        let leased = self.lease().map(|lease| lease.address);
        let address = leased.unwrap_or_else(|| address_in(prefix, link_local));
        let grant = Grant { address, preferred: prefix.preferred, valid: prefix.valid };
        let mut lease = Lease::of_grant(&grant, 0, 0, turn.now);
        lease.expires = lease.expires.max(self.earliest_expiry(turn.now));
        self.take_lease(lease, turn);
    }

    /// The earliest moment at which an advertisement can end the address.
    fn earliest_expiry(&self, now: Moment) -> Moment {
        match &self.holding {
            Holding::Lease(before, _) => before.expires.min(now + TWO_HOURS),
            Holding::Nothing | Holding::Lost(_) => now,
        }
    }

    /// Adds what an advertisement says that came after the lease was bound.
    fn learn(&mut self, turn: &mut Turn<'_>) {
        let Holding::Lease(lease, Stage::Bound) = &mut self.holding else { return };
        let before = lease.clone();
        lease.learn(self.routers.known(), Some(&before));
        if *lease != before {
            turn.actions.push(Action::Renewed(lease.clone()));
        }
        if self.routers.has_default() {
            self.routers.stop();
            self.listening = None;
        }
    }
}

/// The address that is made from a prefix, with the second half of the link-local address.
fn address_in(prefix: &Prefix, link_local: Ipv6Addr) -> Ipv6Addr {
    let identifier = u128::from(link_local) & u128::from(u64::MAX);
    (u128::from(prefix.net.network()) | identifier).into()
}
