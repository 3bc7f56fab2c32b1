//! The routers of the link: when they are asked (RFC 7559), their advertisements (RFC 4861, section
//! 6.3.4), and addresses made from their prefixes (RFC 4862, section 5.5.3).

use std::net::Ipv6Addr;
use std::time::Duration;

use super::phase::{Holding, Stage, Timer};
use super::{Action, Client, LISTENING, Mode, Outgoing, Turn};
use crate::plugins::ipam::dhcp::client;
use crate::plugins::ipam::dhcp::v6::Grant;
use crate::plugins::ipam::dhcp::v6::lease::Lease;
use crate::plugins::ipam::dhcp::v6::router::{Advertisement, Prefix};
use crate::sys::clock::{Moment, NEVER};

/// How long routers have to answer. They take up to half a second, or three if they have just
/// advertised to other hosts (RFC 4861, section 6.2.6); the second solicitation is sent after four.
const PATIENCE: Duration = Duration::from_secs(5);
/// More routers than any real link has.
const ROUTERS_MAX: usize = 16;
/// The shortest time that an advertisement can leave an address: any host on the link can send one,
/// and must not be able to end an address sooner (RFC 4862, section 5.5.3).
const TWO_HOURS: Duration = Duration::from_secs(2 * 60 * 60);
/// The only prefix length that fits an identifier of 64 bits.
const SLAAC_PREFIX_LEN: u8 = 64;

/// The routers of the link.
#[derive(Clone, Debug)]
pub struct Routers {
    /// Their solicitation, while they are asked.
    pub asking: Option<Timer>,
    /// When to stop waiting for them. Without servers, waiting does not stop.
    pub until: Moment,
    /// Those that have answered.
    pub known: Vec<Advertisement>,
}

impl Default for Routers {
    fn default() -> Routers {
        Routers { asking: None, until: NEVER, known: vec![] }
    }
}

impl Routers {
    /// Asks them again, from `start` on.
    pub fn ask(&mut self, start: Moment) {
        self.asking = Some(Timer::of_routers(start));
        self.until = start + PATIENCE;
        self.known.clear();
    }

    /// Whether one of them is a default router.
    pub fn has_default(&self) -> bool {
        self.known.iter().any(|told| told.lifetime != 0)
    }
}

impl Client {
    /// Asks the routers again when that is due.
    pub(super) fn go_on_with_routers(&mut self, turn: &mut Turn<'_>) {
        if self.setup.mode == Mode::Dhcp && turn.now >= self.routers.until {
            self.routers.asking = None; // there is no router
        }
        if let Some(timer) = self.routers.asking.as_mut().filter(|timer| turn.now >= timer.due) {
            timer.sends(turn.now, turn.random);
            turn.actions.push(Action::Send(Outgoing::Routers));
            self.listening = Some(turn.now + LISTENING);
        }
    }

    /// Takes a router's advertisement, if expected. An address made from its prefix has the second
    /// half of the link-local address, as the kernel would choose it.
    pub(super) fn take_advertisement(
        &mut self,
        told: Advertisement,
        link_local: Ipv6Addr,
        turn: &mut Turn<'_>,
    ) {
        if self.routers.asking.is_none() && !self.phase.is_settling() {
            return;
        }
        let mut usable = None;
        if self.setup.mode == Mode::Slaac {
            // If the container has or had an address, its prefix.
            let held = self.lease().map(|lease| lease.net.addr());
            let can_be_used = |prefix: &&Prefix| {
                prefix.autonomous
                    && prefix.preferred != 0
                    && prefix.net.prefix_len() == SLAAC_PREFIX_LEN
                    && held.is_none_or(|address| prefix.net.contains(&address))
            };
            usable = told.prefixes.iter().find(can_be_used).copied();
            if usable.is_none() {
                let router = told.router;
                let note = format!("{router} advertises no prefix that addresses are made of");
                self.troubles.note(note);
            }
        }
        self.routers.known.retain(|known| known.router != told.router);
        if self.routers.known.len() < ROUTERS_MAX {
            self.routers.known.push(told);
        }
        match usable.filter(|_| !self.phase.is_settling()) {
            Some(prefix) => self.take_prefix(&prefix, link_local, turn),
            None => self.learn(turn),
        }
    }

    /// Makes an address from a prefix, or extends the one that is leased.
    fn take_prefix(&mut self, prefix: &Prefix, link_local: Ipv6Addr, turn: &mut Turn<'_>) {
        let identifier = u128::from(link_local) & u128::from(u64::MAX);
        let made = Ipv6Addr::from(u128::from(prefix.net.network()) | identifier);
        let address = self.lease().map_or(made, |lease| lease.net.addr());
        let grant = Grant { address, preferred: prefix.preferred, valid: prefix.valid };
        let mut lease = Lease::of_grant(&grant, 0, 0, turn.now);
        if let Holding::Lease(before, _) = &self.holding {
            let earliest = before.times.expires.min(turn.now + TWO_HOURS);
            lease.times.expires = lease.times.expires.max(earliest);
        }
        self.take_lease(lease, turn);
    }

    /// Adds what an advertisement says that came after the lease was bound.
    fn learn(&mut self, turn: &mut Turn<'_>) {
        let Holding::Lease(lease, Stage::Bound) = &mut self.holding else { return };
        let before = lease.clone();
        lease.learn(&self.routers.known, Some(&before));
        if *lease != before {
            turn.actions.push(Action::Renewed(client::Lease::V6(lease.clone())));
        }
        if self.routers.has_default() {
            self.routers.asking = None;
            self.listening = None;
        }
    }
}
