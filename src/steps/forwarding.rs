//! IP forwarding on the host, for the families that an attachment has addresses of. DEL does not
//! turn it off: others may rely on it by then, and whether it was on before ADD is not known.

use crate::cni::result::AddResult;
use crate::error::Result;
use crate::family::Family;
use crate::net::sysctl::Sysctl;

/// Turns forwarding on for each family of the result's addresses.
pub fn ensure(result: &AddResult) -> Result<()> {
    let mut families = Family::ALL.into_iter().filter(|family| has_address(result, family));
    families.try_for_each(|family| Sysctl::forwarding(family).ensure("1"))
}

fn has_address(result: &AddResult, of: &Family) -> bool {
    result.ips.iter().any(|ip| Family::of_net(ip.address) == *of)
}
