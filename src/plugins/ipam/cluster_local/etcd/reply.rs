//! What the gateway answers. Absent members are zero, false or empty.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::encoding::{Number, Octets};

/// The header of each reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Header {
    /// The revision of the store.
    pub revision: Number,
}

/// The reply to a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RangeReply {
    /// The header; absent inside a transaction.
    pub header: Header,
    /// The keys, in their order.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit left keys out.
    pub more: bool,
}

/// A key with its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KeyValue {
    /// The key.
    pub key: Octets,
    /// The value.
    pub value: Octets,
    /// The revision of its last change.
    pub mod_revision: Number,
    /// The lease that it is attached to.
    pub lease: Number,
}

/// The reply to a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TxnReply {
    /// The header.
    pub header: Header,
    /// Whether everything compared was true.
    pub succeeded: bool,
    /// One for each operation that was executed.
    pub responses: Vec<OperationReply>,
}

/// The reply to one operation of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OperationReply {
    /// Of a read.
    pub response_range: RangeReply,
}

impl TxnReply {
    /// The keys that the transaction has read, of all its operations.
    pub fn kvs(&self) -> impl Iterator<Item = &KeyValue> {
        self.responses.iter().flat_map(|reply| &reply.response_range.kvs)
    }
}

/// The reply to a request for a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LeaseReply {
    /// The header.
    pub header: Header,
    /// The lease.
    #[serde(rename = "ID")]
    pub id: Number,
    /// Its lifetime in seconds; 0 if there is no such lease.
    #[serde(rename = "TTL")]
    pub ttl: Number,
}

/// The reply to a password.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct TokenReply {
    /// The token.
    pub token: String,
}

/// One message of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, bound(deserialize = "T: Deserialize<'de> + Default"))]
pub struct Message<T> {
    /// The message.
    pub result: Option<T>,
    /// The end of the stream.
    pub error: Option<StreamError>,
}

/// Why a stream has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StreamError {
    /// The code of gRPC; `code` in 3.6.
    #[serde(alias = "code")]
    pub grpc_code: u32,
    /// The reason.
    pub message: String,
}

/// A message about changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct WatchReply {
    /// The header.
    pub header: Header,
    /// Whether the watch has begun.
    pub created: bool,
    /// Whether the member has ended the watch.
    pub canceled: bool,
    /// The oldest revision that there is, if an older one was asked for.
    pub compact_revision: Number,
    /// Why the watch was ended.
    pub cancel_reason: String,
    /// The changes.
    pub events: Vec<Event>,
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

/// The body of a reply with another status than 200.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ErrorReply {
    /// The reason, in 3.4 and 3.5.
    pub error: String,
    /// The reason.
    pub message: String,
    /// The code of gRPC.
    pub code: u32,
}

impl ErrorReply {
    /// The reason, of whichever release.
    pub fn reason(&self) -> &str {
        if self.message.is_empty() { &self.error } else { &self.message }
    }
}

/// Why a reply is of no use.
pub type Flaw = String;

/// A number that a real reply always has.
pub fn known(number: Number) -> Result<u64, Flaw> {
    if number.0 == 0 { Err("the response is none of etcd's".into()) } else { Ok(number.0) }
}

/// Decodes a body. serde_json refuses documents that are nested deeper than 128 levels.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| format!("the response cannot be read: {error}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn absent_members_are_zero() {
        let lost: TxnReply = decode(br#"{"header":{"cluster_id":"14841639068965178418","member_id":"10276657743932975437","revision":"5","raft_term":"2"},"responses":[{"response_range":{"header":{"revision":"5"},"kvs":[{"key":"YmxrL2E=","create_revision":"4","mod_revision":"4","version":"1","value":"bjE="}],"count":"1"}}]}"#).unwrap();
        assert!(!lost.succeeded);
        let found: Vec<_> = lost.kvs().map(|kv| (kv.key.text(), kv.mod_revision.0)).collect();
        assert_eq!(found, [(Some("blk/a"), 4)]);
        let won: TxnReply = decode(br#"{"header":{"revision":"4"},"succeeded":true,"responses":[{"response_put":{"header":{"revision":"4"}}}]}"#).unwrap();
        assert!(won.succeeded && won.kvs().next().is_none());
        let empty: RangeReply = decode(br#"{"header":{"revision":"9"}}"#).unwrap();
        assert_eq!((empty.kvs, empty.more, empty.header.revision), (vec![], false, Number(9)));
    }

    #[test]
    fn errors_of_each_release_have_a_reason() {
        let old = br#"{"error":"etcdserver: request timed out","message":"etcdserver: request timed out","code":14}"#;
        let new = br#"{"code":14,"message":"etcdserver: request timed out","details":[]}"#;
        for body in [&old[..], new] {
            let reply: ErrorReply = decode(body).unwrap();
            assert_eq!((reply.reason(), reply.code), ("etcdserver: request timed out", 14));
        }
        let stream: Message<WatchReply> = decode(br#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader","http_status":"Service Unavailable"}}"#).unwrap();
        assert_eq!(stream.error.unwrap().grpc_code, 14);
    }

    #[test]
    fn a_compacted_watch_says_so() {
        let line =
            br#"{"result":{"header":{"revision":"9"},"canceled":true,"compact_revision":"8"}}"#;
        let reply: Message<WatchReply> = decode(line).unwrap();
        let reply = reply.result.unwrap();
        assert_eq!((reply.canceled, reply.compact_revision), (true, Number(8)));
    }

    #[test]
    fn hostile_documents_are_refused() {
        let deep = format!("{{\"kvs\":{}", "[".repeat(100_000));
        let unknown = format!("{{\"x\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        for text in
            [deep.as_str(), "", "null", "{\"kvs\":7}", "{\"kvs\":[{\"key\":\"*\"}]}", "\u{0}"]
        {
            assert!(
                decode::<RangeReply>(text.as_bytes()).is_err(),
                "{}",
                &text[..text.len().min(40)]
            );
        }
        let _ = decode::<RangeReply>(unknown.as_bytes()); // an ignored member; it must not overflow the stack
    }
}
