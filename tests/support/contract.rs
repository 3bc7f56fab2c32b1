//! What several main plugins do alike.

use serde_json::{Value, json};

use super::attachment::{Attachment, for_each_peer, for_ours, with};
use super::call::Peer;
use super::netns::{Container, Lab};
use super::snapshot::Watch;
use super::table::cells;
use super::traffic::assert_pings;

/// A main plugin that not every kernel or machine has links for.
pub struct MainPlugin {
    pub name: &'static str,
    /// Prepares the host. Returns false, after a skip, if the kernel lacks the plugin's kind of link.
    pub prepare: fn(&Lab) -> bool,
}

impl MainPlugin {
    /// Runs a case in prepared labs, as `attachment::for_each_peer` does.
    pub fn for_each_peer(&self, case: impl Fn(&Lab)) {
        for_each_peer(self.name, |lab| self.run(lab, &case));
    }

    /// Runs a case in a prepared lab, as `attachment::for_ours` does.
    pub fn for_ours(&self, case: impl Fn(&Lab)) {
        for_ours(self.name, |lab| self.run(lab, &case));
    }

    fn run(&self, lab: &Lab, case: &impl Fn(&Lab)) {
        if (self.prepare)(lab) {
            case(lab);
        }
    }
}

/// The result has the DNS of the network if the network says anything about it, else that of IPAM.
/// `conf` has fixed addresses.
pub fn assert_dns_of_network_or_ipam(lab: &Lab, conf: &Value) {
    let of_ipam = json!({"nameservers": ["192.0.2.53"], "domain": "ipam.example"});
    let cases = [
        (json!({}), of_ipam.clone()),
        (json!({"dns": {"search": ["net.example"]}}), json!({"search": ["net.example"]})),
        (json!({"dns": {"options": ["ndots:5"]}}), json!({"options": ["ndots:5"]})),
        (json!({"dns": {"domain": "net.example"}}), json!({"domain": "net.example"})),
        (
            json!({"dns": {"nameservers": ["192.0.2.54"], "search": ["a", "b"]}}),
            json!({"nameservers": ["192.0.2.54"], "search": ["a", "b"]}),
        ),
        (json!({"dns": {"nameservers": []}}), json!({})),
        (json!({"dns": {"nameservers": [], "search": []}}), json!({})),
    ];
    let base = with(conf, json!({"cniVersion": "0.4.0", "ipam": {"dns": of_ipam}}));
    for (changes, expected) in cases {
        let attachment = lab.attach(&lab.container(), &with(&base, changes.clone()));
        assert_eq!(attachment.add()["dns"], expected, "{changes}");
        attachment.del();
    }
}

/// Changes to the configuration, CNI_ARGS, and whose hardware address counts. libcni's JSON reader takes keys in any case,
/// and configurations rely on it.
const MACS: &str = r#"
{"mac": "02:00:00:00:00:01"} |  | 02:00:00:00:00:01
{"mac": "02:00:00:00:00:01"} | IgnoreUnknown=1;K8S_POD_NAME=x;MAC=02:00:00:00:00:02 | 02:00:00:00:00:02
{} | IgnoreUnknown=1;MAC=02:00:00:00:00:02 | 02:00:00:00:00:02
{"mac": "02:00:00:00:00:01", "runtimeConfig": {"mac": "02:00:00:00:00:03"}} | IgnoreUnknown=1;MAC=02:00:00:00:00:02 | 02:00:00:00:00:03
{"RuntimeConfig": {"mac": "02:00:00:00:00:04"}} | IgnoreUnknown=1;MAC=02:00:00:00:00:02 | 02:00:00:00:00:04
"#;

/// The result and the container have the address that counts. A peer answers the last ping, if there is one.
pub fn assert_mac_is_that_of_the_most_specific_source(lab: &Lab, conf: &Value, peer: Option<&str>) {
    assert_macs(lab, conf, MACS, peer);
}

/// As `assert_mac_is_that_of_the_most_specific_source`, for these sources.
pub fn assert_macs(lab: &Lab, conf: &Value, table: &'static str, peer: Option<&str>) {
    for [changes, args, expected] in cells(table) {
        let (container, mut attachment) =
            lab.place(&with(conf, serde_json::from_str(changes).unwrap()));
        attachment.args = (!args.is_empty()).then(|| args.to_owned());
        let result = attachment.add();
        assert_eq!(container.link("eth0").unwrap()["address"], expected);
        assert_eq!(result["interfaces"].as_array().unwrap().last().unwrap()["mac"], expected);
        peer.iter().for_each(|peer| assert_pings(&container, peer));
        attachment.check_and_del(&result);
    }
}

/// What the kernel has after ADD, a line each: changes to the configuration; a command that prints JSON, on the host with
/// `$end` for the host's end, or after `in:` in the container, or `result`; a pointer into it, and what is there.
pub fn assert_shown(lab: &Lab, base: &Value, table: &'static str) {
    for [changes, command, pointer, expected] in cells(table) {
        let container = lab.container();
        let changes = serde_json::from_str(changes).unwrap();
        let attachment = lab.attach(&container, &with(base, changes));
        let result = attachment.add();
        let shown = match command.strip_prefix("in: ") {
            _ if command == "result" => result.clone(),
            Some(command) => container.json(command),
            None => {
                let links = result["interfaces"].as_array().unwrap().iter();
                let mut names = links.filter_map(|link| link["name"].as_str());
                let end = names.find(|name| name.starts_with("veth")).unwrap_or_default();
                lab.host.json(&format!("end={end}; {command}"))
            }
        };
        let expected: Value = serde_json::from_str(expected).unwrap();
        let found = shown.pointer(pointer).unwrap_or(&Value::Null);
        assert_eq!(*found, expected, "{command} after ADD of {}", attachment.conf);
        if lab.peer == Peer::Ours {
            attachment.check(&result).ok();
        }
        attachment.del();
    }
}

/// The result has the container's one interface and what the kernel has of it, with a gateway and a route through it.
pub fn assert_result_of_one_link(
    lab: &Lab,
    conf: &Value,
    [address, gateway, dst]: [&str; 3],
) -> Container {
    let container = lab.container();
    let result = lab.attach(&container, conf).add();
    let link = container.link("eth0").unwrap();
    let expected = json!({
        "cniVersion": conf["cniVersion"],
        "interfaces": [{"name": "eth0", "mac": link["address"], "sandbox": container.netns}],
        "ips": [{"address": address, "gateway": gateway, "interface": 0}],
        "routes": [{"dst": dst}],
    });
    assert_eq!(result, expected);
    assert_eq!(container.addresses("eth0"), [address]);
    let shown = if dst == "0.0.0.0/0" { "default" } else { dst };
    assert_eq!(container.json(&format!("ip -j route show {shown}"))[0]["gateway"], gateway);
    container
}

/// ADD has changed something since `before`; DEL leaves nothing of it, and so does a second DEL.
pub fn assert_del_leaves_nothing(attachment: &Attachment<'_>, before: &Watch<'_>) {
    assert!(!before.changes_now().is_empty(), "the snapshot sees what ADD made");
    attachment.del();
    before.assert_unchanged("ADD");
    attachment.del();
    before.assert_unchanged("the first DEL");
}
