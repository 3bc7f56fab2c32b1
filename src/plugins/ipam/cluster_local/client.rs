//! The plugin's side of the daemon's socket.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::conf::MOST_PATIENCE;
#[cfg(feature = "cluster")]
use super::node::CONFIGURATION;
#[cfg(feature = "cluster")]
use super::store::settings::Settings;
use super::wire::{Answer, DAEMON, Needed, Request, SOCKET, Standing};
use crate::cni::attachment::NetworkName;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::service::wire::is_not_running;

/// How much sooner than the client's own timeout the daemon has to answer.
const MARGIN: Duration = Duration::from_secs(1);
/// The longest wait for a claim.
const MOST: Duration = Duration::from_secs(MOST_PATIENCE);

/// The advice for a node without a daemon.
const WAYS_OUT: &str = "addresses are unique per cluster: run the IPAM daemon, or set \"scope\": \"machine\"; \
    the daemon reads /etc/cni-multi/ipam.json";
/// The advice for a pool that is used up.
const FULL: &str = "the cluster has none: `cni-multi ipam ls` lists what this machine holds";

/// Asks the daemon to claim what a network lacks. Code 11 if the daemon cannot be reached; 101 if
/// the cluster has nothing free.
pub fn ask_for(network: &NetworkName, lack: Needed, deadline: Deadline) -> Result<()> {
    let patience = deadline.limit(MOST).saturating_sub(MARGIN).as_secs();
    let request = Request::Need(Needed { patience, ..lack.clone() });
    if ask::<Answer>(&request, deadline)? == Answer::Claimed {
        return Ok(());
    }
    let msg = match (lack.address, lack.name) {
        (_, Some(name)) => return Err(no_address_for(&name)),
        (Some(ip), None) => format!("requested IP address {ip} is not available"),
        (None, None) => format!("no address of network {:?} is free", network.as_str()),
    };
    Err(Error::new(Code::ADDRESS_UNAVAILABLE, msg).with_details(FULL))
}

/// The error for a name without an address.
pub fn no_address_for(name: &str) -> Error {
    let error = Error::new(Code::ADDRESS_UNAVAILABLE, format!("no address is free for {name:?}"));
    error.with_details(
        "every address that is kept for names is held by an attachment: make the range larger",
    )
}

/// What the daemon does, for a network without an address that it may use now.
pub fn standing(deadline: Deadline) -> Result<Standing> {
    ask(&Request::Status, deadline)
}

/// Fails unless the daemon runs and claims.
pub fn status(deadline: Deadline) -> Result<()> {
    match standing(deadline)? {
        Standing::Connected => Ok(()),
        Standing::Verifying => {
            let msg = "the daemon compares the blocks of this node with the cluster's store";
            Err(Error::new(Code::TRY_AGAIN, msg).with_details(
                "it does so after its start and after each loss of contact: try again in a few seconds",
            ))
        }
    }
}

/// The metrics of the daemon that listens at a socket.
#[cfg(feature = "cluster")]
pub fn metrics(socket: &Path, deadline: Deadline) -> Result<String> {
    let connected = DAEMON.connect(socket, deadline);
    let connected = connected.map_err(|e| DAEMON.unreached(socket, &e))?;
    connected.ask(&Request::Metrics)?.answer()?
}

fn ask<A: serde::de::DeserializeOwned>(request: &Request, deadline: Deadline) -> Result<A> {
    let socket = Path::new(SOCKET);
    let connected = DAEMON.connect(socket, deadline);
    // Its manager restarts a daemon that does not run, is stuck or ends.
    let connected = connected.map_err(|e| unreached(socket, &e).with_code(Code::TRY_AGAIN))?;
    let answered = connected.ask(request).and_then(|asked| asked.answer());
    answered.map_err(|e| e.with_code(Code::TRY_AGAIN))?
}

/// The error of a daemon that cannot be reached. If it does not run: with the fault in its
/// configuration, if there is one, and the ways out.
fn unreached(socket: &Path, error: &io::Error) -> Error {
    let error = DAEMON.unreached(socket, error);
    if !is_not_running(&error) {
        return error;
    }
    #[cfg(feature = "cluster")]
    let error = match Settings::load(Path::new(CONFIGURATION)) {
        Err(wrong) if Path::new(CONFIGURATION).exists() => error.with_details(wrong),
        _ => error,
    };
    error.with_details(WAYS_OUT)
}
