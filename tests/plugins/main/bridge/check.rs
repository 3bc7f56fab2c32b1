//! bridge CHECK succeeds while all is as ADD left it and fails for every change.

use serde_json::json;

use crate::support::attachment::{for_each_peer, with};
use crate::support::broken::{Break, assert_check_finds, breaks};
use crate::support::networks::bridge::dual_stack;

/// The reference compares no gateway, VLAN, hairpin mode, isolation, masquerading or `macspoofchk`.
#[test]
fn check_finds_what_has_changed() {
    const PORT: &str = "$(ip -br link show master br0 | cut -d@ -f1)";
    let without = format!("ip link set {PORT} nomaster");
    let another = format!("port={PORT}; ip link add br9 type bridge; ip link set $port master br9");
    let own = vec![
        Break::new("v4 route removed", "ip route del 10.99.0.0/16", "10.99.0.0"),
        Break::new("v6 route removed", "ip -6 route del 2001:db8:99::/48", "2001:db8:99::"),
        Break::link_renamed(),
        Break::mac_changed(),
        Break::new("port without bridge", "true", "veth").host(&without),
        Break::new("wrong bridge", "true", "veth").host(&another),
        Break::new("bridge deleted", "true", "br0").host("ip link del br0"),
    ];
    let cases = breaks(["10.10.0.2/24", "2001:db8:10::2/64"], own);
    let routes = json!([{"dst": "10.99.0.0/16"}, {"dst": "2001:db8:99::/48"}]);
    for_each_peer("bridge", |lab| {
        for (number, case) in cases.iter().enumerate() {
            let container = lab.container();
            // A fixed address, because the error must name it.
            let fixed = with(
                &dual_stack(),
                json!({"ipam": {"routes": routes, "dataDir": format!("/run/networks-{number}")}}),
            );
            let attachment = lab.attach(&container, &fixed);
            assert_check_finds(lab, &container, &attachment, case);
            attachment.del();
            lab.host.try_sh("ip link del br0; ip link del br9"); // the case left one of them
        }
    });
}
