//! What the commands report of the kernel and change in it, on a host of their own with real
//! plugins.

use serde_json::{Value, json};

use crate::support::call::{Peer, binary};
use crate::support::netns::{Lab, UPLINK};
use crate::support::traffic::{TcpServer, connect};

/// A host with the network `web`: a bridge, published ports and bandwidth limits.
fn host() -> Lab {
    let lab = Lab::new(Peer::Ours);
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.93.0.0/24"}], [{"subnet": "fd00:93::/64"}]]});
    let bridge = json!({
        "type": "bridge", "bridge": "web0", "isDefaultGateway": true, "ipam": ipam,
        "capabilities": {"mac": true, "ips": true},
    });
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    let bandwidth = json!({"type": "bandwidth", "capabilities": {"bandwidth": true}});
    let web =
        json!({"cniVersion": "1.1.0", "name": "web", "plugins": [bridge, portmap, bandwidth]});
    lab.host.sh("mkdir /run/net.d");
    std::fs::write(lab.path("/run/net.d/web.conflist"), web.to_string()).unwrap();
    lab
}

fn net(line: &str) -> String {
    format!("NETCONFPATH=/run/net.d {} net {line} --cache-dir /run/cache", binary().display())
}

fn inspect(lab: &Lab, line: &str) -> Value {
    lab.host.json(&net(&format!("inspect {line} -o json")))
}

#[test]
fn what_is_asked_for_by_options_is_what_the_kernel_has() {
    let lab = host();
    let red = lab.container();
    let options = "--publish 8080:80 --ip 10.93.0.77 --ip fd00:93::77 --mac 02:00:00:00:00:77 --bandwidth ingress=10M,egress=5M";
    lab.host.sh(&net(&format!("add web {} {options}", red.netns)));
    assert_eq!(red.addresses("eth0"), ["10.93.0.77/24", "fd00:93::77/64"]);
    assert_eq!(red.link("eth0").unwrap()["address"], "02:00:00:00:00:77");
    let _server = TcpServer::start(&red, 80);
    assert!(connect(&lab.outside, &format!("{}:8080", UPLINK[0])).is_some(), "the port is open");
    let shaped = lab.host.sh("tc qdisc show | grep tbf");
    assert!(shaped.contains("rate 10Mbit") && shaped.contains("rate 5Mbit"), "{shaped}");
    lab.host.sh(&net(&format!("check web {} {options}", red.netns)));
    lab.host.sh(&net(&format!("del web {}", red.netns)));
    assert!(red.link("eth0").is_none());
}

#[test]
fn what_the_kernel_has_is_compared_with_the_result() {
    let lab = host();
    let red = lab.container();
    lab.host.sh(&net(&format!("add web {} --container-id one", red.netns)));
    let told = inspect(&lab, &format!("web {}", red.netns));
    let addresses = json!(["10.93.0.2/24", "fd00:93::2/64"]);
    let record = ["containerId", "namespace", "addresses"].map(|key| told[key].clone());
    assert_eq!(record, [json!("one"), json!("alive"), addresses]);
    let link = red.link("eth0").unwrap();
    let kernel = |told: &Value, keys: [&str; 3]| keys.map(|key| told["kernel"][key].clone());
    let [present, up, none] = [json!("present"), json!(true), json!([])];
    let is = kernel(&told, ["interface", "up", "mac"]);
    assert_eq!(is, [present, up, link["address"].clone()]);
    let is = kernel(&told, ["mtu", "missing", "others"]);
    assert_eq!(is, [link["mtu"].clone(), none.clone(), none]);
    red.sh("ip route add 10.99.0.0/16 via 10.93.0.1; ip route add 10.98.0.0/16 dev eth0 table 100");
    let routes = inspect(&lab, "web")["kernel"]["routes"].clone();
    for route in
        ["10.93.0.0/24", "10.99.0.0/16 via 10.93.0.1", "10.98.0.0/16 table 100", "fd00:93::/64"]
    {
        assert!(routes.as_array().unwrap().contains(&json!(route)), "{route}: {routes}");
    }

    red.sh("ip addr del 10.93.0.2/24 dev eth0; ip addr add 10.93.0.99/24 dev eth0; ip link set eth0 mtu 1400");
    let is = kernel(&inspect(&lab, "web"), ["missing", "others", "mtu"]);
    assert_eq!(is, [json!(["10.93.0.2/24"]), json!(["10.93.0.99/24"]), json!(1400)]);
    let text = lab.host.sh(&net("inspect web"));
    let lines: Vec<_> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    for line in [["kernel.missing", "10.93.0.2/24"], ["kernel.others", "10.93.0.99/24"]] {
        assert!(lines.contains(&line.to_vec()), "{text}");
    }

    red.sh("ip link del eth0");
    let kernel = &inspect(&lab, "web")["kernel"];
    assert_eq!((&kernel["interface"], &kernel["mac"]), (&json!("absent"), &Value::Null));
}

/// `net ps` and `net gc` always agree on which attachments are gone.
#[test]
fn ps_calls_gone_what_gc_detaches() {
    let lab = host();
    let [alive, gone, stale] = [lab.container(), lab.container(), lab.container()];
    for (id, container) in [("alive", &alive), ("gone", &gone), ("stale", &stale)] {
        lab.host.sh(&net(&format!("add web {} --container-id {id}", container.netns)));
    }
    let netns = gone.netns.clone();
    gone.vanish();
    stale.go_stale();
    let states = || {
        let list = lab.host.json(&net("ps web -o json"));
        let state = |at: &Value| ["containerId", "namespace"].map(|key| at[key].clone());
        list.as_array().unwrap().iter().map(state).collect::<Vec<_>>()
    };
    assert_eq!(states(), [["alive", "alive"], ["gone", "gone"], ["stale", "unknown"]]);
    let name = netns.rsplit('/').next().unwrap();
    let summary = "detached 1; without a record: removed 0, spared 0\n";
    assert_eq!(lab.host.sh(&net("gc")), format!("detached web {name} eth0\n{summary}"));
    assert_eq!(states(), [["alive", "alive"], ["stale", "unknown"]]);
}

#[test]
fn what_a_failed_add_has_done_stays_on_request() {
    let lab = host();
    let (red, blue) = (lab.container(), lab.container());
    lab.host.sh(&net(&format!("add web {} --publish 8080:80", red.netns)));
    let failed = |options: &str| {
        let output =
            lab.host.try_sh(&net(&format!("add web {} --publish 8080:80 {options}", blue.netns)));
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(failed("").ends_with("what was done has been undone\n"));
    assert!(blue.link("eth0").is_none());
    assert!(!failed("--no-undo").contains("undone"));
    assert!(blue.link("eth0").is_some(), "it can be looked at");
    lab.host.sh(&net(&format!("del web {}", blue.netns)));
    assert!(blue.link("eth0").is_none());
}
