//! The routers of the link: when they are asked (RFC 7559), and what they have answered.

use std::time::Duration;

use super::setup::Mode;
use super::timer::{Timer, Timing};
use crate::plugins::ipam::dhcp::v6::router::Advertisement;
use crate::sys::clock::{Moment, NEVER};
use crate::sys::random::Random;

/// How long routers have to answer. They take up to half a second, or three if they have just
/// advertised to other hosts (RFC 4861, section 6.2.6); the second solicitation is sent after four.
const PATIENCE: Duration = Duration::from_secs(5);
/// More routers than any real link has.
const ROUTERS_MAX: usize = 16;

/// The routers of the link.
#[derive(Clone, Debug)]
pub struct Routers {
    /// Their solicitation.
    asking: Option<Timer>,
    /// When to stop waiting for them.
    until: Moment,
    /// Those that have answered.
    known: Vec<Advertisement>,
}

impl Default for Routers {
    fn default() -> Routers {
        Routers { asking: None, until: NEVER, known: vec![] }
    }
}

impl Routers {
    /// Asks them again, from `start` on.
    pub fn ask(&mut self, start: Moment) {
        self.asking = Some(Timer::new(Timing::ROUTERS, start));
        self.until = start + PATIENCE;
        self.known.clear();
    }

    /// Asks them, unless that is under way or one has answered.
    pub fn ask_if_unknown(&mut self, start: Moment) {
        if self.asking.is_none() && self.known.is_empty() {
            self.ask(start);
        }
    }

    /// Stops asking.
    pub fn stop(&mut self) {
        self.asking = None;
    }

    /// When to ask again, or to stop waiting. Without servers, waiting does not stop.
    pub fn due(&self, mode: Mode) -> Option<Moment> {
        let due = self.asking.as_ref()?.due;
        Some(if mode == Mode::Dhcp { due.min(self.until) } else { due })
    }

    /// Whether they are being asked.
    pub fn are_asked(&self) -> bool {
        self.asking.is_some()
    }

    /// When to stop waiting for them.
    pub fn until(&self) -> Moment {
        self.until
    }

    /// Notes that they are asked now, if that is due.
    pub fn go_on(&mut self, now: Moment, random: &mut Random) -> bool {
        let Some(timer) = self.asking.as_mut().filter(|timer| now >= timer.due) else {
            return false;
        };
        timer.sends(now, random);
        true
    }

    /// Those that have answered.
    pub fn known(&self) -> &[Advertisement] {
        &self.known
    }

    /// Whether one of them is a default router.
    pub fn has_default(&self) -> bool {
        self.known.iter().any(|told| told.lifetime != 0)
    }

    /// Takes an advertisement.
    pub fn learn(&mut self, told: Advertisement) {
        self.known.retain(|known| known.router != told.router);
        if self.known.len() < ROUTERS_MAX {
            self.known.push(told);
        }
    }
}
