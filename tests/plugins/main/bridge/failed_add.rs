//! bridge ADD that fails: a useful error, and everything as before.

use serde_json::json;

use super::masquerade;
use crate::support::attachment::{for_ours, with};
use crate::support::failed_add::{Case, assert_all_fail, assert_refused, rows};
use crate::support::networks::bridge::conf;

/// nf_tables refuses the elements: a foreign table has our name.
pub const MASQUERADE_REFUSED: &str =
    "nft add table inet cni_multi_masquerade; nft add chain inet cni_multi_masquerade postrouting";

/// A foreign bridge with an uplink and `accept_ra`, and a foreign table of our name, in which ADD
/// fails.
const BRIDGE_OF_OTHERS: &str = "ip link add br0 up type bridge && echo 2 >/proc/sys/net/ipv6/conf/br0/accept_ra && \
    ip link add port master br0 up type veth peer name other && ip link set other up && sleep 0.1 && \
    nft add table inet cni_multi_masquerade && nft add chain inet cni_multi_masquerade postrouting";

/// The kernel would take the pattern for a name, br0, and for the next bridge br1. With the first port it starts to count
/// the carrier changes of a bridge, and keeps the count. It refuses a route after everything else is done.
const CASES: &str = r#"
IPAM plugin unknown | {"ipam": {"type": "no-such-ipam"}} | 104: no-such-ipam
IPAM refuses | {"ipam": {"subnet": "10.10.0.0/31"}} | 7: 10.10.0.0/31
subnet full | {"ipam": {"subnet": "10.10.0.0/30"}} | 101: 10.10.0.1-10.10.0.2 | host: mkdir -p /var/lib/cni/networks/net1 && printf 'other\neth0' >/var/lib/cni/networks/net1/10.10.0.2
mtu out of range | {"mtu": 100000} | 7: mtu: 100000 | both
mtu out of range, bridge exists | {"mtu": 100000} | 7: mtu: 100000 | host: ip link add br0 type bridge
bad mac | {"runtimeConfig": {"mac": "02:00:00:00:00"}} | 7: 02:00:00:00:00
vlan out of range | {"vlan": 5000} | 7: 5000 | both
vlan is reserved | {"vlan": 4095} | 7: 4095 | both
vlan is negative | {"vlan": -1} | 7: -1 | both
half a range of VLANs | {"vlanTrunk": [{"minID": 10}]} | 7: maxID | both
the other half | {"vlanTrunk": [{"maxID": 10}]} | 7: minID | both
a range of VLANs that ends before it begins | {"vlanTrunk": [{"minID": 20, "maxID": 10}]} | 7: minID | both
a reserved VLAN of a trunk | {"vlanTrunk": [{"id": 4095}]} | 7: id | both
two modes of the port | {"promiscMode": true, "hairpinMode": true} | 7: hairpin mode and promiscuous mode | both
a link that is down with addresses | {"disableContainerInterface": true} | 7: disableContainerInterface | both
unknown backend | {"ipMasq": true, "ipMasqBackend": "ebtables"} | 7: ipMasqBackend
name of the bridge too long | {"bridge": "a-name-of-16-byte"} | 7: a-name-of-16-byte | both
name of the bridge is a pattern | {"bridge": "br%d"} | 7: br%d
bridge name taken by a non-bridge | {} | 102: br0 | host: ip link add br0 type veth peer name br1 | both
interface exists | {} | 102: eth0 | in: ip link add eth0 type veth peer name other
another address on the bridge | {} | 102: 10.99.0.1 | host: ip link add br0 up type bridge && ip addr add 10.99.0.1/24 dev br0 && ip link add port master br0 up type veth peer name other && ip link del port
route unreachable | {"ipMasq": true, "macspoofchk": true, "ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1"}]}} | 100: 10.88.0.1
route unreachable, bridge of others | {"promiscMode": true, "groupFwdMask": 16384, "ipMasq": true, "macspoofchk": true, "ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1"}]}} | 100: 10.88.0.1
"#;

pub fn cases() -> Vec<Case> {
    let mut cases = rows(CASES);
    cases.last_mut().unwrap().host = BRIDGE_OF_OTHERS;
    cases
}

#[test]
fn add_fails_and_nothing_has_changed() {
    assert_all_fail("bridge", &conf(), &cases());
}

/// At the failure the bridge has the gateway's address and a fixed MAC. A foreign rule set in our table is not a lost
/// race, so ADD does not retry a thousand times. The reference uses another table.
#[test]
fn add_that_the_rule_set_refuses_leaves_a_bridge_of_others_as_it_was() {
    let conf = with(&conf(), json!({"ipMasq": true, "promiscMode": true}));
    for host in [MASQUERADE_REFUSED, BRIDGE_OF_OTHERS] {
        for_ours("bridge", |lab| {
            lab.host.sh(host);
            assert_refused(lab, &conf, 100, "masquerade");
            let error = lab.place(&conf).1.try_add().err();
            assert!(!error.text().contains("tries"), "{error:?}");
        });
    }
}

/// In the reference the kernel ends the name at the NUL, so it uses the bridge `br`, and it has no exemptions.
#[test]
fn add_refuses_what_the_reference_takes() {
    let wrong = json!({"nonMasqueradeCIDRs": ["192.0.2.0/24", "192.0.2.0/33"]});
    for_ours("bridge", |lab| {
        let nul = json!({"bridge": "br\u{0}0"});
        assert_refused(lab, &with(&conf(), nul), 7, "bridge: \"br\\00\"");
        let of_masquerade = with(&masquerade::conf(None), wrong.clone());
        assert_refused(
            lab,
            &of_masquerade,
            7,
            "nonMasqueradeCIDRs[1]: invalid CIDR address: 192.0.2.0/33",
        );
    });
}
