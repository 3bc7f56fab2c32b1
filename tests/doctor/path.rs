//! D54x: what drops a container's packets is named by the kernel's own trace.

use serde_json::{Value, json};

use super::site::{Site, bridge};
use crate::support::attachment::skip;
use crate::support::call::binary;

/// What drops packets, on the host or, after `in:`, in the container; the code; of the evidence; and what mends it.
const FAULTS: &str = r#"
nft 'add table netdev t; add chain netdev t c { type filter hook ingress device "uplink" priority 0; policy drop; }' | D540 | of a table netdev | nft delete table netdev t
tc qdisc add dev $end clsact; tc filter add dev $end ingress matchall action drop | D540 | a filter of tc | tc qdisc del dev $end clsact
bridge link set dev $end state 0 | D540 | a port of the bridge that does not forward~(NOT_SPECIFIED) | bridge link set dev $end state 3
ip neigh replace 10.97.1.2 lladdr 02:00:00:00:00:99 dev pods0 nud permanent | D540 | seen by | ip neigh del 10.97.1.2 dev pods0
in: nft 'add table ip t; add chain ip t c { type filter hook input priority 0; policy drop; }' | D540 | of the container | in: nft delete table ip t
nft 'add table inet t; add chain inet t c { type filter hook input priority 0; ip protocol icmp ip daddr 10.97.1.1 drop; }' | D541 | a rule: inet t c, handle | nft delete table inet t
in: nft 'add table ip t; add chain ip t c { type filter hook output priority 0; ip daddr 198.51.100.2 drop; }' | D540 | is refused in the container | in: nft delete table ip t
"#;

fn can_match_all(site: &Site) -> bool {
    let probe = "tc qdisc add dev lo clsact && tc filter add dev lo ingress matchall action pass";
    let made = site.lab.host.try_sh(probe).status.success();
    site.lab.host.try_sh("tc qdisc del dev lo clsact");
    made
}

#[test]
fn what_drops_a_packet_is_named() {
    let site = Site::empty();
    if !site
        .lab
        .host
        .try_sh("[ -e /sys/kernel/tracing/trace ] || mount -t tracefs t /sys/kernel/tracing")
        .status
        .success()
    {
        return skip("tracefs, and root");
    }
    site.configure("pods", &json!([bridge("pods0", "10.97.1.0/24")]));
    site.lab.outside.sh("ip route add 10.97.0.0/16 via 198.51.100.1");
    let container = site.attached("pods");
    let run = |script: &str| match script.strip_prefix("in: ") {
        Some(script) => container.sh(script),
        None => site.lab.host.sh(&format!("end=$(ls /sys/class/net/pods0/brif); {script}")),
    };
    let subject = format!("{} --probe", container.netns);
    for line in FAULTS.lines().filter(|line| !line.is_empty()) {
        let cells: Vec<&str> = line.split(" | ").map(str::trim).collect();
        if cells[0].contains("matchall") && !can_match_all(&site) {
            skip("cls_matchall");
            continue;
        }
        assert_eq!(site.findings(&subject), [Value::Null; 0], "before {line}");
        run(cells[0]);
        let found = site.findings(&subject);
        assert_eq!(found.len(), 1, "{line}: {found:#?}");
        let text = |key: &str| found[0][key].as_str().unwrap().to_owned();
        assert_eq!(text("code"), cells[1], "{line}: {found:#?}");
        // Before Linux 6.4 the kernel names no function, and few reasons.
        let is_said = cells[2].split('~').any(|said| text("evidence").contains(said));
        assert!(is_said, "{line}: {found:#?}");
        run(cells[3]);
    }
    // A process of the container chooses its name, in any bytes.
    container.sh("cp $(command -v ping) \"$(printf '/run/\\377')\"
        \"$(printf '/run/\\377')\" -q -i 0.01 -c 300 10.97.1.1 >/dev/null & sleep 0.2");
    assert_eq!(site.findings(&subject), [Value::Null; 0]);
    // A run that is killed leaves its traces to the next one.
    let left = "ls -d /sys/kernel/tracing/instances/cni-multi-* 2>/dev/null; nft list tables";
    assert_eq!(site.lab.host.try_sh(left).stdout, b"", "the traces are gone");
    run(
        "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; ip protocol icmp drop; }'",
    );
    let program = binary();
    let killed = format!("{} doctor {subject} & pid=$!", program.display());
    let until =
        "for _ in $(seq 200); do nft list tables | grep -q doctor && break; sleep 0.02; done";
    site.lab.host.sh(&format!("{killed}; {until}; kill -9 $pid; wait; {left}"));
    assert_eq!(site.codes(&subject), ["D541"]);
    run("nft delete table inet t");
    assert_eq!(site.lab.host.try_sh(left).stdout, b"", "the next run has removed them");
}
