//! Zones of firewalld, as its chains name them.

use ipnet::IpNet;

use super::wiring::{Wiring, sync};
use crate::net::nft::drops::Culprit;

/// The table of firewalld, and how its chains for forwarded packets of a zone begin.
const TABLE: &str = "firewalld";
const OF_ZONE: [&str; 3] = ["filter_FWD_", "filter_FWDI_", "filter_FWDO_"];
/// How those of a policy begin.
const OF_POLICY: &str = "policy_";
/// The parts of a zone that have a chain each.
const PARTS: [&str; 5] = ["_pre", "_log", "_deny", "_allow", "_post"];

/// The zone that the culprit belongs to, if it is one of firewalld's.
pub fn zone(culprit: &Culprit) -> Option<&str> {
    if culprit.is_legacy || culprit.table != TABLE {
        return None;
    }
    let zone = OF_ZONE.iter().find_map(|prefix| culprit.chain.strip_prefix(prefix))?;
    let part = PARTS.iter().find_map(|part| zone.strip_suffix(part));
    Some(part.unwrap_or(zone)).filter(|zone| !zone.starts_with(OF_POLICY))
}

/// The command that makes firewalld accept what the network sends.
pub fn trust(wiring: &Wiring<'_>, ip: IpNet) -> String {
    let plugins = wiring.attachment.list.as_ref().map_or(&[][..], |list| &list.plugins);
    if plugins.iter().any(|plugin| plugin.kind == "firewall") {
        return sync(wiring.network());
    }
    format!("sudo firewall-cmd --zone=trusted --change-source={}", ip.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::nft::NfFamily;

    #[test]
    fn the_zone_of_a_chain_is_found() {
        let of = |table: &str, chain: &str| {
            let culprit = Culprit {
                family: NfFamily::Inet,
                is_legacy: false,
                table: table.into(),
                base: "filter_FORWARD".into(),
                chain: chain.into(),
                handle: Some(7),
                rejects: true,
                is_specific: false,
            };
            zone(&culprit).map(str::to_owned)
        };
        assert_eq!(of("firewalld", "filter_FWD_public").as_deref(), Some("public"));
        assert_eq!(of("firewalld", "filter_FWDI_my-zone_deny").as_deref(), Some("my-zone"));
        assert_eq!(of("firewalld", "filter_FWD_policy_block"), None);
        assert_eq!(of("firewalld", "filter_FORWARD"), None);
        assert_eq!(of("filter", "filter_FWD_public"), None);
    }
}
