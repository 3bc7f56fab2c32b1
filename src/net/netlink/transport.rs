//! Messages to the kernel and back over one blocking socket (netlink(7)), for rtnetlink and
//! nf_tables alike.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::{MsgFlags, setsockopt, sockopt};

use super::attr::{self, Attrs};
use super::memory::Memory;
use crate::timing::{self, Wait};

/// nlmsghdr.
const HEADER: usize = 16;
/// nlmsg_flags in it.
const FLAGS: usize = 6;
/// nlmsg_seq in it.
const NUMBER: Range<usize> = 8..12;
/// An acknowledgement when its errno is 0.
const NLMSG_ERROR: u16 = 2;
/// The end of a dump.
const NLMSG_DONE: u16 = 3;
/// The dumped objects changed during the dump.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// A request for a list.
const NLM_F_DUMP: u16 = 0x300;
/// The kernel's text follows the error.
const NLM_F_ACK_TLVS: u16 = 0x200;
// linux/netlink.h: enum nlmsgerr_attrs
const NLMSGERR_ATTR_MSG: u16 = 1;
/// The longest datagram that is read. The kernel fills those of a dump up to 32 KiB, but a single
/// link can have 64 KiB of alternative names, which any process that controls a container's
/// namespace can add. Memory that is not filled costs nothing.
const BUFFER: usize = 96 * 1024;
/// The message size that the buffers of any socket have room for.
const ORDINARY: usize = 64 * 1024;

/// A refused request, with the kernel's explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub errno: Errno,
    /// The text of the extended acknowledgement, possibly empty.
    pub text: String,
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal { errno, text: String::new() }
    }
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// nlmsg_type.
    pub kind: u16,
    flags: u16,
    seq: u32,
    /// What follows the header.
    pub payload: &'a [u8],
}

/// What a reply means for the request that it answers.
enum Reply {
    Acknowledged,
    Done,
    Data,
}

/// A socket that stays in the namespace of the thread that opened it.
pub struct Transport {
    socket: Socket,
    /// What a wait for an answer is booked as.
    wait: Wait,
    seq: Cell<u32>,
    buffer: RefCell<Vec<u8>>,
    memory: RefCell<Option<Memory<Refusal>>>,
}

/// Readable when something has arrived: for poll(2).
impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the socket is open for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.socket.as_raw_fd()) }
    }
}

impl Transport {
    /// Opens a socket of the protocol (NETLINK_ROUTE, NETLINK_NETFILTER).
    pub fn open(protocol: isize) -> Result<Transport, Errno> {
        let wait = if protocol == NETLINK_NETFILTER { Wait::Rules } else { Wait::Links };
        open(protocol).map(|socket| Transport::of(socket, wait)).map_err(errno_of)
    }

    /// Uses a datagram socket whose peer is not the kernel: tests send any reply they need.
    pub fn over(socket: OwnedFd) -> Transport {
        // SAFETY: the descriptor is open, and nothing else owns it from here on.
        let socket = unsafe { Socket::from_raw_fd(socket.into_raw_fd()) };
        Transport::of(socket, Wait::Links)
    }

    fn of(socket: Socket, wait: Wait) -> Transport {
        let buffer = RefCell::new(Vec::with_capacity(BUFFER));
        Transport { socket, wait, seq: Cell::new(0), buffer, memory: RefCell::default() }
    }

    /// Joins a multicast group, to be notified of changes.
    pub fn join(&mut self, group: u32) -> Result<(), Errno> {
        self.socket.add_membership(group).map_err(errno_of)
    }

    /// The kernel's cookie of the socket's namespace. It is never reused, unlike a path and even an
    /// inode; None before Linux 5.14.
    pub fn netns_cookie(&self) -> Option<u64> {
        let mut cookie = 0_u64;
        let mut size = u64::BITS / 8;
        let to = (&raw mut cookie).cast();
        let fd = self.socket.as_raw_fd();
        // SAFETY: the kernel writes at most `size` bytes to `to`, which are those of `cookie`.
        let answer = unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, to, &raw mut size)
        };
        (answer == 0).then_some(cookie)
    }

    /// A sequence number that is unused so far.
    pub fn next_seq(&self) -> u32 {
        self.next_seqs(1)
    }

    /// The first of `count` consecutive sequence numbers that are unused so far.
    pub fn next_seqs(&self, count: u32) -> u32 {
        let first = self.seq.get().wrapping_add(1);
        self.seq.set(self.seq.get().wrapping_add(count));
        first
    }

    /// From now on answers to questions are kept, and none of before.
    pub fn remember(&self) {
        *self.memory.borrow_mut() = Some(Memory::default());
    }

    /// From now on the kernel answers each question.
    pub fn forget(&self) {
        *self.memory.borrow_mut() = None;
    }

    /// Asks a question, which is a message with the number 0 that changes nothing: for a list if it
    /// has NLM_F_DUMP, else for one object. The answer's messages go to `each`. Returns false if a
    /// dump was interrupted, see [`Transport::dump`].
    pub fn ask(
        &self,
        question: Vec<u8>,
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<bool, Refusal> {
        match &mut *self.memory.borrow_mut() {
            Some(memory) => memory.recall(
                question,
                |question, keep| {
                    self.ask_kernel(question, &mut |message| keep(message.kind, message.payload))
                },
                &mut |kind, payload| each(Message { kind, flags: 0, seq: 0, payload }),
            ),
            None => self.ask_kernel(question, each),
        }
    }

    fn ask_kernel(
        &self,
        mut question: Vec<u8>,
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<bool, Refusal> {
        let seq = self.next_seq();
        let is_dump =
            attr::read_u16(&question, FLAGS).unwrap_or_default() & NLM_F_DUMP == NLM_F_DUMP;
        if let Some(number) = question.get_mut(NUMBER) {
            number.copy_from_slice(&seq.to_ne_bytes());
        }
        self.send(&question)?;
        if is_dump { self.dump(seq, each) } else { self.one(seq, each).map(|()| true) }
    }

    /// Sends bytes that are one or more complete messages.
    pub fn send(&self, messages: &[u8]) -> Result<(), Errno> {
        if messages.len() > ORDINARY {
            self.make_room_for(messages.len())?;
        }
        loop {
            let sent = timing::waiting(self.wait, || self.socket.send(messages, 0));
            match sent.map_err(errno_of) {
                Err(Errno::EINTR) => (),
                sent => return sent.map(drop),
            }
        }
    }

    /// Enlarges the buffers of the socket. The kernel takes messages that are sent together in one
    /// piece, or not at all, and queues all its replies. An unprivileged user gets room up to
    /// net.core.wmem_max and net.core.rmem_max only.
    fn make_room_for(&self, length: usize) -> Result<(), Errno> {
        let needed = 2 * length; // the kernel's own bookkeeping counts too
        setsockopt(&self.socket, sockopt::RcvBufForce, &needed)
            .or_else(|_| setsockopt(&self.socket, sockopt::RcvBuf, &needed))?;
        setsockopt(&self.socket, sockopt::SndBufForce, &needed)
            .or_else(|_| setsockopt(&self.socket, sockopt::SndBuf, &needed))
    }

    /// Waits for the acknowledgement of the request `seq`; messages before it go to `each`.
    pub fn acknowledged(&self, seq: u32, each: impl FnMut(Message<'_>)) -> Result<(), Refusal> {
        self.batch_acknowledged(seq..seq.wrapping_add(1), seq, each)
    }

    /// Waits for the acknowledgement of `last` among the requests of a batch; any refusal in the
    /// batch ends the wait.
    pub fn batch_acknowledged(
        &self,
        batch: Range<u32>,
        last: u32,
        mut each: impl FnMut(Message<'_>),
    ) -> Result<(), Refusal> {
        self.receive(|message| {
            if !batch.contains(&message.seq) {
                return Ok(false); // the rest of an abandoned exchange
            }
            match message.reply()? {
                Reply::Acknowledged => Ok(message.seq == last),
                Reply::Done => Ok(true),
                Reply::Data => {
                    each(message);
                    Ok(false)
                }
            }
        })
    }

    /// Reads the single message that answers the request `seq`.
    pub fn one(&self, seq: u32, mut take: impl FnMut(Message<'_>)) -> Result<(), Refusal> {
        self.receive_of(seq, |message| {
            if let Reply::Data = message.reply()? {
                take(message);
            }
            Ok(true)
        })
    }

    /// Reads a dump to its end; returns false if it was interrupted, and entries may be missing or
    /// duplicate.
    pub fn dump(&self, seq: u32, mut each: impl FnMut(Message<'_>)) -> Result<bool, Refusal> {
        let mut consistent = true;
        self.receive_of(seq, |message| {
            consistent &= message.flags & NLM_F_DUMP_INTR == 0;
            match message.reply()? {
                Reply::Done | Reply::Acknowledged => Ok(true),
                Reply::Data => {
                    each(message);
                    Ok(false)
                }
            }
        })?;
        Ok(consistent)
    }

    /// Reads a dump until `enough` returns true or it ends. The socket is unusable afterwards.
    pub fn dump_until(
        &self,
        seq: u32,
        mut enough: impl FnMut(Message<'_>) -> bool,
    ) -> Result<(), Refusal> {
        self.receive_of(seq, |message| {
            Ok(!matches!(message.reply()?, Reply::Data) || enough(message))
        })
    }

    /// Reads one datagram of unsolicited messages.
    pub fn events(&self, mut each: impl FnMut(Message<'_>)) -> Result<(), Errno> {
        let mut buffer = self.buffer.borrow_mut();
        self.fill(&mut buffer)?;
        messages(&buffer).for_each(&mut each);
        Ok(())
    }

    /// Passes every message that answers the request `seq` to `take` until that returns true.
    fn receive_of(
        &self,
        seq: u32,
        mut take: impl FnMut(Message<'_>) -> Result<bool, Refusal>,
    ) -> Result<(), Refusal> {
        self.receive(|message| if message.seq == seq { take(message) } else { Ok(false) })
    }

    /// Passes every message to `take` until that returns true.
    fn receive(
        &self,
        mut take: impl FnMut(Message<'_>) -> Result<bool, Refusal>,
    ) -> Result<(), Refusal> {
        let mut buffer = self.buffer.borrow_mut();
        loop {
            let filled = self.fill(&mut buffer);
            // The kernel had more to answer than the socket has room for. Until the queue is empty
            // it answers no request, and the next exchange would wait indefinitely.
            if filled == Err(Errno::ENOBUFS) {
                let mut rest = Vec::with_capacity(BUFFER);
                while self.socket.recv(&mut rest, MsgFlags::MSG_DONTWAIT.bits()).is_ok() {
                    rest.clear();
                }
            }
            filled?;
            for message in messages(&buffer) {
                if take(message)? {
                    return Ok(());
                }
            }
        }
    }

    fn fill(&self, buffer: &mut Vec<u8>) -> Result<(), Errno> {
        loop {
            buffer.clear();
            let flags = MsgFlags::MSG_TRUNC.bits();
            let filled = timing::waiting_on(self.wait, || self.socket.recv(buffer, flags));
            match filled.map_err(errno_of) {
                Err(Errno::EINTR) => (),
                Ok(0) => return Err(Errno::ENOTCONN), // the peer has closed the connection
                // The rest is lost; waiting for another message would block indefinitely.
                Ok(length) if length > buffer.len() => return Err(Errno::EMSGSIZE),
                filled => return filled.map(drop),
            }
        }
    }
}

fn open(protocol: isize) -> std::io::Result<Socket> {
    let socket = Socket::new(protocol)?;
    socket.set_ext_ack(true)?;
    socket.set_cap_ack(true)?;
    let _ = socket.set_netlink_get_strict_chk(true); // kernels before 4.20 do not filter dumps; then we do
    // From now on the kernel refuses messages of other senders to this socket: a process that
    // controls a container's namespace can send them, and would answer in the kernel's place.
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}

impl Message<'_> {
    fn reply(&self) -> Result<Reply, Refusal> {
        match self.kind {
            NLMSG_ERROR => self.refusal().map_or(Ok(Reply::Acknowledged), Err),
            // A dump that the kernel aborted ends like a complete one, except for the errno.
            NLMSG_DONE => self.refusal().map_or(Ok(Reply::Done), Err),
            _ => Ok(Reply::Data),
        }
    }

    fn refusal(&self) -> Option<Refusal> {
        let errno = attr::read_u32(self.payload, 0)? as i32;
        if errno == 0 {
            return None;
        }
        // The header of the request is echoed before the text (NETLINK_CAP_ACK omits the body).
        let text = match self.flags & NLM_F_ACK_TLVS {
            0 => None,
            _ => Attrs::after(self.payload, 4 + HEADER).text(NLMSGERR_ATTR_MSG),
        };
        let errno = Errno::from_raw(errno.saturating_neg());
        Some(Refusal { errno, text: text.unwrap_or_default() })
    }
}

/// The messages of a datagram; a truncated one ends the list.
fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let length = attr::read_u32(rest, 0)? as usize;
        let payload = rest.get(HEADER..length)?;
        let message = Message {
            kind: attr::read_u16(rest, 4)?,
            flags: attr::read_u16(rest, FLAGS)?,
            seq: attr::read_u32(rest, NUMBER.start)?,
            payload,
        };
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The reason of an error; EIO for one that is not of the system.
pub(in crate::net) fn errno_of(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use netlink_sys::protocols::NETLINK_ROUTE;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, send, socketpair};

    use super::*;

    /// A socket to a kernel that has sent all this already, in a datagram each, and then closes.
    fn answered(datagrams: &[Vec<u8>]) -> Transport {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, kernel) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        for datagram in datagrams {
            send(kernel.as_raw_fd(), datagram, MsgFlags::empty()).unwrap();
        }
        Transport::over(ours)
    }

    fn message(kind: u16, seq: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER as u32 + payload.len() as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0, 0]);
        bytes.extend(seq.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes
    }

    fn errno(number: i32) -> Vec<u8> {
        number.to_ne_bytes().to_vec()
    }

    #[test]
    fn a_dump_that_the_kernel_gave_up_is_none() {
        let of = |end: &[u8]| {
            let mut seen = 0;
            let read = answered(&[message(16, 1, &[1]), message(NLMSG_DONE, 1, end)])
                .dump(1, |_| seen += 1);
            (read.map_err(|refusal| refusal.errno), seen)
        };
        assert_eq!(of(&errno(0)), (Ok(true), 1));
        assert_eq!(of(&[]), (Ok(true), 1));
        assert_eq!(of(&errno(-(Errno::ENODEV as i32))), (Err(Errno::ENODEV), 1));
    }

    #[test]
    fn an_errno_that_nobody_has_is_one_all_the_same() {
        for number in [i32::MIN, i32::MAX, -70_000] {
            let refusal = answered(&[message(NLMSG_ERROR, 1, &errno(number))])
                .acknowledged(1, |_| ())
                .unwrap_err();
            assert_eq!(refusal.errno, Errno::UnknownErrno, "{number}");
        }
    }

    #[test]
    fn who_hangs_up_is_not_waited_for() {
        let transport = answered(&[message(16, 1, &[])]);
        assert_eq!(
            transport.dump(1, |_| ()).map_err(|refusal| refusal.errno),
            Err(Errno::ENOTCONN)
        );
    }

    /// The kernel delivers messages of senders that control the namespace, as root does here; it
    /// refuses all others anyway.
    #[test]
    fn nobody_answers_in_the_kernel_s_place() {
        let victim = Transport::open(NETLINK_ROUTE).unwrap();
        let mut address = SocketAddr::new(0, 0);
        victim.socket.get_address(&mut address).unwrap();
        assert_ne!(address.port_number(), 0);
        let sent = Socket::new(NETLINK_ROUTE).unwrap().send_to(
            &message(NLMSG_ERROR, 1, &errno(0)),
            &address,
            0,
        );
        assert!(matches!(sent.map_err(errno_of), Err(Errno::ECONNREFUSED | Errno::EPERM)));
    }

    #[test]
    fn socket_that_was_overrun_serves_the_next_request() {
        let transport = Transport::open(NETLINK_ROUTE).unwrap();
        setsockopt(&transport.socket, sockopt::RcvBuf, &1).unwrap(); // the kernel makes it its minimum
        let get_loopback = |seq| {
            let mut get = message(18, seq, &[[0; 4], 1_u32.to_ne_bytes(), [0; 4], [0; 4]].concat()); // RTM_GETLINK
            get[6] = 1; // NLM_F_REQUEST
            get
        };
        let seqs = 1..100;
        transport.send(&seqs.clone().flat_map(get_loopback).collect::<Vec<_>>()).unwrap();
        let overrun = seqs.clone().try_for_each(|seq| transport.one(seq, |_| ()));
        assert_eq!(overrun.map_err(|refusal| refusal.errno), Err(Errno::ENOBUFS));
        transport.send(&get_loopback(seqs.end)).unwrap();
        let mut answers = 0;
        assert!(transport.one(seqs.end, |_| answers += 1).is_ok());
        assert_eq!(answers, 1);
    }

    #[test]
    fn a_cut_off_message_ends_the_datagram() {
        let mut datagram = vec![];
        for payload in [&[1u8, 2, 3][..], &[]] {
            datagram.extend((HEADER as u32 + payload.len() as u32).to_ne_bytes());
            datagram.extend([7, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
            datagram.extend(payload);
            datagram.resize(datagram.len().next_multiple_of(4), 0);
        }
        assert_eq!(
            messages(&datagram).map(|m| (m.kind, m.seq, m.payload.len())).collect::<Vec<_>>(),
            [(7, 9, 3), (7, 9, 0)]
        );
        assert_eq!(messages(&datagram[..18]).count(), 0);
        assert_eq!(messages(&[0; 64]).count(), 0);
    }
}
