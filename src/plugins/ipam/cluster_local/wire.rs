//! The protocol between plugin and daemon, in lines of [`service::wire`](crate::service::wire):
//! `{"protocol":2,"op":"need","network":"pods","set":0}` is answered by
//! `{"protocol":2,"answer":"claimed"}` or `{"protocol":2,"answer":"none"}`.
//!
//! The daemon knows the pools of a network from the file of its blocks, which the plugin writes
//! before it asks.

use std::net::IpAddr;
#[cfg(feature = "cluster")]
use std::time::Duration;

use serde::{Deserialize, Serialize};

#[cfg(feature = "cluster")]
use super::conf::MOST_PATIENCE;
use crate::cni::attachment::NetworkName;
#[cfg(feature = "cluster")]
use crate::error::{Error, Result};
use crate::service::Identity;

/// The daemon's socket.
pub const SOCKET: &str = "/run/cni-multi/ipam.sock";

/// The daemon as errors, protocol and file names have it.
pub static DAEMON: Identity = Identity {
    name: "IPAM daemon",
    rival: None,
    socket_option: "--socket",
    journal_option: "--data-dir",
    units: "cni-multi-ipam.socket or cni-multi-ipam.service",
    protocol: 2,
    journal: "blocks",
};

/// A request to the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Request {
    /// Claim what a network lacks; answered by an [`Answer`], perhaps after a line of patience.
    Need(Needed),
    /// Whether the daemon can claim now; answered by a [`Standing`], or by the error that an ADD would
    /// get.
    Status,
    /// What the daemon counts; answered by the text of OpenMetrics.
    Metrics,
}

/// What a network lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Needed {
    /// The network.
    pub network: NetworkName,
    /// The number of the range set, counted from 0.
    pub set: usize,
    /// The one address that would do; any of the set if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// How many seconds the client waits for the answer.
    pub patience: u64,
    /// The name whose address it is; the block is then kept for the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

#[cfg(feature = "cluster")]
impl Needed {
    /// How long the client waits.
    pub fn patience(&self) -> Result<Duration> {
        match self.patience {
            seconds if seconds <= MOST_PATIENCE => Ok(Duration::from_secs(seconds)),
            seconds => Err(Error::out_of_range("patience", seconds, 0..=MOST_PATIENCE as i64)),
        }
    }
}

/// What the daemon of a cluster's node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It claims.
    Connected,
    /// It has just started, or reached the store again, and compares the blocks of the node with
    /// the store's.
    Verifying,
}

/// The answer to a need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The network's blocks have what it lacked. Another ADD may take it first.
    Claimed,
    /// The cluster has none to claim.
    None,
}

#[cfg(test)]
#[cfg(feature = "cluster")]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_client_does_not_wait_for_ever() {
        let network = NetworkName::parse("pods").unwrap();
        let wait = |patience| Needed {
            network: network.clone(),
            set: 0,
            address: None,
            patience,
            name: None,
        };
        assert_eq!(wait(60).patience().unwrap().as_secs(), 60);
        let error = wait(u64::MAX).patience().unwrap_err();
        let expected = "patience: 18446744073709551615 is out of range, expected 0 to 60";
        assert_eq!(error.to_string(), expected);
    }
}
