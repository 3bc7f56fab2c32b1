//! `acceptRA` of each plugin that connects a container to a network of others.

use serde_json::json;

use crate::support::netns::Namespace;
use crate::support::subject::in_a_lab;

const PLUGINS: [&str; 8] =
    ["bridge", "ptp", "macvlan", "ipvlan", "vlan", "host-device", "bond", "ovs"];

fn setting(container: &Namespace) -> String {
    container.sh("cat /proc/sys/net/ipv6/conf/eth0/accept_ra").trim().to_owned()
}

#[test]
fn the_interface_has_the_key_s_setting() {
    for plugin in PLUGINS {
        for (wanted, value) in [(json!(false), "0"), (json!(true), "2"), (json!(null), "1")] {
            in_a_lab(plugin, |lab, subject| {
                let container = lab.container();
                let attachment = subject.attach(lab, &container).remove(0);
                let attachment = attachment.conf(json!({"acceptRA": wanted}));
                let result = attachment.add();
                assert_eq!(setting(&container), value, "{plugin}: {wanted}");
                attachment.check(&result).ok();
                if value == "0" {
                    container.sh("echo 1 >/proc/sys/net/ipv6/conf/eth0/accept_ra");
                    let error = attachment.check(&result).err();
                    assert!(
                        error.text().contains("accept_ra of \"eth0\" is 1, expected 0"),
                        "{plugin}: {error:?}"
                    );
                }
                attachment.del();
            });
        }
    }
}
