//! Paths of namespaces below /proc, such as `/proc/4711/ns/net`. They lead to another namespace
//! when the process is gone and its number is another's, so the record has the namespace's id as
//! well.

use crate::net::netns::{Netns, NetnsId};

/// Paths whose target changes with processes.
const PROC: &str = "/proc/";
/// What follows a path that does not lead to the recorded namespace any more, as the kernel marks
/// files in /proc. No file has such a name there.
const GONE: &str = " (gone)";

/// The id of the namespace at a path below /proc; None for other paths, and if there is none.
pub fn id_at(path: &str) -> Option<NetnsId> {
    if !path.starts_with(PROC) {
        return None;
    }
    Netns::open_if_there(path).ok()??.id().ok()
}

/// The path of a record, marked if it leads to a namespace other than the recorded one.
pub fn checked(path: String, recorded: Option<NetnsId>) -> String {
    let Some(recorded) = recorded else { return path }; // of libcni, or of a path elsewhere
    match id_at(&path) {
        Some(found) if recorded != found => path + GONE,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_a_process_is_bound_to_its_namespace() {
        let path = "/proc/self/ns/net".to_owned();
        let own = id_at(&path);
        assert!(own.is_some());
        assert_eq!(checked(path.clone(), own), path);
        assert_eq!(checked(path.clone(), None), path, "a record of libcni");
        let text = serde_json::to_string(&own).unwrap();
        let inode = text.rsplit(':').next().unwrap().trim_end_matches('}').to_owned();
        let other = serde_json::from_str(&text.replace(&inode, "7")).unwrap();
        assert_eq!(checked(path, other), "/proc/self/ns/net (gone)");
        assert_eq!(id_at("/run/netns/red"), None);
    }
}
