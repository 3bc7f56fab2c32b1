//! The plugin's side of the daemon's socket.

use std::path::Path;
use std::time::Duration;

use super::need::Lack;
use super::node::CONFIGURATION;
use super::wire::{Answer, DAEMON, Needed, Request, SOCKET};
use crate::cni::attachment::NetworkName;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Result};
use crate::service::wire::is_not_running;

/// How much sooner than the client's own timeout the daemon has to answer.
const MARGIN: Duration = Duration::from_secs(1);
/// The longest wait for a claim.
const MOST: Duration = Duration::from_secs(60);

/// The advice for a pool that is used up.
const FULL: &str = "the cluster has none: `cni-multi ipam ls` lists what this machine holds";
/// The same for names.
const NAMES_FULL: &str =
    "every address that is kept for names is held by an attachment: make the range larger";

/// Asks the daemon to claim what a network lacks. Code 11 if the daemon cannot be reached; 101 if
/// the cluster has nothing free.
pub fn ask_for(network: &NetworkName, set: usize, lack: &Lack, deadline: Deadline) -> Result<()> {
    let patience = deadline.limit(MOST).saturating_sub(MARGIN);
    let needed = Request::Need(Needed::new(network, set, lack, patience));
    match ask(&needed, deadline)? {
        Answer::Claimed => Ok(()),
        Answer::None => Err(nothing_free(network, lack)),
    }
}

/// Whether the daemon runs and is connected.
pub fn status(deadline: Deadline) -> Result<()> {
    ask(&Request::Status, deadline)
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
    let connected = connected.map_err(|e| unreached(DAEMON.unreached(socket, &e)))?;
    // A daemon that is stuck or ends is started again by its manager.
    let answered = connected.ask(request).and_then(|asked| asked.answer());
    answered.map_err(|e| e.with_code(Code::TRY_AGAIN))?
}

/// A daemon that does not run may be started again: the runtime tries again, too.
fn unreached(error: Error) -> Error {
    let is_nobody = is_not_running(&error);
    let error = error.with_code(Code::TRY_AGAIN);
    if !is_nobody {
        return error;
    }
    error.with_details(format_args!(
        "the network's own blocks have no free address that it may give now, and by {CONFIGURATION} only the daemon may claim or confirm one"
    ))
}

fn nothing_free(network: &NetworkName, lack: &Lack) -> Error {
    let msg = match lack {
        Lack::Any => format!("no address of network {:?} is free", network.as_str()),
        Lack::Address(ip) => format!("requested IP address {ip} is not available"),
        Lack::Name(name) => format!("no address is free for {name:?}"),
    };
    Error::new(Code::ADDRESS_UNAVAILABLE, msg).with_details(match lack {
        Lack::Name(_) => NAMES_FULL,
        Lack::Any | Lack::Address(_) => FULL,
    })
}
