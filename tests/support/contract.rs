//! What every main plugin has to do for a runtime, whatever kind of link it creates. The functions
//! at the end are for some plugins only, or for ours only.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::attachment::{Attachment, for_each_peer, for_ours, ips, with};
use super::call::Peer;
use super::netns::{Container, Lab};
use super::patience;
use super::snapshot::Watch;
use super::table::cells;
use super::traffic::assert_pings;

/// A main plugin with a network for it.
pub struct MainPlugin {
    pub name: &'static str,
    /// Its IPAM plugin is host-local, and the network is `net1`.
    pub conf: Value,
    /// Prepares the host, with what the plugin leaves by contract, such as a bridge. Returns false,
    /// after a skip, if the kernel lacks the plugin's kind of link.
    pub prepare: fn(&Lab) -> bool,
}

/// Runs every part of the contract, each in labs of its own.
pub fn contract(plugin: &MainPlugin) {
    plugin.for_each_peer(|lab| del_needs_no_namespace(plugin, lab));
    plugin.for_each_peer(|lab| del_before_add_changes_nothing(plugin, lab));
    plugin.for_ours(|lab| del_needs_no_valid_netns_file(plugin, lab));
    plugin.for_each_peer(|lab| check_needs_the_result_the_namespace_and_the_lease(plugin, lab));
    plugin.for_each_peer(|lab| add_needs_the_namespace(plugin, lab));
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

    fn attach<'a>(&self, lab: &'a Lab, container: &Container) -> Attachment<'a> {
        lab.attach(container, &self.conf)
    }

    /// Retries ADD: the kernel destroys a namespace some time after its last user ends, and until
    /// then its link keeps what only one link of a master can have.
    fn add<'a>(&self, lab: &'a Lab, container: &Container) -> Attachment<'a> {
        let attachment = self.attach(lab, container);
        let deadline = Instant::now() + patience(3);
        while attachment.try_add().status != 0 {
            assert!(Instant::now() < deadline, "{:?}", attachment.try_add());
            std::thread::sleep(Duration::from_millis(50));
        }
        attachment
    }
}

fn del_needs_no_namespace(plugin: &MainPlugin, lab: &Lab) {
    let before = Watch::start(lab, &[]);
    for how in ["vanished", "of a process", "no CNI_NETNS", "an empty CNI_NETNS"] {
        let container =
            if how == "of a process" { lab.container_of_process() } else { lab.container() };
        let attachment = plugin.add(lab, &container);
        container.vanish();
        let attachment = match how {
            "no CNI_NETNS" => attachment.netns(None),
            "an empty CNI_NETNS" => attachment.netns(Some("")),
            _ => attachment,
        };
        attachment.del();
        before.assert_unchanged(&format!("ADD ({how})"));
        attachment.del();
        before.assert_unchanged(&format!("the first DEL ({how})"));
    }
}

fn del_before_add_changes_nothing(plugin: &MainPlugin, lab: &Lab) {
    let container = lab.container();
    let before = Watch::start(lab, &[&container]);
    plugin.attach(lab, &container).del();
    before.assert_unchanged("DEL");
    container.vanish();
    plugin.attach(lab, &container).del();
}

/// The reference fails: see tests/differences.
fn del_needs_no_valid_netns_file(plugin: &MainPlugin, lab: &Lab) {
    let before = Watch::start(lab, &[]);
    let container = lab.container();
    let attachment = plugin.add(lab, &container);
    container.go_stale();
    attachment.del();
    before.assert_unchanged("ADD");
}

fn check_needs_the_result_the_namespace_and_the_lease(plugin: &MainPlugin, lab: &Lab) {
    let container = lab.container();
    let attachment = plugin.attach(lab, &container);
    let result = attachment.add();
    attachment.check(&result).ok();
    let missing = attachment.call("CHECK", None).run().err();
    assert!(missing.msg.contains("prevResult"), "{missing:?}");
    let elsewhere = lab.container();
    attachment.clone().netns(Some(&elsewhere.netns)).check(&result).err();
    elsewhere.vanish();
    attachment.clone().netns(Some(&elsewhere.netns)).check(&result).err();
    attachment.clone().ifname("net1").check(&result).err();
    lab.host.sh(&format!("rm /var/lib/cni/networks/net1/{}", ips(&result)[0]));
    attachment.check(&result).err();
}

/// ADD without the namespace fails, and no address stays reserved.
fn add_needs_the_namespace(plugin: &MainPlugin, lab: &Lab) {
    for is_stale in [false, true] {
        let container = lab.container();
        if is_stale {
            container.go_stale()
        } else {
            container.vanish()
        }
        let before = Watch::start(lab, &[]);
        let error = plugin.attach(lab, &container).try_add().err();
        if lab.peer == Peer::Ours {
            assert_eq!(error.code, 4, "{error:?}");
            assert!(error.text().contains(&container.netns), "{error:?}");
        }
        before.assert_unchanged("the failed ADD");
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

/// The container's interface is the first of the result. A peer answers the last ping, if there is one.
pub fn assert_mac_is_that_of_the_most_specific_source(lab: &Lab, conf: &Value, peer: Option<&str>) {
    for [changes, args, expected] in cells(MACS) {
        let changes = serde_json::from_str(changes).unwrap();
        let container = lab.container();
        let mut attachment = lab.attach(&container, &with(conf, changes));
        attachment.args = (!args.is_empty()).then(|| args.to_owned());
        let result = attachment.add();
        assert_eq!(container.link("eth0").unwrap()["address"], expected);
        assert_eq!(result["interfaces"][0]["mac"], expected);
        peer.iter().for_each(|peer| assert_pings(&container, peer));
        attachment.check(&result).ok();
        attachment.del();
    }
}

/// Versions before 0.3.0 have no result without addresses; what ADD created is deleted.
pub fn assert_old_versions_need_addresses(lab: &Lab, layer_two: &Value) {
    for version in [None, Some("0.1.0"), Some("0.2.0")] {
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let conf = with(layer_two, json!({"cniVersion": version}));
        let attachment = lab.attach(&container, &conf);
        let error = attachment.try_add().err();
        assert!(error.text().contains("no valid IP addresses"), "{version:?}: {error:?}");
        if lab.peer == Peer::Ours {
            assert_eq!(error.code, 7, "{version:?}: {error:?}");
            assert_eq!(error.msg, "cannot convert: no valid IP addresses");
            before.assert_unchanged("the refused ADD");
        }
        attachment.del();
    }
}

/// ADD has changed something since `before`; DEL leaves nothing of it, and so does a second DEL.
pub fn assert_del_leaves_nothing(attachment: &Attachment<'_>, before: &Watch<'_>) {
    assert!(!before.changes_now().is_empty(), "the snapshot sees what ADD made");
    attachment.del();
    before.assert_unchanged("ADD");
    attachment.del();
    before.assert_unchanged("the first DEL");
}

/// ADD fails when the subnet 10.10.0.0/30 of `small` has no free address, and leaves nothing.
pub fn assert_full_subnet_is_refused(lab: &Lab, small: &Value) {
    let container = lab.container();
    let before = Watch::start(lab, &[&container]);
    let error = lab.attach(&container, small).try_add().err();
    assert!(error.text().contains("10.10.0.1-10.10.0.2"), "the error shows the range: {error:?}");
    if lab.peer == Peer::Ours {
        assert_eq!(error.code, 101);
        before.assert_unchanged("the failed ADD");
    }
}

/// STATUS of a plugin that itself needs nothing is that of its IPAM plugin.
pub fn assert_status_is_that_of_ipam(lab: &Lab, conf: &Value) {
    let conf = |ipam| with(conf, json!({"cniVersion": "1.1.0", "ipam": {"type": ipam}}));
    lab.attach(&lab.container(), &conf("host-local")).status().ok();
    lab.attach(&lab.container(), &conf("no-such-ipam")).status().err();
}
