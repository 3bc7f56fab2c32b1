//! A port of the host leads to one container: the second ADD fails and names the owner. The
//! reference lets the first rule win without an error; see tests/differences.

use super::*;

fn on(host_ip: &str) -> Value {
    with(&web(), json!({"hostIP": host_ip}))
}

fn udp() -> Value {
    with(&web(), json!({"protocol": "udp"}))
}

/// The first container's mapping, and a mapping of the second that conflicts with it.
fn conflicts() -> [(Value, Value); 9] {
    [
        (web(), web()),
        (udp(), udp()),
        (web(), with(&web(), json!({"protocol": null}))), // the default is TCP
        (on("0.0.0.0"), on(UPLINK[0])),
        (on(UPLINK[0]), on("0.0.0.0")),
        (on(UPLINK[0]), on(UPLINK[0])),
        (web(), on("127.0.0.1")),
        (on("::"), on(UPLINK[1])),
        (on(UPLINK[1]), web()),
    ]
}

/// The second ADD fails, names the first and changes nothing; once the first is gone it succeeds.
fn assert_second_is_refused(lab: &Lab, backends: [Option<&str>; 2], first: &Value, second: &Value) {
    let what = format!("{first} and {second} with {backends:?}");
    let owner = publish(lab, backends[0], json!([first]));
    let late = lab.chain(&network(), &portmap(backends[1], json!([second])));
    let before = Watch::start(lab, &[&late.container]);
    let error = late.try_add().err();
    assert_eq!(error.code, 102, "{what}: {error:?}");
    let text = error.text();
    for part in ["8080", &owner.container_id, "net1"] {
        assert!(text.contains(part), "{what}: no {part} in {error:?}");
    }
    before.assert_unchanged(&format!("the refused ADD: {what}"));
    late.del(); // as runtimes do after a failed ADD
    before.assert_unchanged("DEL of the refused one");
    owner.check_and_del_all(&owner.result);
    late.add();
    late.check_and_del_all(&late.result);
}

/// Both backends share the host's ports.
#[test]
fn a_port_that_is_taken_is_an_error_that_names_its_owner() {
    let [iptables, nftables] = BACKENDS.map(Some);
    for backend in [None, nftables, iptables] {
        for_ours("portmap", |lab| {
            for (first, second) in conflicts() {
                assert_second_is_refused(lab, [backend; 2], &first, &second);
            }
            for backends in [[iptables, nftables], [nftables, iptables]] {
                assert_second_is_refused(lab, backends, &web(), &web());
            }
        });
    }
}

/// One taken port of several fails the whole ADD, and the other ports leave nothing.
#[test]
fn one_taken_port_of_several_refuses_all() {
    for_ours_with_each_backend(|lab, backend| {
        let owner = publish(lab, backend, json!([web()]));
        let free = json!({"hostPort": 8081, "containerPort": 81, "protocol": "tcp"});
        let late = lab.chain(&network(), &portmap(backend, json!([free, web()])));
        let before = Watch::start(lab, &[]);
        late.try_add().fails(102, "portMappings[1]");
        before.assert_unchanged("the refused ADD");
        let _server = TcpServer::start(&owner.container, 80);
        assert_eq!(is_open(lab, 8080), [true, true]);
    });
}

#[test]
fn what_differs_in_address_family_or_protocol_is_no_conflict() {
    let pairs = [
        (web(), udp()),
        (on(UPLINK[0]), on("127.0.0.1")),
        (on("0.0.0.0"), on("::")),
        (on("0.0.0.0"), on(UPLINK[1])),
        (on("::"), on(UPLINK[0])),
        (on("198.51.100.7"), on(UPLINK[0])),
    ];
    for_each_backend(|lab, backend| {
        lab.host.sh("ip addr add 198.51.100.7/24 dev uplink");
        for (first, second) in &pairs {
            let chains = [first, second].map(|mapping| publish(lab, backend, json!([mapping])));
            for (chain, mapping) in chains.iter().zip([first, second]) {
                chain.check(&chain.result).ok();
                if mapping["protocol"] == "tcp" {
                    let _server = TcpServer::start(&chain.container, 80);
                    let to = match mapping["hostIP"].as_str() {
                        None | Some("0.0.0.0") => UPLINK[0],
                        Some("::") => UPLINK[1],
                        Some(address) => address,
                    };
                    assert!(
                        connect(&lab.host, &at(to, 8080)).is_some(),
                        "{mapping} of {first}, {second}, {backend:?}"
                    );
                }
            }
            chains.iter().for_each(|chain| chain.del_all());
        }
    });
}

/// `-p 8080:80 -p [::]:8080:80`, and a pod whose containers name different host addresses.
#[test]
fn a_mapping_that_is_named_twice_is_one() {
    let twice = [
        [web(), web()],
        [web(), on("::")],
        [on("0.0.0.0"), web()],
        [on("127.0.0.1"), web()],
        [web(), on(UPLINK[0])],
    ];
    for_each_backend(|lab, backend| {
        warm_up(lab, &network(), &portmap(backend, json!([web()])));
        for mappings in &twice {
            let before = Watch::start(lab, &[]);
            let chain = publish(lab, backend, json!(mappings));
            let server = TcpServer::start(&chain.container, 80);
            assert_eq!(is_open(lab, 8080), [true, true], "{mappings:?} with {backend:?}");
            assert!(connect(&lab.host, "127.0.0.1:8080").is_some(), "{mappings:?}, {backend:?}");
            chain.check(&chain.result).ok();
            drop(server);
            chain.del_all();
            assert_eq!(is_open(lab, 8080), [false, false], "{mappings:?} with {backend:?}");
            if lab.peer == Peer::Ours {
                before.assert_unchanged(&format!("{mappings:?}"));
            }
        }
    });
}

/// Each fits a map of its own. With the reference the first rule of the two decides. No packet from
/// ::1 leaves the host.
#[test]
fn a_port_at_one_address_may_lead_elsewhere() {
    for_ours_with_each_backend(|lab, backend| {
        lab.host.sh("ip addr add 192.0.2.1/32 dev uplink");
        for one in ["127.0.0.1", "192.0.2.1", "::1"] {
            let elsewhere = with(&on(one), json!({"containerPort": 81}));
            let answers = || connect(&lab.host, &at(one, 8080)).is_some();
            for mappings in [json!([web(), elsewhere]), json!([elsewhere, web()])] {
                let chain = publish(lab, backend, mappings.clone());
                let server = TcpServer::start(&chain.container, 80);
                assert_eq!(is_open(lab, 8080), [true, true], "{mappings} with {backend:?}");
                assert!(!answers(), "{mappings} with {backend:?}");
                drop(server);
                let _server = TcpServer::start(&chain.container, 81);
                assert_eq!(is_open(lab, 8080), [false, false], "{mappings} with {backend:?}");
                assert_eq!(answers(), one != "::1", "{mappings}, {backend:?}");
                chain.check_and_del_all(&chain.result);
            }
        }
    });
}

/// Two attachments of one container: the second is refused the port although the container is the
/// same.
#[test]
fn another_interface_of_the_container_is_another_attachment() {
    for_ours("portmap", |lab| {
        let chain = publish(lab, None, json!([web()]));
        let chained = portmap(None, json!([web()]));
        let second = lab.chain_in(&chain.container, "net1", &network(), &chained);
        second.try_add().fails(102, "eth0");
        second.main.del();
        let _server = TcpServer::start(&chain.container, 80);
        assert_eq!(is_open(lab, 8080), [true, true]);
    });
}

/// A runtime that lost its state adds the same id again, to a new namespace: the attachment keeps
/// its own port.
#[test]
fn a_repeated_add_keeps_its_port_and_has_each_rule_once() {
    for_ours_with_each_backend(|lab, backend| {
        let chain = publish(lab, backend, json!([web()]));
        let once = lab.host.sh("nft -s list ruleset");
        assert_eq!(chain.add(), chain.result);
        assert_eq!(lab.host.sh("nft -s list ruleset"), once, "{backend:?}");
        chain.main.del();
        let new = lab.chain(&network(), &portmap(backend, json!([web()])));
        assert_ne!(new.ips(), chain.ips());
        let again = (*new).clone().id(&chain.container_id);
        again.add();
        again.check(&new.result).ok();
        let _server = TcpServer::start(&new.container, 80);
        assert_eq!(is_open(lab, 8080), [true, true], "{backend:?}");
        let rules = lab.host.sh("nft -s list ruleset; iptables-save; ip6tables-save");
        for old in chain.ips() {
            assert!(!rules.contains(&old), "{old} is nobody's any more: {rules}");
        }
        again.del();
        assert_eq!(is_open(lab, 8080), [false, false]);
    });
}
