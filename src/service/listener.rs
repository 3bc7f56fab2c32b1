//! The socket of a daemon, from systemd or its own.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use nix::sys::stat::{Mode, fchmod};

use super::Identity;
use crate::error::{Code, Error, Result};
use crate::plain_file;
use crate::sys::activation;
use crate::sys::local_stream::LocalStream;

/// How long another listening program has to accept a connection.
const PATIENCE: Duration = Duration::from_secs(5);

/// The socket, and the files that are removed with the daemon.
pub struct Listener {
    /// The listening socket, which is non-blocking.
    pub socket: UnixListener,
    ours: Vec<PathBuf>,
}

impl Listener {
    /// Takes the socket passed by systemd, else creates one. The caller holds the journal's lock,
    /// so a socket without a listener was left by an earlier daemon.
    pub fn open(
        identity: &Identity,
        path: &Path,
        variable: impl Fn(&str) -> String,
    ) -> Result<Listener> {
        let activated = activation::listener(variable)?;
        let is_ours = activated.is_none();
        let socket = activated.map_or_else(|| bind(identity, path), Ok)?;
        socket.set_nonblocking(true).map_err(|e| Error::io("listen", &e))?;
        Ok(Listener { socket, ours: is_ours.then(|| path.to_owned()).into_iter().collect() })
    }

    /// Writes the process id, unless the path is empty.
    pub fn write_pid(&mut self, path: &Path) -> Result<()> {
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        let what = format!("Error writing pidfile {path:?}");
        if !path.is_absolute() {
            let msg = format!("{what}: path not absolute");
            return Err(Error::new(Code::INVALID_ENVIRONMENT, msg));
        }
        let own = std::process::id().to_string();
        plain_file::replace(path, own.as_bytes())
            .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o644))) // other users may read it
            .map_err(|e| Error::io(what, &e))?;
        self.ours.push(path.to_owned());
        Ok(())
    }
}

/// Removes our own files; systemd's socket stays for the next daemon.
impl Drop for Listener {
    fn drop(&mut self) {
        for path in &self.ours {
            let _ = plain_file::remove(path); // no reader is left for the error
        }
    }
}

fn bind(identity: &Identity, path: &Path) -> Result<UnixListener> {
    let parent = path.parent().unwrap_or(path);
    plain_file::make_directories(parent, 0o700).map_err(|e| not_bound(path, &e))?;
    remove_stale(identity, path)?;
    listen(path).map_err(|e| not_bound(path, &e.into()))
}

/// Linux gives the file the mode that the socket has at bind(2): nobody else can connect, not even
/// for a moment. A umask would be that of all threads.
fn listen(path: &Path) -> nix::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    socket::listen(&socket, Backlog::MAXCONN)?;
    Ok(socket.into())
}

fn not_bound(path: &Path, error: &io::Error) -> Error {
    Error::io(format_args!("listen at {path:?}"), error)
}

/// The error for a path that is in use.
fn taken(identity: &Identity, path: &Path, why: &str) -> Error {
    let msg = format!("listen at {path:?}: {why}");
    let option = identity.socket_option;
    Error::new(Code::CONFLICT, msg)
        .with_details(format_args!("stop what is there, or set another {option}"))
}

/// Removes a socket without a listener.
fn remove_stale(identity: &Identity, path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(not_bound(path, &e)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(taken(identity, path, "something that is not a socket has this name"));
        }
        Ok(_) => (),
    }
    let address =
        UnixAddr::new(path).map_err(|e| Error::kernel(format_args!("listen at {path:?}"), e))?;
    match LocalStream::connect(&address, PATIENCE) {
        Ok(_) => {
            let why = format!("another program listens there{}", identity.suspicion());
            Err(taken(identity, path, &why))
        }
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => plain_file::remove(path)
            .map_err(|e| Error::io(format_args!("remove the stale socket {path:?}"), &e)),
        Err(e) => Err(not_bound(path, &e)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::EXAMPLE;
    use super::*;
    use crate::scratch::Scratch;

    fn nothing(_: &str) -> String {
        String::new()
    }

    #[test]
    fn the_socket_is_for_its_owner_and_goes_with_the_daemon() {
        let scratch = Scratch::new();
        let path = scratch.path().join("run/cni/dhcp.sock");
        let listener = Listener::open(&EXAMPLE, &path, nothing).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced_and_nothing_else() {
        let scratch = Scratch::new();
        let path = scratch.path().join("dhcp.sock");
        drop(UnixListener::bind(&path).unwrap());
        let first = Listener::open(&EXAMPLE, &path, nothing).unwrap();
        let error = Listener::open(&EXAMPLE, &path, nothing).map(drop).unwrap_err();
        assert!(
            error.code == Code::CONFLICT && error.msg.contains("another program listens there"),
            "{error}"
        );
        drop(first);
        fs::write(&path, "x").unwrap();
        let error = Listener::open(&EXAMPLE, &path, nothing).map(drop).unwrap_err();
        assert!(error.msg.ends_with("something that is not a socket has this name"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"x");
    }

    #[test]
    fn the_process_id_is_written_where_it_is_wanted() {
        let scratch = Scratch::new();
        let path = scratch.path().join("dhcp.sock");
        let pidfile = scratch.path().join("pid");
        let mut listener = Listener::open(&EXAMPLE, &path, nothing).unwrap();
        listener.write_pid(Path::new("")).unwrap();
        let error = listener.write_pid(Path::new("pid")).unwrap_err();
        assert_eq!(error.msg, "Error writing pidfile \"pid\": path not absolute");
        listener.write_pid(&pidfile).unwrap();
        assert_eq!(fs::read_to_string(&pidfile).unwrap(), std::process::id().to_string());
        drop(listener);
        assert!(!pidfile.exists());
    }

    #[test]
    fn what_systemd_hands_over_is_counted() {
        let own = std::process::id().to_string();
        let handed = |pid: String, count: &'static str| {
            let variable = move |name: &str| match name {
                "LISTEN_PID" => pid.clone(),
                "LISTEN_FDS" => count.to_owned(),
                _ => String::new(),
            };
            activation::listener(variable).map(|listener| listener.is_some())
        };
        assert_eq!(handed("1".to_owned(), "2"), Ok(false), "for another process");
        assert_eq!(handed(own.clone(), "0"), Ok(false));
        assert_eq!(
            handed(own, "3").unwrap_err().msg,
            "Too many (3) FDs passed through socket activation"
        );
    }
}
