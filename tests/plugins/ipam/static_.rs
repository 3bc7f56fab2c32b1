//! static assigns the addresses in the configuration or from the runtime.

use serde_json::{Value, json};

use crate::support::attachment::{for_each_peer, with};
use crate::support::table::cells;

fn conf() -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "net1", "type": "static",
        "ipam": {
            "type": "static",
            "addresses": [{"address": "10.10.0.5/24", "gateway": "10.10.0.254"}, {"address": "2001:db8::5/64", "gateway": "2001:db8::1"}],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.168.0.0/16", "gw": "10.10.5.1"}, {"dst": "2001:db8:1::/48"}],
            "dns": {"nameservers": ["8.8.8.8"], "domain": "mydomain", "search": ["example.com"], "options": ["ndots:1"]},
        },
    })
}

#[test]
fn result_is_what_the_configuration_says() {
    for_each_peer("static", |lab| {
        let attachment = lab.attach(&lab.container(), &conf());
        let expected = json!({
            "cniVersion": "1.0.0",
            "ips": [{"address": "10.10.0.5/24", "gateway": "10.10.0.254"}, {"address": "2001:db8::5/64", "gateway": "2001:db8::1"}],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "192.168.0.0/16", "gw": "10.10.5.1"}, {"dst": "2001:db8:1::/48"}],
            "dns": {"nameservers": ["8.8.8.8"], "domain": "mydomain", "search": ["example.com"], "options": ["ndots:1"]},
        });
        let result = attachment.add();
        assert_eq!(result, expected);
        attachment.check(&result).ok();
        attachment.del();
        attachment.id("never-added").del();
    });
}

/// The sources of addresses and their precedence.
#[test]
fn the_most_specific_source_of_addresses_wins() {
    let cases = r#"
CNI_ARGS with a gateway | {"ipam": {"addresses": null}} | IP=10.40.0.1/24;GATEWAY=10.40.0.254 | [{"address": "10.40.0.1/24", "gateway": "10.40.0.254"}]
CNI_ARGS with two, the gateway of one | {"ipam": {"addresses": null}} | IP=10.40.0.1/24,10.50.0.1/24;GATEWAY=10.40.0.254 | [{"address": "10.40.0.1/24", "gateway": "10.40.0.254"}, {"address": "10.50.0.1/24"}]
CNI_ARGS with a gateway of each family | {"ipam": {"addresses": null}} | IgnoreUnknown=1;K8S_POD_NAME=x;IP=10.40.0.1/24, 2001:db8:4::1/64;GATEWAY=10.40.0.254, 2001:db8:4::2 | [{"address": "10.40.0.1/24", "gateway": "10.40.0.254"}, {"address": "2001:db8:4::1/64", "gateway": "2001:db8:4::2"}]
CNI_ARGS is added to the configuration | {"ipam": {"addresses": [{"address": "10.10.0.5/24"}]}} | IP=10.40.0.1/24 | [{"address": "10.10.0.5/24"}, {"address": "10.40.0.1/24"}]
Go's own type of an address | {"ipam": {"addresses": [{"address": "10.10.0.5/24", "gateway": "10.10.0.1", "Address": {"IP": "10.10.0.6", "Mask": "//8AAA=="}, "Version": ""}]}} |  | [{"address": "10.10.0.6/16", "gateway": "10.10.0.1"}]
args.cni.ips replaces both | {"args": {"cni": {"ips": ["10.20.0.1/24", "2001:db8:2::1/64"]}}} | IP=10.40.0.1/24 | [{"address": "10.20.0.1/24"}, {"address": "2001:db8:2::1/64"}]
runtimeConfig.ips replaces all | {"ipam": {"addresses": null}, "args": {"cni": {"ips": ["10.20.0.1/24", "2001:db8:2::1/64"]}}, "runtimeConfig": {"ips": ["10.30.0.1/24"]}} | IP=10.40.0.1/24 | [{"address": "10.30.0.1/24"}]
"#;
    for_each_peer("static", |lab| {
        for [what, changes, args, ips] in cells(cases) {
            let json = |cell| serde_json::from_str::<Value>(cell).unwrap();
            let result =
                lab.attach(&lab.container(), &with(&conf(), json(changes))).args(args).add();
            assert_eq!(result["ips"], json(ips), "{}", what);
        }
    });
}
