//! What a daemon stands on: it starts, listens, answers, keeps a journal, gives up what it does not
//! need and ends at SIGTERM. Knows nothing of CNI and of networks.
//!
//! A daemon describes itself by an [`Identity`] and a [`Confinement`](confinement::Confinement),
//! [starts](event_loop::start), and implements [`Service`](event_loop::Service). One thread, one
//! poll(2): requests, descriptors of the daemon's own, signals, and one timer for what is due next.

pub mod confinement;
pub mod connection;
pub mod event_loop;
pub mod journal;
pub mod listener;
pub mod log;
pub mod metrics;
pub mod wire;

use std::path::{Path, PathBuf};

/// How a daemon is named in errors, and what their reader can do.
#[derive(Debug)]
pub struct Identity {
    /// `DHCP daemon`.
    pub name: &'static str,
    /// Another program that may listen at the same path.
    pub rival: Option<&'static str>,
    /// The option of its command line that sets where it listens.
    pub socket_option: &'static str,
    /// The units of systemd that start it.
    pub units: &'static str,
    /// The version of what is said on its socket.
    pub protocol: u64,
    /// The extension of the directory of its journal, which lies beside its socket.
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

    /// What an error asks about the program that listens where this one should.
    fn suspicion(&self) -> String {
        self.rival.map(|rival| format!("; is it {rival}?")).unwrap_or_default()
    }
}

/// A daemon of the unit tests.
#[cfg(test)]
static EXAMPLE: Identity = Identity {
    name: "example daemon",
    rival: Some("the old daemon"),
    socket_option: "-socketpath",
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
