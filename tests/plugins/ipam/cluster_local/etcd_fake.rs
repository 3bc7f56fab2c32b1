//! Servers that are broken, slow or hostile: a listener of the test, in place of etcd.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use cni_multi::plugins::ipam::cluster_local::store::etcd::Etcd as Engine;
use cni_multi::plugins::ipam::cluster_local::store::settings::Access;
use cni_multi::plugins::ipam::cluster_local::store::{Heard, Key, Outcome, Store as _};

use super::etcd::claim;
use crate::support::attachment::skip;
use crate::support::call::Peer;
use crate::support::etcd::{engine_with, within};
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

fn say(mut stream: &TcpStream, text: &str) {
    let _ = stream.write_all(text.as_bytes()); // the client may have seen enough
}

/// An engine that asks at once, without looking for a control plane's keys.
fn at(url: &str) -> Engine {
    engine_with(&[url], Access { accepts_control_plane: true, ..Access::default() })
}

fn reason(outcome: Outcome<impl std::fmt::Debug>) -> String {
    match outcome {
        Outcome::Unknown(reason) => reason,
        other => panic!("{other:?}"),
    }
}

/// A read and a write are unknown, with the same reason.
fn both_fail(answer: Answer, expected: &str) {
    with_server(answer, |url| {
        let read = at(url).get(&Key::Meta);
        let written = at(url).create(&claim("n1", "4-0a580100-26"));
        for reason in [reason(read), reason(written)] {
            assert!(reason.contains(expected), "{reason:?} lacks {expected:?}");
        }
    });
}

/// Runs a test in a lab, where nothing else is.
fn inside(test: impl FnOnce() + Send) {
    match is_root() {
        true => within(&Lab::new(Peer::Ours), test),
        false => skip("root, or unshare -Urnm"),
    }
}

#[test]
fn endless_replies_are_cut_off() {
    const ANSWERS: [(Answer, &str); 3] = [
        (
            |mut stream| {
                say(&stream, "HTTP/1.1 200 OK\r\n");
                while stream.write_all(&[b'a'; 4096]).is_ok() {}
            },
            "the headers of the response are too long",
        ),
        (
            |mut stream| {
                say(&stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                let chunk = format!("ffff\r\n{}\r\n", "[".repeat(0xffff));
                while stream.write_all(chunk.as_bytes()).is_ok() {}
            },
            "the response is too long",
        ),
        (
            |stream| {
                say(&stream, "HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n");
                say(&stream, &"[".repeat(4_000_000)); // deeper than any stack
            },
            "the response cannot be read: ",
        ),
    ];
    inside(|| ANSWERS.into_iter().for_each(|(answer, expected)| both_fail(answer, expected)));
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
                let outcome = at(url).get(&Key::Meta);
                assert_eq!(reason(outcome), format!("{url} did not answer within 5 s"));
                assert!(began.elapsed() < Duration::from_secs(15));
            },
        );
    });
}

/// The list before the watch is served, and the watch is not.
#[test]
fn a_watch_that_talks_without_end_ends() {
    inside(|| {
        let answer = |mut stream: TcpStream| {
            let list = r#"{"header":{"cluster_id":"7","revision":"9"}}"#;
            say(
                &stream,
                &format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{list}", list.len()),
            );
            read_request(&mut stream);
            say(&stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            let chunk = format!("10000\r\n{}\r\n", "a".repeat(0x10000));
            while stream.write_all(chunk.as_bytes()).is_ok() {}
        };
        with_server(answer, |url| {
            let mut told = vec![];
            let outcome = at(url).watch(&mut |heard| {
                told.push(heard);
                true
            });
            assert_eq!(told, [Heard::Now(vec![])]);
            assert!(reason(outcome).contains("the response is too long"));
        });
    });
}
