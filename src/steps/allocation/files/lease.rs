//! A lease: a file that is named after its address and contains its owner. Names and content are
//! the reference's; where networks share a directory, the network follows on a third line.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use crate::error::{Error, Result};
use crate::plain_file;
use crate::steps::allocation::{Lease, Owner};

/// A limit above any container id and interface name: an environment variable has at most 128 KiB.
const LIMIT: usize = 129 * 1024;

/// The content of the lease file of `owner`.
pub fn to_text(owner: &Owner) -> String {
    let Owner { container_id, ifname, network } = owner;
    let lines = [Some(container_id), ifname.as_ref(), network.as_ref()];
    lines.into_iter().flatten().map(String::as_str).collect::<Vec<&str>>().join("\r\n")
}

/// What a lease file contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The owner of the address.
    Owned(Owner),
    /// Nothing: the writer, or the machine, crashed before the content was on the disk. The address
    /// has no owner.
    Torn,
    /// Something that we do not understand. The address is taken, and the file is not ours to
    /// remove.
    Foreign,
}

impl Content {
    fn parse(bytes: &[u8]) -> Content {
        let is_blank = |c: char| c.is_whitespace() || c == '\0';
        let Ok(text) = std::str::from_utf8(bytes) else { return Content::Foreign };
        let text = text.trim_matches(is_blank);
        if text.is_empty() {
            return Content::Torn;
        }
        let lines: Vec<&str> = text.split("\r\n").map(str::trim).collect();
        // The kernel accepts control characters in a link's name.
        if lines.len() > 3 || lines.iter().any(|line| line.contains(is_blank)) {
            return Content::Foreign;
        }
        let mut lines = lines.into_iter().map(str::to_owned);
        let container_id = lines.next().unwrap_or_default();
        Content::Owned(Owner { container_id, ifname: lines.next(), network: lines.next() })
    }
}

/// The path of the lease of `ip` in the network's directory.
pub fn path(dir: &Path, ip: IpAddr) -> PathBuf {
    dir.join(ip.to_string())
}

/// Reads the file of `ip` in the network's directory; None where there is no such file. An error
/// means that there may be a lease whose content cannot be read now.
pub fn read(dir: &Path, ip: IpAddr) -> Result<Option<Content>> {
    let path = path(dir, ip);
    match plain_file::read(&path, LIMIT) {
        Ok(bytes) => Ok(Some(Content::parse(&bytes))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if plain_file::is_no_file(e.raw_os_error()) => Ok(Some(Content::Foreign)),
        Err(e) => Err(Error::io(format_args!("read lease {path:?}"), &e)),
    }
}

/// Whether the file of a lease has the owner of the lease.
pub fn is_current(dir: &Path, lease: &Lease) -> Result<bool> {
    let content = read(dir, lease.ip)?;
    Ok(matches!(content, Some(Content::Owned(owner)) if owner == lease.owner))
}

/// Every address that has a file in the network's directory. Files with other names are not leases.
pub fn addresses(dir: &Path) -> io::Result<Vec<IpAddr>> {
    let mut found = vec![];
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        // Other spellings of an address are not names of leases.
        if let Some(name) = name.to_str()
            && let Ok(ip) = name.parse::<IpAddr>()
            && ip.to_string() == name
        {
            found.push(ip);
        }
    }
    Ok(found)
}

/// The address of the last reservation from the range set that this number or name tells.
pub fn last_reserved(dir: &Path, range_set: impl fmt::Display) -> Option<IpAddr> {
    // A damaged file costs the round robin one turn and nothing else.
    let bytes = plain_file::read(&dir.join(last_reserved_name(range_set)), LIMIT).ok()?;
    std::str::from_utf8(&bytes).ok()?.trim().parse().ok()
}

/// The file in the network's directory that holds the last reservation.
pub fn last_reserved_name(range_set: impl fmt::Display) -> String {
    format!("last_reserved_ip.{range_set}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn content_is_read_as_the_reference_reads_it() {
        let owner = |id: &str, ifname: Option<&str>| {
            let ifname = ifname.map(Into::into);
            Owner { container_id: id.into(), ifname, network: None }
        };
        let owned = |id: &str, ifname: Option<&str>| Content::Owned(owner(id, ifname));
        let shared = Owner { network: Some("net".into()), ..owner("dummy", Some("eth0")) };
        for (text, content) in [
            ("dummy\r\neth0", owned("dummy", Some("eth0"))),
            (" dummy\r\neth0\n", owned("dummy", Some("eth0"))),
            ("dummy", owned("dummy", None)),
            ("dummy\n", owned("dummy", None)),
            ("", Content::Torn),
            ("\r\n", Content::Torn),
            ("\0\0\0", Content::Torn),
            ("a b", Content::Foreign),
            ("a\nb", Content::Foreign),
            ("dummy\r\neth0\r\nnet\n", Content::Owned(shared.clone())),
            ("a\r\nb\r\nc\r\nd", Content::Foreign),
            ("a\r\nb\r\nc d", Content::Foreign),
        ] {
            assert_eq!(Content::parse(text.as_bytes()), content, "{text:?}");
        }
        assert_eq!(Content::parse(b"\xff"), Content::Foreign);
        assert_eq!(to_text(&Owner::new(" dummy ", "eth0")), "dummy\r\neth0");
        assert_eq!(to_text(&shared), "dummy\r\neth0\r\nnet");
    }

    /// In the reference `last_reserved_ip.N`, or a container id that is an address, may count as a
    /// lease.
    #[test]
    fn only_the_usual_text_of_an_address_names_a_lease() {
        let dir = Scratch::new();
        for name in [
            "10.1.2.3",
            "fd00::2",
            "FD00::3",
            "fd00:0::4",
            "lock",
            "last_reserved_ip.0",
            "10.1.2",
            "10.1.2.4.bak",
        ] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        let mut found: Vec<String> =
            addresses(dir.path()).unwrap().iter().map(ToString::to_string).collect();
        found.sort();
        assert_eq!(found, ["10.1.2.3", "fd00::2"]);
    }

    #[test]
    fn a_cursor_that_is_no_address_is_none() {
        let dir = Scratch::new();
        for (text, ip) in [
            ("10.1.2.3", Some("10.1.2.3")),
            ("fd00::2\n", Some("fd00::2")),
            ("", None),
            ("x", None),
        ] {
            std::fs::write(dir.path().join("last_reserved_ip.7"), text).unwrap();
            assert_eq!(last_reserved(dir.path(), 7), ip.map(|ip| ip.parse().unwrap()), "{text:?}");
        }
        assert_eq!(last_reserved(dir.path(), 8), None);
    }
}
