//! What older kernels lack, where a test depends on it.

use super::attachment::skip;
use super::netns::{Lab, Namespace};

/// Whether a script that tries a feature succeeds; skips the case if not.
pub fn has(at: &Namespace, feature: &str, script: &str) -> bool {
    let has = at.try_sh(script).status.success();
    if !has {
        skip(feature);
    }
    has
}

/// The same for a kind of link, given as `ip link add … type` takes it.
pub fn has_link(at: &Namespace, feature: &str, link: &str) -> bool {
    has(at, feature, &format!("ip link add {link} && ip link del probe"))
}

/// Whether the kernel gives namespaces cookies (SO_NETNS_COOKIE of socket(7)), which it never uses
/// again; skips the test if not.
pub fn has_cookies() -> bool {
    let release = nix::sys::utsname::uname().unwrap().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let has = (numbers.next(), numbers.next()) >= (Some(5), Some(14));
    if !has {
        skip("cookies of namespaces (Linux 5.14)");
    }
    has
}

/// Whether the kernel finds a link by its altnames in the namespace that the link has moved to;
/// skips the test if not.
pub fn moves_altnames(lab: &Lab) -> bool {
    let container = lab.container();
    container.sh(
        "ip link add probe0 type veth peer name probe1 && ip link property add dev probe0 altname name-of-probe",
    );
    container.sh(&format!("ip link set probe0 netns {}", lab.pid()));
    let needs =
        "altnames that move with their link (Linux 6.6, or an older one with that correction)";
    let moves = has(&lab.host, needs, "ip link show name-of-probe");
    lab.host.sh("ip link del probe0");
    moves
}

/// Whether the kernel has flowtables that links are added to one by one; skips the test if not.
pub fn has_flowtables(lab: &Lab) -> bool {
    let table = "nft add table inet probe; nft add flowtable inet probe f '{ hook ingress priority 0; }' && \
        nft add chain inet probe c '{ type filter hook forward priority 0; }' && \
        nft add rule inet probe c flow add @f";
    let has = has(&lab.host, "nft_flow_offload and nf_flow_table_inet (Linux 5.8)", table);
    lab.host.sh("nft delete table inet probe");
    has
}

/// Whether flowtables know the way through a bridge to its port, as since Linux 5.13.
pub fn knows_ways_through_bridges(lab: &Lab) -> bool {
    lab.host.try_sh("grep -qw dev_fill_forward_path /proc/kallsyms").status.success()
}
