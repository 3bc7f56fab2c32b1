//! What every main plugin has to do for a runtime, whatever kind of link it creates.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::attachment::{Attachment, for_each_peer, for_ours, ips};
use super::call::Peer;
use super::netns::{Container, Lab};
use super::patience;
use super::snapshot::Watch;

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
    plugin.for_each_peer(del_needs_no_namespace);
    plugin.for_each_peer(del_before_add_changes_nothing);
    plugin.for_ours(del_needs_no_valid_netns_file);
    plugin.for_each_peer(check_needs_the_result_the_namespace_and_the_lease);
    plugin.for_each_peer(add_needs_the_namespace);
}

impl MainPlugin {
    fn for_each_peer(&self, part: fn(&MainPlugin, &Lab)) {
        for_each_peer(self.name, |lab| self.run(lab, part));
    }

    fn for_ours(&self, part: fn(&MainPlugin, &Lab)) {
        for_ours(self.name, |lab| self.run(lab, part));
    }

    fn run(&self, lab: &Lab, part: fn(&MainPlugin, &Lab)) {
        if (self.prepare)(lab) {
            part(self, lab);
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
