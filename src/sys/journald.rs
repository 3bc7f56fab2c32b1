//! systemd's journal: entries with fields, in its native protocol
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>).

use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, sendto, socket};

/// The socket that journald reads.
pub const SOCKET: &str = "/run/systemd/journal/socket";

/// One entry of the journal.
#[derive(Debug, Default)]
pub struct Entry(Vec<u8>);

/// What has become of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// journald has it in its queue.
    Sent,
    /// journald's queue is full: the entry is lost.
    Dropped,
    /// There is no journal.
    NoJournal,
}

impl Entry {
    /// Adds a field. The name has capital letters, digits and `_`; any text is a value.
    pub fn add(&mut self, name: &str, value: &str) {
        self.0.extend(name.as_bytes());
        if value.contains('\n') {
            self.0.push(b'\n');
            self.0.extend((value.len() as u64).to_le_bytes());
        } else {
            self.0.push(b'=');
        }
        self.0.extend(value.as_bytes());
        self.0.push(b'\n');
    }

    /// Sends the entry. Never blocks.
    pub fn send(&self) -> Delivery {
        let send = || {
            let journal = UnixAddr::new(SOCKET)?;
            let flags = SockFlag::SOCK_CLOEXEC;
            let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            sendto(socket.as_raw_fd(), &self.0, &journal, flags)
        };
        match send() {
            Ok(_) => Delivery::Sent,
            Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::ENOMEM | Errno::EMSGSIZE) => {
                Delivery::Dropped
            }
            Err(_) => Delivery::NoJournal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_with_a_newline_adds_no_field() {
        let mut entry = Entry::default();
        entry.add("MESSAGE", "plain");
        entry.add("CNI_MSG", "a\nPRIORITY=0");
        let length = 12_u64.to_le_bytes();
        let expected = [&b"MESSAGE=plain\nCNI_MSG\n"[..], &length, b"a\nPRIORITY=0\n"].concat();
        assert_eq!(entry.0, expected);
    }
}
