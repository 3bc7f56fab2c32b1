//! Reads one HTTP/1.1 response, piece by piece as the bytes arrive, within fixed limits: a broken
//! or hostile server costs no more than [`Limits`] allows.

use std::fmt;

/// The most headers of a response or of its trailer.
const MOST_HEADERS: usize = 64;
/// The longest line of a chunk's size, with its extensions.
const LONGEST_SIZE_LINE: usize = 256;

/// The limits in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of status line and headers, and of the trailer.
    pub head: usize,
    /// Of the part of the body that is kept at one time.
    pub body: usize,
}

/// Why a response cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// It is not HTTP/1.1.
    NotHttp,
    /// Status line and headers, or the trailer, exceed the limit.
    LongHead,
    /// The body exceeds the limit.
    LongBody,
    /// A chunk is malformed.
    Chunk,
    /// The length of the body is missing or ambiguous.
    Length,
    /// The connection ended before the response did.
    Short,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Flaw::NotHttp => "the response is not HTTP/1.1",
            Flaw::LongHead => "the headers of the response are too long",
            Flaw::LongBody => "the response is too long",
            Flaw::Chunk => "a chunk of the response is malformed",
            Flaw::Length => "the length of the response is missing or ambiguous",
            Flaw::Short => "the connection ended before the response",
        })
    }
}

/// What is known of a response once its headers have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    framing: Framing,
    /// Whether the server keeps the connection open.
    persists: bool,
}

/// How the end of the body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    /// The body ends with the connection.
    Close,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Head,
    /// So many bytes of a body with a known length.
    Body(usize),
    ChunkSize,
    Chunk(usize),
    ChunkEnd,
    Trailer,
    /// Bytes until the connection ends.
    Rest,
    Nothing,
}

/// A response that is arriving.
#[derive(Debug)]
pub struct Response {
    limits: Limits,
    expected: Expected,
    head: Option<Head>,
    /// Bytes that were received and not interpreted yet.
    pending: Vec<u8>,
    body: Vec<u8>,
}

impl Response {
    /// A response of which nothing has arrived.
    pub fn new(limits: Limits) -> Response {
        Response { limits, expected: Expected::Head, head: None, pending: vec![], body: vec![] }
    }

    /// Interprets further bytes. After a flaw the response is of no use.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Flaw> {
        self.pending.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(used) = self.step(at)? {
            at += used;
        }
        self.pending.drain(..at);
        Ok(())
    }

    /// The connection has ended.
    pub fn end(&mut self) -> Result<(), Flaw> {
        match self.expected {
            Expected::Rest => self.expected = Expected::Nothing,
            Expected::Nothing => (),
            _ => return Err(Flaw::Short),
        }
        Ok(())
    }

    /// The status, once the headers have arrived.
    pub fn status(&self) -> Option<u16> {
        self.head.map(|head| head.status)
    }

    /// Whether the response has arrived as a whole.
    pub fn is_complete(&self) -> bool {
        self.expected == Expected::Nothing
    }

    /// Whether the connection may serve another request: the response is complete, the server keeps
    /// the connection open and has sent nothing after the response.
    pub fn leaves_connection_usable(&self) -> bool {
        self.is_complete() && self.pending.is_empty() && self.head.is_some_and(|head| head.persists)
    }

    /// The body so far.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The body, when nothing else is needed.
    pub fn into_body(self) -> Vec<u8> {
        self.body
    }

    /// Takes the first line out of the body, without its newline: a stream has one message a line.
    pub fn take_line(&mut self) -> Option<Vec<u8>> {
        let end = self.body.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.body.drain(..=end).collect();
        line.pop();
        Some(line)
    }

    /// Interprets the pending bytes from `at`; returns how many, or None if more are needed.
    fn step(&mut self, at: usize) -> Result<Option<usize>, Flaw> {
        match self.expected {
            Expected::Head => self.read_head(at),
            Expected::Body(length) => self.read_body(at, length),
            Expected::ChunkSize => self.read_chunk_size(at),
            Expected::Chunk(length) => self.read_chunk(at, length),
            Expected::ChunkEnd => self.read_chunk_end(at),
            Expected::Trailer => self.read_trailer(at),
            Expected::Rest => self.read_rest(at),
            Expected::Nothing => Ok(None),
        }
    }

    fn read_head(&mut self, at: usize) -> Result<Option<usize>, Flaw> {
        let bytes = within(&self.pending[at..], self.limits.head);
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut parsed = httparse::Response::new(&mut headers);
        let used = match parsed.parse(bytes) {
            Ok(httparse::Status::Complete(used)) => used,
            Ok(httparse::Status::Partial) if bytes.len() < self.limits.head => return Ok(None),
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Err(Flaw::LongHead);
            }
            Err(_) => return Err(Flaw::NotHttp),
        };
        let head = Head::of(&parsed)?;
        self.expect_body(head)?;
        self.head = Some(head);
        Ok(Some(used))
    }

    fn expect_body(&mut self, head: Head) -> Result<(), Flaw> {
        self.expected = match head.framing {
            Framing::Length(length) if length > self.limits.body => return Err(Flaw::LongBody),
            Framing::Length(0) => Expected::Nothing,
            Framing::Length(length) => Expected::Body(length),
            Framing::Chunked => Expected::ChunkSize,
            Framing::Close => Expected::Rest,
        };
        Ok(())
    }

    fn read_body(&mut self, at: usize, length: usize) -> Result<Option<usize>, Flaw> {
        let Some(used) = self.keep(at, length)? else { return Ok(None) };
        self.expected = match length - used {
            0 => Expected::Nothing,
            left => Expected::Body(left),
        };
        Ok(Some(used))
    }

    fn read_chunk_size(&mut self, at: usize) -> Result<Option<usize>, Flaw> {
        let bytes = within(&self.pending[at..], LONGEST_SIZE_LINE);
        let Ok(size) = httparse::parse_chunk_size(bytes) else { return Err(Flaw::Chunk) };
        let httparse::Status::Complete((used, size)) = size else {
            return if bytes.len() < LONGEST_SIZE_LINE { Ok(None) } else { Err(Flaw::Chunk) };
        };
        // A chunk may arrive in parts and a stream forgets what was taken, so the sum is limited
        // where it is kept.
        let size = usize::try_from(size).map_err(|_| Flaw::LongBody)?;
        self.expected = if size == 0 { Expected::Trailer } else { Expected::Chunk(size) };
        Ok(Some(used))
    }

    fn read_chunk(&mut self, at: usize, length: usize) -> Result<Option<usize>, Flaw> {
        let Some(used) = self.keep(at, length)? else { return Ok(None) };
        self.expected = match length - used {
            0 => Expected::ChunkEnd,
            left => Expected::Chunk(left),
        };
        Ok(Some(used))
    }

    fn read_chunk_end(&mut self, at: usize) -> Result<Option<usize>, Flaw> {
        match &self.pending[at..] {
            [b'\r', b'\n', ..] => {
                self.expected = Expected::ChunkSize;
                Ok(Some(2))
            }
            [] | [b'\r'] => Ok(None),
            _ => Err(Flaw::Chunk),
        }
    }

    fn read_trailer(&mut self, at: usize) -> Result<Option<usize>, Flaw> {
        let bytes = within(&self.pending[at..], self.limits.head);
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        match httparse::parse_headers(bytes, &mut headers) {
            Ok(httparse::Status::Complete((used, _))) => {
                self.expected = Expected::Nothing;
                Ok(Some(used))
            }
            Ok(httparse::Status::Partial) if bytes.len() < self.limits.head => Ok(None),
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                Err(Flaw::LongHead)
            }
            Err(_) => Err(Flaw::Chunk),
        }
    }

    fn read_rest(&mut self, at: usize) -> Result<Option<usize>, Flaw> {
        self.keep(at, usize::MAX)
    }

    /// Moves at most `most` pending bytes to the body; None if nothing is pending.
    fn keep(&mut self, at: usize, most: usize) -> Result<Option<usize>, Flaw> {
        let bytes = within(&self.pending[at..], most);
        if self.body.len() + bytes.len() > self.limits.body {
            return Err(Flaw::LongBody);
        }
        self.body.extend_from_slice(bytes);
        Ok((!bytes.is_empty()).then_some(bytes.len()))
    }
}

/// The first bytes, at most `most`.
fn within(bytes: &[u8], most: usize) -> &[u8] {
    &bytes[..bytes.len().min(most)]
}

impl Head {
    fn of(parsed: &httparse::Response<'_, '_>) -> Result<Head, Flaw> {
        let status = parsed.code.ok_or(Flaw::NotHttp)?;
        // 1xx answers an Expect or Upgrade header, and requests here have neither.
        if status < 200 {
            return Err(Flaw::NotHttp);
        }
        let asks_to_close =
            values(parsed.headers, "connection").any(|value| has_word(value, "close"));
        let framing = Framing::of(parsed.headers, status)?;
        let persists = parsed.version == Some(1) && !asks_to_close && framing != Framing::Close;
        Ok(Head { status, framing, persists })
    }
}

impl Framing {
    /// Two lengths that disagree are the means of smuggling one response into another.
    fn of(headers: &[httparse::Header<'_>], status: u16) -> Result<Framing, Flaw> {
        let mut lengths = values(headers, "content-length");
        let mut codings = values(headers, "transfer-encoding");
        let framing = match (lengths.next(), codings.next()) {
            (None, Some(coding)) if coding.eq_ignore_ascii_case(b"chunked") => Framing::Chunked,
            (Some(length), None) => Framing::Length(decimal(length).ok_or(Flaw::Length)?),
            (None, None) if matches!(status, 204 | 304) => Framing::Length(0),
            (None, None) => Framing::Close,
            _ => return Err(Flaw::Length),
        };
        if lengths.next().is_some() || codings.next().is_some() {
            return Err(Flaw::Length);
        }
        Ok(framing)
    }
}

fn values<'a>(
    headers: &'a [httparse::Header<'a>],
    name: &'static str,
) -> impl Iterator<Item = &'a [u8]> {
    let named = headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    named.map(|header| header.value)
}

fn has_word(value: &[u8], word: &str) -> bool {
    value
        .split(|byte| *byte == b',')
        .any(|part| part.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
}

fn decimal(digits: &[u8]) -> Option<usize> {
    let digits = str::from_utf8(digits).ok()?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}
