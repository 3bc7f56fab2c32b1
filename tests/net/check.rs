//! `net check` reports each difference by itself: a line for a person, an object for a program.

use serde_json::Value;

use super::names::Site;

/// Changes that bridge, portmap and bandwidth see, more than one each.
const FAULTS: &str =
    "nft flush ruleset; ip link set pods0 down; echo 0 >/proc/sys/net/ipv4/ip_forward
    tc qdisc del dev $(ip -br link show master pods0 | cut -d@ -f1) root";

/// Without the recorded arguments, portmap and bandwidth would have nothing to look for.
#[test]
fn each_difference_is_a_line_or_an_object() {
    let site = Site::new();
    let ready = site.net("check pods red -o json");
    assert_eq!(
        (ready.status.code(), ready.stdout, ready.stderr),
        (Some(0), b"[]\n".into(), vec![])
    );
    site.sh(FAULTS);
    let (status, said) = site.says("check pods shop/till");
    assert_eq!(status, Some(1));
    let lines: Vec<&str> = said.lines().collect();
    for (plugin, difference) in [
        ("bridge", "pods0"),
        ("bridge", "ip_forward"),
        ("bridge", "masquerade"),
        ("portmap", "8080"),
        ("bandwidth", "qdisc"),
    ] {
        let is_one =
            |line: &&str| line.starts_with(&format!("{plugin}: ")) && line.contains(difference);
        assert!(lines.iter().any(is_one), "{plugin} {difference}: {said}");
    }
    assert!(!said.contains("also:") && !said.contains("reported by"), "{said}");

    let output = site.net("check pods red -o json");
    assert_eq!(output.status.code(), Some(1));
    let printed: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let text = |object: &Value, key: &str| object[key].as_str().unwrap_or_default().to_owned();
    let as_lines = printed.iter().map(|one| {
        let [plugin, msg, details] = ["plugin", "msg", "details"].map(|key| text(one, key));
        let semicolon = if details.is_empty() { "" } else { "; " };
        format!("{plugin}: {msg}{semicolon}{details}")
    });
    assert_eq!(as_lines.collect::<Vec<_>>(), lines);
    assert!(printed.iter().all(|one| one["code"].as_u64() > Some(0)), "{printed:?}");
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&error["msg"], error["code"].is_u64()), (&printed[0]["msg"], true), "{error}");
}

/// The protocol has one error object; its details name the further differences.
#[test]
fn the_plugin_s_own_error_is_one_object() {
    let site = Site::new();
    site.sh("ip netns add blue");
    assert!(site.cnitool("add pods /run/netns/blue").status.success());
    assert_eq!(site.cnitool("check pods /run/netns/blue").status.code(), Some(0));
    site.sh("ip link set pods0 down; echo 0 >/proc/sys/net/ipv4/ip_forward");
    let output = site.cnitool("check pods /run/netns/blue");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("; also: "), "{said}");
}
