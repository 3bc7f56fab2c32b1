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
