//! The foundation of daemons: start, socket, requests, journal, dropped privileges, and shutdown at
//! SIGTERM. Independent of CNI and of networks.
//!
//! A daemon describes itself with an [`Identity`] and a [`Confinement`](confinement::Confinement),
//! [starts](event_loop::start), and implements [`Service`](event_loop::Service). One thread and one
//! poll(2) handle requests, the daemon's own descriptors, signals, and one timer for the next
//! deadline.

pub mod confinement;
pub mod connection;
pub mod event_loop;
pub mod journal;
pub mod listener;
pub mod log;
pub mod metrics;
pub mod wire;

use std::path::{Path, PathBuf};

/// The daemon's names in errors, and the advice for their reader.
#[derive(Debug)]
pub struct Identity {
    /// The name, such as `DHCP daemon`.
    pub name: &'static str,
    /// Another program that may listen on the same path.
    pub rival: Option<&'static str>,
    /// The command-line option that sets the socket.
    pub socket_option: &'static str,
    /// The one that sets the directory of the journal, or the socket that it lies beside.
    pub journal_option: &'static str,
    /// The systemd units that start it.
    pub units: &'static str,
    /// The version of the socket's protocol.
    pub protocol: u64,
    /// The extension of the journal's directory, which is beside the socket.
    pub journal: &'static str,
}

impl Identity {
    /// The directory of the journal of the daemon that listens at `socket`.
    pub fn journal_beside(&self, socket: &Path) -> PathBuf {
        match socket.extension() {
            Some(extension) if extension == "sock" => socket.with_extension(self.journal),
            _ => {
                let mut path = socket.as_os_str().to_owned();
                path.push(format!(".{}", self.journal));
                PathBuf::from(path)
            }
        }
    }

    /// The question in an error about a program that listens in this one's place.
    fn suspicion(&self) -> String {
        self.rival.map(|rival| format!("; is it {rival}?")).unwrap_or_default()
    }
}

/// The daemon of the unit tests.
#[cfg(test)]
static EXAMPLE: Identity = Identity {
    name: "example daemon",
    rival: Some("the old daemon"),
    socket_option: "-socketpath",
    journal_option: "-socketpath",
    units: "example.socket or example.service",
    protocol: 1,
    journal: "leases",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_lies_beside_the_socket() {
        for (socket, dir) in [
            ("/run/cni/dhcp.sock", "/run/cni/dhcp.leases"),
            ("/x/a.b", "/x/a.b.leases"),
            ("/x/y", "/x/y.leases"),
        ] {
            assert_eq!(EXAMPLE.journal_beside(Path::new(socket)), Path::new(dir));
        }
    }
}
