//! Which rules make the kernel track connections. It does not while there is none in a namespace.

use crate::net::netlink::attr::Attrs;
use crate::net::nft::uapi::*;

/// Expressions, and extensions of x_tables, that have connections tracked.
const TRACKING: [&str; 4] = ["ct", "nat", "masq", "redir"];
const TRACKING_EXTENSIONS: [&str; 8] =
    ["conntrack", "state", "SNAT", "DNAT", "MASQUERADE", "REDIRECT", "NETMAP", "CONNMARK"];

/// Whether one of these expressions has connections tracked.
pub(super) fn track(expressions: Attrs<'_>) -> bool {
    expressions.iter().map(|(_, expression)| Attrs::of(expression)).any(|expression| {
        let name = expression.text(NFTA_EXPR_NAME).unwrap_or_default();
        let of = expression.within(NFTA_EXPR_DATA);
        // The name of a match and that of a target have the same attribute.
        let extension = of.text(NFTA_MATCH_NAME).unwrap_or_default();
        TRACKING.contains(&name.as_str())
            || ["match", "target"].contains(&name.as_str())
                && TRACKING_EXTENSIONS.contains(&extension.as_str())
    })
}
