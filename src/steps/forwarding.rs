//! IP forwarding on the host, for the families that an attachment has addresses of. DEL does not
//! turn it off: others may rely on it by then, and whether it was on before ADD is not known.

use crate::cni::result::AddResult;
use crate::error::{Aspect, Error, ErrorList, Result};
use crate::family::Family;
use crate::net::sysctl::Sysctl;
use crate::repair::Repairs;

/// Turns forwarding on for each family of the result's addresses.
pub fn ensure(result: &AddResult) -> Result<()> {
    families(result).try_for_each(|family| Sysctl::forwarding(family).ensure("1"))
}

/// Verifies that the host forwards what it receives by the link, for each family of the result's
/// addresses.
pub fn verify(result: &AddResult, link: &str) -> Result<()> {
    ErrorList::of(families(result).map(|family| verify_family(family, link)))
}

/// Turns forwarding on again, for the link as well, unless it is.
pub fn repair(result: &AddResult, link: &str, repairs: &Repairs) -> Result<()> {
    families(result).try_for_each(|family| repair_family(family, link, repairs))
}

fn repair_family(family: Family, link: &str, repairs: &Repairs) -> Result<()> {
    let what = format_args!("forward what {link:?} receives of {family}");
    repairs.make_shared(
        what,
        || verify_family(family, link),
        || {
            Sysctl::forwarding(family).ensure("1")?;
            match family {
                Family::V4 => Sysctl::ipv4_conf(link, "forwarding").ensure("1"),
                Family::V6 => Ok(()),
            }
        },
    )
}

fn verify_family(family: Family, link: &str) -> Result<()> {
    require_on(&Sysctl::forwarding(family))?;
    match family {
        // IN_DEV_FORWARD of linux/inetdevice.h: IPv4 has a setting for each link as well.
        Family::V4 => require_on(&Sysctl::ipv4_conf(link, "forwarding")),
        // ip6_forward() of net/ipv6/ip6_output.c looks at the setting for all links alone.
        Family::V6 => Ok(()),
    }
}

/// A setting that cannot be read is not compared.
fn require_on(setting: &Sysctl) -> Result<()> {
    if setting.read().is_ok_and(|value| value == "0") { Err(is_off(setting)) } else { Ok(()) }
}

fn is_off(setting: &Sysctl) -> Error {
    Error::check(format!("sysctl {setting} is off, so the host forwards nothing for the container"))
        .about(&Aspect::Setting(setting.to_string()))
}

fn families(result: &AddResult) -> impl Iterator<Item = Family> {
    Family::ALL.into_iter().filter(|family| has_address(result, family))
}

fn has_address(result: &AddResult, of: &Family) -> bool {
    result.ips.iter().any(|ip| Family::of_net(ip.address) == *of)
}
