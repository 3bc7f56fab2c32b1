//! What etcd's JSON gateway answers, and what that means for the request. Absent members are zero,
//! false or empty.

use std::num::ParseIntError;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::super::{Outcome, http};

/// The codes of gRPC for a refusal before anything is executed: invalid argument, not found, already
/// exists, permission denied, resource exhausted, failed precondition, out of range, unimplemented.
const REFUSALS: [u32; 8] = [3, 5, 6, 7, 8, 9, 11, 12];
const UNAUTHENTICATED: u32 = 16;

/// How long to wait after a member had too many requests.
const BUSY: Duration = Duration::from_millis(500);
const GATEWAY_IS_OFF: &str =
    "the member has no JSON gateway; start etcd without --enable-grpc-gateway=false";

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
    pub responses: Vec<Part>,
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

/// The reply to one operation of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Part {
    /// Of a read.
    pub response_range: Reply,
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

/// One message of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Message {
    /// The message.
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
pub fn encode(text: &[u8]) -> String {
    STANDARD.encode(text)
}

/// The octets of a text in base64.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It compared, and did not write.
    Lost,
    /// It was not executed, and no member will.
    Refused(String),
    /// It was not executed: the member does not have the revision that it asked for.
    Compacted,
    /// It was not executed: the token, or the lack of one, was not accepted.
    Unauthenticated(String),
    /// It was not executed here: the member has too many requests.
    Busy,
    /// It was not executed here.
    Unreachable(String),
    /// It may have been executed, or may still be.
    Unknown(String),
}

impl Verdict {
    /// The meaning of a reply with another status than 200.
    pub fn of(reply: &http::Reply) -> Verdict {
        Verdict::of_body(reply.head.status, &reply.body).of_member(&reply.server)
    }

    /// The same, with the member that has answered where another might answer something else.
    pub fn of_member(self, server: &str) -> Verdict {
        match self {
            Verdict::Unreachable(reason) => Verdict::Unreachable(format!("{server}: {reason}")),
            Verdict::Unknown(reason) => Verdict::Unknown(format!("{server}: {reason}")),
            verdict => verdict,
        }
    }

    fn of_body(status: u16, body: &[u8]) -> Verdict {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) if problem.code != 0 => Verdict::of_problem(&problem),
            _ if status == 404 => Verdict::Unreachable(GATEWAY_IS_OFF.into()),
            // In plain text, before the gateway reads the request.
            _ if status == 400 && body.starts_with(b"CommonName of client") => {
                Verdict::Unauthenticated(explained("CommonName of client"))
            }
            _ => Verdict::Unknown(format!("HTTP status {status} without an error object of etcd")),
        }
    }

    /// The meaning of an error. Any code that is not named may come after the execution.
    pub fn of_problem(problem: &Problem) -> Verdict {
        let Problem { error, message, code } = problem;
        let reason = if message.is_empty() { error } else { message };
        if is_about_credentials(*code, reason) {
            return Verdict::Unauthenticated(explained(reason));
        }
        match *code {
            // Compacted, or of a member that is behind the one before.
            11 if reason.contains("required revision") => Verdict::Compacted,
            8 if reason.contains("too many requests") => Verdict::Busy,
            code if REFUSALS.contains(&code) => Verdict::Refused(explained(reason)),
            code => Verdict::Unknown(format!("{reason} (code {code})")),
        }
    }

    /// Why the member has ended a watch.
    pub fn of_canceled(reply: &Reply) -> Verdict {
        match reply.cancel_reason.as_str() {
            _ if reply.compact_revision.0 > 0 => Verdict::Compacted,
            reason if reason.contains("auth token") => Verdict::Unauthenticated(explained(reason)),
            reason if reason.contains("permission denied") => Verdict::Refused(explained(reason)),
            reason => Verdict::Unknown(format!("the watch was canceled: {reason}")),
        }
    }

    /// The outcome of the operation.
    pub fn outcome<T>(self) -> Outcome<T> {
        match self {
            Verdict::Lost => Outcome::Lost,
            Verdict::Refused(reason) => Outcome::Refused(reason),
            Verdict::Compacted => Outcome::Unknown("the store was compacted during a list".into()),
            Verdict::Unauthenticated(reason) => Outcome::Unauthenticated(reason),
            Verdict::Busy => Outcome::Busy(BUSY),
            Verdict::Unreachable(reason) => Outcome::Unreachable(reason),
            Verdict::Unknown(reason) => Outcome::Unknown(reason),
        }
    }
}

/// etcd reports some of them as invalid arguments.
fn is_about_credentials(code: u32, reason: &str) -> bool {
    let of_argument = [
        "authentication failed",
        "user name is empty",
        "user name not found",
        "revision of auth store is old",
        "CommonName of client",
    ];
    let named = of_argument.iter().any(|text| reason.contains(text));
    code == UNAUTHENTICATED || (code == 3 && named)
}

/// The reason with what the reader can do.
fn explained(reason: &str) -> String {
    let advice = [
        (
            "database space exceeded",
            "compact and defragment the store or raise --quota-backend-bytes, then `etcdctl alarm disarm`",
        ),
        (
            "CommonName of client",
            "with authentication on, etcd's gateway accepts only client certificates without a CommonName: \
             make one, and use etcd.user",
        ),
        ("permission denied", "grant the user a role with readwrite on the prefix /cni-multi/v2/"),
        ("user name is empty", "authentication is on: set etcd.user and etcd.passwordFile"),
        ("authentication failed", "check etcd.user and etcd.passwordFile"),
        ("authentication is not enabled", "leave out etcd.user, or `etcdctl auth enable`"),
    ];
    let found = advice.iter().find(|(text, _)| reason.contains(text));
    found.map_or_else(|| reason.to_owned(), |(_, advice)| format!("{reason}; {advice}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(status: u16, code: u32, reason: &str) -> Verdict {
        Verdict::of_body(
            status,
            format!(r#"{{"error":"{reason}","message":"{reason}","code":{code}}}"#).as_bytes(),
        )
    }

    #[test]
    fn only_a_refusal_that_comes_first_is_one() {
        type Is = fn(&Verdict) -> bool;
        let [refused, unknown]: [Is; 2] = [
            |verdict| matches!(verdict, Verdict::Refused(_)),
            |verdict| matches!(verdict, Verdict::Unknown(_)),
        ];
        let cases: [(u16, u32, &str, Is); 9] = [
            (400, 3, "etcdserver: duplicate key given in txn request", refused),
            (403, 7, "etcdserver: permission denied", refused),
            (429, 8, "etcdserver: mvcc: database space exceeded", refused),
            (503, 14, "etcdserver: request timed out", unknown),
            (500, 2, "x", unknown),
            (499, 1, "context canceled", unknown),
            (429, 8, "etcdserver: too many requests", |verdict| *verdict == Verdict::Busy),
            (400, 11, "etcdserver: mvcc: required revision has been compacted", |verdict| {
                *verdict == Verdict::Compacted
            }),
            (400, 11, "etcdserver: mvcc: required revision is a future revision", |verdict| {
                *verdict == Verdict::Compacted
            }),
        ];
        for (status, code, reason, is) in cases {
            let verdict = of(status, code, reason);
            assert!(is(&verdict), "{reason}: {verdict:?}");
        }
        assert!(unknown(&Verdict::of_body(502, b"<html>")), "a proxy");
        assert!(unknown(&Verdict::of_body(400, b"{}")));
    }

    #[test]
    fn credentials_are_told_apart() {
        for (status, code, reason) in [
            (401, 16, "etcdserver: invalid auth token"),
            (400, 3, "etcdserver: authentication failed, invalid user ID or password"),
            (400, 3, "etcdserver: user name is empty"),
            (400, 3, "etcdserver: revision of auth store is old"),
        ] {
            assert!(matches!(of(status, code, reason), Verdict::Unauthenticated(_)), "{reason}");
        }
        let body = b"CommonName of client sending a request against gateway will be ignored and not used as expected\n";
        assert!(matches!(Verdict::of_body(400, body), Verdict::Unauthenticated(_)));
        assert!(matches!(Verdict::of_body(400, b"Bad Request"), Verdict::Unknown(_)));
    }

    #[test]
    fn refusals_say_what_to_do() {
        let Verdict::Refused(full) = of(429, 8, "etcdserver: mvcc: database space exceeded") else {
            panic!("a full store")
        };
        assert!(full.ends_with("`etcdctl alarm disarm`"), "{full}");
        let off = Verdict::of_body(404, b"404 page not found\n");
        assert_eq!(off, Verdict::Unreachable(GATEWAY_IS_OFF.into()));
    }

    #[test]
    fn absent_members_are_zero() {
        let lost: Reply = serde_json::from_str(r#"{"header":{"cluster_id":"14841639068965178418","member_id":"10276657743932975437","revision":"5","raft_term":"2"},"responses":[{"response_range":{"header":{"revision":"5"},"kvs":[{"key":"YmxrL2E=","create_revision":"4","mod_revision":"4","version":"1","value":"bjE="}],"count":"1"}}]}"#).unwrap();
        assert_eq!(lost.header.cluster_id, Number(14_841_639_068_965_178_418));
        let found = &lost.responses[0].response_range.kvs[0];
        assert!(!lost.succeeded);
        assert_eq!(
            (decode(&found.key).unwrap().as_slice(), found.mod_revision),
            (&b"blk/a"[..], Number(4))
        );
        let won: Reply = serde_json::from_str(r#"{"header":{"revision":"4"},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"4"}}}]}"#).unwrap();
        assert!(won.succeeded && won.responses[0].response_range.kvs.is_empty());
    }

    #[test]
    fn errors_of_each_release_have_a_reason() {
        let old = br#"{"error":"etcdserver: request timed out","message":"etcdserver: request timed out","code":14}"#;
        let new = br#"{"code":14,"message":"etcdserver: request timed out","details":[]}"#;
        for body in [&old[..], new, br#"{"error":"etcdserver: request timed out","code":14}"#] {
            let expected = Verdict::Unknown("etcdserver: request timed out (code 14)".into());
            assert_eq!(Verdict::of_body(503, body), expected);
        }
        let stream: Message = serde_json::from_str(r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"Service Unavailable"}}"#).unwrap();
        assert_eq!(stream.error.unwrap().code, 14);
    }

    #[test]
    fn the_end_of_a_watch_has_a_reason() {
        let end = |line: &str| {
            let message: Message = serde_json::from_str(line).unwrap();
            assert!(message.result.canceled);
            Verdict::of_canceled(&message.result)
        };
        let compacted =
            r#"{"result":{"header":{"revision":"9"},"canceled":true,"compact_revision":"8"}}"#;
        assert_eq!(end(compacted), Verdict::Compacted);
        let expired = r#"{"result":{"canceled":true,"cancel_reason":"rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"}}"#;
        assert!(matches!(end(expired), Verdict::Unauthenticated(_)));
        let denied =
            r#"{"result":{"canceled":true,"cancel_reason":"etcdserver: permission denied"}}"#;
        assert!(matches!(end(denied), Verdict::Refused(_)));
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
