//! IP forwarding on the host, for the families that an attachment has addresses of. DEL does not
//! turn it off: others may rely on it by then, and whether it was on before ADD is not known.

use crate::cni::result::AddResult;
use crate::error::Result;
use crate::net::sysctl::Sysctl;

/// Turns forwarding on for each family of the result's addresses.
pub fn ensure(result: &AddResult) -> Result<()> {
    for (is_v6, sysctl) in [(false, Sysctl::ipv4_forward()), (true, Sysctl::ipv6_forward())] {
        if result.ips.iter().any(|ip| ip.address.addr().is_ipv6() == is_v6) {
            sysctl.ensure("1")?;
        }
    }
    Ok(())
}
