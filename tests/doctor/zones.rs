//! A real firewalld: what its zones drop is named with the chain.

use serde_json::{Value, json};

use super::road::Road;
use super::site::bridge;
use crate::plugins::meta::firewall::firewalld::Firewalld;

fn road(number: u8, plugins: &[Value]) -> Road {
    let subnet = format!("10.{number}.1.0/24");
    let all: Vec<Value> = [bridge("pods0", &subnet)].into_iter().chain(plugins.to_vec()).collect();
    let road = Road::of(number, &Value::Array(all));
    road.site
        .lab
        .host
        .sh("mkdir /run/etc; cp -a /etc/. /run/etc 2>/dev/null; mount --bind /run/etc /etc");
    road
}

#[test]
fn a_zone_of_firewalld_that_drops_is_named() {
    let road = road(220, &[]);
    let Some(_firewalld) = Firewalld::start(&road.site.lab) else { return };
    let host = &road.site.lab.host;
    for zone in ["public", "drop"] {
        let finding = road.assert_faulty(zone, "D540");
        let evidence = finding["evidence"].as_str().unwrap();
        assert!(evidence.contains(": inet firewalld filter_FWD"), "{evidence}");
        host.sh("firewall-cmd --zone=trusted --change-source=10.220.1.0/24");
        road.assert_healthy(zone);
        host.sh("firewall-cmd --zone=trusted --remove-source=10.220.1.0/24");
        host.sh("firewall-cmd --zone=drop --change-interface=pods0");
    }
}

#[test]
fn the_plugin_firewall_beside_firewalld_has_no_finding() {
    let road = road(221, &[json!({"type": "firewall"})]);
    let Some(_firewalld) = Firewalld::start(&road.site.lab) else { return };
    road.site.run(&format!("net del pods {}", road.container.netns));
    road.site.attach("pods", &road.container, "eth0");
    road.assert_healthy("the plugin firewall");
    road.site.lab.host.sh("firewall-cmd --reload");
    let finding = road.assert_faulty("after a reload", "D333");
    assert_eq!(finding["fix"], "sudo cni-multi net sync pods");
    road.site.fix(&finding);
    road.assert_healthy("after the repair");
}
