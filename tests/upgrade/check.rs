//! CHECK and DEL by one peer of the other's attachments. `our_check.txt` and `reference_check.txt`
//! list each CHECK that fails: the plugin, the keys in addition to its usual configuration, the code
//! and the message. docs/upgrade.md sums them up.

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, not_compared, reference_with, with};
use crate::support::call::{Call, Peer};
use crate::support::netns::Lab;
use crate::support::networks::bridge;
use crate::support::networks::vrf::has_vrf;

const OUR_CHECK: &str = include_str!("our_check.txt");
const REFERENCE_CHECK: &str = include_str!("reference_check.txt");

/// A plugin with links that some kernels lack.
const OF_MODULE: &str = "vrf";

/// One attachment, and the error of its CHECK.
struct Row {
    plugin: &'static str,
    keys: Value,
    code: u64,
    msg: &'static str,
}

fn rows(table: &'static str) -> Vec<Row> {
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.splitn(4, " | ").collect();
        let keys = serde_json::from_str(cells[1]).unwrap_or_else(|e| panic!("{line}: {e}"));
        Row { plugin: cells[0], keys, code: cells[2].parse().unwrap(), msg: cells[3] }
    };
    table.lines().map(row).collect()
}

impl Row {
    /// `…` stands for text that differs between attachments.
    fn is_said_by(&self, msg: &str) -> bool {
        let pieces: Vec<&str> = self.msg.split('…').collect();
        let mut rest = Some(msg);
        for piece in &pieces {
            rest = rest.and_then(|rest| Some(rest.split_once(piece)?.1));
        }
        msg.starts_with(pieces[0])
            && rest.is_some_and(|rest| rest.is_empty() || pieces.ends_with(&[""]))
    }

    /// ADD by `from` of the row's plugin, and of a main plugin before a chained one. Returns the
    /// attachment and its result, or the main plugin's for a chained one.
    fn attach<'a>(&self, lab: &'a Lab, network: &Value, from: &Peer) -> (Attachment<'a>, Value) {
        let container = lab.container();
        let usual = match self.plugin {
            "bridge" => json!({}),
            "ptp" => json!({"type": "ptp", "bridge": null}),
            "host-device" => {
                json!({"type": "host-device", "bridge": null, "isGateway": null, "ipam": null})
            }
            chained => {
                let result = lab.attach(&container, network).by(from).add();
                let of_network = json!({"type": chained, "name": "net1", "cniVersion": "1.0.0", "prevResult": result});
                let attachment =
                    lab.attach(&container, &with(&of_network, self.keys.clone())).by(from);
                in_run(attachment.call("ADD", None)).run().ok();
                return (attachment, result);
            }
        };
        let attachment =
            lab.attach(&container, &with(&with(network, usual), self.keys.clone())).by(from);
        let result = in_run(attachment.call("ADD", None)).run().ok();
        (attachment, result)
    }

    /// CHECK by `to` fails as the row says, and DEL by `to` succeeds.
    fn assert_is_so(&self, lab: &Lab, network: &Value, from: &Peer, to: &Peer) {
        let what = format!("{} {}", self.plugin, self.keys);
        let (attachment, result) = self.attach(lab, network, from);
        let by_other = attachment.clone().by(to);
        let error = by_other.check(&result).err();
        assert!(
            error.code == self.code && self.is_said_by(&error.msg),
            "{what}: {error:?}, expected {}",
            self.msg
        );
        let deleted = by_other.call("DEL", Some(&result)).run();
        assert_eq!(deleted.status, 0, "{what}: {deleted:?}");
        if *from == Peer::Ours {
            attachment.call("DEL", Some(&result)).run().ok(); // removes elements that the reference does not know
        }
    }
}

/// Relative paths in the configuration are below the lab's own `/run`.
fn in_run(mut call: Call) -> Call {
    call.wrapper.extend(["env", "-C", "/run"].map(str::to_owned));
    call
}

fn network() -> Value {
    with(&bridge::dual_stack(), json!({"cniVersion": "1.0.0", "name": "net1", "isGateway": true}))
}

fn network_of_one_family() -> Value {
    with(&network(), json!({"ipam": {"ranges": [[{"subnet": "10.10.0.0/24"}]]}}))
}

/// A host with a device for host-device.
fn lab() -> Lab {
    let lab = Lab::new(Peer::Ours).without_dad();
    lab.host.sh("ip link add dev0 address 02:00:00:00:00:05 type veth peer name dev1");
    lab
}

#[test]
fn the_reference_s_check_fails_where_the_table_says_so() {
    let Some(reference) = reference_with("bridge") else { return not_compared("bridge") };
    let lab = lab();
    let rows = rows(REFERENCE_CHECK);
    assert!(rows.len() >= 5);
    rows.iter().for_each(|row| row.assert_is_so(&lab, &network(), &Peer::Ours, &reference));
}

#[test]
fn our_check_fails_where_the_table_says_so() {
    let Some(reference) = reference_with("bridge") else { return not_compared("bridge") };
    let lab = lab();
    let rows = rows(OUR_CHECK);
    assert!(rows.len() >= 20);
    for row in rows.iter().filter(|row| row.plugin != OF_MODULE) {
        row.assert_is_so(&lab, &network_of_one_family(), &reference, &Peer::Ours);
    }
}

#[test]
fn our_check_fails_on_vrf_where_the_table_says_so() {
    let Some(reference) = reference_with("bridge") else { return not_compared("bridge") };
    let lab = lab();
    if !has_vrf(&lab.container()) {
        return;
    }
    for row in rows(OUR_CHECK).iter().filter(|row| row.plugin == OF_MODULE) {
        row.assert_is_so(&lab, &network_of_one_family(), &reference, &Peer::Ours);
    }
}

/// Go replaces or ignores invalid text, out-of-range numbers and deep nesting; ours reads no such
/// configuration, not even in DEL.
#[test]
fn what_ours_does_not_read_is_not_detached_either() {
    let Some(reference) = reference_with("bridge") else { return not_compared("bridge") };
    let lab = lab();
    let deep = format!("{}{}", "[".repeat(129), "]".repeat(129));
    for odd in [r#""\ud800""#, "1e999", &deep] {
        let call =
            |peer: &Peer, command: &str, attachment: &Attachment<'_>, result: Option<&Value>| {
                let mut call = attachment.clone().by(peer).call(command, result);
                let text = String::from_utf8(call.stdin).unwrap();
                call.stdin = text.replacen('{', &format!("{{\"comment\":{odd},"), 1).into_bytes();
                call.run()
            };
        let attachment = lab.attach(&lab.container(), &network_of_one_family());
        let result = call(&reference, "ADD", &attachment, None).ok();
        for command in ["CHECK", "DEL"] {
            let error = call(&Peer::Ours, command, &attachment, Some(&result)).err();
            assert_eq!(error.code, 6, "{command}, {odd}: {error:?}");
        }
        attachment.del();
    }
}
