//! A stand-in for the kernel at the other end of a netlink socket, with all its answers queued in
//! advance.

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};

/// The size of `nlmsghdr`.
const HEADER: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// NLM_F_MULTI: more messages follow.
const MULTI: u16 = 2;
/// The longest datagram, and the most datagrams.
const LONGEST: usize = 64 * 1024;
const DATAGRAMS: usize = 32;

/// Our end, and the stand-in's, which receives the requests and must be kept open.
///
/// The bytes are messages. Each answer is a datagram: it ends with an error, with the end of a
/// dump, or with a message that is not part of one. A message without a sequence number gets that
/// of the next request.
pub fn answering(bytes: &[u8]) -> (OwnedFd, OwnedFd) {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (ours, kernel) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).expect("there are sockets");
    let mut rest = bytes;
    for number in 1..=DATAGRAMS as u32 {
        let (answer, more) = rest.split_at(length_of_answer(rest).min(LONGEST));
        if answer.is_empty() {
            break;
        }
        let _ = send(kernel.as_raw_fd(), &numbered(answer, number), MsgFlags::empty()); // an answer that does not fit is not sent
        rest = more;
    }
    (ours, kernel)
}

fn length_of_answer(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some((length, kind, flags)) = header(&bytes[at..]) {
        at = (at + length.next_multiple_of(4)).min(bytes.len());
        if [ERROR, DONE].contains(&kind) || flags & MULTI == 0 {
            return at;
        }
    }
    bytes.len()
}

/// The length, the type and the flags of the first message.
fn header(bytes: &[u8]) -> Option<(usize, u16, u16)> {
    let (header, _) = bytes.split_first_chunk::<HEADER>()?;
    let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    (HEADER..=bytes.len()).contains(&length).then(|| (length, word(4), word(6)))
}

fn numbered(answer: &[u8], number: u32) -> Vec<u8> {
    let (mut answer, mut at) = (answer.to_vec(), 0);
    while let Some((length, ..)) = answer.get(at..).and_then(header) {
        if answer[at + 8..at + 12] == [0; 4] {
            answer[at + 8..at + 12].copy_from_slice(&number.to_ne_bytes());
        }
        at += length.next_multiple_of(4);
    }
    answer
}
