//! The limits of this process (getrlimit(2)).

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The limit of a process without one that can be read.
const USUAL: usize = 1024;

/// Raises the limit of open descriptors to the hard one: the usual limit is meant for programs with
/// select(2). Returns how many may be open.
pub fn raise_descriptors() -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return USUAL };
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard); // on failure the old limit stays
    usize::try_from(if raised.is_ok() { hard } else { soft }).unwrap_or(usize::MAX)
}
