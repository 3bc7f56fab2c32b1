//! What older kernels lack, where a test depends on it.

use super::attachment::skip;
use super::netns::Lab;

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
    let moves = lab.host.try_sh("ip link show name-of-probe").status.success();
    lab.host.sh("ip link del probe0");
    if !moves {
        skip(
            "altnames that move with their link (Linux 6.6, or an older one with that correction)",
        );
    }
    moves
}

/// Whether the kernel has flowtables that links are added to one by one; skips the test if not.
pub fn has_flowtables(lab: &Lab) -> bool {
    let table = "nft add table inet probe; nft add flowtable inet probe f '{ hook ingress priority 0; }' && \
        nft add chain inet probe c '{ type filter hook forward priority 0; }' && \
        nft add rule inet probe c flow add @f";
    let has = lab.host.try_sh(table).status.success();
    lab.host.sh("nft delete table inet probe");
    if !has {
        skip("nft_flow_offload and nf_flow_table_inet (Linux 5.8)");
    }
    has
}

/// Whether flowtables know the way through a bridge to its port, as since Linux 5.13.
pub fn knows_ways_through_bridges(lab: &Lab) -> bool {
    lab.host.try_sh("grep -qw dev_fill_forward_path /proc/kallsyms").status.success()
}
