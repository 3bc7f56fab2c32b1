//! Sysctls of the network, as files below /proc/sys/net. They are those of the namespace of the thread that opens them.

use std::fmt;
use std::fs;

use crate::error::{Error, Result};

/// One setting of the network. There is no way to name one outside /proc/sys/net.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl(String);

impl Sysctl {
    /// `net/ipv4/ip_forward`.
    pub fn ipv4_forward() -> Sysctl {
        Sysctl("ipv4/ip_forward".into())
    }

    /// `net/ipv6/conf/all/forwarding`.
    pub fn ipv6_forward() -> Sysctl {
        Sysctl("ipv6/conf/all/forwarding".into())
    }

    /// A setting of one link: `net/ipv4/conf/<ifname>/<setting>`. Link names have no `/`, the kernel sees to that;
    /// a name that has one names nothing.
    pub fn ipv4_conf(ifname: &str, setting: &'static str) -> Sysctl {
        Sysctl(format!("ipv4/conf/{}/{setting}", ifname.replace('/', "_")))
    }

    /// A setting of one link: `net/ipv6/conf/<ifname>/<setting>`.
    pub fn ipv6_conf(ifname: &str, setting: &'static str) -> Sysctl {
        Sysctl(format!("ipv6/conf/{}/{setting}", ifname.replace('/', "_")))
    }

    /// `net/bridge/bridge-nf-call-iptables`, or that of IPv6: whether packets inside a bridge come by the rules. There only
    /// where the kernel has br_netfilter.
    pub fn bridge_netfilter(is_v6: bool) -> Sysctl {
        Sysctl(format!("bridge/bridge-nf-call-{}", if is_v6 { "ip6tables" } else { "iptables" }))
    }

    fn path(&self) -> String {
        format!("/proc/sys/net/{}", self.0)
    }

    /// The value, without white space around it.
    pub fn read(&self) -> Result<String> {
        let value = fs::read_to_string(self.path()).map_err(|e| Error::io(format_args!("read sysctl {self}"), &e))?;
        Ok(value.trim().to_owned())
    }

    /// Writes the value.
    pub fn write(&self, value: &str) -> Result<()> {
        fs::write(self.path(), value).map_err(|e| Error::io(format_args!("write sysctl {self} = {value}"), &e))
    }

    /// Writes the value unless it is that already: so a read-only /proc/sys that has it is no error.
    pub fn ensure(&self, value: &str) -> Result<()> {
        if self.read()? == value { Ok(()) } else { self.write(value) }
    }
}

/// With slashes: names of links may have dots.
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
        assert_eq!(Sysctl::ipv4_conf("../../../kernel", "x").path(), "/proc/sys/net/ipv4/conf/.._.._.._kernel/x");
        assert_eq!(Sysctl::ipv6_conf("eth0.5", "accept_ra").to_string(), "net/ipv6/conf/eth0.5/accept_ra");
    }

    #[test]
    fn errors_name_the_setting() {
        let error = Sysctl::ipv4_conf("nonesuch", "arp_notify").write("1").unwrap_err();
        assert_eq!(error.msg, "write sysctl net/ipv4/conf/nonesuch/arp_notify = 1: no such file or directory");
    }
}
