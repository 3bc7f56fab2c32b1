//! Router advertisements (RFC 4861, section 6.3.4), and addresses made from their prefixes (RFC
//! 4862, section 5.5.3).

use std::net::Ipv6Addr;
use std::time::Duration;

use super::{Action, Client, Mode, State, Turn};
use crate::plugins::ipam::dhcp::v6::lease::Lease;
use crate::plugins::ipam::dhcp::v6::message::Grant;
use crate::plugins::ipam::dhcp::v6::router::{Advertisement, Prefix};

/// More routers than any real link has.
const ROUTERS_MAX: usize = 16;
/// The shortest time that an advertisement can leave an address: any host on the link can send one,
/// and must not be able to end an address sooner (RFC 4862, section 5.5.3).
const TWO_HOURS: Duration = Duration::from_secs(2 * 60 * 60);
/// The only prefix length that fits an identifier of 64 bits.
const SLAAC_PREFIX_LEN: u8 = 64;

impl Client {
    /// Takes a router's advertisement, if expected.
    pub(super) fn take_advertisement(
        &mut self,
        told: Advertisement,
        link_local: Ipv6Addr,
        turn: &mut Turn<'_>,
    ) {
        if self.asking.is_none() && self.settling.is_none() {
            return;
        }
        let autonomous = told.prefixes.iter().find(|prefix| {
            let held = self.lease.as_ref().map(|lease| lease.address);
            let is_fit = prefix.net.prefix_len() == SLAAC_PREFIX_LEN
                && held.is_none_or(|held| prefix.net.contains(&held));
            prefix.autonomous && prefix.preferred != 0 && is_fit
        });
        let autonomous = autonomous.copied();
        if self.setup.mode == Mode::Slaac && autonomous.is_none() {
            self.troubles
                .note(format!("{} advertises no prefix that addresses are made of", told.router));
        }
        self.routers.retain(|known| known.router != told.router);
        if self.routers.len() < ROUTERS_MAX {
            self.routers.push(told);
        }
        match (self.setup.mode, autonomous) {
            (Mode::Slaac, Some(prefix)) if self.settling.is_none() => {
                self.take_prefix(&prefix, link_local, turn)
            }
            _ if self.state == State::Bound => self.learn(turn),
            _ => (),
        }
    }

    /// Makes an address from a prefix, or extends the one that is leased.
    fn take_prefix(&mut self, prefix: &Prefix, link_local: Ipv6Addr, turn: &mut Turn<'_>) {
        let identifier = u128::from(link_local) & u128::from(u64::MAX);
        let made = u128::from(prefix.net.network()) | identifier;
        let address = self.lease.as_ref().map_or(made.into(), |lease| lease.address);
        let grant = Grant { address, preferred: prefix.preferred, valid: prefix.valid };
        let mut lease = Lease::of_grant(&grant, 0, 0, turn.now);
        if let Some(before) = self.lease.as_ref().filter(|_| self.state != State::Expired) {
            lease.expires = lease.expires.max(before.expires.min(turn.now + TWO_HOURS));
        }
        self.take_lease(lease, turn);
    }

    /// Takes an advertisement that came after the lease was bound.
    fn learn(&mut self, turn: &mut Turn<'_>) {
        let Some(before) = &self.lease else { return };
        let mut lease = before.clone();
        lease.learn(&self.routers, Some(before));
        if self.routers.iter().any(|told| told.lifetime != 0) {
            (self.asking, self.listening) = (None, None);
        }
        if lease != *before {
            self.lease = Some(lease.clone());
            turn.actions.push(Action::Renewed(lease));
        }
    }
}
