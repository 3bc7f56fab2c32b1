//! Planted files in host-local's directory and in the index beside it.

use serde_json::{Value, json};

use super::{Field, LINK_TO_DIRECTORY, Plant, on_a_field, plantings};
use crate::support::attachment::{Attachment, ips};
use crate::support::netns::{Container, Lab};

const DIR: &str = "/run/data/net1";

fn conf() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net1", "type": "host-local",
        "ipam": {"type": "host-local", "dataDir": "/run/data", "subnet": "10.10.0.0/24"},
    })
}

/// The paths of the plants as shell words; `$IP` is the victim's address.
const PLACES: [&str; 11] = [
    "/run/data/net1/lock",
    "/run/data/net1/last_reserved_ip.0",
    "/run/data/net1/$IP",
    "/run/data/net1/10.10.0.$((${IP##*.} + 1))",
    "/run/data/.cni-multi",
    "/run/data/.cni-multi/net1",
    "/run/data/.cni-multi/net1/lease",
    "$(grep -l victim /run/data/.cni-multi/net1/* || echo /run/data/.cni-multi/net1/00)",
    "/run/data/net1/10.10.0.300",
    "/run/data/net1",
    "/run/data",
];

struct Net<'a> {
    lab: &'a Lab,
    field: &'a Field<'a>,
    container: Container,
    bystander: (Attachment<'a>, Value),
}

impl<'a> Net<'a> {
    fn attachment(&self, id: &str) -> Attachment<'a> {
        self.lab.attach(&self.container, &conf()).id(id)
    }

    /// Runs every command while the plant exists, then checks what is left.
    fn try_out(&self, place: &str, plant: Plant) {
        let victim = self.attachment("victim");
        let result = victim.add();
        let path = self.lab.host.sh(&format!("IP={}; echo {place}", ips(&result)[0]));
        let Some(cell) = self.field.plant(path.trim(), plant) else { return victim.del() };
        let newcomer = self.attachment("newcomer");
        cell.calls(&victim, "STATUS CHECK", &result);
        cell.call("ADD", newcomer.call("ADD", None));
        cell.call("another ADD", newcomer.clone().ifname("net1").call("ADD", None));
        let valid = json!({"cni.dev/valid-attachments": [
            {"containerID": "victim", "ifname": "eth0"}, {"containerID": "newcomer", "ifname": "eth0"},
            {"containerID": "bystander", "ifname": "eth0"},
        ]});
        cell.call("GC", victim.clone().conf(valid).call("GC", None));
        cell.call("DEL of a newcomer", newcomer.call("DEL", None));
        cell.call("DEL", victim.call("DEL", None));
        cell.restore();
        for gone in [&newcomer, &newcomer.clone().ifname("net1"), &victim] {
            let outcome = gone.try_del();
            cell.expect_done("DEL afterwards", &outcome);
        }
        let (bystander, result) = &self.bystander;
        let outcome = bystander.check(result);
        cell.expect_done("the bystander's CHECK", &outcome);
        let left =
            self.lab.host.sh(&format!("cd {DIR}; for f in 10.*; do [ ! -s $f ] || echo $f; done"));
        cell.expect(left.trim() == ips(result)[0], "leases afterwards", &left);
    }
}

#[test]
fn planted_host_local_files_are_not_followed_waited_for_or_lost() {
    on_a_field("host-local", |lab, field| {
        let container = lab.container();
        let bystander = lab.attach(&container, &conf()).id("bystander");
        let result = bystander.add();
        let net = Net { lab, field, container, bystander: (bystander, result) };
        for (place, plant) in plantings(&PLACES) {
            // An administrator may put a link in place of /var/lib/cni/networks, or of one network's directory.
            if !(["/run/data", DIR].contains(&place) && plant[0] == LINK_TO_DIRECTORY) {
                net.try_out(place, plant);
            }
        }
    });
}
