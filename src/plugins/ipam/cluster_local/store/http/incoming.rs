//! A reply of HTTP/1.1 that arrives, within fixed limits: a broken or hostile server costs no more
//! than they allow.

use std::io::{self, BufRead as _, BufReader, Read};
use std::time::Duration;

use httparse::{EMPTY_HEADER, Header, Status, parse_chunk_size};

/// The most headers of a reply.
const MOST_HEADERS: usize = 64;
/// The limit in bytes of status line and headers, and of the trailer.
const LONGEST_HEAD: usize = 16 << 10;
/// The longest line of a chunk's size, with its extensions.
const LONGEST_SIZE: usize = 256;
/// The longest line of a stream.
const LONGEST_LINE: usize = 4 << 20;

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
    body: Body,
}

/// What is left of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// So many bytes.
    Length(usize),
    /// Chunks.
    Chunks,
    /// What comes before the connection ends.
    Close,
}

/// Replies that arrive from a source, one after the other.
#[derive(Debug)]
pub struct Incoming<R> {
    source: BufReader<R>,
    body: Body,
    /// The lines of a stream that have arrived, and the begin of the next.
    lines: Vec<u8>,
}

fn flaw(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl<R: Read> Incoming<R> {
    /// Replies from a source.
    pub fn new(source: R) -> Incoming<R> {
        Incoming { source: BufReader::new(source), body: Body::Length(0), lines: vec![] }
    }

    /// The source.
    pub fn source(&mut self) -> &mut R {
        self.source.get_mut()
    }

    /// Whether the body has ended, and nothing has come after it.
    pub fn is_at_end(&self) -> bool {
        self.body == Body::Length(0) && self.source.buffer().is_empty()
    }

    /// Reads status line and headers.
    pub fn head(&mut self) -> io::Result<Head> {
        let mut text = self.text_line(LONGEST_HEAD, LONG_HEAD)?;
        if !text.starts_with(b"HTTP/1.") {
            return Err(flaw(NOT_HTTP)); // there may be no empty line to wait for
        }
        self.section(&mut text)?;
        let mut headers = [EMPTY_HEADER; MOST_HEADERS];
        let mut parsed = httparse::Response::new(&mut headers);
        match parsed.parse(&text) {
            Ok(Status::Complete(_)) => (),
            Err(httparse::Error::TooManyHeaders) => return Err(flaw(LONG_HEAD)),
            _ => return Err(flaw(NOT_HTTP)),
        }
        let head = Head::of(&parsed)?;
        self.body = head.body;
        self.lines.clear();
        Ok(head)
    }

    /// Reads the whole body, of at most so many bytes.
    pub fn body(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let mut body = vec![];
        loop {
            let piece = self.piece(most - body.len())?;
            if piece.is_empty() {
                return Ok(body);
            }
            body.extend(piece);
        }
    }

    /// Reads the next line of a stream, without its newline; None at the end.
    pub fn line(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.lines.iter().position(|byte| *byte == b'\n') {
                let rest = self.lines.split_off(end + 1);
                self.lines.pop();
                return Ok(Some(std::mem::replace(&mut self.lines, rest)));
            }
            let piece = self.piece(LONGEST_LINE - self.lines.len())?;
            if piece.is_empty() {
                return Ok(None);
            }
            self.lines.extend(piece);
        }
    }

    /// The next chunk, or all of a body without chunks; nothing at its end.
    fn piece(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let length = match self.body {
            Body::Length(length) => length,
            Body::Chunks => self.chunk_size()?,
            Body::Close => usize::MAX,
        };
        let is_known = self.body != Body::Close;
        if is_known && length > most {
            return Err(flaw(LONG_BODY));
        }
        let mut piece = vec![];
        let limit = length.min(most.saturating_add(1));
        self.source.by_ref().take(limit as u64).read_to_end(&mut piece)?;
        match (self.body, length) {
            _ if piece.len() > most => return Err(flaw(LONG_BODY)),
            _ if is_known && piece.len() < length => return Err(short()),
            (Body::Chunks, 1..) if self.text_line(2, CHUNK)? == b"\r\n" => return Ok(piece),
            (Body::Chunks, 1..) => return Err(flaw(CHUNK)),
            (Body::Chunks, 0) => self.section(&mut vec![])?, // the trailer
            _ => (),
        }
        self.body = Body::Length(0);
        Ok(piece)
    }

    fn chunk_size(&mut self) -> io::Result<usize> {
        match parse_chunk_size(&self.text_line(LONGEST_SIZE, CHUNK)?) {
            Ok(Status::Complete((_, size))) => usize::try_from(size).map_err(|_| flaw(LONG_BODY)),
            _ => Err(flaw(CHUNK)),
        }
    }

    /// Adds lines, up to an empty one.
    fn section(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let line = self.text_line(LONGEST_HEAD - text.len(), LONG_HEAD)?;
            text.extend_from_slice(&line);
            if line == b"\r\n" || line == b"\n" {
                return Ok(());
            }
        }
    }

    /// A line with its end.
    fn text_line(&mut self, most: usize, too_long: &'static str) -> io::Result<Vec<u8>> {
        let mut line = vec![];
        self.source.by_ref().take(most as u64).read_until(b'\n', &mut line)?;
        match line.last() {
            Some(b'\n') => Ok(line),
            _ if line.len() == most => Err(flaw(too_long)),
            _ => Err(short()),
        }
    }
}

fn short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, SHORT)
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
            (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Body::Chunks,
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
            ("\x16\x03\x01\x02\x00\x01\x00\x01\n\n", NOT_HTTP),
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
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", CHUNK),
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
        }
        let endless =
            [b"HTTP/1.1 200 OK\r\n\r\n", vec![b'a'; LONGEST_LINE + 1].as_slice()].concat();
        let mut incoming = Incoming::new(&endless[..]);
        let read = incoming.head().and_then(|_| incoming.line());
        assert_eq!(read.unwrap_err().to_string(), LONG_BODY);
    }
}
