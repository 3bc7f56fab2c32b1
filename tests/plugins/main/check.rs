//! CHECK of each main plugin succeeds while all is as ADD left it, and fails for every change.

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::broken::{Break, assert_check_finds};
use crate::support::call::Peer;
use crate::support::case;
use crate::support::netns::Lab;
use crate::support::networks::bridge::static_ipam;
use crate::support::networks::stacked::hasty_container;
use crate::support::peers::tests;
use crate::support::subject::all;
use crate::support::table::cells;

/// The plugins; what is changed in the container; words of the error; what is changed on the host, where `$container` is
/// the container's namespace and `$port` the port of the bridge; and `both` where the reference finds it too.
const CHANGES: &str = r#"
* | ip addr del 10.10.0.2/24 dev eth0 | 10.10.0.2 |  | both
* | ip addr del 2001:db8:10::2/64 dev eth0 | 2001:db8:10::2 |  | both
* | ip route del 10.99.0.0/16 | 10.99.0.0/16
* | ip -6 route del 2001:db8:99::/48 | 2001:db8:99::/48
* | ip link set eth0 down | eth0 |  | both
* | ip link del eth0 | eth0 |  | both
* | ip link set eth0 down; ip link set eth0 name eth9; ip link set eth9 up | eth0 |  | both
bridge ptp macvlan vlan host-device dummy tap | ip link set eth0 address 02:00:00:00:00:99 | eth0
macvlan ipvlan vlan dummy tap | $away; ip link add eth0 address $mac type veth peer name other; ip link set other up; $again | eth0
tap | $away; ip tuntap add eth0 mode tun; $again | eth0
macvlan | ip link set eth0 type macvlan mode private | mode
ipvlan | ip link set eth0 type ipvlan mode l3 | mode
ipvlan | true | eth0 | ip link set uplink address 02:00:00:00:00:01
vlan | true | 200 | ip -n $container link del eth0; ip link add link uplink name other type vlan id 200; ip link set other netns $container name eth0; $again
bridge | true | veth | ip link set $port nomaster | both
bridge | true | veth | ip link add br9 type bridge; ip link set $port master br9 | both
bridge | true | br0 | ip link del br0 | both
"#;

/// What the scripts above begin with and end with: the link goes, and another one has its addresses and routes.
const AWAY: &str =
    "mac=$(ip -o link show eth0 | sed 's/.*ether \\([^ ]*\\).*/\\1/'); ip link del eth0";
const AGAIN: &str = "ip link set eth0 up; ip addr add 10.10.0.2/24 dev eth0; ip addr add 2001:db8:10::2/64 dev eth0 nodad; \
    ip route add 10.99.0.0/16 via 10.10.0.1; ip route add 2001:db8:99::/48 via 2001:db8:10::1";

/// The network with addresses and routes of both families.
fn network(base: &Value) -> Value {
    let addresses = json!([{"address": "10.10.0.2/24", "gateway": "10.10.0.1"},
        {"address": "2001:db8:10::2/64", "gateway": "2001:db8:10::1"}]);
    let routes = json!([{"dst": "10.99.0.0/16"}, {"dst": "2001:db8:99::/48"}]);
    static_ipam(&with(base, json!({"name": "net1"})), addresses, routes)
}

fn finds_what_has_changed(plugin: &str) {
    let subject = all().into_iter().find(|subject| subject.name == plugin).unwrap();
    let full = &subject.plugins[0];
    // The reference's CHECK compares none of these.
    let keys =
        json!({"ipMasq": null, "macspoofchk": null, "hairpinMode": null, "isDefaultGateway": null});
    let plain = with(full, keys);
    let is_its =
        |[plugins, ..]: &[&str; 5]| plugins.split(' ').any(|it| [plugin, "*"].contains(&it));
    let rows = case::in_turn(cells(CHANGES).into_iter().filter(is_its), 3);
    for [_, change, names, host, peers] in rows {
        let change = change.replace("$away", AWAY).replace("$again", AGAIN);
        let host = host.replace("$again", &AGAIN.replace("ip ", "ip -n $container "));
        let host = format!("port=$(ip -br link show master br0 2>&1 | cut -d@ -f1); {host}");
        let finds = |lab: &Lab| {
            if !(subject.prepare)(lab) {
                return;
            }
            let is_ours = lab.peer == Peer::Ours;
            let container = hasty_container(lab);
            let base = if is_ours { full } else { &plain };
            let attachment = lab.attach(&container, &network(base));
            let case = Break::new(&change, &change, names).host(&host);
            assert_check_finds(lab, &container, &attachment, &case);
            if is_ours && plugin != "host-device" {
                attachment.del(); // that of a lost device fails while its namespace lives
            }
        };
        if peers == "both" { for_each_peer(plugin, finds) } else { for_ours(plugin, finds) }
    }
}

tests! {
    bridge = finds_what_has_changed("bridge");
    ptp = finds_what_has_changed("ptp");
    macvlan = finds_what_has_changed("macvlan");
    ipvlan = finds_what_has_changed("ipvlan");
    vlan = finds_what_has_changed("vlan");
    host_device = finds_what_has_changed("host-device");
    dummy = finds_what_has_changed("dummy");
    tap = finds_what_has_changed("tap");
}
