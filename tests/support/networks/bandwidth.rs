//! Network configurations for bandwidth.

use serde_json::{Value, json};

use super::bridge;
use crate::support::attachment::{skip, with};
use crate::support::netns::Lab;

/// A rate in bits per second that any machine can send. BURST is a tenth of a second at this rate:
/// the machine may be busy with other work for that long.
pub const RATE: u64 = 20_000_000;

pub const BURST: u64 = 2_000_000;

/// A dual-stack network.
pub fn network() -> Value {
    with(
        &bridge::dual_stack(),
        json!({"type": "ptp", "ipam": {"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}),
    )
}

pub fn bandwidth(keys: Value) -> Value {
    with(&json!({"type": "bandwidth"}), keys)
}

/// The same limit in both directions.
pub fn limits(rate: u64, burst: u64) -> Value {
    json!({"ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst})
}

pub fn both() -> Value {
    bandwidth(limits(RATE, BURST))
}

/// Whether the lab's kernel supports this part of rate limiting.
pub fn is_able(lab: &Lab, needs: &str) -> bool {
    let script = match needs {
        "ifb" => "ip link add probe type ifb && ip link del probe",
        "tbf" => {
            "tc qdisc add dev lo root tbf rate 1mbit burst 10kb latency 25ms && tc qdisc del dev lo root"
        }
        "fq_codel" => "tc qdisc add dev lo root fq_codel && tc qdisc del dev lo root",
        "htb" => "tc qdisc add dev lo root htb && tc qdisc del dev lo root",
        "u32" => {
            "ip link add probe up type ifb && tc qdisc add dev lo ingress && tc filter add dev lo parent ffff: protocol all \
                u32 match u32 0 0 action mirred egress redirect dev probe && tc qdisc del dev lo ingress && ip link del probe"
        }
        other => panic!("unknown feature {other}"),
    };
    lab.host.try_sh(script).status.success()
}

/// Whether the kernel supports all of rate limiting; skips the case if it does not.
pub fn can_limit(lab: &Lab) -> bool {
    let missing = ["ifb", "tbf", "u32"].into_iter().find(|needs| !is_able(lab, needs));
    missing.inspect(|needs| skip(needs)).is_none()
}
