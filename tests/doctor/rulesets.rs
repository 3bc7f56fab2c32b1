//! Rules of other programs, in the form that they have them: healthy containers have no finding
//! beside them, and where packets are dropped there is one.

use serde_json::{Value, json};

use super::road::Road;
use super::site::bridge;
use crate::support::attachment::skip;

/// A network of bridge, portmap and firewall.
fn chain(subnet: &str, has_firewall: bool) -> Value {
    let mut main = bridge("pods0", subnet);
    main["ipMasq"] = json!(true);
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true});
    let mut plugins = vec![main, portmap];
    if has_firewall {
        plugins.push(json!({"type": "firewall"}));
    }
    Value::Array(plugins)
}

/// The rules and the program that loads them.
const RULESETS: [(&str, &str); 8] = [
    (include_str!("rulesets/docker.iptables"), "iptables-nft-restore"),
    (include_str!("rulesets/docker.iptables"), "iptables-legacy-restore"),
    (include_str!("rulesets/docker.nft"), "nft -f -"),
    (include_str!("rulesets/kube-proxy.iptables"), "iptables-nft-restore"),
    (include_str!("rulesets/kube-proxy.iptables"), "iptables-legacy-restore"),
    (include_str!("rulesets/kube-proxy.nft"), "nft -f -"),
    (include_str!("rulesets/calico.iptables"), "iptables-nft-restore"),
    (include_str!("rulesets/calico.iptables"), "iptables-legacy-restore"),
];

/// Loads the rules before the container is attached, as a host has them; false if it cannot.
fn load(road: &Road, (rules, program): (&str, &str)) -> bool {
    road.site.write("/run/rules", rules);
    let loaded = road.site.lab.host.try_sh(&format!("{program} </run/rules"));
    if !loaded.status.success() {
        skip(&format!("{program}: {}", String::from_utf8_lossy(&loaded.stderr)));
    }
    loaded.status.success()
}

/// The number of the second octet, the rules, and whether the network has the plugin firewall.
fn road(number: u8, ruleset: (&str, &str), has_firewall: bool) -> Option<Road> {
    let road = Road::of(number, &chain(&format!("10.{number}.1.0/24"), has_firewall));
    road.assert_healthy("no rules");
    let container = &road.container;
    let detach = format!("net del pods {}", container.netns);
    assert!(road.site.run(&detach).status.success());
    if !load(&road, ruleset) {
        return None;
    }
    road.site.attach("pods", container, "eth0");
    Some(road)
}

#[test]
fn containers_beside_other_programs_have_no_finding() {
    for (number, ruleset) in (200..).zip(RULESETS) {
        let Some(road) = road(number, ruleset, true) else { continue };
        road.assert_healthy(&format!("{} of {}", ruleset.1, &ruleset.0[..40]));
    }
}

/// A program that starts later adds its rules to those of the plugin firewall, or has tables of its own,
/// which `net sync` then gives the accepts.
#[test]
fn containers_before_other_programs_have_no_finding() {
    for (number, (rules, program)) in (230..).zip(RULESETS) {
        let road = Road::of(number, &chain(&format!("10.{number}.1.0/24"), true));
        let added = program.replace("-restore", "-restore --noflush");
        if load(&road, (rules, &added)) {
            if program.contains("legacy") && road.site.codes("") == ["D333"] {
                road.site.fix(&road.site.findings("")[0]);
            }
            road.assert_healthy(&format!("{added} of {}", &rules[..40]));
        }
    }
}

/// Docker's policy drops what no plugin firewall accepts.
#[test]
fn dockers_policy_is_found_where_it_drops() {
    for (number, ruleset) in [(210, RULESETS[0]), (211, RULESETS[1])] {
        let Some(road) = road(number, ruleset, false) else { continue };
        let finding = road.assert_faulty(ruleset.1, "D540");
        assert!(finding["evidence"].as_str().unwrap().contains("the policy of "), "{finding}");
        let shown = finding["show"].as_str().unwrap().replace("sudo ", "");
        assert!(road.site.lab.host.sh(&shown).contains("FORWARD"), "{shown}");
        // Without a packet the policy is a warning.
        assert_eq!(road.site.codes(""), ["D401"]);
    }
}
