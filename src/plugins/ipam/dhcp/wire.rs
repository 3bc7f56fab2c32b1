//! What plugin and daemon say to each other: a line of JSON each way on a Unix stream socket.
//!
//! `{"protocol":1,"op":"add",…}` is answered by `{"protocol":1,"answer":…}` or
//! `{"protocol":1,"error":{…}}`, the members of a CNI error object. Where the answer may take long,
//! `{"protocol":1,"patience":208}` comes first: so many seconds at most.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::UnixAddr;

use crate::cni::attachment::{Key, NetworkName, hex};
use crate::cni::conf::ValidAttachments;
use crate::cni::json::Value;
use crate::error::{Code, Error, Result};
use crate::plugins::ipam::dhcp::family::Family;
use crate::plugins::ipam::dhcp::v6::client::Mode;
use crate::sys::local_stream::LocalStream;

/// The code of errors that the reference's daemon listens there.
const OTHER_PROGRAM: Code = Code::CONFLICT;
/// The version of this protocol.
pub const PROTOCOL: u64 = 1;

/// The version of the result that answers an ADD.
pub const RESULT_VERSION: &str = "1.1.0";

/// The longest line that the daemon reads: a GC of a thousand attachments is a tenth of it.
pub const REQUEST_MAX: usize = 1 << 20;
/// The longest answer: all leases of a daemon.
const ANSWER_MAX: u64 = 1 << 26;

/// Who grants an address of IPv6.
const DHCP: &str = "dhcp";
const SLAAC: &str = "slaac";

/// How long a daemon that is well takes at most for what it can answer at once.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the daemon is asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A lease for an attachment; answered by a CNI result.
    Add(Wish),
    /// How the lease of an attachment is.
    Check(Key, Family),
    /// Give the leases of an attachment back.
    Del(Key),
    /// Give the leases of a network back but for these attachments (container id, interface).
    Gc(NetworkName, Vec<(String, String)>),
    /// Whether a daemon of this protocol is there.
    Status,
    /// All leases.
    Leases,
    /// Give a lease back and take the address off the interface; the key as `Leases` tells it.
    Release(String),
    /// Counters, in Prometheus' format.
    Metrics,
}

/// A lease that is wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// For which attachment.
    pub key: Key,
    /// The absolute path of its namespace, as the plugin sees it.
    pub netns: String,
    /// What the configuration says of it.
    pub terms: Terms,
}

/// What the configuration says of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Options for the server.
    pub provide: Vec<(u8, Vec<u8>)>,
    /// Options that the server is asked for.
    pub request: Vec<u8>,
    /// The metric of the routes; 0 where none is given.
    pub priority: i64,
    /// The lease is one of IPv6, and who grants it.
    pub v6: Option<Mode>,
}

impl Request {
    /// Its line, without the newline.
    pub fn to_text(&self) -> String {
        let (op, mut members) = match self {
            Request::Add(wish) => ("add", wish.members()),
            Request::Check(key, family) => {
                let mut members = key_members(key);
                members
                    .push(("family", Value::number(if *family == Family::V6 { 6_u8 } else { 4 })));
                ("check", members)
            }
            Request::Del(key) => ("del", key_members(key)),
            Request::Gc(network, valid) => {
                let pair = |(id, ifname): &(String, String)| {
                    Value::Array(vec![Value::text(id), Value::text(ifname)])
                };
                let valid = Value::Array(valid.iter().map(pair).collect());
                ("gc", vec![("network", Value::text(network.as_str())), ("valid", valid)])
            }
            Request::Status => ("status", vec![]),
            Request::Leases => ("leases", vec![]),
            Request::Release(key) => ("release", vec![("key", Value::text(key))]),
            Request::Metrics => ("metrics", vec![]),
        };
        members.extend([("protocol", Value::number(PROTOCOL)), ("op", Value::text(op))]);
        Value::object(members).to_text()
    }

    /// Reads a line. Code 6 where it is none of this protocol.
    pub fn parse(line: &[u8]) -> Result<Request> {
        let value = Value::parse(line).map_err(|e| e.context("read the request"))?;
        let protocol = value.get("protocol").and_then(Value::as_u64);
        if protocol != Some(PROTOCOL) {
            return Err(other_version("who asks", protocol, "daemon"));
        }
        Ok(match text(&value, "op")? {
            "add" => Request::Add(Wish::of_value(&value)?),
            "check" => {
                let family = match value.get("family").and_then(Value::as_u64) {
                    Some(6) => Family::V6,
                    _ => Family::V4,
                };
                Request::Check(key_of(&value)?, family)
            }
            "del" => Request::Del(key_of(&value)?),
            "gc" => {
                let valid =
                    value.get("valid").map(Value::items).unwrap_or_default().iter().filter_map(
                        |pair| {
                            let [id, ifname] = pair.items() else { return None };
                            Some((id.as_str()?.to_owned(), ifname.as_str()?.to_owned()))
                        },
                    );
                Request::Gc(NetworkName::parse(text(&value, "network")?)?, valid.collect())
            }
            "status" => Request::Status,
            "leases" => Request::Leases,
            "release" => Request::Release(text(&value, "key")?.to_owned()),
            "metrics" => Request::Metrics,
            other => {
                return Err(invalid(format!("op: {other:?} is nothing that this daemon does")));
            }
        })
    }

    /// GC of a network.
    pub fn gc(network: &NetworkName, valid: &ValidAttachments) -> Request {
        let valid = valid.names().into_iter().map(|valid| (valid.container_id, valid.ifname));
        Request::Gc(network.clone(), valid.collect())
    }
}

impl Wish {
    fn members(&self) -> Vec<(&'static str, Value)> {
        let mut members = key_members(&self.key);
        members.push(("netns", Value::text(&self.netns)));
        members.extend(self.terms.members());
        members
    }

    fn of_value(value: &Value) -> Result<Wish> {
        Ok(Wish {
            key: key_of(value)?,
            netns: text(value, "netns")?.to_owned(),
            terms: Terms::of_value(value)?,
        })
    }
}

impl Terms {
    /// Of the lease.
    pub fn family(&self) -> Family {
        if self.v6.is_some() { Family::V6 } else { Family::V4 }
    }

    /// As members of an object.
    pub fn members(&self) -> Vec<(&'static str, Value)> {
        let option = |(code, value): &(u8, Vec<u8>)| {
            Value::Array(vec![Value::number(*code), Value::text(hex(value))])
        };
        let mut members = vec![
            ("provide", Value::Array(self.provide.iter().map(option).collect())),
            (
                "request",
                Value::Array(self.request.iter().map(|code| Value::number(*code)).collect()),
            ),
            ("priority", Value::number(self.priority)),
        ];
        members.extend(
            self.v6.map(|mode| ("v6", Value::text(if mode == Mode::Dhcp { DHCP } else { SLAAC }))),
        );
        members
    }

    /// From the members of an object.
    pub fn of_value(value: &Value) -> Result<Terms> {
        let code = |value: &Value| u8::try_from(value.as_u64()?).ok();
        let option = |value: &Value| {
            let [number, octets] = value.items() else { return None };
            Some((code(number)?, unhex(octets.as_str()?)?))
        };
        let list = |key: &str| value.get(key).map(Value::items).unwrap_or_default();
        let provide: Option<Vec<_>> = list("provide").iter().map(option).collect();
        let request: Option<Vec<u8>> = list("request").iter().map(code).collect();
        let priority = match value.get("priority") {
            Some(Value::Number(number)) => number.as_i64(),
            Some(_) => None,
            None => Some(0),
        };
        let v6 = match value.get("v6").map(Value::as_str) {
            None => Some(None),
            Some(Some(DHCP)) => Some(Some(Mode::Dhcp)),
            Some(Some(SLAAC)) => Some(Some(Mode::Slaac)),
            Some(_) => None,
        };
        Ok(Terms {
            provide: provide
                .ok_or_else(|| invalid("provide: expected pairs of a code and octets in hex"))?,
            request: request.ok_or_else(|| invalid("request: expected codes"))?,
            priority: priority.ok_or_else(|| invalid("priority: expected an integer"))?,
            v6: v6.ok_or_else(|| invalid(format!("v6: expected {DHCP:?} or {SLAAC:?}")))?,
        })
    }
}

/// The octets of hex digits.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    let octet = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    (0..text.len()).step_by(2).map(octet).collect()
}

/// The names of an attachment, as members of an object.
pub fn key_members(key: &Key) -> Vec<(&'static str, Value)> {
    vec![
        ("containerID", Value::text(key.container_id.as_str())),
        ("network", Value::text(key.network.as_str())),
        ("ifname", Value::text(key.ifname.as_str())),
    ]
}

/// The names of an attachment, from the members of an object.
pub fn key_of(value: &Value) -> Result<Key> {
    Key::parse(text(value, "network")?, text(value, "containerID")?, text(value, "ifname")?)
}

/// The member that has to be a text.
pub fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value
        .get(key)
        .and_then(Value::as_str)
        .ok_or_else(|| invalid(format!("{key}: expected a string")))
}

fn invalid(msg: impl Into<String>) -> Error {
    Error::new(Code::DECODE, msg)
}

fn other_version(who: &str, theirs: Option<u64>, we: &str) -> Error {
    let theirs =
        theirs.map_or("no protocol of ours".to_owned(), |version| format!("protocol {version}"));
    invalid(format!("{who} speaks {theirs}, this {we} {PROTOCOL}"))
        .with_details("plugin and daemon are one binary: restart the daemon after an upgrade")
}

/// The line that answers a request.
pub fn answer_line(answer: &Result<Value>) -> String {
    let (key, value) = match answer {
        Ok(value) => ("answer", value.clone()),
        Err(error) => {
            let code = Value::number(error.code.0);
            let members = vec![
                ("code", code),
                ("msg", Value::text(&error.msg)),
                ("details", Value::text(&error.details)),
            ];
            ("error", Value::object(members))
        }
    };
    line(key, value)
}

/// The line before an answer that may take so long.
pub fn patience_line(patience: Duration) -> String {
    line("patience", Value::number(patience.as_secs()))
}

fn line(key: &str, value: Value) -> String {
    Value::object(vec![("protocol", Value::number(PROTOCOL)), (key, value)]).to_text() + "\n"
}

/// What the reference's plugin is told, which speaks HTTP: it shows the first line to the user.
pub const TO_THE_REFERENCE: &str = "HTTP/1.0 400 this is the DHCP daemon of cni-multi, which serves the dhcp plugin of \
                                    cni-multi only\r\nConnection: close\r\n\r\n";

/// Asks the daemon that listens at `socket`.
pub fn ask(socket: &Path, request: &Request) -> Result<Value> {
    talk(socket, request)?
}

/// As [`ask`]; the results are those of [`Asked::answer`].
pub fn talk(socket: &Path, request: &Request) -> Result<Result<Value>> {
    begin_to_ask(socket, request)?.answer()
}

/// A request that was sent.
pub struct Asked<'a> {
    stream: LocalStream,
    socket: &'a Path,
}

/// Sends a request, whose answer may be waited for later.
pub fn begin_to_ask<'a>(socket: &'a Path, request: &Request) -> Result<Asked<'a>> {
    let address = UnixAddr::new(socket).map_err(|e| unreached(socket, e.into()))?;
    let mut stream = LocalStream::connect(&address, PATIENCE).map_err(|e| unreached(socket, e))?;
    stream.write_all((request.to_text() + "\n").as_bytes()).map_err(|e| talking(socket, &e))?;
    Ok(Asked { stream, socket })
}

impl Asked<'_> {
    /// Waits for the answer. The inner result is the daemon's own word, the outer one says that
    /// there was none. Code 11 is that the daemon has ended meanwhile.
    pub fn answer(mut self) -> Result<Result<Value>> {
        self.stream.allow(PATIENCE);
        let mut stream = BufReader::new(self.stream);
        loop {
            let mut line = vec![];
            let read = (&mut stream).take(ANSWER_MAX).read_until(b'\n', &mut line);
            read.map_err(|e| talking(self.socket, &e))?;
            match read_answer(&line, self.socket)? {
                Said::Answer(answer) => return Ok(answer),
                Said::Patience(patience) => stream.get_mut().allow(patience + PATIENCE),
            }
        }
    }
}

fn talking(socket: &Path, error: &io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => hung_up(socket),
        _ => Error::io(format_args!("talk to the DHCP daemon at {socket:?}"), error),
    }
}

/// What a line of the daemon says.
#[derive(Debug)]
pub enum Said {
    /// The answer, which may be an error.
    Answer(Result<Value>),
    /// An answer comes within this time.
    Patience(Duration),
}

/// Reads a line of the daemon that listens at `socket`.
pub fn read_answer(line: &[u8], socket: &Path) -> Result<Said> {
    let at = |e: Error| e.context(format_args!("ask the DHCP daemon at {socket:?}"));
    if line.starts_with(b"HTTP/") {
        return Err(at(Error::new(OTHER_PROGRAM, "another program answers there, in HTTP"))
            .with_details("is it the reference's dhcp daemon? stop that one and start cni-dhcp.service of cni-multi"));
    }
    if !line.ends_with(b"\n") {
        return Err(hung_up(socket));
    }
    let value = Value::parse(line).map_err(at)?;
    let protocol = value.get("protocol").and_then(Value::as_u64);
    if protocol != Some(PROTOCOL) {
        return Err(at(other_version("the daemon", protocol, "plugin")));
    }
    if let Some(seconds) = value.get("patience").and_then(Value::as_u64) {
        return Ok(Said::Patience(Duration::from_secs(seconds.min(u64::from(u32::MAX)))));
    }
    let Some(error) = value.get("error") else {
        return Ok(Said::Answer(Ok(value.get("answer").cloned().unwrap_or_default())));
    };
    let code = error.get("code").and_then(Value::as_u64).and_then(|code| u32::try_from(code).ok());
    let code = code.map_or(Code::BUG, Code);
    let told = Error::new(code, text(error, "msg").map_err(at)?);
    Ok(Said::Answer(Err(told.with_details(text(error, "details").unwrap_or_default()))))
}

fn hung_up(socket: &Path) -> Error {
    let msg = format!("ask the DHCP daemon at {socket:?}: it hung up without an answer");
    Error::new(Code::TRY_AGAIN, msg).with_details("it may have been restarted; its log says why")
}

fn unreached(socket: &Path, error: io::Error) -> Error {
    let sentence = Error::io(
        format_args!("error dialing DHCP daemon: dial unix {}: connect", socket.display()),
        &error,
    );
    let error = Error::io(format_args!("connect to the DHCP daemon at {socket:?}"), &error)
        .saying(&sentence.msg);
    match is_nobody(&error) {
        true => error.with_details("it does not run: start cni-dhcp.socket or cni-dhcp.service"),
        false => error,
    }
}

/// Whether no daemon with leases of ours can be at the socket: no process listens, another program
/// does, or a file is in the place of a directory.
pub fn is_not_running(error: &Error) -> bool {
    is_nobody(error) || error.is_errno(Errno::ENOTDIR) || error.code == OTHER_PROGRAM
}

fn is_nobody(error: &Error) -> bool {
    error.is_errno(Errno::ENOENT) || error.is_errno(Errno::ECONNREFUSED)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::scratch::Scratch;

    fn key() -> Key {
        Key::parse("net", "one", "eth0").unwrap()
    }

    #[test]
    fn requests_come_back_as_they_were() {
        let v6 = |mode| Terms { v6: Some(mode), ..Terms::default() };
        let terms = Terms {
            provide: vec![(12, b"a\xff".to_vec()), (60, vec![])],
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
            Request::Check(key(), Family::V4),
            Request::Check(key(), Family::V6),
            Request::Del(key()),
            Request::Gc(
                NetworkName::parse("net").unwrap(),
                vec![("a".to_owned(), "eth0".to_owned())],
            ),
            Request::Status,
            Request::Leases,
            Request::Release("one/net/eth0".to_owned()),
            Request::Metrics,
        ];
        for request in requests {
            assert_eq!(Request::parse(request.to_text().as_bytes()).unwrap(), request);
        }
    }

    #[test]
    fn what_is_no_request_is_refused_and_its_member_named() {
        let named = r#""protocol":1,"network":"n","containerID":"c","ifname":"e","netns":"/x""#;
        let cases = [
            ("{}".to_owned(), "who asks speaks no protocol of ours, this daemon 1"),
            (
                r#"{"protocol":2,"op":"status"}"#.to_owned(),
                "who asks speaks protocol 2, this daemon 1",
            ),
            (
                r#"{"protocol":1,"op":"fly"}"#.to_owned(),
                "op: \"fly\" is nothing that this daemon does",
            ),
            (
                r#"{"protocol":1,"op":"del","network":"n"}"#.to_owned(),
                "containerID: expected a string",
            ),
            (
                format!(r#"{{"op":"add",{named},"provide":[[300,""]]}}"#),
                "provide: expected pairs of a code and octets",
            ),
            (
                format!(r#"{{"op":"add",{named},"provide":[[12,"0"]]}}"#),
                "provide: expected pairs of a code and octets",
            ),
            (format!(r#"{{"op":"add",{named},"request":["x"]}}"#), "request: expected codes"),
            (format!(r#"{{"op":"add",{named},"priority":1.5}}"#), "priority: expected an integer"),
            ("[".to_owned(), "read the request: EOF"),
        ];
        for (text, expected) in cases {
            let error = Request::parse(text.as_bytes()).unwrap_err();
            assert!(error.msg.starts_with(expected), "{text}: {error}");
        }
    }

    /// What asking comes to, of a daemon that answers with this text.
    fn asked(answer: &'static str) -> Result<Value> {
        let scratch = Scratch::new();
        let path = scratch.path().join("dhcp.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let daemon = std::thread::spawn(move || {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            stream.read_until(b'\n', &mut vec![]).unwrap();
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
        });
        let answer = ask(&path, &Request::Status);
        daemon.join().unwrap();
        answer
    }

    #[test]
    fn answers_errors_and_patience_are_understood() {
        let line = answer_line(&Ok(Value::text("yes")));
        assert_eq!(
            asked(Box::leak((patience_line(Duration::from_secs(3)) + &line).into_boxed_str())),
            Ok(Value::text("yes"))
        );
        let error = Error::new(Code::ADDRESS_UNAVAILABLE, "none \"left\"").with_details("why");
        assert_eq!(asked(Box::leak(answer_line(&Err(error.clone())).into_boxed_str())), Err(error));
    }

    #[test]
    fn whoever_else_answers_is_named() {
        let cases = [
            ("HTTP/1.1 400 Bad Request\r\n\r\n", "another program answers there, in HTTP"),
            ("{\"protocol\":7,\"answer\":null}\n", "the daemon speaks protocol 7, this plugin 1"),
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
        let error = ask(&path, &Request::Status).unwrap_err();
        assert!(
            is_not_running(&error)
                && error.msg.ends_with("dhcp.sock: connect: no such file or directory"),
            "{error}"
        );
        assert!(error.details.contains("cni-dhcp.socket"), "{error}");
        drop(UnixListener::bind(&path).unwrap());
        assert!(is_not_running(&ask(&path, &Request::Status).unwrap_err()), "a stale socket");
    }
}
