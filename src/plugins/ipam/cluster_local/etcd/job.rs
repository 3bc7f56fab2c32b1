//! An operation under way: the requests that it takes, one after the other, and its outcome.

use super::super::engine::{Answer, LeaseId, Operation, Outcome};
use super::encoding::Number;
use super::found;
use super::keys::Keys;
use super::pages::Pages;
pub use super::reply::{Flaw, known};
use super::reply::{KeyValue, LeaseReply, Message, TxnReply, decode};
use super::request::Request;
use super::write::{self, Subject};

/// An operation under way.
#[derive(Debug)]
pub struct Job {
    operation: Operation,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// One transaction does it.
    Transaction {
        /// What its key is attached to; 0 for nothing.
        lease: u64,
    },
    /// The lease for the transaction is granted.
    Grant,
    /// The lease is kept alive.
    KeepAlive(LeaseId),
    /// The lease has ended: the node's keys are read.
    Ended,
    /// A page of a list is read.
    Page(Pages),
}

/// What comes next.
#[derive(Debug)]
pub enum Next {
    /// Another request.
    Request,
    /// The end.
    Finished(Outcome),
}

impl Job {
    /// Begins an operation.
    pub fn new(operation: Operation, keys: &Keys) -> Job {
        let stage = match &operation {
            Operation::Heartbeat { lease: Some(lease), .. } => Stage::KeepAlive(*lease),
            Operation::Heartbeat { lease: None, .. } | Operation::Want { want: Some(_), .. } => {
                Stage::Grant
            }
            Operation::List { realm } => Stage::Page(Pages::of_realm(keys, realm)),
            Operation::Survey => Stage::Page(Pages::of_cluster(keys)),
            _ => Stage::Transaction { lease: 0 },
        };
        Job { operation, stage }
    }

    /// The operation.
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// The next request.
    pub fn request(&self, keys: &Keys) -> Request {
        match &self.stage {
            Stage::Transaction { lease } => self.transaction(keys, *lease),
            Stage::Grant => Request::grant(self.ttl()),
            Stage::KeepAlive(lease) => Request::keep_alive(lease.0.cast_unsigned()),
            Stage::Ended => Request::read_txn(Subject::of(&self.operation).reads(keys)),
            Stage::Page(pages) => Request::range(&pages.next()),
        }
    }

    /// Handles the reply to the last request.
    pub fn replied(&mut self, keys: &Keys, body: &[u8]) -> Result<Next, Flaw> {
        match &mut self.stage {
            Stage::Transaction { lease } => {
                let lease = LeaseId(lease.cast_signed());
                self.concluded(keys, &decode(body)?, lease).map(Next::Finished)
            }
            Stage::Grant => {
                let granted: LeaseReply = decode(body)?;
                self.stage = Stage::Transaction { lease: known(granted.id)? };
                Ok(Next::Request)
            }
            Stage::KeepAlive(lease) => {
                let lease = *lease;
                self.kept_alive(lease, body)
            }
            Stage::Ended => {
                let reply: TxnReply = decode(body)?;
                self.lost(keys, &reply).map(Next::Finished)
            }
            Stage::Page(pages) => {
                let ended = pages.add(keys, decode(body)?)?;
                Ok(ended.map_or(Next::Request, Next::Finished))
            }
        }
    }

    /// The revision of a list was compacted between two pages: the list starts again.
    pub fn compacted(&mut self, keys: &Keys) -> Next {
        let Stage::Page(pages) = &mut self.stage else {
            return Next::Finished(Outcome::Refused { reason: "the revision is compacted".into() });
        };
        match pages.restart(keys) {
            Ok(()) => Next::Request,
            Err(reason) => Next::Finished(Outcome::Unreachable { reason }),
        }
    }

    fn transaction(&self, keys: &Keys, lease: u64) -> Request {
        let txn = write::txn(keys, &self.operation, lease);
        match self.operation.writes() {
            true => Request::txn(&txn),
            false => Request::read_txn(txn.success),
        }
    }

    /// How long a lease lasts, in seconds.
    fn ttl(&self) -> u64 {
        match &self.operation {
            Operation::Heartbeat { ttl, .. } | Operation::Want { ttl, .. } => (*ttl).into(),
            _ => 0,
        }
    }

    fn kept_alive(&mut self, lease: LeaseId, body: &[u8]) -> Result<Next, Flaw> {
        let message: Message<LeaseReply> = decode(body)?;
        if let Some(error) = message.error {
            return Err(error.message);
        }
        let reply = message.result.unwrap_or_default();
        let revision = known(reply.header.revision)?;
        if reply.ttl == Number(0) {
            self.stage = Stage::Ended;
            return Ok(Next::Request);
        }
        Ok(Next::Finished(Outcome::Done { revision, answer: Answer::Lease(lease) }))
    }

    fn concluded(&self, keys: &Keys, reply: &TxnReply, lease: LeaseId) -> Result<Outcome, Flaw> {
        let revision = known(reply.header.revision)?;
        if self.operation.writes() && !reply.succeeded {
            return self.lost(keys, reply);
        }
        let answer = match &self.operation {
            Operation::ReadNode { node } => match found::node(keys, Some(node), reply.kvs()) {
                Ok(state) => Answer::Node(state),
                Err(reason) => return Ok(Outcome::Refused { reason }),
            },
            Operation::ReadBlock { realm, block } => {
                Answer::Realm(found::overlapping(keys, (realm, *block), reply.kvs()))
            }
            Operation::Heartbeat { .. } => Answer::Lease(lease),
            _ => Answer::Written,
        };
        Ok(Outcome::Done { revision, answer })
    }

    fn lost(&self, keys: &Keys, reply: &TxnReply) -> Result<Outcome, Flaw> {
        let revision = known(reply.header.revision)?;
        let subject = Subject::of(&self.operation);
        let kvs: Vec<&KeyValue> = reply.kvs().collect();
        Ok(match found::rival(keys, subject, &kvs) {
            Ok(rival) => Outcome::Lost { revision, rival: Box::new(rival) },
            Err(reason) => Outcome::Refused { reason },
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn list() -> (Keys, Job) {
        let keys = Keys::of(&"c".parse().unwrap());
        let job = Job::new(Operation::List { realm: "default".parse().unwrap() }, &keys);
        (keys, job)
    }

    fn is_finished(next: &Next) -> bool {
        matches!(next, Next::Finished(_))
    }

    #[test]
    fn pages_of_a_list_are_read_at_the_revision_of_the_first() {
        let (keys, mut job) = list();
        assert!(job.request(&keys).body.contains(r#""limit":"1000","revision":"0""#));
        // "/cni-multi/v1/c/r/default/b/4-0a580100-26"
        let key = "L2NuaS1tdWx0aS92MS9jL3IvZGVmYXVsdC9iLzQtMGE1ODAxMDAtMjY=";
        let page = format!(
            r#"{{"header":{{"revision":"7"}},"more":true,"kvs":[{{"key":"{key}","mod_revision":"3"}}]}}"#
        );
        assert!(!is_finished(&job.replied(&keys, page.as_bytes()).unwrap()));
        let next = job.request(&keys).body;
        // The key with a zero octet behind it.
        assert!(
            next.contains(r#""key":"L2NuaS1tdWx0aS92MS9jL3IvZGVmYXVsdC9iLzQtMGE1ODAxMDAtMjYA""#),
            "{next}"
        );
        assert!(next.contains(r#""revision":"7""#), "{next}");
        let empty = br#"{"header":{"revision":"9"}}"#;
        for _ in 0..3 {
            assert!(!is_finished(&job.replied(&keys, empty).unwrap()));
        }
        let last = job.replied(&keys, empty).unwrap();
        let Next::Finished(Outcome::Done { revision: 7, answer: Answer::Realm(state) }) = last
        else {
            panic!("{last:?}")
        };
        assert_eq!(state.blocks.len(), 1);
    }

    #[test]
    fn a_list_that_is_compacted_begins_anew_but_not_for_ever() {
        let (keys, mut job) = list();
        job.replied(&keys, br#"{"header":{"revision":"7"}}"#).unwrap();
        for _ in 0..crate::plugins::ipam::cluster_local::etcd::pages::RESTARTS {
            assert!(!is_finished(&job.compacted(&keys)));
            assert!(job.request(&keys).body.contains(r#""revision":"0""#));
        }
        assert!(matches!(job.compacted(&keys), Next::Finished(Outcome::Unreachable { .. })));
    }

    #[test]
    fn replies_that_are_none_of_etcd_s_are_flaws() {
        let (keys, _) = list();
        let node = || "n1".parse().unwrap();
        let beat = |lease| Operation::Heartbeat {
            node: node(),
            boot: "b".into(),
            lease,
            ttl: 60,
            node_revision: 1,
        };
        for operation in [
            Operation::List { realm: node() },
            Operation::ReadNode { node: node() },
            beat(None),
            Operation::Recover { seen: 1 },
        ] {
            let mut job = Job::new(operation, &keys);
            for body in [&b"{}"[..], b"", br#"{"header":{"revision":"0"}}"#] {
                assert!(job.replied(&keys, body).is_err(), "{job:?}");
            }
        }
        let mut kept = Job::new(beat(Some(LeaseId(7))), &keys);
        let error = br#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#;
        assert_eq!(kept.replied(&keys, error).unwrap_err(), "etcdserver: no leader");
    }
}
