//! sbr ADD that fails: the error names the cause, and host and container are unchanged.

use super::*;

const FAILING: &str = r#"
not chained | {"prevResult": null} | 7: prevResult
no addresses | {"prevResult": {"ips": []}} | 7: prevResult.ips
prevResult of another version | {"prevResult": {"cniVersion": "0.4.0"}} | 6: prevResult
table unspec | {"table": 0} | 7: table: 0 is out of range
table is no number | {"table": "main"} | 6: table
no such interface | {} | 100: net1 | in: ip link set net1 down; ip link set net1 name other
interface is down | {} | 100: 10.20.0.1 | in: ip link set net1 down
nothing can be kept | {} | 5: /run/cni/sbr | host: mkdir -p /run/cni && : > /run/cni/sbr
table default | {"table": 253} | 7: is a table of the kernel, expected 1 to 252 or 256 to 4294967295
two gateways, in upstream's words | {"gateways": ["10.20.0.1", "10.20.0.9"]} | 7: gateways list contains multiple IPv4 addresses: 10.20.0.1 and 10.20.0.9: gateways
two gateways of IPv6 | {"gateways": ["2001:db8:20:0::1", "2001:db8:20:0::9"]} | 7: gateways list contains multiple IPv6 addresses: 2001:db8:20::1 and 2001:db8:20:0::9: gateways
three gateways | {"gateways": ["10.20.0.1", "2001:db8:20::1", "10.20.0.9"]} | 7: gateways list cannot contain more than 2 entries (one IPv4, one IPv6): gateways
"#;

/// Cases that the kernel refuses after tables and rules exist, each with the network of the second interface: the second
/// address's gateway is in no subnet of the link.
fn late_cases() -> [(Value, Case); 2] {
    let network = |address: &str, gateway: &str| {
        let own = json!({"address": "10.20.0.5/24", "gateway": "10.20.0.1"});
        let addresses = json!([own, {"address": address, "gateway": gateway}]);
        static_ipam(&with(&second(), json!({"isGateway": null})), addresses, json!([]))
    };
    // The kernel cannot remove what changes under our hands; it refuses to add what is not the interface's.
    let v6 = Case::new("IPv6 gateway unreachable", json!({}), 100, "2001:db8:99::1").container(
        "ip -6 addr del 2001:db8:20::2/64 dev net1; ip -6 route add 2001:db8:20::/64 dev net1",
    );
    let v4 = Case::new("gateway unreachable", json!({}), 100, "10.99.0.1");
    [
        (network("10.30.0.5/24", "10.99.0.1"), v4),
        (network("2001:db8:20::2/64", "2001:db8:99::1"), v6),
    ]
}

/// The reference leaves rules and tables.
#[test]
fn add_fails_and_nothing_has_changed() {
    for (network, case) in
        rows(FAILING).into_iter().map(|case| (second(), case)).chain(late_cases())
    {
        for_ours("sbr", |lab| {
            let container = lab.container();
            lab.attach(&container, &first()).add();
            let sbr = attach(lab, &container, &network, "net1");
            assert_fails_at(lab, &container, &sbr, &case);
        });
    }
}

/// A runtime calls DEL after a refused ADD. DEL must leave the obstacle that made ADD fail.
#[test]
fn del_after_a_refused_add_leaves_what_was_in_its_way() {
    for (table, ip, source) in [
        (json!({}), "ip", "10.20.0.2"),
        (json!({"table": 5000}), "ip", "10.20.0.2"),
        (json!({"table": 5000}), "ip -6", "2001:db8:20::2"),
    ] {
        for_ours("sbr", |lab| {
            let (container, sbr) = two_uplinks(lab, table.clone());
            container
                .sh(&format!("{ip} rule add from {source} lookup 5000; ip route add 192.0.2.0/24 dev net1 table 5000"));
            let before = Watch::start(lab, &[&container]);
            for _ in 0..2 {
                let msg = format!("address {source} has a rule already: it leads to table 5000");
                assert_eq!(sbr.try_add().fails(102, "").msg, msg);
            }
            sbr.del();
            before.assert_unchanged("the refused ADD");
        });
    }
}

/// ADD of another interface with the same address is refused, and DEL follows. The rules are ours or the reference's.
#[test]
fn del_after_a_refused_add_spares_the_owner_of_the_address() {
    let spares = |lab: &Lab| {
        let (container, sbr) = two_uplinks(lab, json!({}));
        let result = sbr.add();
        container.sh(
            "ip link add net2 type veth peer name other; ip link set net2 up; ip link set other up
             ip addr add 10.20.0.2/24 dev net2",
        );
        let before = Watch::start(lab, &[&container]);
        let other = sbr.also(&json!({"type": "sbr"})).ifname("net2").by(&Peer::Ours);
        if lab.peer == Peer::Ours {
            let unnamed = json!({"prevResult": {"interfaces": null}});
            other.clone().conf(unnamed).try_add().fails(102, "");
        }
        other.del();
        before.assert_unchanged("the refused ADD");
        sbr.check(&result).ok();
    };
    for_ours("sbr", spares);
    for_reference("sbr", spares);
}
