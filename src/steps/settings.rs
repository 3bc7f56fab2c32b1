//! Sysctls of links.
//!
//! Router advertisements (RFC 4861) from containers: a link of the host that accepts one gives the
//! host a default route and addresses of the container's choice (CVE-2020-10749).
//!
//! The kernel checks `accept_ra` of the link that receives the packet. A port of a bridge passes
//! everything to the bridge, so the bridge's setting counts while the link is a port, and the
//! port's own setting afterwards.
//!
//! Containers of a network are hosts for each other, too: `acceptRA` says what their interfaces do.
//!
//! IP forwarding on the host, for the families that an attachment has addresses of. DEL does not
//! turn it off: others may rely on it by then, and whether it was on before ADD is not known.

use nix::errno::Errno;
use serde::Deserialize;

use crate::cni::json::Value;
use crate::cni::result::AddResult;
use crate::error::{Aspect, Error, Result, warn};
use crate::family::Family;
use crate::net::sysctl::Sysctl;
use crate::plugin::Context;
use crate::plugin::part::{Part, Target};
use crate::rollback::Rollback;

const IGNORED: &str = "0";
/// Also while the container forwards packets.
const ACCEPTED: &str = "2";

/// The key of a container's interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct AcceptRa(Option<bool>);

impl AcceptRa {
    /// Its row for `KEYS` of plugins.
    pub const KEY: &'static str = "acceptRA | boolean | the kernel's | Whether the interface takes addresses and routes from router advertisements, which any container of the network can send; set before it is up.";

    /// With IPv6 of `dhcp` its daemon takes the advertisements, and the kernel none: it would add
    /// addresses and routes that are not in the result.
    fn value(self, cx: &Context<'_>) -> Option<&'static str> {
        let ipam = cx.config.value.get("ipam");
        let is_set = |key: &&str| ipam.and_then(|ipam| ipam.get(key)) == Some(&Value::Bool(true));
        let is_taken = ["dhcpv6", "slaac"].iter().any(is_set);
        self.0.map(|wanted| if wanted && !is_taken { ACCEPTED } else { IGNORED })
    }
}

impl<'a> Part<'a> for AcceptRa {
    fn what(&self) -> String {
        "set accept_ra of the interface".to_owned()
    }

    /// The interface is down.
    fn make(&self, Target { cx, at }: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        let Some(value) = self.value(cx) else { return Ok(()) };
        let setting = accept_ra(at.ifname());
        match at.run(|| setting.ensure(value)) {
            Err(e) if e.is_not_found() => Ok(()), // no IPv6
            set => set,
        }
    }

    fn compare(&self, Target { cx, at }: Target<'a>) -> Result<()> {
        let Some(value) = self.value(cx) else { return Ok(()) };
        let setting = accept_ra(at.ifname());
        match at.run(|| setting.read()) {
            Ok(found) if found != value => {
                let name = at.ifname();
                Err(Error::check(format!("accept_ra of {name:?} is {found}, expected {value}")))
            }
            Err(e) if !e.is_not_found() => Err(e),
            _ => Ok(()),
        }
    }

    fn is_repaired(&self) -> bool {
        false
    }
}

/// `accept_ra` of a link of the host; None where the link already ignores advertisements, or has no
/// IPv6.
pub fn ra_accepted_by(ifname: &str) -> Result<Option<String>> {
    match accept_ra(ifname).read() {
        Ok(value) => Ok(Some(value).filter(|value| value != IGNORED)),
        Err(e) => warn_if_refused(ifname, e).map(|()| None),
    }
}

/// Makes a link of the host ignore router advertisements. It writes the setting without reading it
/// first, since a new link accepts them: beside 2000 namespaces the kernel takes 2 ms to open a file
/// below /proc/sys/net.
pub fn ignore_ra(ifname: &str) -> Result<()> {
    match accept_ra(ifname).write(IGNORED) {
        // It may have the value already.
        Err(e) if is_refusal(&e) && ra_accepted_by(ifname)?.is_none() => Ok(()),
        written => written.or_else(|e| warn_if_refused(ifname, e)),
    }
}

/// Restores the link's former setting.
pub fn restore_ra(ifname: &str, value: &str) -> Result<()> {
    accept_ra(ifname).ensure(value)
}

fn accept_ra(ifname: &str) -> Sysctl {
    Sysctl::ipv6_conf(ifname, "accept_ra")
}

/// Warns if the sysctls are refused for good, as to a plugin in a container of its own: the
/// reference then attaches silently. Any other failure may be temporary, and an ADD that fails can
/// be repeated.
fn warn_if_refused(ifname: &str, error: Error) -> Result<()> {
    if error.is_not_found() {
        return Ok(()); // no IPv6
    }
    if !is_refusal(&error) {
        return Err(error);
    }
    warn(format_args!("{ifname:?} may accept router advertisements from containers: {error}"));
    Ok(())
}

fn is_refusal(error: &Error) -> bool {
    [Errno::EROFS, Errno::EACCES, Errno::EPERM].iter().any(|errno| error.is_errno(*errno))
}

/// The host forwards what it receives of a family by a link.
pub struct Forwarding {
    family: Family,
    /// The link's name.
    link: String,
    /// The reference's words for a failure.
    failure: &'static str,
}

impl Forwarding {
    /// For each family of the result's addresses.
    pub fn of(result: &AddResult, link: &str, failure: &'static str) -> Vec<Forwarding> {
        let has = |of: &Family| result.ips.iter().any(|ip| Family::of_net(ip.address) == *of);
        let of = |family| Forwarding { family, link: link.to_owned(), failure };
        Family::ALL.into_iter().filter(has).map(of).collect()
    }

    /// The settings that must not be 0. IN_DEV_FORWARD of linux/inetdevice.h: IPv4 has one for each
    /// link as well; ip6_forward() of net/ipv6/ip6_output.c looks at that for all links alone.
    fn settings(&self) -> impl Iterator<Item = Sysctl> {
        let of_link =
            (self.family == Family::V4).then(|| Sysctl::ipv4_conf(&self.link, "forwarding"));
        [Sysctl::forwarding(self.family)].into_iter().chain(of_link)
    }
}

impl<'a> Part<'a> for Forwarding {
    fn what(&self) -> String {
        format!("forward what {:?} receives of {}", self.link, self.family)
    }

    fn make(&self, _: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        let on = Sysctl::forwarding(self.family).ensure("1");
        on.map_err(|error| error.context(self.failure))
    }

    /// A setting that cannot be read is not compared.
    fn compare(&self, _: Target<'a>) -> Result<()> {
        let is_off = |setting: &Sysctl| setting.read().is_ok_and(|value| value == "0");
        let Some(setting) = self.settings().find(is_off) else { return Ok(()) };
        let problem =
            format!("sysctl {setting} is off, so the host forwards nothing for the container");
        Err(Error::check(problem).about(&Aspect::Setting(setting.to_string())))
    }

    fn make_again(&self, _: Target<'a>, _: &mut Rollback<'a>) -> Result<()> {
        self.settings().try_for_each(|setting| setting.ensure("1"))
    }

    fn is_shared(&self) -> bool {
        true
    }
}
