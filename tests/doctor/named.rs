//! Findings about a named container that only its node, or another container, shows; and
//! namespaces that are no container's.

use serde_json::json;

use super::site::{Site, bridge};
use crate::support::netns::Container;

const SUBNET: &str = "10.187.1.0/24";

/// Two containers; both are named in the finding with this code, whichever was asked for, and the
/// fix is about the second, which has it without a record.
#[track_caller]
fn both_are_reported(site: &Site, (first, second): (&Container, &Container), code: &str) {
    for asked in ["", &first.netns, &second.netns] {
        let findings = site.findings(asked);
        let found = findings.iter().find(|finding| finding["code"] == code);
        let found = found.unwrap_or_else(|| panic!("no {code} for {asked:?}: {findings:#?}"));
        for container in [first, second] {
            let name = container.netns.rsplit('/').next().unwrap();
            assert!(found["evidence"].as_str().unwrap().contains(name), "{found}");
        }
        assert!(found["fix"].as_str().unwrap().contains(&second.netns), "{found}");
    }
}

#[test]
fn an_address_of_another_container_is_a_finding_of_both() {
    let site = Site::with_bridge(SUBNET);
    let (first, second, third) =
        (site.attached("pods"), site.attached("pods"), site.attached("pods"));
    assert_eq!(site.codes(&first.netns), [""; 0]);
    second.sh("ip addr add 10.187.1.2/24 dev eth0");
    both_are_reported(&site, (&first, &second), "D503");
    assert_eq!(site.codes(&third.netns), [""; 0], "the conflict is of others");
    site.fix(&site.findings("")[0]);
    assert_eq!(site.codes(""), [""; 0]);
}

#[test]
fn a_hardware_address_of_another_network_s_container_is_found() {
    let site = Site::with_bridge(SUBNET);
    let mut same = bridge("pods0", "10.187.2.0/24");
    same["isGateway"] = json!(false);
    same["ipam"]["routes"] = json!([]);
    site.configure("same", &json!([same]));
    let (first, second) = (site.attached("pods"), site.attached("same"));
    let mac = first.link("eth0").unwrap()["address"].as_str().unwrap().to_owned();
    second.sh(&format!("ip link set eth0 address {mac}"));
    both_are_reported(&site, (&first, &second), "D322");
}

/// A container that routes for others is no fault when only another one is named.
#[test]
fn a_gateway_that_is_another_container_is_known() {
    let site = Site::empty();
    let mut plugin = bridge("pods0", SUBNET);
    plugin["isGateway"] = json!(false);
    plugin["ipam"]["ranges"] = json!([[{"subnet": SUBNET, "gateway": "10.187.1.2"}]]);
    site.configure("pods", &json!([plugin]));
    let (router, client) = (site.attached("pods"), site.attached("pods"));
    router.sh("ip addr add 10.187.1.254/24 dev eth0");
    client.sh("ip route replace default via 10.187.1.254");
    let codes = site.codes(&client.netns);
    assert!(!codes.contains(&"D505".to_owned()), "{codes:?}");
}

/// A container whose record names the host's namespace, as that of a process may by now.
fn in_host(site: &Site) -> String {
    let container = site.lab.container_of_process();
    site.attach("pods", &container, "eth0");
    let (old, host) = (container.netns.clone(), format!("/proc/{}/ns/net", site.lab.pid()));
    // As in a record of libcni, which does not bind the path to a namespace.
    site.lab.host.sh(&format!(
        r#"sed -i -E 's|{old}|{host}|g; s/"netnsId":[^}}]*[}}],?//' /var/lib/cni/results/*"#
    ));
    drop(container);
    // The kernel removes the pair a moment later.
    let gone =
        "for _ in $(seq 200); do ip -o link | grep -q ' veth' || exit 0; sleep 0.05; done; exit 1";
    site.lab.host.sh(gone);
    host
}

#[test]
fn the_host_s_namespace_is_never_one_of_a_container() {
    let site = Site::with_bridge(SUBNET);
    let host = in_host(&site);
    site.lab.host.sh("ip link add eth0 type veth peer name far0; ip addr add 192.0.2.7/24 dev eth0; ip link set eth0 up; ip link set far0 up");
    let state = "ip -o addr | cut -d ' ' -f 2-7; cat /proc/sys/net/ipv4/conf/eth0/rp_filter";
    let before = site.lab.host.sh(state);
    let findings = site.findings("");
    let found = findings
        .iter()
        .find(|finding| finding["code"] == "D183")
        .unwrap_or_else(|| panic!("{findings:#?}"));
    assert_eq!((&found["scope"], &found["severity"]), (&"attachment".into(), &"error".into()));
    let fixes: Vec<&str> = findings.iter().map(|it| it["fix"].as_str().unwrap()).collect();
    assert!(
        fixes.iter().all(|fix| !fix.contains("nsenter") && !fix.contains("net add")),
        "{fixes:?}"
    );
    for command in ["check pods", "sync pods"] {
        let id = if command.starts_with("check") { host.as_str() } else { "" };
        let output = site.run(&format!("net {command} {id}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {stderr}");
        assert!(stderr.contains("is the host's own namespace"), "{command}: {stderr}");
    }
    site.fix(found);
    assert_eq!(site.lab.host.sh(state), before, "the host is as it was");
    assert_eq!(site.codes(""), [""; 0]);
    assert_eq!(
        site.lab.host.sh("ls /var/lib/cni/networks/pods | grep -c '^10' || true").trim(),
        "0"
    );
}

/// Without a record nothing says that the container is gone.
#[test]
fn del_of_the_host_s_namespace_by_its_path_alone_is_refused() {
    let site = Site::with_bridge(SUBNET);
    let output = site.run(&format!("net del pods /proc/{}/ns/net", site.lab.pid()));
    assert!(!output.status.success(), "{output:?}");
}

/// The limits of a process that no one has raised, and less.
#[test]
fn descriptors_are_few_however_many_attachments_there_are() {
    const COUNT: usize = 80;
    let site = Site::with_bridge("10.187.16.0/20");
    let containers: Vec<Container> = (0..COUNT).map(|_| site.attached("pods")).collect();
    let program = crate::support::call::binary();
    for subject in ["", &containers[COUNT / 2].netns] {
        let output = site.lab.host.try_sh(&format!(
            "ulimit -n 64; NETCONFPATH=/run/net.d CNI_PATH={} {} doctor {subject} -o json",
            site.plugin_path,
            program.display()
        ));
        assert_eq!(output.status.code(), Some(0), "{subject}: {output:?}");
    }
}
