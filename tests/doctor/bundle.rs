//! `--bundle`: one file with everything, for an issue.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::site::Site;

#[test]
fn a_bundle_has_all_facts_and_replaces_nothing() {
    let site = Site::with_bridge("10.183.1.0/24");
    let container = site.attached("pods");
    container.sh("ip link set eth0 alias \"$(printf 'a\\033[2Jb')\"");
    site.lab.host.sh("echo 0 >/proc/sys/net/ipv4/ip_forward");
    container.sh("nft add table inet probe");
    let line = format!("doctor {} --bundle /run/bundle.txt", container.netns);
    let output = site.run(&line);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let file = site.lab.path("/run/bundle.txt");
    let text = fs::read_to_string(&file).unwrap();
    for part in [
        concat!("cni-multi ", env!("CARGO_PKG_VERSION"), " on Linux "),
        "fix: sudo sysctl -w net/ipv4/ip_forward=1",
        "== file /run/net.d/pods.conflist\n\n{",
        "== record /var/lib/cni/results/pods-cnitool-",
        " pods0 bridge up mtu 1500 ",
        " 10.183.1.1/24",
        " eth0 veth up mtu 1500 ",
        "route 0.0.0.0/0 via 10.183.1.1 dev eth0 table 254",
        "== rules of the host\n",
        "table inet probe",
        "== rules of container c1\n",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains('\x1b'), "{text:?}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let again = site.run(&line);
    let stderr = String::from_utf8(again.stderr).unwrap();
    assert_eq!(again.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("/run/bundle.txt") && stderr.contains("file exists"), "{stderr}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}
