//! `cni-multi metrics --findings`: what doctor finds, as values.

use super::openmetrics::{self, Values};
use crate::doctor::site::Site;

/// The samples of `metrics --findings` on the host.
#[track_caller]
fn samples(site: &Site) -> Values {
    let output = site.run("metrics --findings");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    openmetrics::parse(&String::from_utf8(output.stdout).unwrap()).unwrap()
}

/// The findings among the samples, by their labels.
fn findings(samples: &Values) -> Vec<(&str, f64)> {
    let mut found = vec![];
    for (name, count) in samples {
        let labels = name.strip_prefix("cni_multi_findings{").and_then(|it| it.strip_suffix('}'));
        found.extend(labels.map(|labels| (labels, *count)));
    }
    found
}

#[test]
fn findings_are_counted_by_code_and_severity() {
    let site = Site::with_bridge("10.178.8.0/24");
    let _containers = [site.attached("pods"), site.attached("pods")];
    let healthy = samples(&site);
    assert_eq!(findings(&healthy), []);
    assert_eq!(healthy.get("cni_multi_examined"), Some(&1.0));
    assert!(healthy["cni_multi_examination_seconds"] > 0.0);
    site.lab.host.sh("sysctl -qw net.ipv4.ip_forward=0
        for link in /sys/class/net/pods0/brif/*; do ip link set ${link##*/} nomaster; done
        cp /run/net.d/pods.conflist /run/net.d/20-pods.conflist");
    let wanted = site.codes("");
    let of = |code: &str| wanted.iter().filter(|found| *found == code).count() as f64;
    assert_eq!((of("duplicate-name"), of("D220"), of("D311")), (1.0, 1.0, 2.0), "{wanted:?}");
    let broken = samples(&site);
    let found = findings(&broken);
    for (code, severity) in [("duplicate-name", "warning"), ("D220", "error"), ("D311", "error")] {
        let labels = format!("code=\"{code}\",severity=\"{severity}\"");
        assert!(found.contains(&(&labels, of(code))), "{labels}: {found:?}");
    }
    let sum: f64 = found.iter().map(|(_, count)| count).sum();
    assert_eq!(sum, wanted.len() as f64, "{found:?}, {wanted:?}");
}

#[test]
fn findings_are_counted_only_if_asked_for() {
    let site = Site::with_bridge("10.178.9.0/24");
    let _container = site.attached("pods");
    site.lab.host.sh("sysctl -qw net.ipv4.ip_forward=0");
    let text = String::from_utf8(site.run("metrics").stdout).unwrap();
    let plain = openmetrics::parse(&text).unwrap();
    assert!(!plain.keys().any(|name| name.contains("findings") || name.contains("examin")));
    let output = site.run("metrics --plugin-path /run");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// What cannot be read is a finding, and every other value is there.
#[test]
fn findings_of_unreadable_facts_keep_the_others() {
    let site = Site::with_bridge("10.178.10.0/24");
    let _container = site.attached("pods");
    site.lab.host.sh("cd /var/lib/cni/networks; rm -r pods; ln -s pods pods");
    let samples = samples(&site);
    let unreadable = "code=\"D201\",severity=\"error\"";
    assert!(findings(&samples).iter().any(|(labels, _)| *labels == unreadable), "{samples:#?}");
    let alive = r#"cni_multi_attachments{network="pods",namespace="alive"}"#;
    assert_eq!(samples.get(alive), Some(&1.0), "{samples:#?}");
}

/// The kernel sends on its own for IPv6, and reports the group 224.0.0.106 for a bridge that snoops.
#[test]
fn a_scrape_with_findings_sends_no_packet() {
    let site = Site::with_bridge("10.178.11.0/24");
    site.lab
        .host
        .sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1
            ip link add pods0 type bridge mcast_snooping 0");
    let container = site.lab.container();
    let within =
        |line: &str| site.lab.host.sh(&format!("nsenter --net={} sh -c '{line}'", container.netns));
    within("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    site.attach("pods", &container, "eth0");
    let sent = || {
        let inside = within("ip -s -j link show eth0");
        let host = site.lab.host.sh("ip -s -j link show pods0");
        [inside, host].map(|text: String| {
            let links: serde_json::Value = serde_json::from_str(&text).unwrap();
            links[0]["stats64"]["tx"]["packets"].as_u64().unwrap()
        })
    };
    let before = sent();
    samples(&site);
    assert_eq!(sent(), before);
    site.run(&format!("doctor {}", container.netns));
    assert!(sent()[0] > before[0], "a probe is seen");
}
