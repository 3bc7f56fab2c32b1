//! The requests of plugins, and their answers.

use super::super::machine::{Contact, Contest, Event, Holder, Reply, Request, RequestId};
use super::super::wire::{self, Answer, DAEMON, Needed, Standing};
use super::Daemon;
use crate::error::{Code, Error, Result};
use crate::sys::clock::since_boot;

/// The advice while the store cannot be used.
const HELD: &str = "blocks that the node holds stay in use; the log of the daemon has more";
/// The same once other nodes may soon reclaim this one.
const STOPPED: &str = "plugins allocate no address until the store answers: by reclaimAfter other nodes may soon \
    reclaim this one; the log of the daemon has more";
/// The advice for a node that was reclaimed.
const FENCED: &str =
    "detach what still has addresses of its old blocks; then the node registers again by itself";
/// The advice for the address of a name that a live node has.
const DETACH: &str = "the name moves to this node after the DEL of its container there";
/// The same of a node that may be gone.
const RECLAIM: &str = "the name moves when that node is back and its container there is detached; if the node is \
    gone for good, reclaim it: its names then get other addresses";
/// The advice for the address of a name in conflict.
const RESOLVE: &str = "`cni-multi ipam conflicts` lists the conflict, which ends after the DEL of those containers of \
    that node that have addresses of the block";
/// The advice for a name that two machines have.
const NAME_TAKEN: &str = "set another node name in /etc/cni-multi/ipam.json, or reclaim the name";

impl Daemon {
    /// Handles a request; the answer may have to wait for the store.
    pub(super) fn take_request(&mut self, id: u64, line: &[u8]) {
        let taken = match DAEMON.read_request(line) {
            Ok(wire::Request::Need(needed)) => self.need(id, &needed),
            Ok(wire::Request::Status) => {
                let status = self.status();
                return self.answer(id, &status);
            }
            Ok(wire::Request::Metrics) => {
                self.look(since_boot());
                let text = self.metrics.text(&self.machine);
                return self.answer(id, &Ok(text));
            }
            Err(error) => Err(error),
        };
        if let Err(error) = taken {
            self.answer::<()>(id, &Err(error));
        }
    }

    fn answer<A: serde::Serialize>(&mut self, id: u64, answer: &Result<A>) {
        self.hub.connections.answer(id, &DAEMON.answer_line(answer), since_boot());
    }

    /// Gives the machine an ADD that found nothing free, with the network as it is now.
    fn need(&mut self, id: u64, needed: &Needed) -> Result<()> {
        let found = self.files.network(needed.network.as_str())?;
        let (network, blocks) = found.ok_or_else(|| unknown(needed))?;
        let patience = needed.patience()?;
        let request = Request {
            id: RequestId(id),
            network: network.clone(),
            pool: needed.set,
            address: needed.address,
            name: needed.name.clone(),
            until: since_boot() + patience,
        };
        self.hub.connections.tell(id, &DAEMON.patience_line(patience));
        self.waiting.insert(id, needed.name.clone());
        self.take(Event::Configured { network: network.clone(), blocks });
        self.look_at(&network);
        self.take(Event::Exhausted(request));
        Ok(())
    }

    /// Forgets a request whose client has hung up.
    pub(super) fn withdraw(&mut self, id: u64) {
        if self.waiting.remove(&id).is_some() {
            self.take(Event::Withdrawn(RequestId(id)));
        }
    }

    /// Answers a request that has waited.
    pub(super) fn reply_to(&mut self, id: u64, reply: Reply) {
        let name = self.waiting.remove(&id).flatten();
        let answer = match reply {
            Reply::LookAgain => Ok(Answer::Claimed),
            Reply::Full => Ok(Answer::None),
            Reply::Elsewhere(holder) => Err(elsewhere(&name.unwrap_or_default(), &holder)),
            Reply::Contested(contest) => Err(contested(&name.unwrap_or_default(), &contest)),
            Reply::Away(reason) => Err(self.away(&reason)),
            other => Err(refusal(other)),
        };
        self.answer(id, &answer);
    }

    /// Fails if the daemon cannot claim now.
    fn status(&self) -> Result<Standing> {
        match self.machine.contact() {
            Contact::Together => {
                let connected = Ok(Standing::Connected);
                self.machine.refused().map_or(connected, |reason| Err(self.away(reason)))
            }
            Contact::Away { reason, .. } => Err(self.away(reason)),
            Contact::Fenced { .. } => Err(refusal(Reply::Fenced)),
            Contact::NameTaken { .. } => Err(refusal(Reply::NameTaken)),
            Contact::Meeting | Contact::Verifying(_) => Ok(Standing::Verifying),
        }
    }

    fn away(&self, reason: &str) -> Error {
        let msg = format!("the cluster's store cannot be used: {reason}");
        let details = if self.machine.is_stopped(since_boot()) { STOPPED } else { HELD };
        Error::new(Code::TRY_AGAIN, msg).with_details(details)
    }
}

fn refusal(reply: Reply) -> Error {
    match reply {
        Reply::Settling => {
            let msg = "the node's new blocks are not used yet: the store was restored";
            Error::new(Code::TRY_AGAIN, msg).with_details("they are after `settle` seconds")
        }
        Reply::Fenced => {
            Error::new(Code::NOT_AVAILABLE, "this node was reclaimed").with_details(FENCED)
        }
        Reply::NameTaken => {
            let msg = "another machine has the name of this node";
            Error::new(Code::NOT_AVAILABLE, msg).with_details(NAME_TAKEN)
        }
        Reply::LookAgain
        | Reply::Full
        | Reply::Elsewhere(_)
        | Reply::Contested(_)
        | Reply::Away(_) => Error::new(Code::BUG, "this is no refusal"),
    }
}

/// Another node has the address of a name.
fn elsewhere(name: &str, holder: &Holder) -> Error {
    let Holder { address, node, is_alive } = holder;
    let (life, advice) = match is_alive {
        Some(true) => ("sent a heartbeat within the last minute", DETACH),
        Some(false) => ("has no heartbeat of the last minute in etcd", RECLAIM),
        None => ("may be alive or not", DETACH),
    };
    let msg = format!("{address} of {name:?} is held by node {node}, which {life}");
    Error::new(Code::TRY_AGAIN, msg).with_details(advice)
}

/// A node has noted a conflict about the address of a name.
fn contested(name: &str, contest: &Contest) -> Error {
    let Contest { address, node } = contest;
    let msg = format!("node {node} has noted a conflict about {address} of {name:?}");
    Error::new(Code::TRY_AGAIN, msg).with_details(RESOLVE)
}

fn unknown(needed: &Needed) -> Error {
    let msg = format!(
        "network {:?} has no file of blocks in the daemon's directory",
        needed.network.as_str()
    );
    Error::new(Code::INVALID_CONFIG, msg).with_details(
        "ipam.dataDir must be the directory that the daemon was started with (--data-dir)",
    )
}
