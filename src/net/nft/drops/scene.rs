//! Where a packet is.

use super::packet::Packet;
use super::{Hook, Ruleset};

/// The packet, and where it is.
#[derive(Clone, Copy)]
pub(super) struct Scene<'r> {
    pub(super) ruleset: &'r Ruleset,
    pub(super) packet: &'r Packet,
    pub(super) hook: Hook,
}
