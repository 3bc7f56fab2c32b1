//! Netlink dumps and the contents of their messages, as text.

use std::cell::RefCell;
use std::io;

pub const ROUTE: isize = 0;
pub const NETFILTER: isize = 12;

const HEADER: usize = 16;
const REQUEST_DUMP: u16 = 0x301;
const INTERRUPTED: u16 = 0x10;
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// Flags occupy the bits of an attribute's type above these.
const TYPE: u16 = 0x3fff;

/// A netlink socket for dumps.
pub struct Socket {
    socket: netlink_sys::Socket,
    buffer: RefCell<Vec<u8>>,
}

/// The bytes after a message's header.
pub type Payload = Vec<u8>;

impl Socket {
    pub fn open(protocol: isize) -> io::Result<Socket> {
        let socket = netlink_sys::Socket::new(protocol)?;
        Ok(Socket { socket, buffer: RefCell::new(Vec::with_capacity(128 * 1024)) })
    }

    /// All messages of a dump; empty if the kernel does not support the dump.
    pub fn dump(&self, kind: u16, body: &[u8]) -> Vec<Payload> {
        loop {
            if let Some(messages) = self.try_dump(kind, body) {
                return messages;
            }
        }
    }

    /// None if the kernel reports a change during the dump, which makes it possibly inconsistent.
    fn try_dump(&self, kind: u16, body: &[u8]) -> Option<Vec<Payload>> {
        let length = u32::try_from(HEADER + body.len()).unwrap();
        let mut request = length.to_ne_bytes().to_vec();
        request.extend([kind, REQUEST_DUMP].map(u16::to_ne_bytes).concat());
        request.extend([0; 8]);
        request.extend(body);
        self.socket.send(&request, 0).unwrap();
        let (mut messages, mut is_whole) = (vec![], true);
        loop {
            let mut buffer = self.buffer.borrow_mut();
            buffer.clear();
            self.socket.recv(&mut *buffer, 0).unwrap();
            for (kind, flags, payload) in split(&buffer) {
                is_whole &= flags & INTERRUPTED == 0;
                match kind {
                    DONE | ERROR => return is_whole.then_some(messages),
                    _ => messages.push(payload.to_vec()),
                }
            }
        }
    }
}

/// The messages of a datagram: type, flags and payload.
fn split(mut bytes: &[u8]) -> Vec<(u16, u16, &[u8])> {
    let mut messages = vec![];
    while bytes.len() >= HEADER {
        let length = (number(bytes, 0, 4) as usize).clamp(HEADER, bytes.len());
        messages.push((
            number(bytes, 4, 2) as u16,
            number(bytes, 6, 2) as u16,
            &bytes[HEADER..length],
        ));
        bytes = &bytes[length.next_multiple_of(4).min(bytes.len())..];
    }
    messages
}

/// A number in native byte order.
pub fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    let mut whole = [0; 8];
    whole[..length].copy_from_slice(&bytes[at..at + length]);
    u64::from_le_bytes(whole)
}

/// The attributes of a payload after a fixed part of `behind` bytes, in the kernel's order.
pub fn attributes(payload: &[u8], behind: usize) -> Vec<(u16, &[u8])> {
    let mut rest = payload.get(behind..).unwrap_or_default();
    let mut found = vec![];
    while rest.len() >= 4 {
        let length = (number(rest, 0, 2) as usize).clamp(4, rest.len());
        found.push((number(rest, 2, 2) as u16 & TYPE, &rest[4..length]));
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    found
}

pub fn attribute(payload: &[u8], behind: usize, kind: u16) -> Option<&[u8]> {
    attributes(payload, behind)
        .into_iter()
        .find(|(other, _)| *other == kind)
        .map(|(_, value)| value)
}

/// A value in readable form: a printable string as it is, any other value as hexadecimal.
pub fn show(value: &[u8]) -> String {
    match value.split_last() {
        Some((0, text))
            if !text.is_empty()
                && text.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') =>
        {
            String::from_utf8_lossy(text).into_owned()
        }
        _ => value.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// Attributes as `number=value`, except those listed in `without`.
pub fn show_without(attributes: &[(u16, &[u8])], without: &[u16]) -> String {
    let lasting = attributes.iter().filter(|(kind, _)| !without.contains(kind));
    lasting.map(|(kind, value)| format!(" {kind}={}", show(value))).collect()
}
