//! The host's allowlist of sysctls, for ADD and CHECK.

use super::*;

/// Writes the allowlist of the lab's host, which has an `/etc` of its own from then on.
pub fn write(lab: &Lab, list: &str) {
    lab.host.sh("[ -d /run/etc ] || { mkdir /run/etc && mount --bind /run/etc /etc && mkdir -p /etc/cni/tuning; }");
    std::fs::write(lab.path("/etc/cni/tuning/allowlist.conf"), list).unwrap();
}

fn set(name: &str) -> Value {
    json!({"sysctl": {name: "1"}})
}

#[test]
fn what_a_pattern_matches_may_be_set() {
    for_each_peer("tuning", |lab| {
        write(lab, "^net.ipv4.conf.IFNAME.[a-z_]*$\n\n  ^net\\.core\\.somaxconn$  \n");
        for name in [
            "net.ipv4.conf.IFNAME.arp_filter",
            "net/ipv4/conf/IFNAME/arp_filter",
            "net.core.somaxconn",
        ] {
            for changes in [set(name), json!({"sysctl": {}, "args": {"cni": set(name)}})] {
                let chain = chain(lab, changes);
                let result = chain.add();
                chain.check_and_del_all(&result);
            }
        }
        // An ADD without sysctls does not consult the list.
        chain(lab, json!({"mtu": 1400})).add();
    });
}

#[test]
fn what_no_pattern_matches_is_refused_and_nothing_is_done() {
    for_each_peer("tuning", |lab| {
        write(lab, "^net.ipv4.conf.IFNAME.[a-z_]*$\n");
        for name in [
            "net.ipv4.conf.eth0.arp_filter",
            "net.ipv4.conf.IFNAME.0",
            "net.core.somaxconn",
            "net.ipv4.ip_forward",
        ] {
            let both = json!({"mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.log_martians": "1", name: "1"}});
            let args = json!({"mtu": 1400, "sysctl": {}, "args": {"cni": set(name)}});
            for changes in [both, args] {
                let chain = chain(lab, changes.clone());
                let before = Watch::start(lab, &[&chain.container]);
                let error = chain.try_add().err();
                let words = format!(
                    "Sysctl {name} is not allowed. Only the following sysctls are allowed: [^net.ipv4.conf.IFNAME.[a-z_]*$]"
                );
                assert!(error.text().contains(&words), "{changes}: {error:?}");
                before.assert_unchanged("the refused ADD");
                chain.main.del();
            }
        }
        write(lab, "");
        let chain = chain(lab, set("net.core.somaxconn"));
        assert!(chain.try_add().err().msg.ends_with("allowed: []"), "an empty list allows nothing");
    });
}

/// In ours a pattern must match the whole name, in CHECK too, and a pattern that does not parse
/// allows nothing. See tests/differences.
#[test]
fn patterns_are_for_whole_names() {
    for_ours("tuning", |lab| {
        let chain = chain(lab, set("net.core.somaxconn"));
        let result = chain.add();
        for list in ["somaxconn", "net.core.somax", "core.somaxconn$", "x", "net.core.somaxcon.?nn"]
        {
            write(lab, list);
            let error = chain.check(&result).fails(7, "sysctl.net.core.somaxconn: no line");
            assert_eq!(chain.try_add().err(), error, "{list}");
        }
        for list in
            ["net.core.somaxconn\n(", "net\\.core\\.somaxconn)|(x", "[", "net.core.somaxconn(?x)#"]
        {
            write(lab, list);
            let error = chain.try_add().fails(7, "");
            let place = "/etc/cni/tuning/allowlist.conf: line ";
            assert!(error.msg.starts_with(place), "{list}: {error:?}");
        }
        for list in [
            "net.core.somaxconn",
            "(?i)NET.CORE.SOMAXCONN",
            "a|net.core.somaxconn|b",
            "net\\.core\\.[[:alpha:]]+",
        ] {
            write(lab, list);
            chain.check(&result).ok();
        }
        write(lab, "x");
        chain.del();
        assert_ne!(sysctl(&chain.container, "core/somaxconn"), "1", "DEL asks nobody");
        let newest = chain.clone().conf(json!({"cniVersion": "1.1.0", "prevResult": null}));
        assert_eq!(newest.status().err().code, 50);
    });
}
