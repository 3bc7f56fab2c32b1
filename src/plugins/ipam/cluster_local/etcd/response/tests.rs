use super::*;

const LIMITS: Limits = Limits { head: 1024, body: 4096 };

fn fed(pieces: &[&[u8]]) -> Result<Response, Flaw> {
    let mut response = Response::new(LIMITS);
    for piece in pieces {
        response.feed(piece)?;
    }
    Ok(response)
}

/// A range's answer of etcd 3.4.23.
const PLAIN: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nGrpc-Metadata-Content-Type: application/grpc\r\nDate: Mon, 23 Nov 2026 10:00:00 GMT\r\nContent-Length: 13\r\n\r\n{\"count\":\"1\"}";
/// A watch's beginning.
const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n{\"result\":{}}\n\n\r\n8\r\n{\"a\":1}\n\r\n";

#[test]
fn a_response_is_the_same_in_pieces_of_any_size() {
    for size in 1..PLAIN.len() {
        let response = fed(&PLAIN.chunks(size).collect::<Vec<_>>()).unwrap();
        assert_eq!((response.status(), response.body()), (Some(200), &b"{\"count\":\"1\"}"[..]));
        assert!(response.is_complete() && response.leaves_connection_usable());
    }
    for size in 1..STREAM.len() {
        let mut response = fed(&STREAM.chunks(size).collect::<Vec<_>>()).unwrap();
        assert!(!response.is_complete());
        let lines = [response.take_line(), response.take_line(), response.take_line()];
        let expected = [&b"{\"result\":{}}"[..], b"", b"{\"a\":1}"].map(|line| Some(line.to_vec()));
        assert_eq!((lines, response.take_line()), (expected, None));
        response.feed(b"0\r\nX: y\r\n\r\n").unwrap();
        assert!(response.leaves_connection_usable());
    }
}

#[test]
fn a_connection_is_reused_only_after_a_whole_response() {
    let usable = |text: &str| fed(&[text.as_bytes()]).unwrap().leaves_connection_usable();
    assert!(usable("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
    assert!(usable("HTTP/1.1 204 No Content\r\n\r\n"));
    assert!(!usable("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n"));
    assert!(!usable("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"));
    assert!(
        !usable("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200"),
        "more than asked for"
    );
    let mut rest = fed(&[b"HTTP/1.1 200 OK\r\n\r\n{", b"}"]).unwrap();
    assert!(!rest.is_complete());
    rest.end().unwrap();
    assert!(rest.is_complete() && !rest.leaves_connection_usable() && rest.body() == b"{}");
}

#[test]
fn a_response_that_ends_early_is_short() {
    for text in [&PLAIN[..20], &PLAIN[..PLAIN.len() - 1], STREAM, b""] {
        assert_eq!(fed(&[text]).unwrap().end(), Err(Flaw::Short));
    }
}

#[test]
fn malformed_responses_are_refused() {
    let cases = [
        ("garbage\r\n\r\n", Flaw::NotHttp),
        ("\x16\x03\x01\x02\x00\x01\x00\x01", Flaw::NotHttp),
        ("HTTP/2 200\r\n\r\n", Flaw::NotHttp),
        ("HTTP/1.1 100 Continue\r\n\r\n", Flaw::NotHttp),
        ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", Flaw::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n", Flaw::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n", Flaw::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", Flaw::Length),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            Flaw::Length,
        ),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", Flaw::Length),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4097\r\n\r\n", Flaw::LongBody),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", Flaw::Chunk),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab", Flaw::Chunk),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", Flaw::Chunk),
    ];
    for (text, flaw) in cases {
        assert_eq!(fed(&[text.as_bytes()]).map(|_| ()), Err(flaw), "{text:?}");
    }
}

#[test]
fn nothing_grows_beyond_its_limit() {
    let endless = |start: &str, more: &str| {
        let mut response = Response::new(LIMITS);
        response.feed(start.as_bytes()).unwrap();
        for _ in 0..10_000 {
            if let Err(flaw) = response.feed(more.as_bytes()) {
                return flaw;
            }
            let kept = response.pending.capacity() + response.body.capacity();
            assert!(kept < 4 * (LIMITS.head + LIMITS.body), "{kept}");
        }
        panic!("no limit after {start:?}");
    };
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(
        endless("HTTP/1.1 200 OK\r\n", "X-A: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n"),
        Flaw::LongHead
    );
    assert_eq!(endless("HTTP/1.1 200 OK\r\nX: ", "bbbbbbbb"), Flaw::LongHead);
    assert_eq!(endless("HTTP/1.1 200 OK\r\n\r\n", "bbbbbbbb"), Flaw::LongBody);
    assert_eq!(endless(chunked, "4\r\nabcd\r\n"), Flaw::LongBody);
    assert_eq!(endless(&format!("{chunked}ffffff\r\n"), "abcd"), Flaw::LongBody);
    assert_eq!(endless(&format!("{chunked}1;"), "abcd"), Flaw::Chunk);
    assert_eq!(endless(&format!("{chunked}0\r\n"), "X-A: bbbbbbbbbbbbbbbb\r\n"), Flaw::LongHead);
}
