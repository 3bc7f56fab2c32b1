//! A command's conversation with etcd.

use std::path::Path;
use std::time::SystemTime;

use super::super::engine::{Answer, ClusterState, Operation, Outcome, Revision, Rival};
use super::super::etcd::blocking::Blocking;
use super::super::etcd::client::Inspection;
use super::super::etcd::event::CONTROL_PLANE;
use super::super::etcd::settings::Settings;
use crate::error::{Code, Error, Result};

/// A conversation.
pub struct Session {
    /// The node's configuration.
    pub settings: Settings,
    client: Blocking,
}

/// How a write ended.
pub enum Write {
    /// It wrote, at this revision.
    Done(Revision),
    /// It compared and did not write.
    Lost(Box<Rival>),
    /// It may have been done: the store is to be read.
    Unknown,
}

impl Session {
    /// Reads the configuration. Nothing else is asked of the etcd of a control plane.
    pub fn open(configuration: &Path) -> Result<Session> {
        let settings = Settings::load(configuration).map_err(|e| with_next_step(e, configuration));
        let settings = settings?;
        let mut client = Blocking::new(settings.store(SystemTime::now())?);
        if !settings.accept_control_plane {
            require_separate(client.inspect()?)?;
        }
        Ok(Session { settings, client })
    }

    /// Every key of the cluster.
    pub fn survey(&mut self) -> Result<ClusterState> {
        match self.client.run(Operation::Survey)? {
            Outcome::Done { answer: Answer::Cluster(state), .. } => Ok(*state),
            other => Err(failure(other)),
        }
    }

    /// Executes a write.
    pub fn write(&mut self, operation: Operation) -> Result<Write> {
        match self.client.run(operation)? {
            Outcome::Done { revision, .. } => Ok(Write::Done(revision)),
            Outcome::Lost { rival, .. } => Ok(Write::Lost(rival)),
            Outcome::Unknown { .. } => Ok(Write::Unknown),
            other => Err(failure(other)),
        }
    }
}

fn with_next_step(error: Error, configuration: &Path) -> Error {
    if !error.is_not_found() {
        return error;
    }
    error.with_details(format_args!(
        "the command needs the configuration of a node of the cluster: run it on one, or name the \
         file with --config instead of {}",
        configuration.display()
    ))
}

fn require_separate(inspection: Inspection) -> Result<()> {
    match inspection {
        Inspection::Separate => Ok(()),
        Inspection::ControlPlane => Err(away(CONTROL_PLANE)),
        Inspection::Failed(outcome) => Err(failure(outcome)),
    }
}

fn failure(outcome: Outcome) -> Error {
    match outcome {
        Outcome::Unreachable { reason } | Outcome::Unknown { reason } => away(&reason)
            .with_details("check etcd.endpoints and the certificates in the node's configuration"),
        Outcome::Unauthenticated { reason } | Outcome::Refused { reason } => away(&reason),
        Outcome::Done { .. } | Outcome::Lost { .. } | Outcome::Compacted { .. } => {
            Error::new(Code::BUG, "etcd's client returned another answer")
        }
    }
}

fn away(reason: &str) -> Error {
    Error::new(Code::TRY_AGAIN, format!("the cluster's store cannot be used: {reason}"))
}

/// A line about keys that cannot be read, for the end of a command's output; empty without any.
pub fn unreadable(state: &ClusterState) -> String {
    let keys = &state.unreadable;
    let lines = keys.iter().map(|key| {
        format!("the key {key:?} cannot be read and was left alone: was it edited by hand?\n")
    });
    lines.collect()
}
