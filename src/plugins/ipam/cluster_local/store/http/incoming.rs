//! Replies of HTTP/1.1 that arrive, within fixed limits: a broken or hostile server costs no more
//! than they allow.

use std::io::{self, Read};

use httparse::{EMPTY_HEADER, Header, Status, parse_chunk_size, parse_headers};

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

/// Replies that arrive from a source, one after the other.
#[derive(Debug)]
pub struct Incoming<R> {
    /// The source.
    pub source: R,
    /// What has arrived and was not taken.
    arrived: Vec<u8>,
    /// So many bytes of the body are left; None if it comes in chunks.
    left: Option<usize>,
    /// The part of a body that is not a whole line of a stream yet.
    line: Vec<u8>,
    /// Whether the server keeps the connection open after this reply.
    persists: bool,
    /// Whether there was a reply.
    pub has_heard: bool,
}

fn flaw(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn unreadable(error: httparse::Error) -> &'static str {
    if error == httparse::Error::TooManyHeaders { LONG_HEAD } else { NOT_HTTP }
}

impl<R: Read> Incoming<R> {
    /// Replies from a source.
    pub fn new(source: R) -> Incoming<R> {
        let (arrived, line, left) = (vec![], vec![], Some(0));
        Incoming { source, arrived, left, line, persists: true, has_heard: false }
    }

    /// Whether the connection can have another request: the body has ended, and nothing came after it.
    pub fn is_reusable(&self) -> bool {
        self.persists && self.left == Some(0) && self.arrived.is_empty()
    }

    /// Reads status line and headers; returns the status.
    pub fn head(&mut self) -> io::Result<u16> {
        let (status, persists, left) = self.parse(LONGEST_HEAD, LONG_HEAD, |bytes| {
            let mut headers = [EMPTY_HEADER; MOST_HEADERS];
            let mut head = httparse::Response::new(&mut headers);
            match head.parse(bytes).map_err(unreadable)? {
                Status::Complete(length) => Ok(Status::Complete((length, read_head(&head)?))),
                Status::Partial => Ok(Status::Partial),
            }
        })?;
        (self.persists, self.left, self.has_heard) = (persists, left, true);
        self.line.clear();
        Ok(status)
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
        let mut known = 0; // bytes without a newline
        loop {
            if let Some(end) = self.line[known..].iter().position(|byte| *byte == b'\n') {
                let rest = self.line.split_off(known + end + 1);
                self.line.pop();
                return Ok(Some(std::mem::replace(&mut self.line, rest)));
            }
            known = self.line.len();
            let piece = self.piece(LONGEST_LINE - known)?;
            if piece.is_empty() {
                return Ok(None);
            }
            self.line.extend(piece);
        }
    }

    /// The next chunk, or all of a body with a length; nothing at its end.
    fn piece(&mut self, most: usize) -> io::Result<Vec<u8>> {
        let left = self.left;
        let length = match left {
            Some(length) => length as u64,
            None => {
                self.parse(LONGEST_SIZE, CHUNK, |bytes| parse_chunk_size(bytes).map_err(|_| CHUNK))?
            }
        };
        if length > most as u64 {
            return Err(flaw(LONG_BODY));
        }
        let piece = self.take(length as usize)?;
        match left {
            Some(_) => (),
            None if length == 0 => self.parse(LONGEST_HEAD, LONG_HEAD, |bytes| {
                let mut trailer = [EMPTY_HEADER; MOST_HEADERS];
                Ok(match parse_headers(bytes, &mut trailer).map_err(unreadable)? {
                    Status::Complete((length, _)) => Status::Complete((length, ())),
                    Status::Partial => Status::Partial,
                })
            })?,
            None if self.take(2)? == b"\r\n" => return Ok(piece),
            None => return Err(flaw(CHUNK)),
        }
        self.left = Some(0);
        Ok(piece)
    }

    /// Takes so many bytes.
    fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        while self.arrived.len() < length {
            if !self.fill()? {
                return Err(flaw(SHORT));
            }
        }
        let rest = self.arrived.split_off(length);
        Ok(std::mem::replace(&mut self.arrived, rest))
    }

    /// Takes what is parsed of at most so many bytes, once it has arrived as a whole. More have no
    /// influence, so that the result does not depend on the pieces that arrive.
    fn parse<T>(
        &mut self,
        most: usize,
        too_long: &'static str,
        parse: impl Fn(&[u8]) -> Result<Status<(usize, T)>, &'static str>,
    ) -> io::Result<T> {
        loop {
            let known = self.arrived.len().min(most);
            if let Status::Complete((length, found)) =
                parse(&self.arrived[..known]).map_err(flaw)?
            {
                self.arrived.drain(..length);
                return Ok(found);
            }
            if known == most {
                return Err(flaw(too_long));
            }
            if !self.fill()? {
                return Err(flaw(SHORT));
            }
        }
    }

    /// Waits for more; false if the connection has ended.
    fn fill(&mut self) -> io::Result<bool> {
        let mut piece = [0; 8192];
        let count = loop {
            match self.source.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                read => break read?,
            }
        };
        self.arrived.extend_from_slice(&piece[..count]);
        Ok(count > 0)
    }
}

/// The status, whether the connection stays open, and the length of the body. One that only the end
/// of the connection ends is refused: it may not be whole.
fn read_head(
    head: &httparse::Response<'_, '_>,
) -> Result<(u16, bool, Option<usize>), &'static str> {
    let status = head.code.unwrap_or_default();
    // 1xx answers an Expect or Upgrade header, and requests here have neither.
    if status < 200 {
        return Err(NOT_HTTP);
    }
    let mut lengths = values(head.headers, "content-length");
    let mut codings = values(head.headers, "transfer-encoding");
    let left = match (lengths.next(), codings.next()) {
        (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => None,
        (Some(length), None) => Some(decimal(length).ok_or(LENGTH)?),
        _ => return Err(LENGTH),
    };
    // Two lengths that disagree are the means of smuggling one response into another.
    if lengths.next().or(codings.next()).is_some() {
        return Err(LENGTH);
    }
    let is_close = |word: &[u8]| word.trim_ascii().eq_ignore_ascii_case(b"close");
    let mut options =
        values(head.headers, "connection").flat_map(|value| value.split(|byte| *byte == b','));
    Ok((status, head.version == Some(1) && !options.any(is_close), left))
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
        let status = incoming.head()?;
        let body = incoming.body(MOST)?;
        Ok((status, body, incoming.is_reusable()))
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
            assert_eq!(incoming.head().unwrap(), 200);
            let mut lines = std::iter::from_fn(|| incoming.line().unwrap());
            assert_eq!(
                lines.by_ref().collect::<Vec<_>>(),
                [&b"{\"result\":{}}"[..], b"", b"{\"a\":1}"]
            );
            assert!(incoming.is_reusable());
        }
    }

    #[test]
    fn a_connection_is_reused_only_after_a_whole_response() {
        let cases = [
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: x, Close\r\n\r\n", false),
            ("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200", false),
        ];
        for (text, is_usable) in cases {
            assert_eq!(received(text.as_bytes(), usize::MAX).unwrap().2, is_usable, "{text:?}");
        }
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
            ("HTTP/1.1 200 OK\r\n\r\n{}", LENGTH),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", LENGTH),
            ("HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n", LENGTH),
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
        let endless = chunked.to_owned()
            + &format!("1000\r\n{}\r\n", "a".repeat(4096)).repeat(LONGEST_LINE / 4096 + 1);
        let mut incoming = Incoming::new(endless.as_bytes());
        let read = incoming.head().and_then(|_| incoming.line());
        assert_eq!(read.unwrap_err().to_string(), LONG_BODY);
    }
}
