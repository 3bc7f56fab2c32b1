//! Socket activation by systemd (sd_listen_fds(3)).

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, SockaddrLike as _, UnixAddr, getsockname, getsockopt, sockopt,
};

use crate::error::{Code, Error, Result};

/// SD_LISTEN_FDS_START.
const FIRST: i32 = 3;

/// The one socket passed to this process; None if there is none. `variable` reads the environment.
pub fn listener(variable: impl Fn(&str) -> String) -> Result<Option<UnixListener>> {
    if variable("LISTEN_PID") != std::process::id().to_string() {
        return Ok(None); // for another process, which left the variable in the environment
    }
    match variable("LISTEN_FDS").parse::<u32>() {
        Ok(1) => take().map(Some),
        Ok(count @ 2..) => {
            let msg = format!("Too many ({count}) FDs passed through socket activation");
            Err(Error::new(Code::INVALID_ENVIRONMENT, msg)
                .with_details("expected one ListenStream in the socket unit"))
        }
        _ => Ok(None),
    }
}

fn take() -> Result<UnixListener> {
    let failed = |e| Error::kernel("take the socket that systemd hands over", e);
    // SAFETY: only systemd's variable says that this descriptor exists and is for this process; no
    // other code here has taken it. If it is not open, the next call fails.
    let socket = unsafe { OwnedFd::from_raw_fd(FIRST) };
    fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(failed)?;
    let is_local = getsockname::<UnixAddr>(socket.as_raw_fd())
        .is_ok_and(|address| address.family() == Some(AddressFamily::Unix));
    if !is_local || !getsockopt(&socket, sockopt::AcceptConn).map_err(failed)? {
        let msg = "file descriptor 3 from systemd is not a listening Unix socket";
        return Err(Error::new(Code::INVALID_ENVIRONMENT, msg)
            .with_details("expected ListenStream=/run/cni/dhcp.sock"));
    }
    Ok(UnixListener::from(socket))
}
