//! Other processes (proc(5)).

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::plain_file::identity;

/// Whether a program other than this one runs under this name in this network namespace. A process
/// that may not be inspected is ignored.
pub fn another_runs(name: &str) -> bool {
    let own = Path::new("/proc/thread-self");
    let (Some(exe), Some(netns)) = (identity(own.join("exe")), identity(own.join("ns/net"))) else {
        return false;
    };
    let is_another = |process: PathBuf| {
        fs::read(process.join("comm")).is_ok_and(|it| it.trim_ascii_end() == name.as_bytes())
            && identity(process.join("ns/net")) == Some(netns)
            && identity(process.join("exe")).is_some_and(|of_process| of_process != exe)
    };
    processes().any(is_another)
}

/// A process that has a socket open.
pub struct Holder {
    /// The process id.
    pub pid: u32,
    /// Its command, as the process itself has named it.
    pub command: String,
}

/// A process that has the socket of this inode open; None if there is none that may be inspected,
/// or none was found by `end`. Reads the descriptors of all processes up to the first that has it.
pub fn holder_of_socket(inode: u32, end: Instant) -> Option<Holder> {
    let wanted = PathBuf::from(format!("socket:[{inode}]"));
    let has_it_open = |process: &PathBuf| {
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let mut descriptors = descriptors.take_while(|_| Instant::now() < end);
        descriptors.any(|fd| fs::read_link(fd.path()).is_ok_and(|target| target == wanted))
    };
    let process = processes().take_while(|_| Instant::now() < end).find(has_it_open)?;
    let pid = process.file_name()?.to_str()?.parse().ok()?;
    let comm = fs::read(process.join("comm")).unwrap_or_default();
    Some(Holder { pid, command: String::from_utf8_lossy(comm.trim_ascii_end()).into_owned() })
}

/// The directories of all processes.
fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit))
        .map(|entry| entry.path())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd as _;
    use std::time::Duration;

    use nix::sys::stat::fstat;

    use super::*;

    #[test]
    fn the_search_for_a_holder_ends_at_its_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = u32::try_from(fstat(listener.as_fd()).unwrap().st_ino).unwrap();
        let found = |end| holder_of_socket(inode, end).map(|holder| holder.pid);
        assert_eq!(found(Instant::now() + Duration::from_secs(60)), Some(std::process::id()));
        assert_eq!(found(Instant::now()), None);
    }
}
