//! The requests of plugins, and their answers.

use super::super::held::Blocks;
use super::super::machine::{Reply, Request, RequestId, Standing};
use super::super::wire::{self, Answer, DAEMON, Needed};
use super::{Daemon, files};
use crate::error::{Code, Error, Result};
use crate::sys::clock::since_boot;

impl Daemon {
    /// Handles a request; the answer may have to wait for the store.
    pub(super) fn take_request(&mut self, id: u64, line: &[u8]) {
        match DAEMON.read_request(line) {
            Ok(wire::Request::Need(needed)) => {
                if let Err(error) = self.need(id, &needed) {
                    self.answer::<()>(id, &Err(error));
                }
            }
            Ok(wire::Request::Status) => self.answer(id, &status(self.machine.standing())),
            Ok(wire::Request::Metrics) => {
                self.look(since_boot());
                let text = self.metrics.text(&self.machine);
                self.answer(id, &Ok(text));
            }
            Err(error) => self.answer::<()>(id, &Err(error)),
        }
    }

    pub(super) fn answer<A: serde::Serialize>(&mut self, id: u64, answer: &Result<A>) {
        self.hub.connections.answer(id, &DAEMON.answer_line(answer), since_boot());
    }

    /// Gives the machine an ADD that found nothing free, with the network as it is now.
    fn need(&mut self, id: u64, needed: &Needed) -> Result<()> {
        let network = &needed.network;
        let place = files::place(&self.data_dir, network);
        let blocks = Blocks::read(place.dir())?.ok_or_else(|| {
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
}

/// The answer to an ADD, which needs the address of this name if it has one.
pub fn answer(name: &str, reply: Reply) -> Result<Answer> {
    let (msg, advice) = match reply {
        Reply::LookAgain => return Ok(Answer::Claimed),
        Reply::Full => return Ok(Answer::None),
        Reply::Unable(standing) => return Err(refusal(&standing)),
        Reply::Elsewhere { address, node } => (
            format!("{address} of {name:?} is held by node {node}"),
            "the name moves to this node after the DEL of its container there; if that node is gone \
             for good, reclaim it with `cni-multi ipam reclaim`",
        ),
        Reply::Settling => (
            "the node's new blocks are not used yet".to_owned(),
            "it is after a minute: the store may have been restored from a backup",
        ),
    };
    Err(Error::new(Code::TRY_AGAIN, msg).with_details(advice))
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
    let error = |code, advice| Error::new(code, standing.to_string()).with_details(advice);
    let advice = match standing {
        Standing::Connected | Standing::Verifying | Standing::Away(_) => {
            let advice = "blocks that the node holds stay in use; the log of the daemon has more";
            return error(Code::TRY_AGAIN, advice);
        }
        Standing::NameTaken => {
            "set another node name in /etc/cni-multi/ipam.json and restart the daemon; if the other \
             machine is gone for good, reclaim the name with `cni-multi ipam reclaim`"
        }
        Standing::Restored => {
            "the daemon goes on once the record has not moved for 40 s; if another machine runs with \
             this identity, stop one of them"
        }
        Standing::Replaced => {
            "put the directory of before in its place if it has to stay, and reboot this node"
        }
        Standing::Copied => "stop the other machine, then reboot this one",
        Standing::OtherStore => {
            "blocks that the node holds stay in use; correct the endpoints in \
             /etc/cni-multi/ipam.json, or accept this store with `cni-multi ipam recover`"
        }
    };
    error(Code::NOT_AVAILABLE, advice)
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
