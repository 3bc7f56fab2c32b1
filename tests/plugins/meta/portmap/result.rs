//! portmap returns the result that it was given.

use super::*;

/// portmap must keep every field that another plugin of the chain wrote.
#[test]
fn a_rich_result_is_passed_through() {
    let prev = json!({
        "cniVersion": "1.1.0",
        "interfaces": [
            {"name": "br0", "mac": "02:00:00:00:00:01", "mtu": 1400},
            {"name": "eth0", "mac": "02:00:00:00:00:02", "mtu": 1400, "sandbox": "/run/netns/c1", "pciID": "0000:00:1f.6"},
        ],
        "ips": [{"address": "10.10.0.2/24", "gateway": "10.10.0.1", "interface": 1}, {"address": "10.10.0.3/24", "interface": 0}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.10.0.1", "mtu": 1300, "advmss": 1200, "priority": 5, "table": 100, "scope": 253}],
        "dns": {"nameservers": ["192.0.2.53"], "domain": "example.org", "search": ["example.org"], "options": ["ndots:5"]},
    });
    for_each_backend(|lab, backend| {
        for mappings in [json!([web()]), json!([]), Value::Null] {
            let conf = with(
                &portmap(backend, mappings),
                json!({"cniVersion": "1.1.0", "name": "net1", "prevResult": prev}),
            );
            let attachment = lab.attach(&lab.container(), &conf);
            assert_eq!(attachment.add(), prev);
            attachment.del();
        }
    });
}

/// A runtime calls the plugin for every container; one without ports gets neither rules nor a
/// table.
#[test]
fn without_mappings_nothing_is_done() {
    for_each_backend(|lab, backend| {
        for mappings in [json!([]), Value::Null] {
            let chain = lab.chain(&network(), &portmap(backend, mappings));
            let before = Watch::start(lab, &[]);
            assert_eq!(chain.add(), chain.result);
            chain.check(&chain.result).ok();
            before.assert_unchanged("ADD");
            chain.del();
            before.assert_unchanged("DEL");
            chain.main.del();
        }
    });
}

/// A result of version 0.2.0 has no list of addresses, and there is no CHECK that would miss the rules.
#[test]
fn the_addresses_of_an_old_result_are_published() {
    for_each_backend(|lab, backend| {
        let main = with(&network(), json!({"cniVersion": "0.2.0"}));
        let chain = lab.chain(&main, &portmap(backend, json!([web()])));
        assert_eq!(chain.add(), chain.result);
        let _server = TcpServer::start(&chain.container, 80);
        assert_eq!(is_open(lab, 8080), [true, true]);
    });
}

/// An address of another interface, or of one on the host, is not the container's.
#[test]
fn only_an_address_of_this_interface_is_published() {
    for_each_backend(|lab, backend| {
        let chain = lab.chain(&network(), &portmap(backend, json!([web()])));
        let mut result = chain.result.clone();
        let addresses = result["ips"].as_array_mut().unwrap();
        addresses.insert(0, json!({"address": "10.10.0.77/24", "interface": 0}));
        addresses.insert(0, json!({"address": "2001:db8:10::77/64", "interface": 1}));
        let chained = (*chain).clone().conf(json!({"prevResult": {"ips": result["ips"]}}));
        assert_eq!(chained.add(), result);
        let _server = TcpServer::start(&chain.container, 80);
        assert_eq!(is_open(lab, 8080), [true, true]);
        let rules = lab.host.sh("nft list ruleset; iptables-save -t nat; ip6tables-save -t nat");
        assert!(!rules.contains("10.10.0.77") && !rules.contains("2001:db8:10::77"), "{rules}");
    });
}
