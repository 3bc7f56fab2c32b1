//! portmap beside foreign rules: filters, other redirects, and firewall in the same chain.

use super::*;
use crate::plugins::meta::firewall::firewalld::Firewalld;
use crate::support::networks::firewall;

/// A host with an nftables policy that drops what no rule accepts.
const STRICT: &str = r#"nft -f - <<'END'
table inet strict {
    chain redirected { }
    chain gate {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        jump redirected
    }
}
END"#;

/// The iptables nat table as kube-proxy leaves it: packets that its services have marked are
/// masqueraded.
const KUBE_PROXY: &str = r#"for f in iptables-nft ip6tables-nft; do $f-restore --noflush <<'END'
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SERVICES - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
END
done"#;

/// The filtering table decides whether the port is open to the outside; portmap decides only where
/// it leads.
#[test]
fn a_table_that_drops_has_the_last_word() {
    for_each_backend(|lab, backend| {
        lab.host.sh(STRICT);
        let chain = publish(lab, backend, json!([web()]));
        let _server = TcpServer::start(&chain.container, 80);
        assert_eq!(is_open(lab, 8080), [false, false], "{backend:?}");
        UPLINK.iter().for_each(|own| {
            assert!(connect(&lab.host, &at(own, 8080)).is_some(), "nothing is forwarded")
        });
        lab.host.sh("nft add rule inet strict redirected ct status dnat accept");
        assert_eq!(is_open(lab, 8080), [true, true], "{backend:?}");
        chain.check(&chain.result).ok();
        chain.del();
        assert_eq!(is_open(lab, 8080), [false, false], "{backend:?}");
        assert!(lab.host.sh("nft list table inet strict").contains("ct status dnat accept"));
    });
}

/// A client that foreign rules redirect to the container from another port keeps its address.
#[test]
fn connections_that_others_redirect_keep_their_sources() {
    for masq_all in [false, true] {
        for_ours("portmap", |lab| {
            let chained = with(&portmap(None, json!([web()])), json!({"masqAll": masq_all}));
            let chain = lab.chain_added(&network(), &chained);
            let ips = chain.ips();
            lab.host.sh(&format!(
                "nft 'add table inet others; add chain inet others in {{ type nat hook prerouting priority dstnat; }}; \
                 add rule inet others in ip daddr {} tcp dport 9090 dnat ip to {}:80; \
                 add rule inet others in ip6 daddr {} tcp dport 9090 dnat ip6 to [{}]:80'",
                UPLINK[0], ips[0], UPLINK[1], ips[1]
            ));
            let _server = TcpServer::start(&chain.container, 80);
            for family in [0, 1] {
                let seen = |port| connect(&lab.outside, &at(UPLINK[family], port));
                assert_eq!(seen(9090).as_deref(), Some(OUTSIDE[family]), "masqAll {masq_all}");
                let is_own = seen(8080).as_deref() == Some(OUTSIDE[family]);
                assert_eq!(is_own, !masq_all, "masqAll {masq_all}");
            }
        });
    }
}

#[test]
fn beside_kube_proxy_client_addresses_are_unchanged() {
    for_each_backend(|lab, backend| {
        lab.host.sh(KUBE_PROXY);
        let masquerading = with(&network(), json!({"ipMasq": true, "ipMasqBackend": "iptables"}));
        let chained = portmap(backend, json!([web()]));
        [&masquerading, &other_network()].iter().for_each(|main| warm_up(lab, main, &chained));
        let before = Watch::start(lab, &[]);
        let chain = lab.chain_added(&masquerading, &chained);
        let seen = sources(lab, &chain);
        if lab.peer == Peer::Ours || backend == Some("iptables") {
            assert_eq!(seen, SNAT, "{backend:?}");
        }
        chain.check_and_del_all(&chain.result);
        before.assert_unchanged("ADD beside kube-proxy");
    });
}

/// On a host with policy drop, a rule in the administrator's chain accepts published ports, as with
/// the reference.
#[test]
fn firewall_on_policy_drop_forwards_published_ports_if_allowed() {
    for_each_peer("firewall", |lab| {
        for backends in [[None, None], [Some("iptables"), Some("iptables")]] {
            lab.host.sh(firewall::DROPPING);
            let published = publish(lab, backends[0], json!([web()]));
            let admitted = published.also(&firewall::firewall(backends[1]));
            admitted.add();
            let _server = TcpServer::start(&published.container, 80);
            UPLINK.iter().for_each(|own| {
                assert!(connect(&lab.host, &at(own, 8080)).is_some(), "{backends:?}")
            });
            assert_eq!(is_open(lab, 8080), [false, false], "{backends:?}");
            let each = |what: &str| {
                format!(
                    "for f in iptables ip6tables; do $f {what} CNI-ADMIN -m conntrack --ctstate DNAT -j ACCEPT; done"
                )
            };
            lab.host.sh(&each("-A"));
            for (own, outside) in UPLINK.iter().zip(OUTSIDE) {
                let seen = connect(&lab.outside, &at(own, 8080));
                assert_eq!(seen.as_deref(), Some(outside), "{backends:?}");
            }
            lab.host.sh(&each("-D"));
            for plugin in [&*published, &admitted] {
                plugin.check(&published.result).ok();
            }
            admitted.del();
            published.del_all();
        }
    });
}

/// A reload of firewalld deletes and recreates its own table, which accepts redirected packets.
#[test]
fn a_reload_of_firewalld_leaves_published_ports_alone() {
    for_ours("portmap", |lab| {
        let Some(_firewalld) = Firewalld::start(lab) else { return };
        let published = publish(lab, None, json!([web()]));
        published.also(&firewall::firewall(None)).add();
        let _server = TcpServer::start(&published.container, 80);
        assert_eq!(is_open(lab, 8080), [true, true]);
        lab.host.sh("firewall-cmd --reload");
        published.check(&published.result).ok();
        assert_eq!(is_open(lab, 8080), [true, true]);
        published.del();
        assert_eq!(is_open(lab, 8080), [false, false]);
    });
}
