//! The requests of plugins, and their answers.

use std::net::IpAddr;

use super::super::machine::{Reply, Request, RequestId, Standing};
use super::super::name::Name;
use super::super::wire::{self, Answer, DAEMON, Needed};
use super::Daemon;
use crate::error::{Code, Error, Result};
use crate::sys::clock::since_boot;

/// The advice while the store cannot be used.
const HELD: &str = "blocks that the node holds stay in use; the log of the daemon has more";
/// The advice for a block that settles.
const SETTLES: &str = "it is after a minute: the store may have been restored from a backup";
/// The advice for the address of a name that another node has.
const DETACH: &str = "the name moves to this node after the DEL of its container there; if that node is gone for \
    good, reclaim it with `cni-multi ipam reclaim`";
/// The advice for a name that two machines have.
const NAME_TAKEN: &str = "set another node name in /etc/cni-multi/ipam.json and restart the daemon; if the other \
    machine is gone for good, reclaim the name with `cni-multi ipam reclaim`";
/// The advice for a node whose record is newer than its disk.
const RESTORED: &str = "the daemon goes on once the record has not moved for 40 s; if another machine runs with \
    this identity, stop one of them";
/// The advice for a data directory that was replaced.
const REPLACED: &str =
    "put the directory of before in its place if it has to stay, and reboot this node";
/// The advice for a machine that runs twice.
const COPIED: &str = "stop the other machine, then reboot this one";
/// The advice for another store.
const OTHER_STORE: &str = "blocks that the node holds stay in use; correct the endpoints in /etc/cni-multi/ipam.json, \
    or accept this store with `cni-multi ipam recover`";

impl Daemon {
    /// Handles a request; the answer may have to wait for the store.
    pub(super) fn take_request(&mut self, id: u64, line: &[u8]) {
        let taken = match DAEMON.read_request(line) {
            Ok(wire::Request::Need(needed)) => self.need(id, &needed),
            Ok(wire::Request::Status) => {
                let status = status(self.machine.standing());
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
        let network = &needed.network;
        let blocks = self.files.network(network)?.ok_or_else(|| {
            let name = network.as_str();
            let msg = format!("network {name:?} has no file of blocks in the daemon's directory");
            Error::new(Code::INVALID_CONFIG, msg).with_details(
                "ipam.dataDir must be the directory that the daemon was started with (--data-dir)",
            )
        })?;
        let patience = needed.patience()?;
        self.hub.connections.tell(id, &DAEMON.patience_line(patience));
        self.waiting.insert(id, needed.name.clone());
        self.machine.configured(network.clone(), blocks);
        self.look_at(network);
        self.machine.exhausted(Request {
            id: RequestId(id),
            network: network.clone(),
            pool: needed.set,
            address: needed.address,
            name: needed.name.clone(),
            until: since_boot() + patience,
        });
        Ok(())
    }

    /// Forgets a request whose client has hung up.
    pub(super) fn withdraw(&mut self, id: u64) {
        if self.waiting.remove(&id).is_some() {
            self.machine.withdrawn(RequestId(id));
        }
    }

    /// Answers a request that has waited.
    pub(super) fn reply_to(&mut self, id: u64, reply: Reply) {
        let name = self.waiting.remove(&id).flatten().unwrap_or_default();
        self.answer(id, &answer(&name, reply));
    }
}

/// The answer to an ADD, which needs the address of this name if it has one.
fn answer(name: &str, reply: Reply) -> Result<Answer> {
    match reply {
        Reply::LookAgain => Ok(Answer::Claimed),
        Reply::Full => Ok(Answer::None),
        Reply::Elsewhere { address, node } => Err(elsewhere(name, address, &node)),
        Reply::Settling => {
            let msg = "the node's new blocks are not used yet";
            Err(Error::new(Code::TRY_AGAIN, msg).with_details(SETTLES))
        }
        Reply::Unable(standing) => Err(refusal(&standing)),
    }
}

/// Fails if the daemon cannot claim now.
fn status(standing: Standing) -> Result<wire::Standing> {
    match standing {
        Standing::Connected => Ok(wire::Standing::Connected),
        Standing::Verifying => Ok(wire::Standing::Verifying),
        standing => Err(refusal(&standing)),
    }
}

/// Why a node of this standing claims nothing.
fn refusal(standing: &Standing) -> Error {
    let (code, advice) = match standing {
        Standing::Connected | Standing::Verifying | Standing::Away(_) => (Code::TRY_AGAIN, HELD),
        Standing::NameTaken => (Code::NOT_AVAILABLE, NAME_TAKEN),
        Standing::Restored => (Code::NOT_AVAILABLE, RESTORED),
        Standing::Replaced => (Code::NOT_AVAILABLE, REPLACED),
        Standing::Copied => (Code::NOT_AVAILABLE, COPIED),
        Standing::OtherStore => (Code::NOT_AVAILABLE, OTHER_STORE),
    };
    Error::new(code, standing.to_string()).with_details(advice)
}

/// Another node has the address of a name.
fn elsewhere(name: &str, address: IpAddr, node: &Name) -> Error {
    let msg = format!("{address} of {name:?} is held by node {node}");
    Error::new(Code::TRY_AGAIN, msg).with_details(DETACH)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_standing_is_an_answer_with_its_code_and_the_next_step() {
        let away = Standing::Away("connection refused".to_owned());
        for (standing, code, msg, advice) in [
            (away, 11, "the store cannot be used: connection refused", "stay in use"),
            (Standing::NameTaken, 50, "another machine has the name", "set another node name"),
            (Standing::Restored, 50, "the disk of this node is older", "for 40 s"),
            (Standing::Replaced, 50, "the data directory was replaced", "and reboot this node"),
            (Standing::Copied, 50, "another copy of this machine", "then reboot this one"),
            (
                Standing::OtherStore,
                50,
                "the store is another than before",
                "`cni-multi ipam recover`",
            ),
        ] {
            let of_add = answer("", Reply::Unable(standing.clone())).unwrap_err();
            assert_eq!(of_add, status(standing).unwrap_err());
            assert_eq!(of_add.code.0, code, "{of_add}");
            assert!(of_add.msg.contains(msg) && of_add.details().contains(advice), "{of_add:?}");
        }
        let verifying = answer("", Reply::Unable(Standing::Verifying)).unwrap_err();
        assert_eq!(verifying.code, Code::TRY_AGAIN);
        assert_eq!(status(Standing::Verifying).unwrap(), wire::Standing::Verifying);
        assert_eq!(status(Standing::Connected).unwrap(), wire::Standing::Connected);
    }

    #[test]
    fn the_other_replies_are_answers_or_pass() {
        assert_eq!(answer("", Reply::LookAgain).unwrap(), Answer::Claimed);
        assert_eq!(answer("", Reply::Full).unwrap(), Answer::None);
        let settling = answer("", Reply::Settling).unwrap_err();
        assert!(settling.code == Code::TRY_AGAIN && settling.details().contains("after a minute"));
        let (address, node) = ("10.1.0.9".parse().unwrap(), "n2".parse().unwrap());
        let elsewhere = answer("db-0", Reply::Elsewhere { address, node }).unwrap_err();
        assert_eq!(elsewhere.msg, "10.1.0.9 of \"db-0\" is held by node n2");
        assert!(elsewhere.code == Code::TRY_AGAIN && elsewhere.details().contains("reclaim"));
    }
}
