//! What a reply means for the request: whether it was executed, and where to go next.

use super::reply::{self, ErrorReply};

/// The codes of gRPC that etcd answers with.
mod code {
    pub const INVALID_ARGUMENT: u32 = 3;
    pub const NOT_FOUND: u32 = 5;
    pub const ALREADY_EXISTS: u32 = 6;
    pub const PERMISSION_DENIED: u32 = 7;
    pub const RESOURCE_EXHAUSTED: u32 = 8;
    pub const FAILED_PRECONDITION: u32 = 9;
    pub const OUT_OF_RANGE: u32 = 11;
    pub const UNIMPLEMENTED: u32 = 12;
    pub const UNAUTHENTICATED: u32 = 16;
}

/// The meaning of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request was executed.
    Done,
    /// It was not executed, and no member will.
    Refused(String),
    /// It was not executed: the revision that it asked for is compacted.
    Compacted,
    /// It was not executed: the token, or the lack of one, was not accepted.
    Unauthenticated(String),
    /// It was not executed here; another member may.
    Elsewhere(String),
    /// It may have been executed, or may still be.
    Unknown(String),
}

impl Verdict {
    /// The meaning of a reply with this status and body.
    pub fn of(status: u16, body: &[u8]) -> Verdict {
        if status == 200 {
            return Verdict::Done;
        }
        match reply::decode::<ErrorReply>(body) {
            Ok(reply) if reply.code != 0 => Verdict::of_code(reply.code, reply.reason()),
            _ if status == 404 => Verdict::Elsewhere(GATEWAY_IS_OFF.into()),
            // In plain text, before the gateway reads the request.
            _ if status == 400 && body.starts_with(b"CommonName of client") => {
                Verdict::of_code(code::INVALID_ARGUMENT, "CommonName of client")
            }
            _ => Verdict::Unknown(format!("HTTP status {status} without an error object of etcd")),
        }
    }

    /// The meaning of a code of gRPC. Any code that is not named may come after the execution.
    pub fn of_code(code: u32, reason: &str) -> Verdict {
        if is_about_credentials(code, reason) {
            return Verdict::Unauthenticated(explained(reason));
        }
        match code {
            code::OUT_OF_RANGE if reason.contains("has been compacted") => Verdict::Compacted,
            code::RESOURCE_EXHAUSTED if reason.contains("too many requests") => {
                Verdict::Elsewhere(reason.to_owned())
            }
            code::INVALID_ARGUMENT
            | code::NOT_FOUND
            | code::ALREADY_EXISTS
            | code::PERMISSION_DENIED
            | code::RESOURCE_EXHAUSTED
            | code::FAILED_PRECONDITION
            | code::OUT_OF_RANGE
            | code::UNIMPLEMENTED => Verdict::Refused(explained(reason)),
            _ => Verdict::Unknown(format!("{reason} (code {code})")),
        }
    }
}

const GATEWAY_IS_OFF: &str =
    "the member has no JSON gateway; start etcd without --enable-grpc-gateway=false";

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
    code == code::UNAUTHENTICATED || (code == code::INVALID_ARGUMENT && named)
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
        ("permission denied", "grant the user a role with readwrite on the prefix /cni-multi/v1/"),
        ("user name is empty", "authentication is on: set etcd.user and etcd.passwordFile"),
        ("authentication failed", "check etcd.user and etcd.passwordFile"),
        ("authentication is not enabled", "leave out etcd.user, or `etcdctl auth enable`"),
    ];
    let found = advice.iter().find(|(text, _)| reason.contains(text));
    found.map_or_else(|| reason.to_owned(), |(_, advice)| format!("{reason}; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, code: u32, reason: &str) -> Verdict {
        Verdict::of(
            status,
            format!(r#"{{"error":"{reason}","message":"{reason}","code":{code}}}"#).as_bytes(),
        )
    }

    #[test]
    fn only_a_refusal_that_comes_first_is_one() {
        assert_eq!(Verdict::of(200, b"anything"), Verdict::Done);
        assert!(matches!(
            of(400, 3, "etcdserver: duplicate key given in txn request"),
            Verdict::Refused(_)
        ));
        assert!(matches!(of(403, 7, "etcdserver: permission denied"), Verdict::Refused(_)));
        assert!(matches!(of(503, 14, "etcdserver: request timed out"), Verdict::Unknown(_)));
        assert!(matches!(of(500, 2, "x"), Verdict::Unknown(_)));
        assert!(matches!(of(499, 1, "context canceled"), Verdict::Unknown(_)));
        assert!(matches!(of(429, 8, "etcdserver: too many requests"), Verdict::Elsewhere(_)));
        assert!(matches!(Verdict::of(502, b"<html>"), Verdict::Unknown(_)), "a proxy");
        assert!(matches!(Verdict::of(400, b"{}"), Verdict::Unknown(_)));
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(of(400, 11, compacted), Verdict::Compacted);
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
    }

    #[test]
    fn a_common_name_is_refused_in_plain_text() {
        let body = b"CommonName of client sending a request against gateway will be ignored and not used as expected\n";
        assert!(matches!(Verdict::of(400, body), Verdict::Unauthenticated(_)));
        assert!(matches!(Verdict::of(400, b"Bad Request"), Verdict::Unknown(_)));
    }

    #[test]
    fn refusals_say_what_to_do() {
        let text = |verdict| match verdict {
            Verdict::Refused(text) | Verdict::Elsewhere(text) | Verdict::Unauthenticated(text) => {
                text
            }
            other => panic!("{other:?}"),
        };
        assert!(
            text(of(429, 8, "etcdserver: mvcc: database space exceeded"))
                .ends_with("`etcdctl alarm disarm`")
        );
        assert_eq!(text(Verdict::of(404, b"404 page not found\n")), GATEWAY_IS_OFF);
    }
}
