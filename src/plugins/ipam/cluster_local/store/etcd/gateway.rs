//! What etcd's JSON gateway answers, and what that means for the request. Absent members are zero,
//! false or empty.

use std::num::ParseIntError;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::super::Outcome::{Refused, Unauthenticated};
use super::super::{Failed, http};

/// The codes of gRPC for a refusal before anything is executed: invalid argument, not found, already
/// exists, permission denied, resource exhausted, failed precondition, out of range, unimplemented.
const REFUSALS: [u32; 8] = [3, 5, 6, 7, 8, 9, 11, 12];
const UNAUTHENTICATED: u32 = 16;

/// The member does not have the revision that it was asked for: one that there is would do.
pub const COMPACTED: Failed = Failed::Busy(Duration::ZERO);
/// After a member had too many requests.
const BUSY: Failed = Failed::Busy(Duration::from_millis(500));

const GATEWAY_IS_OFF: &str =
    "the member has no JSON gateway; start etcd without --enable-grpc-gateway=false";
/// The begin of a refusal in plain text, before the gateway reads the request.
const COMMON_NAME: &str = "CommonName of client";

/// A part of the reason of a refusal: what it means, and what the reader can do.
type Known = (&'static str, fn(String) -> Failed, &'static str);

const REASONS: [Known; 11] = [
    ("required revision", |_| COMPACTED, ""), // or a member that is behind the one before
    ("too many requests", |_| BUSY, ""),
    ("auth token", Unauthenticated, ""),
    ("revision of auth store is old", Unauthenticated, ""),
    ("user name not found", Unauthenticated, ""),
    ("user name is empty", Unauthenticated, USERS),
    ("authentication failed", Unauthenticated, "; check etcd.user and etcd.passwordFile"),
    (COMMON_NAME, Unauthenticated, NO_COMMON_NAME),
    ("permission denied", Refused, GRANT),
    ("authentication is not enabled", Refused, "; leave out etcd.user, or `etcdctl auth enable`"),
    ("database space exceeded", Refused, FULL),
];
const USERS: &str = "; authentication is on: set etcd.user and etcd.passwordFile";
const GRANT: &str = "; grant the user a role with readwrite on the prefix /cni-multi/v2/";
const NO_COMMON_NAME: &str = "; with authentication on, etcd's gateway accepts only client \
    certificates without a CommonName: make one, and use etcd.user";
const FULL: &str = "; compact and defragment the store or raise --quota-backend-bytes, then \
    `etcdctl alarm disarm`";

/// A reply, or a part of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Reply {
    /// The header; empty inside a transaction.
    pub header: Header,
    /// The keys of a range, in their order.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit left keys out.
    pub more: bool,
    /// Whether everything compared was true.
    pub succeeded: bool,
    /// One for each operation of a transaction.
    pub responses: Vec<Message>,
    /// What a password was exchanged for.
    pub token: String,
    /// The changes that a watch has seen.
    pub events: Vec<Event>,
    /// Whether the member has ended the watch.
    pub canceled: bool,
    /// Why it has.
    pub cancel_reason: String,
    /// The oldest revision that there is, if the watch asked for an older one.
    pub compact_revision: Number,
}

/// The header of each reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Header {
    /// Tells one etcd from another.
    pub cluster_id: Number,
    /// The revision of the store.
    pub revision: Number,
}

/// A key with its value, both in base64.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KeyValue {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
    /// The revision of its last change.
    pub mod_revision: Number,
}

/// One message of a stream, or the reply to one operation of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Message {
    /// The message, or the reply to a read.
    #[serde(alias = "response_range")]
    pub result: Reply,
    /// The end of the stream.
    pub error: Option<Problem>,
}

/// One change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Event {
    /// PUT, which is absent, or DELETE.
    pub r#type: String,
    /// The key, and its value unless it was deleted.
    pub kv: KeyValue,
}

/// The body of a reply with another status than 200, and the end of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// The reason, in 3.4 and 3.5.
    pub error: String,
    /// The reason.
    pub message: String,
    /// The code of gRPC; of a stream it has another name until 3.6.
    #[serde(alias = "grpc_code")]
    pub code: u32,
}

/// An integer of 64 bits, which the gateway writes as a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Number(pub u64);

impl TryFrom<String> for Number {
    type Error = ParseIntError;

    fn try_from(text: String) -> Result<Number, ParseIntError> {
        text.parse().map(Number)
    }
}

/// Text in base64.
pub fn encode(text: impl AsRef<[u8]>) -> String {
    STANDARD.encode(text)
}

/// The octets of a text in base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Reads what a member has answered. A reason names the member where another might answer something
/// else.
pub fn read(reply: &http::Reply) -> Result<Reply, Failed> {
    let http::Reply { status, body, server } = reply;
    let is_problem = *status != 200;
    let problem = is_problem.then(|| serde_json::from_slice::<Problem>(body).ok()).flatten();
    let done = match problem {
        _ if !is_problem => parse(body),
        Some(problem) if problem.code != 0 => Err(problem.meaning()),
        _ if *status == 404 => Err(Failed::Unreachable(GATEWAY_IS_OFF.to_owned())),
        _ if *status == 400 && body.starts_with(COMMON_NAME.as_bytes()) => {
            Err(meaning(COMMON_NAME, Failed::Unauthenticated))
        }
        _ => {
            let reason = format!("HTTP status {status} without an error object of etcd");
            Err(Failed::Unknown(reason))
        }
    };
    done.map_err(|failed| match failed {
        Failed::Unreachable(reason) => Failed::Unreachable(format!("{server}: {reason}")),
        Failed::Unknown(reason) => Failed::Unknown(format!("{server}: {reason}")),
        failed => failed,
    })
}

/// Parses what comes after a request was sent.
pub fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Failed> {
    let unreadable = |error| Failed::Unknown(format!("the response cannot be read: {error}"));
    serde_json::from_slice(text).map_err(unreadable)
}

impl Problem {
    /// What it means. With any code that is not named it may come after the execution.
    pub fn meaning(&self) -> Failed {
        let reason = if self.message.is_empty() { &self.error } else { &self.message };
        match self.code {
            UNAUTHENTICATED => meaning(reason, Failed::Unauthenticated),
            code if REFUSALS.contains(&code) => meaning(reason, Failed::Refused),
            code => Failed::Unknown(format!("{reason} (code {code})")),
        }
    }
}

impl Reply {
    /// Why the member has ended a watch, if it has.
    pub fn end(&self) -> Option<Failed> {
        let unknown = |reason| Failed::Unknown(format!("the watch was canceled: {reason}"));
        let is_compacted = self.compact_revision.0 > 0;
        self.canceled.then(|| match is_compacted {
            true => COMPACTED,
            false => meaning(&self.cancel_reason, unknown),
        })
    }
}

/// The meaning of a reason that came instead of an execution.
fn meaning(reason: &str, otherwise: impl FnOnce(String) -> Failed) -> Failed {
    match REASONS.iter().find(|(known, ..)| reason.contains(known)) {
        Some((_, meaning, advice)) => meaning(format!("{reason}{advice}")),
        None => otherwise(reason.to_owned()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of_body(status: u16, body: &[u8]) -> Failed {
        read(&http::Reply { status, body: body.to_vec(), server: "S".to_owned() }).unwrap_err()
    }

    fn of(status: u16, code: u32, reason: &str) -> Failed {
        let text = format!(r#"{{"error":"{reason}","message":"{reason}","code":{code}}}"#);
        of_body(status, text.as_bytes())
    }

    #[test]
    fn only_a_refusal_that_comes_first_is_one() {
        type Is = fn(&Failed) -> bool;
        let [refused, unknown]: [Is; 2] = [
            |failed| matches!(failed, Failed::Refused(_)),
            |failed| matches!(failed, Failed::Unknown(_)),
        ];
        let cases: [(u16, u32, &str, Is); 9] = [
            (400, 3, "etcdserver: duplicate key given in txn request", refused),
            (403, 7, "etcdserver: permission denied", refused),
            (429, 8, "etcdserver: mvcc: database space exceeded", refused),
            (503, 14, "etcdserver: request timed out", unknown),
            (500, 2, "x", unknown),
            (499, 1, "context canceled", unknown),
            (429, 8, "etcdserver: too many requests", |failed| *failed == BUSY),
            (400, 11, "etcdserver: mvcc: required revision has been compacted", |failed| {
                *failed == COMPACTED
            }),
            (400, 11, "etcdserver: mvcc: required revision is a future revision", |failed| {
                *failed == COMPACTED
            }),
        ];
        for (status, code, reason, is) in cases {
            let failed = of(status, code, reason);
            assert!(is(&failed), "{reason}: {failed:?}");
        }
        assert!(unknown(&of_body(502, b"<html>")), "a proxy");
        assert!(unknown(&of_body(400, b"{}")));
    }

    #[test]
    fn credentials_are_told_apart() {
        for (status, code, reason) in [
            (401, 16, "etcdserver: invalid auth token"),
            (400, 3, "etcdserver: authentication failed, invalid user ID or password"),
            (400, 3, "etcdserver: user name is empty"),
            (400, 3, "etcdserver: revision of auth store is old"),
        ] {
            assert!(matches!(of(status, code, reason), Failed::Unauthenticated(_)), "{reason}");
        }
        let body = b"CommonName of client sending a request against gateway will be ignored and not used as expected\n";
        assert!(matches!(of_body(400, body), Failed::Unauthenticated(_)));
        assert!(matches!(of_body(400, b"Bad Request"), Failed::Unknown(_)));
    }

    #[test]
    fn refusals_say_what_to_do() {
        let Failed::Refused(full) = of(429, 8, "etcdserver: mvcc: database space exceeded") else {
            panic!("a full store")
        };
        assert!(full.ends_with("`etcdctl alarm disarm`"), "{full}");
        let off = of_body(404, b"404 page not found\n");
        assert_eq!(off, Failed::Unreachable(format!("S: {GATEWAY_IS_OFF}")));
    }

    #[test]
    fn absent_members_are_zero() {
        let lost: Reply = serde_json::from_str(r#"{"header":{"cluster_id":"14841639068965178418","member_id":"10276657743932975437","revision":"5","raft_term":"2"},"responses":[{"response_range":{"header":{"revision":"5"},"kvs":[{"key":"YmxrL2E=","create_revision":"4","mod_revision":"4","version":"1","value":"bjE="}],"count":"1"}}]}"#).unwrap();
        assert_eq!(lost.header.cluster_id, Number(14_841_639_068_965_178_418));
        let found = &lost.responses[0].result.kvs[0];
        assert!(!lost.succeeded);
        assert_eq!(
            (decode(&found.key).unwrap().as_slice(), found.mod_revision),
            (&b"blk/a"[..], Number(4))
        );
        let won: Reply = serde_json::from_str(r#"{"header":{"revision":"4"},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"4"}}}]}"#).unwrap();
        assert!(won.succeeded && won.responses[0].result.kvs.is_empty());
    }

    #[test]
    fn errors_of_each_release_have_a_reason() {
        let old = br#"{"error":"etcdserver: request timed out","message":"etcdserver: request timed out","code":14}"#;
        let new = br#"{"code":14,"message":"etcdserver: request timed out","details":[]}"#;
        for body in [&old[..], new, br#"{"error":"etcdserver: request timed out","code":14}"#] {
            let expected = Failed::Unknown("S: etcdserver: request timed out (code 14)".into());
            assert_eq!(of_body(503, body), expected);
        }
        let stream: Message = serde_json::from_str(r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"Service Unavailable"}}"#).unwrap();
        assert_eq!(stream.error.unwrap().code, 14);
    }

    #[test]
    fn the_end_of_a_watch_has_a_reason() {
        let end = |line: &str| {
            let message: Message = serde_json::from_str(line).unwrap();
            message.result.end().unwrap()
        };
        let compacted =
            r#"{"result":{"header":{"revision":"9"},"canceled":true,"compact_revision":"8"}}"#;
        assert_eq!(end(compacted), COMPACTED);
        let expired = r#"{"result":{"canceled":true,"cancel_reason":"rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"}}"#;
        assert!(matches!(end(expired), Failed::Unauthenticated(_)));
        let denied =
            r#"{"result":{"canceled":true,"cancel_reason":"etcdserver: permission denied"}}"#;
        assert!(matches!(end(denied), Failed::Refused(_)));
    }

    #[test]
    fn hostile_documents_are_refused() {
        let deep = format!("{{\"kvs\":{}", "[".repeat(100_000));
        let nested =
            format!("{}{}", r#"{"responses":[{"response_range":"#.repeat(1000), "}]}".repeat(1000));
        let texts = [
            &deep,
            &nested,
            "",
            "null",
            "{\"kvs\":7}",
            "{\"kvs\":[{\"mod_revision\":\"-1\"}]}",
            "\u{0}",
        ];
        for text in texts {
            let read = serde_json::from_str::<Reply>(text);
            assert!(read.is_err(), "{}", &text[..text.len().min(40)]);
        }
        let unknown = format!("{{\"x\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let _ = serde_json::from_str::<Reply>(&unknown); // an ignored member; it must not overflow the stack
        let numbers =
            ["7", "\"\"", "\"1x\"", "1.5", "\"99999999999999999999\"", "true", "null", "[]"];
        for text in numbers {
            assert!(serde_json::from_str::<Number>(text).is_err(), "{text}");
        }
        assert_eq!(serde_json::from_str::<Number>("\"18446744073709551615\"").unwrap().0, u64::MAX);
    }
}
