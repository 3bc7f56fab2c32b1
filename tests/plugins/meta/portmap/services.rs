//! portmap where addresses of services are the host's own: kube-proxy in IPVS mode, and kube-router
//! (CVE-2019-9946). Here a server of the host stands for IPVS.

use super::*;

const SERVICE: [&str; 2] = ["10.96.0.1", "fd00:96::1"];

/// kube-proxy with a service at port 8080. Its link is a dummy; a veth needs no module.
pub fn start_services(lab: &Lab, link: &str) {
    lab.host.sh(&format!(
        "ip link add {link} type veth peer name peer; ip link set {link} up; ip link set peer up
        ip addr add 10.96.0.1/32 dev {link}; ip addr add fd00:96::1/128 dev {link} nodad
        for f in iptables ip6tables; do
            $f -t nat -N KUBE-SERVICES
            for c in PREROUTING OUTPUT; do $f -t nat -I $c -j KUBE-SERVICES; done
        done
        iptables -t nat -A KUBE-SERVICES -d 10.96.0.1 -p tcp --dport 8080 -j ACCEPT
        ip6tables -t nat -A KUBE-SERVICES -d fd00:96::1 -p tcp --dport 8080 -j ACCEPT"
    ));
}

fn route_services(lab: &Lab) {
    lab.outside.sh("ip route add 10.96.0.0/12 via 198.51.100.1; ip route add fd00:96::/64 via 2001:db8:ffff::1");
}

/// Who answers at port 8080 of an address.
fn answering(lab: &Lab, published: &Namespace, from: &Namespace, to: &str) -> &'static str {
    let answers = |at_server: &Namespace, port| {
        let _server = TcpServer::start(at_server, port);
        connect(from, &at(to, 8080)).is_some()
    };
    match (answers(&lab.host, 8080), answers(published, 80)) {
        (true, false) => "host",
        (false, true) => "published",
        (false, false) => "nobody",
        (true, true) => "both",
    }
}

/// From the outside, the host, a pod beside the published one and one of another network.
#[track_caller]
fn assert_each_has_its_own(lab: &Lab, published: &Chain<'_>, what: &str) {
    let (near, far) = (lab.container(), lab.container());
    let attached = [lab.attach(&near, &network()), lab.attach(&far, &other_network())];
    attached.iter().for_each(|pod| drop(pod.add()));
    for (who, from) in
        [("outside", &lab.outside), ("host", &lab.host), ("pod", &*near), ("stranger", &*far)]
    {
        for family in [0, 1] {
            let seen = [SERVICE[family], UPLINK[family]]
                .map(|to| answering(lab, &published.container, from, to));
            assert_eq!(seen, ["host", "published"], "{who}, IPv{}: {what}", 4 + 2 * family);
        }
    }
    assert_eq!(answering(lab, &published.container, &lab.host, "127.0.0.1"), "published");
    attached.iter().for_each(|pod| pod.del());
}

/// Also where kubelet has made its chain before the port was published, and kube-proxy comes later.
#[test]
fn cve_2019_9946_the_address_of_an_ipvs_service_is_left_alone() {
    for_ours_with_each_backend(|lab, backend| {
        for (link, is_later) in
            [("kube-ipvs0", false), ("kube-dummy-if", false), ("kube-ipvs0", true)]
        {
            let lab = Lab::new(lab.peer.clone());
            route_services(&lab);
            if is_later {
                lab.host.sh("iptables-nft -t mangle -N KUBE-IPTABLES-HINT");
            } else {
                start_services(&lab, link);
            }
            [network(), other_network()]
                .iter()
                .for_each(|main| warm_up(&lab, main, &portmap(backend, json!([web()]))));
            let before = Watch::start(&lab, &[]);
            let chain = publish(&lab, backend, json!([web()]));
            let what = format!("{link} with {backend:?}, later: {is_later}");
            if is_later {
                start_services(&lab, link);
            }
            assert_each_has_its_own(&lab, &chain, &what);
            chain.check_and_del_all(&chain.result);
            if !is_later {
                before.assert_unchanged(&what);
            }
        }
    });
}

#[test]
fn sync_spares_services_that_came_after_the_port() {
    for_ours("portmap", |lab| {
        let plugins: [Value; 2] =
            [network(), json!({"type": "portmap", "capabilities": {"portMappings": true}})];
        let synced = attach(lab, &plugins, "-p 8080:80");
        start_services(lab, "kube-ipvs0");
        let ask = || answering(lab, &synced.container, &lab.host, SERVICE[0]);
        assert_eq!(ask(), "published");
        let found = synced.check();
        assert!(
            found.stderr.contains("takes the packets of services on \"kube-ipvs0\""),
            "{found:?}"
        );
        assert_eq!(synced.net("sync pods").status, 0);
        assert_eq!(ask(), "host");
        synced.check().ok();
        synced.del();
        assert!(!lab.host.sh("nft list tables").contains("portmap"));
    });
}

/// An address that the host gets later leads to the port: beside services on the link that it is on, and on a host
/// without services, also beside kube-proxy in a mode that gives it none, wherever the packets come from.
#[test]
fn a_later_address_leads_to_the_port() {
    let kubelet = "iptables-nft -t mangle -N KUBE-IPTABLES-HINT";
    let by_chain = format!("{kubelet}; iptables-nft -t nat -N KUBE-SERVICES");
    let by_table = format!("{kubelet}; nft add table ip kube-proxy");
    for_each_backend(|lab, backend| {
        for (made, has_services) in
            [("true", true), ("true", false), (&by_chain, false), (&by_table, false)]
        {
            if lab.peer != Peer::Ours && (has_services || made != "true") {
                continue; // the reference knows of no services
            }
            let lab = Lab::new(lab.peer.clone());
            lab.host.sh(made);
            if has_services {
                start_services(&lab, "kube-ipvs0");
            }
            let chain = publish(&lab, backend, json!([web()]));
            let other = lab.container();
            lab.attach(&other, &other_network()).add();
            lab.host.sh("ip addr add 192.0.2.7/32 dev uplink; ip addr add 2001:db8:7::7/128 dev uplink nodad
                ip link add new type veth peer name far; ip link set new up; ip addr add 192.0.2.9/24 dev new");
            lab.outside.sh("ip route add 192.0.2.7 via 198.51.100.1; ip route add 2001:db8:7::7 via 2001:db8:ffff::1");
            let _server = TcpServer::start(&chain.container, 80);
            for to in ["192.0.2.7", "2001:db8:7::7"] {
                assert!(connect(&lab.outside, &at(to, 8080)).is_some(), "{to}, {made}");
            }
            for from in [&lab.host, &*other].into_iter().filter(|_| !has_services) {
                assert!(connect(from, "192.0.2.9:8080").is_some(), "{made}");
            }
            chain.check(&chain.result).ok();
        }
    });
}

#[test]
fn status_names_the_link_of_services() {
    for_ours("portmap", |lab| {
        let status = || {
            let outcome = in_network(lab, &portmap(None, json!([web()]))).status();
            outcome.ok();
            outcome.stderr
        };
        assert_eq!(status(), "");
        start_services(lab, "kube-ipvs0");
        assert!(status().contains("addresses of services on \"kube-ipvs0\" win over host ports"));
    });
}
