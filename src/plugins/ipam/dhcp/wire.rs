//! The protocol between plugin and daemon, in lines of [`service::wire`](crate::service::wire):
//! `{"protocol":1,"op":"add",…}` is answered by a CNI result, and so on.

use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cni::attachment::{ContainerId, IfName, Key, NetworkName};
use crate::cni::conf::{Config, ValidAttachments};
use crate::cni::decode::{from_value, member};
use crate::cni::json::Value;
use crate::cni::valid::ValidAttachment;
use crate::deadline::Deadline;
use crate::error::{Code, Error, Expected, Mistake, Problem, Result};
use crate::family::Family;
use crate::plugin::Context;
use crate::plugins::ipam::dhcp::client::dhcpv4::Provided;
use crate::plugins::ipam::dhcp::client::dhcpv6::Mode;
use crate::service::Identity;
use crate::service::wire::Asked;
pub use crate::service::wire::is_not_running;

/// The daemon's default socket.
pub const DEFAULT_SOCKET: &str = "/run/cni/dhcp.sock";

/// The daemon as errors, protocol and file names have it.
pub static DAEMON: Identity = Identity {
    name: "DHCP daemon",
    rival: Some("the reference's dhcp daemon"),
    socket_option: "-socketpath",
    journal_option: "-socketpath",
    units: "cni-dhcp.socket or cni-dhcp.service",
    protocol: 1,
    journal: "leases",
};

/// The CNI version of the result that answers an ADD.
pub const RESULT_VERSION: &str = "1.1.0";

/// The operations of [`Request`].
const OPERATIONS: [&str; 8] =
    ["add", "check", "del", "gc", "status", "leases", "release", "metrics"];

/// Container id and interface of an attachment.
pub type Names = (ContainerId, IfName);

/// A request to the daemon.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Request {
    /// Acquire a lease for an attachment; answered by a CNI result.
    Add(Wish),
    /// Describe the lease of an attachment; answered by a [`Described`].
    Check {
        /// The attachment.
        #[serde(flatten)]
        key: Key,
        /// The family of its address.
        family: Family,
    },
    /// Release the leases of an attachment.
    Del(Key),
    /// Release the leases of a network except those of these attachments.
    ///
    /// A malformed pair refuses the request, and no lease is released. By the specification a GC
    /// must go on when a resource cannot be removed, but this list says what to keep: the pair may
    /// stand for any container, and its lease would be released while it lives. The plugins refuse
    /// the list of the configuration for the same reason ([`ValidAttachments::of_config`]).
    Gc {
        /// The network.
        network: NetworkName,
        /// Container id and interface of each.
        valid: Vec<Names>,
    },
    /// Whether a daemon with this protocol runs.
    Status,
    /// List all leases; answered by a list of [`Described`].
    Leases,
    /// Release one lease and take its address off the interface; the key is one from `Leases`.
    Release {
        /// The lease's name.
        key: String,
    },
    /// Counters, in the Prometheus text format.
    Metrics,
}

/// A request for a lease.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wish {
    /// The attachment that it is for.
    #[serde(flatten)]
    pub key: Key,
    /// The absolute path of the container's network namespace, as the plugin sees it.
    pub netns: String,
    /// The part of the configuration that applies to the lease.
    #[serde(flatten)]
    pub terms: Terms,
}

/// The part of the configuration that applies to a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The options to send to the server.
    #[serde(default)]
    pub provide: Vec<Provided>,
    /// The options to request from the server.
    #[serde(default)]
    pub request: Vec<u8>,
    /// The metric of the routes; 0 if unset.
    #[serde(default)]
    pub priority: i64,
    /// The source of an IPv6 lease; `None` for IPv4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v6: Option<Mode>,
}

/// A lease as operators and CHECK see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Described {
    /// The lease's name.
    pub key: String,
    /// The state of its client.
    pub state: String,
    /// The address with its prefix length, once there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The server that granted it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    /// Seconds until renewal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_seconds: Option<u64>,
    /// Seconds until expiry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expire_seconds: Option<u64>,
    /// The path of the container's network namespace.
    pub namespace: String,
}

impl Described {
    /// The attachment in the lease's name.
    pub fn attachment(&self) -> Option<Key> {
        let mut names = self.key.split('/');
        let id = names.next()?;
        let network = names.next()?;
        Key::parse(network, id, names.next()?).ok()
    }

    /// The address with its prefix length.
    pub fn net(&self) -> Option<IpNet> {
        self.address.as_deref()?.parse().ok()
    }
}

impl Request {
    /// Decodes a request's line. Code 6 if it is none; a mistake has its path.
    pub fn read(line: &[u8]) -> Result<Request> {
        DAEMON.verify_request(line)?;
        let request = Value::parse(line).and_then(|line| Request::of(&line));
        request.map_err(|e| e.with_code(Code::DECODE).context("read the request"))
    }

    /// Decodes each part from the line itself: serde would first copy the members of a flattened
    /// part, and forget where they were.
    fn of(line: &Value) -> Result<Request> {
        let op: String = required(line, "op")?;
        Ok(match op.as_str() {
            "add" => Request::Add(Wish {
                key: from_value(line)?,
                netns: required(line, "netns")?,
                terms: from_value(line)?,
            }),
            "check" => Request::Check { key: from_value(line)?, family: member(line, "family")? },
            "del" => Request::Del(from_value(line)?),
            "gc" => {
                Request::Gc { network: required(line, "network")?, valid: member(line, "valid")? }
            }
            "status" => Request::Status,
            "leases" => Request::Leases,
            "release" => Request::Release { key: required(line, "key")? },
            "metrics" => Request::Metrics,
            _ => {
                let unknown = Mistake::new(format_args!("{op:?} is unknown")).at("op");
                return Err(unknown.expecting(Expected::OneOf(&OPERATIONS)).into());
            }
        })
    }
}

/// The attachments that a GC keeps. The names of the configuration's list have been checked. A
/// spared one may be any text on the host, but the daemon has leases of valid names only.
pub fn names_in(valid: &ValidAttachments) -> Vec<Names> {
    let names = |valid: ValidAttachment| {
        let id = ContainerId::parse(&valid.container_id).ok()?;
        Some((id, IfName::parse(&valid.ifname).ok()?))
    };
    valid.names().into_iter().filter_map(names).collect()
}

fn required<T: DeserializeOwned>(line: &Value, key: &'static str) -> Result<T> {
    let given: Option<T> = member(line, key)?;
    given.ok_or_else(|| Mistake::of(Problem::Missing).at(key).into())
}

impl Terms {
    /// The family of the address.
    pub fn family(&self) -> Family {
        if self.v6.is_some() { Family::V6 } else { Family::V4 }
    }
}

/// The answer to the reference's plugin. That plugin speaks HTTP and shows the first line to the
/// user.
pub const TO_THE_REFERENCE: &str = "HTTP/1.0 400 this is the DHCP daemon of cni-multi, which serves the dhcp plugin of \
                                    cni-multi only\r\nConnection: close\r\n\r\n";

/// The daemon that listens at a socket, and until when to wait for it.
pub struct Peer {
    /// The socket's path.
    pub socket: PathBuf,
    /// The end of the operation that asks.
    pub deadline: Deadline,
}

impl Peer {
    /// The daemon of the configuration.
    pub fn of(cx: &Context<'_>) -> Result<Peer> {
        Ok(Peer { socket: socket_path(cx.config)?, deadline: cx.deadline() })
    }

    /// Sends a request and waits for the answer.
    pub fn ask<A: DeserializeOwned>(&self, request: &Request) -> Result<A> {
        self.begin_to_ask(request)?.answer()?
    }

    /// Sends a request; the caller may wait for the answer later.
    pub fn begin_to_ask(&self, request: &Request) -> Result<Asked<'_>> {
        let socket = &self.socket;
        let connected = DAEMON.connect(socket, self.deadline).map_err(|e| {
            let socket_text = socket.display();
            // the reference's message
            let what = format!("error dialing DHCP daemon: dial unix {socket_text}: connect");
            DAEMON.unreached(socket, &e).saying(&Error::io(what, &e).msg)
        })?;
        connected.ask(request)
    }
}

/// The daemon's socket. Reads `ipam.daemonSocketPath` alone, so that DEL and GC find it whatever
/// the other keys contain.
pub fn socket_path(config: &Config) -> Result<PathBuf> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Document {
        ipam: Ipam,
    }
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Ipam {
        daemon_socket_path: String,
    }
    let path = config.decode::<Document>()?.ipam.daemon_socket_path;
    let path = Path::new(if path.is_empty() { DEFAULT_SOCKET } else { &path });
    if path.is_absolute() {
        return Ok(path.to_owned());
    }
    Err(Error::config("ipam.daemonSocketPath", format_args!("{path:?} is relative"))
        .expecting("an absolute path"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_socket_is_found_whatever_the_rest_says() {
        let path = |ipam: &str| {
            let config =
                Config::parse(format!(r#"{{"name":"n","ipam":{ipam}}}"#).into_bytes()).unwrap();
            socket_path(&config).unwrap()
        };
        assert_eq!(path("{}"), Path::new(DEFAULT_SOCKET));
        let config =
            Config::parse(br#"{"name":"n","ipam":{"daemonSocketPath":"y.sock"}}"#.to_vec())
                .unwrap();
        assert!(
            socket_path(&config)
                .unwrap_err()
                .msg
                .starts_with("ipam.daemonSocketPath: \"y.sock\" is relative")
        );
        assert_eq!(path(r#"{"daemonSocketPath":"/x/y.sock","provide":7}"#), Path::new("/x/y.sock"));
    }

    use crate::scratch::Scratch;

    fn key() -> Key {
        Key::parse("net", "one", "eth0").unwrap()
    }

    fn valid(id: &str, ifname: &str) -> (ContainerId, IfName) {
        (ContainerId::parse(id).unwrap(), IfName::parse(ifname).unwrap())
    }

    fn parse(line: &str) -> Result<Request> {
        Request::read(line.as_bytes())
    }

    #[test]
    fn requests_come_back_as_they_were() {
        let v6 = |mode| Terms { v6: Some(mode), ..Terms::default() };
        let terms = Terms {
            provide: vec![Provided(12, b"a\xff".to_vec()), Provided(60, vec![])],
            request: vec![3, 121],
            priority: -7,
            v6: None,
        };
        let requests = [
            Request::Add(Wish { key: key(), netns: "/run/netns/x \"y\"".to_owned(), terms }),
            Request::Add(Wish {
                key: key(),
                netns: "/run/netns/x".to_owned(),
                terms: v6(Mode::Dhcp),
            }),
            Request::Add(Wish {
                key: key(),
                netns: "/run/netns/x".to_owned(),
                terms: v6(Mode::Slaac),
            }),
            Request::Check { key: key(), family: Family::V4 },
            Request::Check { key: key(), family: Family::V6 },
            Request::Del(key()),
            Request::Gc {
                network: NetworkName::parse("net").unwrap(),
                valid: vec![valid("a", "eth0")],
            },
            Request::Status,
            Request::Leases,
            Request::Release { key: "one/net/eth0".to_owned() },
            Request::Metrics,
        ];
        for request in requests {
            let line = DAEMON.request_line(&request);
            assert_eq!(parse(&line).unwrap(), request, "{line}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused_and_its_member_named() {
        let named = r#""protocol":1,"network":"n","containerID":"c","ifname":"e","netns":"/x""#;
        let cases = [
            ("{}".to_owned(), "the client speaks no protocol of ours, this daemon 1"),
            (
                r#"{"protocol":2,"op":"status"}"#.to_owned(),
                "the client speaks protocol 2, this daemon 1",
            ),
            (
                r#"{"protocol":1,"op":"fly"}"#.to_owned(),
                "read the request: op: \"fly\" is unknown, expected \"add\", \"check\", ",
            ),
            (r#"{"protocol":1}"#.to_owned(), "read the request: op: missing"),
            (
                r#"{"protocol":1,"op":"del","network":"n"}"#.to_owned(),
                "read the request: containerID: missing",
            ),
            (
                format!(r#"{{"op":"add",{named},"provide":[[300,""]]}}"#),
                "read the request: provide[0][0]: 300 is out of range, expected an integer from 0 to 255",
            ),
            (
                format!(r#"{{"op":"add",{named},"provide":[[12,"0"]]}}"#),
                "read the request: provide[0][1]: \"0\": expected pairs of hex digits",
            ),
            (
                format!(r#"{{"op":"add",{named},"request":["x"]}}"#),
                "read the request: request[0]: expected an integer from 0 to 255, found string \"x\"",
            ),
            (
                format!(r#"{{"op":"add",{named},"priority":1.5}}"#),
                "read the request: priority: expected an integer, found number 1.5",
            ),
            (
                format!(r#"{{"op":"add",{named},"v6":"both"}}"#),
                "read the request: v6: \"both\" is unknown, expected \"dhcp\" or \"slaac\"",
            ),
            (
                format!(r#"{{"op":"gc",{named},"valid":[["a","eth0"],["b"]]}}"#),
                "read the request: valid[1]: invalid length 1",
            ),
            (
                format!(r#"{{"op":"gc",{named},"valid":[["a",7]]}}"#),
                "read the request: valid[0][1]: expected a string, found integer 7",
            ),
            (
                format!(r#"{{"op":"gc",{named},"valid":[["../a","eth0"]]}}"#),
                "read the request: valid[0][0]: invalid characters in containerID",
            ),
            ("[".to_owned(), "read the request: EOF"),
        ];
        for (text, expected) in cases {
            let error = parse(&text).unwrap_err();
            assert!(
                error.code == Code::DECODE && error.msg.starts_with(expected),
                "{text}: {error}"
            );
        }
    }

    /// Lines, members in their order, decode to these requests, which encode to the same members.
    #[test]
    fn lines_have_these_members() {
        let add = r#"{"containerID":"one","network":"net","ifname":"eth0","netns":"/run/netns/x","provide":[[12,"61ff"]],"request":[3],"priority":-7,"v6":"slaac","protocol":1,"op":"add"}"#;
        let provide = vec![Provided(12, b"a\xff".to_vec())];
        let v6 = Some(Mode::Slaac);
        let terms = Terms { provide, request: vec![3], priority: -7, v6 };
        let wish = Wish { key: key(), netns: "/run/netns/x".to_owned(), terms };
        let cases = [
            (add, Request::Add(wish)),
            (
                r#"{"containerID":"one","network":"net","ifname":"eth0","family":6,"protocol":1,"op":"check"}"#,
                Request::Check { key: key(), family: Family::V6 },
            ),
            (
                r#"{"network":"net","valid":[["a","eth0"]],"protocol":1,"op":"gc"}"#,
                Request::Gc { network: key().network, valid: vec![valid("a", "eth0")] },
            ),
            (r#"{"protocol":1,"op":"status"}"#, Request::Status),
            (
                r#"{"key":"one/net/eth0","protocol":1,"op":"release"}"#,
                Request::Release { key: "one/net/eth0".to_owned() },
            ),
        ];
        for (line, request) in cases {
            assert_eq!(parse(line).unwrap(), request);
            let members = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(members(&DAEMON.request_line(&request)), members(line));
        }
    }

    fn peer(socket: &Path) -> Peer {
        Peer { socket: socket.to_owned(), deadline: Deadline::default() }
    }

    /// The result of a request to a daemon that answers with this text.
    fn asked(answer: &'static str) -> Result<Value> {
        let scratch = Scratch::new();
        let path = scratch.path().join("dhcp.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = std::thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            stream.read_until(b'\n', &mut vec![]).unwrap();
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        });
        let answer = peer(&path).ask(&Request::Status);
        daemon.join().unwrap();
        answer
    }

    #[test]
    fn answers_errors_and_patience_are_understood() {
        let line = DAEMON.answer_line(&Ok(Value::text("yes")));
        assert_eq!(
            asked(Box::leak(
                (DAEMON.patience_line(Duration::from_secs(3)) + &line).into_boxed_str()
            )),
            Ok(Value::text("yes"))
        );
        let error = Error::new(Code::ADDRESS_UNAVAILABLE, "none \"left\"").with_details("why");
        let line = DAEMON.answer_line::<()>(&Err(error.clone()));
        assert_eq!(asked(Box::leak(line.into_boxed_str())), Err(error));
    }

    #[test]
    fn whoever_else_answers_is_named() {
        let cases = [
            ("HTTP/1.1 400 Bad Request\r\n\r\n", "another program answers there, in HTTP"),
            ("{\"protocol\":7,\"answer\":null}\n", "the daemon speaks protocol 7, this client 1"),
            ("{\"protocol\":1,\"answer\":", "it hung up without an answer"),
            ("", "it hung up without an answer"),
            ("hello\n", "expected"),
        ];
        for (answer, expected) in cases {
            let error = asked(answer).unwrap_err();
            assert!(
                error.msg.starts_with("ask the DHCP daemon at ") && error.msg.contains(expected),
                "{error}"
            );
            assert_eq!(
                is_not_running(&error),
                answer.starts_with("HTTP"),
                "it has no lease of ours"
            );
        }
    }

    #[test]
    fn nobody_there_is_told_with_what_to_start() {
        let scratch = Scratch::new();
        let path = scratch.path().join("dhcp.sock");
        let error = peer(&path).ask::<()>(&Request::Status).unwrap_err();
        assert!(
            is_not_running(&error)
                && error.msg.ends_with("dhcp.sock: connect: no such file or directory"),
            "{error}"
        );
        assert!(error.details().contains("cni-dhcp.socket"), "{error}");
        drop(UnixListener::bind(&path).unwrap());
        let error = peer(&path).ask::<()>(&Request::Status).unwrap_err();
        assert!(is_not_running(&error), "a stale socket");
    }

    #[test]
    fn a_silent_daemon_is_awaited_until_the_deadline() {
        let scratch = Scratch::new();
        let socket = scratch.path().join("dhcp.sock");
        let _silent = UnixListener::bind(&socket).unwrap();
        let began = Instant::now();
        let late = Peer { socket, deadline: Deadline::after(Duration::ZERO) };
        let error = late.ask::<()>(&Request::Status).unwrap_err();
        assert!(error.msg.ends_with("no answer within 5 s"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}
