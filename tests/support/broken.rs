//! CHECK after ADD: it succeeds, and fails once something has changed.

use super::attachment::Attachment;
use super::call::Peer;
use super::netns::{Container, Lab};
use super::table::cells;

/// A change to an attachment that CHECK has to find.
pub struct Break {
    pub what: String,
    /// A command in the container.
    container: String,
    /// A command on the host, after the one in the container; `$container` is the name of its
    /// namespace.
    host: String,
    /// Text that our error has to contain.
    names: String,
}

/// The changes of a table: what; a command in the container; the text of our error; a command on the host, if any.
pub fn rows(table: &'static str) -> Vec<Break> {
    let of_row = |[what, container, names, host]: [&str; 4]| {
        Break::new(what, container, names).host(if host.is_empty() { "true" } else { host })
    };
    cells(table).into_iter().map(of_row).collect()
}

impl Break {
    pub fn new(what: &str, container: &str, names: &str) -> Break {
        let [what, container, host, names] = [what, container, "true", names].map(str::to_owned);
        Break { what, container, host, names }
    }

    pub fn host(self, host: &str) -> Break {
        Break { host: host.to_owned(), ..self }
    }
}

/// Runs ADD. CHECK succeeds, and after the change it fails: ours with an error that names what has
/// changed.
pub fn assert_check_finds(
    lab: &Lab,
    container: &Container,
    attachment: &Attachment<'_>,
    case: &Break,
) {
    eprintln!("{}:", case.what);
    let result = attachment.add();
    attachment.check(&result).ok();
    container.sh(&case.container);
    let name = container.netns.rsplit('/').next().unwrap();
    lab.host.sh(&format!("container={name}; {}", case.host));
    let outcome = attachment.check(&result);
    assert_ne!(outcome.status, 0, "CHECK does not see: {}", case.what);
    let error = outcome.err();
    if lab.peer == Peer::Ours {
        assert_eq!(error.code, 103, "{}: {error:?}", case.what);
        assert!(error.text().contains(&case.names), "{}: {error:?}", case.what);
    }
}
