//! Network sysctls, as files below /proc/sys/net. They belong to the namespace of the thread that
//! opens them.

use std::fmt;
use std::fs;
use std::io::ErrorKind;

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::family::Family;

/// A network setting. It cannot name a file outside /proc/sys/net.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl(String);

impl Sysctl {
    /// `net/ipv4/ip_forward`, or `net/ipv6/conf/all/forwarding`.
    pub fn forwarding(family: Family) -> Sysctl {
        Sysctl(match family {
            Family::V4 => "ipv4/ip_forward".into(),
            Family::V6 => "ipv6/conf/all/forwarding".into(),
        })
    }

    /// A setting of one link: `net/ipv4/conf/<ifname>/<setting>`. The kernel allows no `/` in link
    /// names; for a name with one, no such setting exists.
    pub fn ipv4_conf(ifname: &str, setting: &'static str) -> Sysctl {
        Sysctl::of_parts("ipv4", "conf", ifname, setting)
    }

    /// A setting of one link: `net/ipv6/conf/<ifname>/<setting>`.
    pub fn ipv6_conf(ifname: &str, setting: &'static str) -> Sysctl {
        Sysctl::of_parts("ipv6", "conf", ifname, setting)
    }

    fn of_parts(family: &str, group: &str, ifname: &str, setting: &str) -> Sysctl {
        Sysctl(format!("{family}/{group}/{}/{setting}", element(ifname)))
    }

    /// Parses the name of a setting, spelled with dots or slashes in any mixture; None unless the
    /// setting is below `net`.
    ///
    /// The part between `net.<family>.conf` (or `neigh`) and the setting is the name of a link,
    /// which may itself contain dots: `net.ipv4.conf.eth0.5.arp_filter`. No other part contains
    /// one.
    pub fn parse(name: &str) -> Option<Sysctl> {
        let elements: Vec<&str> =
            name.split(['.', '/']).filter(|element| !element.is_empty()).collect();
        match elements.as_slice() {
            _ if name.contains('\0') => None,
            ["net", family, group @ ("conf" | "neigh"), link @ .., setting] if !link.is_empty() => {
                Some(Sysctl(format!("{family}/{group}/{}/{setting}", link.join("."))))
            }
            ["net", rest @ ..] if !rest.is_empty() => Some(Sysctl(rest.join("/"))),
            _ => None,
        }
    }

    /// Parses the output of `to_string`, where every dot is part of a name.
    pub fn from_text(text: &str) -> Option<Sysctl> {
        let rest = text.strip_prefix("net/")?;
        let is_name =
            |part: &str| !part.is_empty() && part == element(part) && !part.contains('\0');
        rest.split('/').all(is_name).then(|| Sysctl(rest.to_owned()))
    }

    /// The same setting with the first `placeholder` replaced by the name of a link; unchanged if
    /// it has no placeholder.
    pub fn of_link(&self, placeholder: &str, ifname: &str) -> Sysctl {
        let mut parts: Vec<String> = self.0.split('/').map(str::to_owned).collect();
        if let Some(part) = parts.iter_mut().find(|part| part.contains(placeholder)) {
            *part = element(&part.replacen(placeholder, ifname, 1));
        }
        Sysctl(parts.join("/"))
    }

    /// Whether it is a setting of the link with this name, as [`Sysctl::ipv4_conf`] makes them.
    pub fn is_of_link(&self, ifname: &str) -> bool {
        matches!(self.0.split('/').collect::<Vec<_>>().as_slice(), [_, "conf" | "neigh", link, _] if *link == ifname)
    }

    /// The same setting of the link under its new name.
    pub fn renamed(&self, ifname: &str) -> Sysctl {
        match self.0.split('/').collect::<Vec<_>>().as_slice() {
            [family, group, _, setting] => Sysctl::of_parts(family, group, ifname, setting),
            _ => self.clone(),
        }
    }

    /// Whether the setting exists in the namespace of this thread.
    pub fn exists(&self) -> Result<bool> {
        match fs::metadata(self.path()) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Ok(false)
            }
            found => found
                .map(|metadata| metadata.is_file())
                .map_err(|e| Error::io(format_args!("look for sysctl {self}"), &e)),
        }
    }

    /// `net/bridge/bridge-nf-call-iptables`, or its IPv6 counterpart: whether bridged packets
    /// traverse the rules. Exists only if the kernel has br_netfilter.
    pub fn bridge_netfilter(family: Family) -> Sysctl {
        Sysctl(format!("bridge/bridge-nf-call-{}tables", family.word()))
    }

    fn path(&self) -> String {
        format!("/proc/sys/net/{}", self.0)
    }

    /// Reads the value, without surrounding white space.
    pub fn read(&self) -> Result<String> {
        let value = fs::read_to_string(self.path())
            .map_err(|e| Error::io(format_args!("read sysctl {self}"), &e))?;
        Ok(value.trim().to_owned())
    }

    /// Reads the value; None if the kernel lets no process read it (`net/ipv4/route/flush`), or if
    /// it is a secret that has not been set yet. Any other failure is temporary.
    pub fn read_if_readable(&self) -> Result<Option<String>> {
        match self.read() {
            Err(e) if e.is_errno(Errno::EACCES) || e.is_errno(Errno::EPERM) => Ok(None),
            // addrconf.c
            Err(e) if e.is_errno(Errno::EIO) && self.0.ends_with("/stable_secret") => Ok(None),
            value => value.map(Some),
        }
    }

    /// Writes the value.
    pub fn write(&self, value: &str) -> Result<()> {
        // A write of zero bytes has no effect, and a list would keep its value.
        let bytes = if value.is_empty() { "\n" } else { value };
        fs::write(self.path(), bytes)
            .map_err(|e| Error::io(format_args!("write sysctl {self} = {value}"), &e))
    }

    /// Writes the value unless it is set already, so a read-only /proc/sys that has the value is no
    /// error.
    pub fn ensure(&self, value: &str) -> Result<()> {
        if self.read()? == value { Ok(()) } else { self.write(value) }
    }
}

/// Turns a text into one path element, so that it cannot leave the directory.
fn element(text: &str) -> String {
    match text {
        "." | ".." => "_".repeat(text.len()),
        _ => text.replace('/', "_"),
    }
}

/// With slashes: names of links may contain dots.
impl fmt::Display for Sysctl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "net/{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_its_directory() {
        assert_eq!(
            Sysctl::ipv4_conf("../../../kernel", "x").path(),
            "/proc/sys/net/ipv4/conf/.._.._.._kernel/x"
        );
        assert_eq!(
            Sysctl::ipv6_conf("eth0.5", "accept_ra").to_string(),
            "net/ipv6/conf/eth0.5/accept_ra"
        );
    }

    #[test]
    fn names_are_read_in_any_spelling_and_stay_below_net() {
        let cases = [
            ("net.ipv4.ip_forward", "net/ipv4/ip_forward"),
            ("net/ipv4/ip_forward", "net/ipv4/ip_forward"),
            ("/net//ipv4..ip_forward.", "net/ipv4/ip_forward"),
            ("net.ipv4/conf.eth0/arp_filter", "net/ipv4/conf/eth0/arp_filter"),
            ("net.ipv4.conf.eth0.5.arp_filter", "net/ipv4/conf/eth0.5/arp_filter"),
            ("net/ipv6/conf/eth0.5.6/accept_ra", "net/ipv6/conf/eth0.5.6/accept_ra"),
            ("net.ipv4.conf.eth0/5.arp_filter", "net/ipv4/conf/eth0.5/arp_filter"),
            ("net.ipv4.neigh.eth0.5.gc_stale_time", "net/ipv4/neigh/eth0.5/gc_stale_time"),
            ("net.ipv4.conf.eth0", "net/ipv4/conf/eth0"),
            ("net/../../kernel/hostname", "net/kernel/hostname"),
            ("net.ipv4.conf.../../../kernel.hostname", "net/ipv4/conf/kernel/hostname"),
            ("../net/core/../../../../etc/x", "net/core/etc/x"),
            ("net/%2e%2e/kernel/hostname", "net/%2e%2e/kernel/hostname"),
        ];
        for (name, expected) in cases {
            let sysctl = Sysctl::parse(name).unwrap();
            assert_eq!(sysctl.to_string(), expected, "{name}");
            assert_eq!(Sysctl::from_text(expected), Some(sysctl), "{name}");
        }
        for bad in [
            "",
            "net",
            "net.",
            "kernel.hostname",
            "ipv4.ip_forward",
            "/proc/sys/net/core/x",
            "Net.core.x",
            "net.a\0",
        ] {
            assert_eq!(Sysctl::parse(bad), None, "{bad}");
        }
        for bad in [
            "net",
            "net/",
            "net/a//b",
            "net/../kernel",
            "net/a/..",
            "net/a/.",
            "ipv4/x",
            "/net/a",
            "net/a\0",
        ] {
            assert_eq!(Sysctl::from_text(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_placeholder_is_one_path_element_for_any_link_name() {
        let of = |name: &str, ifname: &str| {
            Sysctl::parse(name).unwrap().of_link("IFNAME", ifname).to_string()
        };
        assert_eq!(
            of("net.ipv4.conf.IFNAME.arp_filter", "eth0.5"),
            "net/ipv4/conf/eth0.5/arp_filter"
        );
        assert_eq!(
            of("net.ipv4.conf.IFNAME.100.arp_filter", "eth0"),
            "net/ipv4/conf/eth0.100/arp_filter"
        );
        assert_eq!(of("net.ipv4.conf.IFNAME.IFNAME", "a"), "net/ipv4/conf/a/IFNAME");
        assert_eq!(of("net.IFNAME.IFNAME", ".."), "net/__/IFNAME");
        assert_eq!(of("net.ipv4.conf.IFNAME.x", "../../kernel"), "net/ipv4/conf/.._.._kernel/x");
        assert_eq!(of("net.core.somaxconn", "eth0"), "net/core/somaxconn");
    }

    #[test]
    fn errors_name_the_setting() {
        let error = Sysctl::ipv4_conf("nonesuch", "arp_notify").write("1").unwrap_err();
        assert_eq!(
            error.msg,
            "write sysctl net/ipv4/conf/nonesuch/arp_notify = 1: no such file or directory"
        );
    }
}
