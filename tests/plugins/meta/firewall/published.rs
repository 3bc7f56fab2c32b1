//! firewall: published ports on a host that drops what it forwards.

use super::*;

fn published<'a>(lab: &'a Lab, chained: &Value) -> Synced<'a> {
    let ports = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    attach(lab, &[network(), ports, chained.clone()], "-p 8080:80")
}

fn accepting(backend: &str) -> Value {
    with(&firewall(Some(backend)), json!({"acceptPublishedPorts": true}))
}

#[test]
fn issue_40_published_ports_are_open_if_that_is_asked() {
    for backend in ["nftables", "iptables"] {
        for_ours("firewall", |lab| {
            lab.host.sh(DROPPING);
            route_from_outside(lab);
            let closed = published(lab, &firewall(Some(backend)));
            let server = TcpServer::start(&closed.container, 80);
            assert_eq!(is_open(lab, 8080), [false, false], "{backend}");
            // The host itself forwards nothing, and the administrator's chain may accept, as with the reference.
            assert!(UPLINK.iter().all(|own| connect(&lab.host, &at(own, 8080)).is_some()));
            let rule = "CNI-ADMIN -m conntrack --ctstate DNAT -j ACCEPT";
            lab.host.sh(&format!("iptables -A {rule}; ip6tables -A {rule}"));
            let seen = UPLINK.map(|own| connect(&lab.outside, &at(own, 8080)));
            assert_eq!(seen, OUTSIDE.map(|own| Some(own.to_owned())), "{backend}");
            lab.host.sh(&format!("iptables -D {rule}; ip6tables -D {rule}"));
            closed.check().ok();
            closed.del();
            drop(server);
            let open = published(lab, &accepting(backend));
            let _server = TcpServer::start(&open.container, 80);
            assert_eq!(is_open(lab, 8080), [true, true], "{backend}");
            for ip in open.ips() {
                assert_eq!(connect(&lab.outside, &at(&ip, 80)), None, "{ip} itself");
            }
            open.check().ok();
            assert_eq!(rules(lab).matches("--ctstate DNAT -j ACCEPT").count(), 2, "{}", rules(lab));
            lab.host.sh("iptables -D CNI-FORWARD -d $(iptables -S | sed -n 's/.*-d \\([^ ]*\\) .*DNAT.*/\\1/p') -m conntrack --ctstate DNAT -j ACCEPT");
            assert_eq!(open.check().status, 1, "{backend}");
            assert_eq!(open.net("sync pods").status, 0, "{backend}");
            assert_eq!(is_open(lab, 8080), [true, true], "{backend}");
            open.del();
            assert!(!rules(lab).contains("CNI-FORWARD"), "{}", rules(lab));
        });
    }
}

/// Also for containers among many others, whose rules DEL does not read.
#[test]
fn issue_40_each_del_closes_its_ports_alone() {
    for_ours("firewall", |lab| {
        lab.host.sh(DROPPING);
        let chained = accepting("nftables");
        let chains = [(); 14].map(|()| admit(lab, &chained));
        for (at, chain) in chains.iter().enumerate() {
            chain.bare().del();
            let rules = assert_closed(lab, chain);
            assert_eq!(rules.matches(" DNAT ").count(), 2 * (chains.len() - at - 1), "{rules}");
        }
    });
}

/// A second ADD without the key closes the ports again.
#[test]
fn issue_40_an_add_without_the_key_closes_the_ports() {
    for backend in ["nftables", "iptables"] {
        for_ours("firewall", |lab| {
            lab.host.sh(DROPPING);
            let chain = admit(lab, &accepting(backend));
            chain.clone().conf(json!({"acceptPublishedPorts": null})).add();
            let rules = rules(lab);
            assert!(rules.contains("-j CNI-FORWARD") && !rules.contains("DNAT"), "{rules}");
            chain.del_all();
        });
    }
}
