//! Servers that are broken, slow or hostile: a listener of the test, in place of etcd.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use cni_multi::plugins::ipam::cluster_local::engine::{Ground, Operation, Outcome};

use super::etcd::{claim, name, realm};
use crate::support::attachment::skip;
use crate::support::call::Peer;
use crate::support::etcd::{Driver, within};
use crate::support::netns::{Lab, is_root};

/// What a fake server does with a connection after the request.
type Answer = fn(TcpStream);

/// Runs a test where a fake server answers each connection in its own way, and closes it.
fn with_server(answer: Answer, test: impl FnOnce(&str) + Send) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                read_request(&mut stream);
                answer(stream);
            });
        }
    });
    test(&url);
}

/// Reads a whole request: bytes that are left when the connection is closed reset it.
fn read_request(stream: &mut TcpStream) {
    let mut request = vec![];
    let mut piece = [0; 4096];
    while !is_whole(&request) {
        match stream.read(&mut piece) {
            Ok(count) if count > 0 => request.extend_from_slice(&piece[..count]),
            _ => return, // the client is gone
        }
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.split("Content-Length: ").nth(1).unwrap();
    body.len() >= length.lines().next().unwrap().parse().unwrap()
}

fn read_node() -> Operation {
    Operation::ReadNode { node: name("n1") }
}

fn write() -> Operation {
    claim("n1", "4-0a580100-26", Ground { node_revision: 1, epoch: 0 })
}

fn say(mut stream: TcpStream, text: &str) {
    let _ = stream.write_all(text.as_bytes()); // the client may have seen enough
}

fn reason(outcome: Outcome) -> String {
    match outcome {
        Outcome::Unreachable { reason } | Outcome::Unknown { reason } => reason,
        other => panic!("{other:?}"),
    }
}

/// A read is unreachable and a write unknown, with the same reason.
fn both_fail(answer: Answer, expected: &str) {
    with_server(answer, |url| {
        let read = Driver::of(&[url]).run(read_node());
        assert!(matches!(read, Outcome::Unreachable { .. }), "{read:?}");
        let written = Driver::of(&[url]).run(write());
        assert!(matches!(written, Outcome::Unknown { .. }), "{written:?}");
        for outcome in [read, written] {
            let reason = reason(outcome);
            assert!(reason.contains(expected), "{reason:?} lacks {expected:?}");
        }
    });
}

fn inside(test: impl FnOnce() + Send) {
    match is_root() {
        true => within(&Lab::new(Peer::Ours), test),
        false => skip("root, or unshare -Urnm"),
    }
}

#[test]
fn garbage_is_no_reply() {
    inside(|| {
        both_fail(|stream| say(stream, "SSH-2.0-OpenSSH_9.6\r\n"), "the response is not HTTP/1.1");
        both_fail(drop, "the connection ended before the response");
        const PAGE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>";
        both_fail(|stream| say(stream, PAGE), "the response cannot be read: expected value");
        const OTHER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        both_fail(|stream| say(stream, OTHER), "the response is none of etcd's");
        const PROXY: &str = "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno";
        both_fail(|stream| say(stream, PROXY), "HTTP status 502 without an error object of etcd");
        const CUT: &str = "HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{\"header\":{}";
        both_fail(|stream| say(stream, CUT), "the connection ended before the response");
    });
}

#[test]
fn endless_replies_are_cut_off() {
    inside(|| {
        both_fail(
            |mut stream| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n"); // as below
                while stream.write_all(&[b'a'; 4096]).is_ok() {}
            },
            "the headers of the response are too long",
        );
        both_fail(
            |mut stream| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"); // as below
                while stream.write_all(b"ffff\r\n").is_ok()
                    && stream.write_all(&[b'['; 0xffff]).is_ok()
                    && stream.write_all(b"\r\n").is_ok()
                {}
            },
            "the response is too long",
        );
        both_fail(
            |mut stream| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n"); // as below
                let _ = stream.write_all(&[b'['; 4_000_000]); // deeper than any stack
            },
            "the response cannot be read: ",
        );
    });
}

/// Each byte comes in time, the reply does not.
#[test]
fn a_reply_that_drips_is_given_up() {
    inside(|| {
        with_server(
            |mut stream| {
                for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n".iter().cycle() {
                    std::thread::sleep(Duration::from_millis(100));
                    if stream.write_all(&[*byte]).is_err() {
                        return;
                    }
                }
            },
            |url| {
                let began = Instant::now();
                let outcome = Driver::of(&[url]).run(read_node());
                assert_eq!(reason(outcome), format!("{url} did not answer within 5 s"));
                assert!(began.elapsed() < Duration::from_secs(15));
            },
        );
    });
}

#[test]
fn pages_without_an_end_are_refused() {
    inside(|| {
        let page = |stream| {
            let body = r#"{"header":{"revision":"5"},"kvs":[{"key":"AA==","mod_revision":"5"}],"more":true}"#;
            say(
                stream,
                &format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()),
            );
        };
        with_server(page, |url| {
            let outcome = Driver::of(&[url]).run(Operation::List { realm: realm() });
            assert_eq!(reason(outcome), "the response has a page without an end");
        });
    });
}

#[test]
fn a_watch_that_talks_without_end_or_nonsense_ends() {
    let cases: [(Answer, &str); 4] = [
        (
            |mut stream| {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n"); // as below
                while stream.write_all(&[b'a'; 65536]).is_ok() {}
            },
            "the response is too long",
        ),
        (|stream| say(stream, "HTTP/1.1 200 OK\r\n\r\nhello\n"), "the response cannot be read"),
        (
            |stream| say(stream, "HTTP/1.1 200 OK\r\n\r\n{\"result\":{\"created\":true}}\n"),
            "has ended the watch",
        ),
        (
            |stream| {
                say(
                    stream,
                    "HTTP/1.1 200 OK\r\n\r\n{\"error\":{\"grpc_code\":14,\"message\":\"no leader\"}}\n",
                )
            },
            "no leader",
        ),
    ];
    inside(move || {
        for (answer, expected) in cases {
            with_server(answer, |url| {
                let outcome = Driver::of(&[url]).run(Operation::Watch { realm: realm(), from: 1 });
                let reason = reason(outcome);
                assert!(reason.contains(expected), "{reason:?} lacks {expected:?}");
            });
        }
    });
}
