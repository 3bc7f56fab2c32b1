//! A reply of HTTP/1.1 that arrives, within fixed limits: a broken or hostile server costs no more
//! than they allow.

use std::io::{self, Read};
use std::time::Duration;

use httparse::{EMPTY_HEADER, Header, Status, parse_chunk_size, parse_headers};

/// The most headers of a reply or of its trailer.
const MOST_HEADERS: usize = 64;
/// The limit in bytes of status line and headers, and of the trailer.
const LONGEST_HEAD: usize = 16 << 10;
/// The longest line of a chunk's size, with its extensions.
const LONGEST_SIZE: usize = 256;
/// The longest line of a stream.
const LONGEST_LINE: usize = 4 << 20;
/// The bytes of one read.
const PIECE: usize = 16 << 10;

const NOT_HTTP: &str = "the response is not HTTP/1.1";
const LONG_HEAD: &str = "the headers of the response are too long";
const LONG_BODY: &str = "the response is too long";
const CHUNK: &str = "a chunk of the response is malformed";
const LENGTH: &str = "the length of the response is missing or ambiguous";
const SHORT: &str = "the connection ended before the response";

/// Status line and headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The status.
    pub status: u16,
    /// Whether the server keeps the connection open.
    pub persists: bool,
    /// How long the server asks to wait.
    pub retry_after: Option<Duration>,
    /// What follows.
    body: Body,
}

/// What is left of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// So many bytes.
    Length(usize),
    /// A line with the size of a chunk.
    Size,
    /// So many bytes of a chunk, and its end.
    Chunk(usize),
    /// What comes before the connection ends.
    Close,
}

/// A reply that arrives from a source.
#[derive(Debug)]
pub struct Incoming<R> {
    /// The source.
    pub source: R,
    /// What was received and not interpreted yet.
    pending: Vec<u8>,
    body: Body,
    /// The line of a stream that has not ended yet.
    line: Vec<u8>,
}

fn flaw(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl<R: Read> Incoming<R> {
    /// Replies, one after the other, from a source.
    pub fn new(source: R) -> Incoming<R> {
        Incoming { source, pending: vec![], body: Body::Length(0), line: vec![] }
    }

    /// Reads status line and headers.
    pub fn head(&mut self) -> io::Result<Head> {
        let head = self.parse(LONGEST_HEAD, LONG_HEAD, |bytes| {
            let mut headers = [EMPTY_HEADER; MOST_HEADERS];
            let mut parsed = httparse::Response::new(&mut headers);
            Ok(match parsed.parse(bytes).map_err(|error| of_headers(error, NOT_HTTP))? {
                Status::Complete(used) => Status::Complete((used, Head::of(&parsed)?)),
                Status::Partial => Status::Partial,
            })
        })?;
        self.body = head.body;
        self.line.clear();
        Ok(head)
    }

    /// Reads the whole body, of at most so many bytes.
    pub fn body(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut body = vec![];
        if matches!(self.body, Body::Length(length) if length > most) {
            return Err(flaw(LONG_BODY));
        }
        loop {
            let piece = self.piece()?;
            if piece.is_empty() {
                return Ok(body);
            }
            if body.len() + piece.len() > most {
                return Err(flaw(LONG_BODY));
            }
            body.extend(piece);
        }
    }

    /// Reads the next line of a stream, without its newline; None at the end.
    pub fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let rest = self.line.split_off(end + 1);
                self.line.pop();
                return Ok(Some(std::mem::replace(&mut self.line, rest)));
            }
            let piece = self.piece()?;
            if piece.is_empty() {
                return Ok(None);
            }
            if self.line.len() + piece.len() > LONGEST_LINE {
                return Err(flaw(LONG_BODY));
            }
            self.line.extend(piece);
        }
    }

    /// Whether the body has ended, and nothing has come after it.
    pub fn is_at_end(&self) -> bool {
        self.body == Body::Length(0) && self.pending.is_empty()
    }

    /// The next bytes of the body; none at its end.
    fn piece(&mut self) -> io::Result<Vec<u8>> {
        loop {
            match self.body {
                Body::Length(0) => return Ok(vec![]),
                Body::Length(left) => {
                    let piece = self.take(left)?.ok_or_else(short)?;
                    self.body = Body::Length(left - piece.len());
                    return Ok(piece);
                }
                Body::Size => {
                    let size = self.parse(LONGEST_SIZE, CHUNK, |bytes| {
                        parse_chunk_size(bytes).map_err(|_| flaw(CHUNK))
                    })?;
                    self.body = Body::Chunk(usize::try_from(size).map_err(|_| flaw(LONG_BODY))?);
                    if size == 0 {
                        self.parse(LONGEST_HEAD, LONG_HEAD, trailer)?;
                        self.body = Body::Length(0);
                    }
                }
                Body::Chunk(0) => {
                    self.parse(2, CHUNK, |bytes| match bytes {
                        b"\r\n" => Ok(Status::Complete((2, ()))),
                        b"\r" | b"" => Ok(Status::Partial),
                        _ => Err(flaw(CHUNK)),
                    })?;
                    self.body = Body::Size;
                }
                Body::Chunk(left) => {
                    let piece = self.take(left)?.ok_or_else(short)?;
                    self.body = Body::Chunk(left - piece.len());
                    return Ok(piece);
                }
                Body::Close => match self.take(usize::MAX)? {
                    Some(piece) => return Ok(piece),
                    None => self.body = Body::Length(0),
                },
            }
        }
    }

    /// At most so many bytes; None at the end of the connection.
    fn take(&mut self, most: usize) -> io::Result<Option<Vec<u8>>> {
        if self.pending.is_empty() && !self.receive()? {
            return Ok(None);
        }
        let count = most.min(self.pending.len());
        Ok(Some(self.pending.drain(..count).collect()))
    }

    /// What is found in the next bytes, as soon as there are enough of them.
    fn parse<T>(
        &mut self,
        most: usize,
        too_long: &'static str,
        find: impl Fn(&[u8]) -> io::Result<Status<(usize, T)>>,
    ) -> io::Result<T> {
        loop {
            let bytes = &self.pending[..self.pending.len().min(most)];
            if let Status::Complete((used, found)) = find(bytes)? {
                self.pending.drain(..used);
                return Ok(found);
            }
            if bytes.len() == most {
                return Err(flaw(too_long));
            }
            if !self.receive()? {
                return Err(short());
            }
        }
    }

    /// Waits for more bytes; false at the end of the connection.
    fn receive(&mut self) -> io::Result<bool> {
        let before = self.pending.len();
        self.pending.resize(before + PIECE, 0);
        let received = loop {
            match self.source.read(&mut self.pending[before..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                received => break received,
            }
        };
        self.pending.truncate(before + received.as_ref().map_or(0, |count| *count));
        received.map(|count| count > 0)
    }
}

fn short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, SHORT)
}

fn of_headers(error: httparse::Error, otherwise: &'static str) -> io::Error {
    flaw(if error == httparse::Error::TooManyHeaders { LONG_HEAD } else { otherwise })
}

fn trailer(bytes: &[u8]) -> io::Result<Status<(usize, ())>> {
    let mut headers = [EMPTY_HEADER; MOST_HEADERS];
    let parsed = parse_headers(bytes, &mut headers).map_err(|error| of_headers(error, CHUNK))?;
    Ok(match parsed {
        Status::Complete((used, _)) => Status::Complete((used, ())),
        Status::Partial => Status::Partial,
    })
}

impl Head {
    fn of(parsed: &httparse::Response<'_, '_>) -> io::Result<Head> {
        let status = parsed.code.unwrap_or_default();
        // 1xx answers an Expect or Upgrade header, and requests here have neither.
        if status < 200 {
            return Err(flaw(NOT_HTTP));
        }
        let has_word = |value: &[u8]| {
            value
                .split(|byte| *byte == b',')
                .any(|word| word.trim_ascii().eq_ignore_ascii_case(b"close"))
        };
        let asks_to_close = values(parsed.headers, "connection").any(has_word);
        let body = Body::of(parsed.headers, status)?;
        let persists = parsed.version == Some(1) && !asks_to_close && body != Body::Close;
        let retry_after = values(parsed.headers, "retry-after").find_map(decimal);
        let retry_after = retry_after.map(|seconds| Duration::from_secs(seconds as u64));
        Ok(Head { status, persists, retry_after, body })
    }
}

impl Body {
    /// Two lengths that disagree are the means of smuggling one response into another.
    fn of(headers: &[Header<'_>], status: u16) -> io::Result<Body> {
        let mut lengths = values(headers, "content-length");
        let mut codings = values(headers, "transfer-encoding");
        let body = match (lengths.next(), codings.next()) {
            (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Body::Size,
            (Some(length), None) => Body::Length(decimal(length).ok_or_else(|| flaw(LENGTH))?),
            (None, None) if matches!(status, 204 | 304) => Body::Length(0),
            (None, None) => Body::Close,
            _ => return Err(flaw(LENGTH)),
        };
        match lengths.next().or(codings.next()) {
            Some(_) => Err(flaw(LENGTH)),
            None => Ok(body),
        }
    }
}

fn values<'a>(headers: &'a [Header<'a>], name: &'static str) -> impl Iterator<Item = &'a [u8]> {
    let named = headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    named.map(|header| header.value)
}

fn decimal(digits: &[u8]) -> Option<usize> {
    let is_number = digits.iter().all(u8::is_ascii_digit);
    str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MOST: usize = 4096;

    /// Bytes that arrive in pieces of a size, and then the connection ends.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len());
            self.0.read(&mut into[..count])
        }
    }

    fn received(text: &[u8], size: usize) -> io::Result<(u16, Vec<u8>, bool)> {
        let mut incoming = Incoming::new(Pieces(text, size));
        let head = incoming.head()?;
        let body = incoming.body(MOST)?;
        Ok((head.status, body, head.persists && incoming.is_at_end()))
    }

    #[track_caller]
    fn refused(text: &[u8]) -> String {
        received(text, usize::MAX).unwrap_err().to_string()
    }

    /// A range's answer of etcd 3.4.23.
    const PLAIN: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nGrpc-Metadata-Content-Type: application/grpc\r\nDate: Mon, 23 Nov 2026 10:00:00 GMT\r\nContent-Length: 13\r\n\r\n{\"count\":\"1\"}";
    /// A watch's beginning.
    const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n{\"result\":{}}\n\n\r\n8\r\n{\"a\":1}\n\r\n";

    #[test]
    fn a_response_is_the_same_in_pieces_of_any_size() {
        for size in 1..PLAIN.len() {
            let expected = (200, b"{\"count\":\"1\"}".to_vec(), true);
            assert_eq!(received(PLAIN, size).unwrap(), expected);
        }
        let stream = [STREAM, b"0\r\nX: y\r\n\r\n"].concat();
        for size in 1..stream.len() {
            let mut incoming = Incoming::new(Pieces(&stream, size));
            assert!(incoming.head().unwrap().persists);
            let mut lines = std::iter::from_fn(|| incoming.line().unwrap());
            assert_eq!(
                lines.by_ref().collect::<Vec<_>>(),
                [&b"{\"result\":{}}"[..], b"", b"{\"a\":1}"]
            );
            assert!(incoming.is_at_end());
        }
    }

    #[test]
    fn a_connection_is_reused_only_after_a_whole_response() {
        let cases = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true),
            ("HTTP/1.1 204 No Content\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200", false),
            ("HTTP/1.1 200 OK\r\n\r\n{}", false),
        ];
        for (text, is_usable) in cases {
            assert_eq!(received(text.as_bytes(), usize::MAX).unwrap().2, is_usable, "{text:?}");
        }
    }

    #[test]
    fn a_server_may_ask_to_wait() {
        let after = |value: &str| {
            let text =
                format!("HTTP/1.1 429 Busy\r\nRetry-After: {value}\r\nContent-Length: 0\r\n\r\n");
            Incoming::new(text.as_bytes()).head().unwrap().retry_after
        };
        assert_eq!(after("7"), Some(Duration::from_secs(7)));
        assert_eq!([after("Wed, 21 Oct 2026 07:28:00 GMT"), after("")], [None, None]);
    }

    #[test]
    fn a_response_that_ends_early_is_short() {
        for text in [&PLAIN[..20], &PLAIN[..PLAIN.len() - 1], STREAM, b""] {
            assert_eq!(refused(text), SHORT);
        }
    }

    #[test]
    fn malformed_responses_are_refused() {
        let cases = [
            ("garbage\r\n\r\n", NOT_HTTP),
            ("\x16\x03\x01\x02\x00\x01\x00\x01", NOT_HTTP),
            ("HTTP/2 200\r\n\r\n", NOT_HTTP),
            ("HTTP/1.1 100 Continue\r\n\r\n", NOT_HTTP),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", LENGTH),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n", LENGTH),
            ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n", LENGTH),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", LENGTH),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", LENGTH),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", LENGTH),
            ("HTTP/1.1 200 OK\r\nContent-Length: 4097\r\n\r\n", LONG_BODY),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", CHUNK),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab", CHUNK),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", CHUNK),
        ];
        for (text, expected) in cases {
            assert_eq!(refused(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn nothing_grows_beyond_its_limit() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let header = "X-A: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\r\n";
        let cases = [
            ("HTTP/1.1 200 OK\r\n", header, LONG_HEAD),
            ("HTTP/1.1 200 OK\r\nX: ", "bbbbbbbb", LONG_HEAD),
            ("HTTP/1.1 200 OK\r\n\r\n", "bbbbbbbb", LONG_BODY),
            (chunked, "4\r\nabcd\r\n", LONG_BODY),
            (&format!("{chunked}ffffff\r\n"), "abcd", LONG_BODY),
            (&format!("{chunked}1;"), "abcd", CHUNK),
            (&format!("{chunked}0\r\n"), header, LONG_HEAD),
        ];
        for (start, more, expected) in cases {
            let text = format!("{start}{}", more.repeat(10_000));
            let mut incoming = Incoming::new(text.as_bytes());
            let read = incoming.head().and_then(|_| incoming.body(MOST));
            assert_eq!(read.unwrap_err().to_string(), expected, "{start:?}");
            assert!(incoming.pending.capacity() < 4 * (LONGEST_HEAD + PIECE), "{start:?}");
        }
        let endless =
            [b"HTTP/1.1 200 OK\r\n\r\n", vec![b'a'; LONGEST_LINE + 1].as_slice()].concat();
        let mut incoming = Incoming::new(&endless[..]);
        let read = incoming.head().and_then(|_| incoming.line());
        assert_eq!(read.unwrap_err().to_string(), LONG_BODY);
    }
}
