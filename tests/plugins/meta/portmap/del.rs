//! portmap DEL and GC: they remove everything with whatever the runtime still knows, and touch no
//! foreign rules.

use super::*;

/// One mapping of every kind.
fn everything() -> Value {
    json!([
        web(),
        {"hostPort": 8080, "containerPort": 80, "protocol": "udp"},
        {"hostPort": 8081, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"},
        {"hostPort": 8082, "containerPort": 80, "protocol": "tcp", "hostIP": "2001:db8:ffff::1"},
    ])
}

/// The reference's nftables backend removes the rules of this container id in all networks; see
/// tests/differences.
#[test]
fn del_leaves_the_same_container_in_another_network_alone() {
    let port = json!([with(&web(), json!({"hostPort": 9090}))]);
    for_ours_with_each_backend(|lab, backend| {
        let chain = publish(lab, backend, json!([web()]));
        let chained = portmap(backend, port.clone());
        let other = lab.chain_in(&chain.container, "net1", &other_network(), &chained);
        other.add();
        let _server = TcpServer::start(&chain.container, 80);
        assert_eq!(is_open(lab, 9090), [true, true]);
        chain.del();
        assert_eq!(is_open(lab, 8080), [false, false]);
        assert_eq!(is_open(lab, 9090), [true, true], "{backend:?}");
        other.check(&other.result).ok();
        other.del();
    });
}

/// Foreign rules stay, in the chains of these names and in foreign chains.
#[test]
fn del_leaves_the_rules_of_others_alone() {
    for_each_backend(|lab, backend| {
        let chained = portmap(backend, everything());
        let owner = publish(
            lab,
            backend,
            json!([{"hostPort": 9090, "containerPort": 80, "protocol": "tcp"}]),
        );
        lab.host.sh("iptables -t nat -A PREROUTING -p tcp --dport 8080 -j ACCEPT; nft add table inet others; \
            nft add chain inet others c; nft add rule inet others c tcp dport 8080 accept comment container-2");
        warm_up(lab, &network(), &chained);
        let before = Watch::start(lab, &[]);
        let chain = lab.chain_added(&network(), &chained);
        chain.del_all();
        before.assert_unchanged("ADD");
        let _server = TcpServer::start(&owner.container, 80);
        assert_eq!(is_open(lab, 9090), [true, true]);
    });
}

/// Neither the specification nor the kernel limits the length of an id: it may exceed a comment, or
/// a page.
#[test]
fn del_finds_a_container_of_any_id_and_interface() {
    for_ours_with_each_backend(|lab, backend| {
        let chained = portmap(backend, json!([web()]));
        warm_up(lab, &network(), &chained);
        for (length, ifname) in [(64, "eth0"), (250, "eth0"), (300, "eth0"), (5000, "e")] {
            let chain = lab.chain_in(&lab.container(), ifname, &network(), &chained);
            let before = Watch::start(lab, &[]);
            let long = chain.clone().id(&"i".repeat(length));
            long.add();
            long.check(&chain.result).ok();
            long.conf(json!({"prevResult": null, "runtimeConfig": null})).del();
            before.assert_unchanged(&format!("ADD of an id of {length} bytes with {backend:?}"));
            chain.main.del();
        }
    });
}
