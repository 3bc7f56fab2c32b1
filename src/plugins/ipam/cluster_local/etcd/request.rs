//! What is asked of the gateway.

use serde::Serialize;

use super::encoding::{Number, Octets};
use super::endpoint::Endpoint;

/// A request: the method's path and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The path of the method.
    pub path: &'static str,
    /// JSON.
    pub body: String,
    /// Whether a second execution changes nothing: then an unknown outcome is no concern.
    pub is_read: bool,
}

/// The path of the stream of changes.
pub const WATCH: &str = "/v3/watch";

impl Request {
    fn of(path: &'static str, body: &impl Serialize) -> Request {
        // The types below have no map with other keys than texts, the one thing that fails.
        let body = serde_json::to_string(body).unwrap_or_default();
        Request { path, body, is_read: false }
    }

    /// Reads a range of keys. A read is always linearizable: the minority side of a partition
    /// answers a serializable one at once, with stale values.
    pub fn range(range: &Range) -> Request {
        Request { is_read: true, ..Request::of("/v3/kv/range", range) }
    }

    /// Executes a transaction.
    pub fn txn(txn: &Txn) -> Request {
        Request::of("/v3/kv/txn", txn)
    }

    /// Reads keys at one revision.
    pub fn read_txn(reads: Vec<Operation>) -> Request {
        let txn = Txn { success: reads, ..Txn::default() };
        Request { is_read: true, ..Request::txn(&txn) }
    }

    /// Makes a lease of so many seconds. A lease that nothing is attached to does no harm, so that
    /// the request may be repeated.
    pub fn grant(seconds: u64) -> Request {
        let grant = Grant { ttl: Number(seconds), id: Number(0) };
        Request { is_read: true, ..Request::of("/v3/lease/grant", &grant) }
    }

    /// Renews a lease.
    pub fn keep_alive(lease: u64) -> Request {
        Request {
            is_read: true,
            ..Request::of("/v3/lease/keepalive", &KeepAlive { id: Number(lease) })
        }
    }

    /// Exchanges a password for a token.
    pub fn authenticate(name: &str, password: &str) -> Request {
        let body = Authenticate { name, password };
        Request { is_read: true, ..Request::of("/v3/auth/authenticate", &body) }
    }

    /// Asks for the changes of a range of keys from a revision on.
    pub fn watch(keys: &KeyRange, from: u64) -> Request {
        let create_request = Create { keys, start_revision: Number(from) };
        Request { is_read: true, ..Request::of(WATCH, &Watch { create_request }) }
    }

    /// The request in HTTP/1.1. The token is from the gateway and has no line breaks.
    pub fn to_http(&self, endpoint: &Endpoint, token: Option<&str>) -> Vec<u8> {
        let Request { path, body, .. } = self;
        let (host, length) = (endpoint.authority(), body.len());
        let authorization =
            token.map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
        format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\n{authorization}Content-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }
}

/// The keys from `key` on and before `range_end`; only `key` if that is None.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KeyRange {
    /// The first key.
    pub key: Octets,
    /// The key after the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<Octets>,
}

impl KeyRange {
    /// One key.
    pub fn one(key: &str) -> KeyRange {
        KeyRange { key: Octets::of(key), range_end: None }
    }

    /// All keys that begin with a text, which ends with an ASCII character.
    pub fn prefix(prefix: &str) -> KeyRange {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        KeyRange { key: Octets::of(prefix), range_end: Some(Octets(end)) }
    }
}

/// A read of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Range {
    /// The keys.
    #[serde(flatten)]
    pub keys: KeyRange,
    /// The most keys in the answer; 0 for no limit.
    pub limit: Number,
    /// The revision to read at; 0 for the newest.
    pub revision: Number,
    /// Whether values are left out.
    pub keys_only: bool,
}

/// A transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Txn {
    /// What has to be true.
    pub compare: Vec<Compare>,
    /// What happens if everything is true.
    pub success: Vec<Operation>,
    /// What happens otherwise.
    pub failure: Vec<Operation>,
}

/// A comparison with EQUAL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Compare {
    #[serde(flatten)]
    keys: KeyRange,
    #[serde(flatten)]
    target: Target,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "target", rename_all = "UPPERCASE")]
enum Target {
    Create { create_revision: Number },
    Mod { mod_revision: Number },
    Value { value: Octets },
}

impl Compare {
    /// No key of the range exists.
    pub fn absent(keys: KeyRange) -> Compare {
        Compare { keys, target: Target::Create { create_revision: Number(0) } }
    }

    /// The key was last changed at this revision; 0 if it must not exist.
    pub fn unchanged(key: &str, revision: u64) -> Compare {
        Compare { keys: KeyRange::one(key), target: Target::Mod { mod_revision: Number(revision) } }
    }

    /// The key exists with this value.
    pub fn value(key: &str, value: Octets) -> Compare {
        Compare { keys: KeyRange::one(key), target: Target::Value { value } }
    }
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Operation {
    /// Writes a key.
    #[serde(rename = "requestPut")]
    Put {
        /// The key.
        key: Octets,
        /// The value.
        value: Octets,
        /// The lease that it is attached to; 0 for none.
        lease: Number,
    },
    /// Reads keys.
    #[serde(rename = "requestRange")]
    Range(Range),
    /// Deletes keys.
    #[serde(rename = "requestDeleteRange")]
    Delete(KeyRange),
}

impl Operation {
    /// Writes a key without a lease.
    pub fn put(key: &str, value: Octets) -> Operation {
        Operation::Put { key: Octets::of(key), value, lease: Number(0) }
    }

    /// Reads one key.
    pub fn get(key: &str) -> Operation {
        Operation::Range(Range { keys: KeyRange::one(key), ..Range::default() })
    }

    /// Deletes one key.
    pub fn delete(key: &str) -> Operation {
        Operation::Delete(KeyRange::one(key))
    }
}

#[derive(Serialize)]
struct Grant {
    #[serde(rename = "TTL")]
    ttl: Number,
    #[serde(rename = "ID")]
    id: Number,
}

#[derive(Serialize)]
struct KeepAlive {
    #[serde(rename = "ID")]
    id: Number,
}

#[derive(Serialize)]
struct Authenticate<'a> {
    name: &'a str,
    password: &'a str,
}

#[derive(Serialize)]
struct Watch<'a> {
    create_request: Create<'a>,
}

#[derive(Serialize)]
struct Create<'a> {
    #[serde(flatten)]
    keys: &'a KeyRange,
    start_revision: Number,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_what_the_gateway_reads() {
        let txn = Txn {
            compare: vec![
                Compare::absent(KeyRange::prefix("a/")),
                Compare::unchanged("b", 7),
                Compare::value("c", Octets::of("1")),
            ],
            success: vec![Operation::put("d", Octets::of("2")), Operation::delete("e")],
            failure: vec![Operation::get("d")],
        };
        assert_eq!(
            Request::txn(&txn).body,
            r#"{"compare":[{"key":"YS8=","range_end":"YTA=","target":"CREATE","create_revision":"0"},{"key":"Yg==","target":"MOD","mod_revision":"7"},{"key":"Yw==","target":"VALUE","value":"MQ=="}],"success":[{"requestPut":{"key":"ZA==","value":"Mg==","lease":"0"}},{"requestDeleteRange":{"key":"ZQ=="}}],"failure":[{"requestRange":{"key":"ZA==","limit":"0","revision":"0","keys_only":false}}]}"#
        );
        assert_eq!(Request::grant(60).body, r#"{"TTL":"60","ID":"0"}"#);
        assert_eq!(Request::keep_alive(1 << 62).body, r#"{"ID":"4611686018427387904"}"#);
        assert_eq!(
            Request::watch(&KeyRange::prefix("a/"), 5).body,
            r#"{"create_request":{"key":"YS8=","range_end":"YTA=","start_revision":"5"}}"#
        );
    }

    #[test]
    fn no_read_is_serializable() {
        let range = Range { keys: KeyRange::prefix("a/"), ..Range::default() };
        assert!(!Request::range(&range).body.contains("serializable"));
    }

    #[test]
    fn a_request_is_posted_with_its_token() {
        let endpoint = Endpoint::parse("https://[fd00::1]:2379").unwrap();
        let http = Request::keep_alive(1).to_http(&endpoint, Some("abc.7"));
        assert_eq!(
            String::from_utf8(http).unwrap(),
            "POST /v3/lease/keepalive HTTP/1.1\r\nHost: [fd00::1]:2379\r\nAuthorization: abc.7\r\n\
             Content-Type: application/json\r\nContent-Length: 10\r\n\r\n{\"ID\":\"1\"}"
        );
    }
}
