//! IP forwarding on the host, for the families that an attachment has addresses of. DEL does not
//! turn it off: others may rely on it by then, and whether it was on before ADD is not known.

use crate::cni::result::AddResult;
use crate::error::{Aspect, Error, Result};
use crate::family::Family;
use crate::net::sysctl::Sysctl;
use crate::plugin::part::{Part, Target};
use crate::rollback::Rollback;

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
    fn name(&self) -> &'static str {
        "forwarding"
    }

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
