//! host-local's directory, and the index beside it.

use serde_json::{Value, json};

use super::{Field, LinkToDirectory, PLANTS, Plant};
use crate::support::attachment::{Attachment, for_ours, ips};
use crate::support::netns::{Container, Lab};

const DIR: &str = "/run/data/net1";

fn conf() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "net1", "type": "host-local",
        "ipam": {"type": "host-local", "dataDir": "/run/data", "subnet": "10.10.0.0/24"},
    })
}

/// Where things are planted, as a shell says it; `$IP` is the victim's address.
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
    field: Field<'a>,
    container: Container,
    bystander: (Attachment<'a>, Value),
}

impl<'a> Net<'a> {
    fn new(lab: &'a Lab) -> Net<'a> {
        let field = Field::new(lab);
        let container = lab.container();
        let bystander = lab.attach(&container, &conf()).id("bystander");
        let result = bystander.add();
        Net { lab, field, container, bystander: (bystander, result) }
    }

    fn attachment(&self, id: &str) -> Attachment<'a> {
        self.lab.attach(&self.container, &conf()).id(id)
    }

    /// Every command while it is there, and what is left afterwards.
    fn try_out(&self, place: &str, plant: Plant) {
        let victim = self.attachment("victim");
        let result = victim.add();
        let path = self.lab.host.sh(&format!("IP={}; echo {place}", ips(&result)[0]));
        let Some(cell) = self.field.plant(path.trim(), plant) else { return victim.del() };
        let newcomer = self.attachment("newcomer");
        cell.call("STATUS", victim.call("STATUS", None));
        cell.call("CHECK", victim.call("CHECK", Some(&result)));
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
fn nothing_in_host_local_s_directory_is_followed_waited_for_or_lost() {
    for_ours("host-local", |lab| {
        let net = Net::new(lab);
        for place in PLACES {
            for plant in PLANTS.into_iter().filter(|plant| !is_the_administrator_s(place, *plant)) {
                net.try_out(place, plant);
            }
        }
        net.field.assert_nothing_was_wrong();
    });
}

/// Directories may be elsewhere: an administrator puts a link in place of /var/lib/cni/networks, or
/// of one network's.
fn is_the_administrator_s(place: &str, plant: Plant) -> bool {
    plant == LinkToDirectory && ["/run/data", DIR].contains(&place)
}
