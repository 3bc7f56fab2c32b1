//! Kills and power losses while plugins write state below /run/cni: the backups of tuning and the
//! records of host-device, sbr and vrf. /run is a tmpfs nearly everywhere; these cases are for
//! hosts where it is not.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::disk::Disk;
use super::losses::{Depth, State};
use super::recording::Recording;
use super::{Verdict, assert_is_evidence, depth, require, succeeds, sweep};
use crate::support::attachment::{Attachment, with};
use crate::support::call::Peer;
use crate::support::netns::{Container, Lab};
use crate::support::networks::tuning::{every_attribute, tuning};
use crate::support::networks::vrf::has_vrf;
use crate::support::networks::{bridge, host_device};

const ROOT: &str = "/run/cni";
/// The path of a namespace that was lost in the reboot.
const GONE: &str = "/run/netns/gone";
/// The state of the host's device, without what the kernel adds some time later.
const DEVICE: &str = "for family in -4 -6; do ip $family -br addr show dev dev0 scope global; done; ip -br link show dev dev0";

/// A plugin that keeps state, and its chain.
struct Keeper {
    name: &'static str,
    conf: Value,
    /// The main plugin before it in the chain.
    main: Option<Value>,
    /// A command that prints the state of the host's device, if that must not change.
    device: Option<&'static str>,
    /// Whether GC cannot find the owner of a torn file, so that the file stays until DEL.
    spares_torn: bool,
}

/// A host with a container created after the loss.
struct Place<'a> {
    lab: &'a Lab,
    root: PathBuf,
    container: Container,
    keeper: &'a Keeper,
}

impl Keeper {
    /// The plugin's attachment, and the attachment of the main plugin.
    fn attach<'a>(
        &self,
        lab: &'a Lab,
        container: &Container,
    ) -> (Attachment<'a>, Option<Attachment<'a>>) {
        let Some(main) = &self.main else { return (lab.attach(container, &self.conf), None) };
        let chained = lab.chain_in(container, "eth0", main, &self.conf);
        (chained.also(&self.conf), Some(chained.main))
    }
}

impl Place<'_> {
    fn device(&self) -> String {
        self.keeper.device.map(|command| self.lab.host.sh(command)).unwrap_or_default()
    }

    fn has_device_as(&self, before: &str) -> Verdict {
        let now = self.device();
        require(before == now, || format!("the device was {before}and is {now}"))
    }

    fn is_empty(&self, spares_torn: bool) -> Verdict {
        let disk = Disk::read(&self.root);
        let is_torn = |name: &&Path| {
            name.extension().is_some_and(|extension| extension == "json")
                && serde_json::from_slice::<Value>(disk.file(name).unwrap()).is_err()
        };
        let is_lock = |name: &Path| name.file_name().is_some_and(|name| name == "lock");
        disk.has_only("", |name| is_lock(name) || spares_torn && is_torn(&name))
    }
}

fn try_state(place: &Place<'_>, state: &State) -> Verdict {
    let of_network = with(&place.keeper.conf, json!({"name": "net1", "cniVersion": "1.1.0"}));
    let gone = |id: &str| place.lab.attach_at(id, GONE, &of_network);
    let before = place.device();
    state.disk.write(&place.root);
    succeeds("DEL of a", &gone("a").try_del())?;
    succeeds("DEL of c", &gone("c").try_del())?;
    place.is_empty(false)?;

    state.disk.write(&place.root);
    succeeds("GC", &gone("").gc(&[]))?;
    place.is_empty(place.keeper.spares_torn)?;
    place.has_device_as(&before)?;

    state.disk.write(&place.root);
    let (new, main) = place.keeper.attach(place.lab, &place.container);
    succeeds("ADD", &new.try_add())?;
    succeeds("GC", &gone("").gc(&[(&new.container_id, "eth0")]))?;
    succeeds("DEL", &new.try_del())?;
    main.iter().for_each(Attachment::del);
    place.has_device_as(&before)?;
    place.is_empty(place.keeper.spares_torn)
}

/// Tries ADD and DEL. Returns their rows of the table.
fn try_keeper(lab: &Lab, keeper: &Keeper) -> [String; 2] {
    let root = lab.path(ROOT);
    let attach = |id: &str| keeper.attach(lab, &lab.container()).0.id(id);
    let record = |attachment: &Attachment<'_>, command: &str, before: Option<&Recording>| {
        Recording::of(&attachment.call(command, None), before, ROOT, &root)
    };
    let a = attach("a");
    if keeper.device.is_none() {
        a.add(); // a device can be attached only once
    }
    let c = attach("c");
    let add = record(&c, "ADD", None);
    let del = record(&c, "DEL", Some(&add));
    a.try_del();
    [("ADD", add), ("DEL", del)].map(|(operation, recording)| {
        let states = [recording.killed(), recording.without_power(depth(Depth::Usual))];
        let place = Place { lab, root: root.clone(), container: lab.container(), keeper };
        let what = [keeper.name, operation];
        sweep(what, &recording, states, vec![place], |place, state, _| try_state(place, state))
    })
}

/// Tries a keeper after a bridge. The rows are on the page, unless not every kernel has the plugin's links.
fn try_chained(name: &'static str, conf: Value, spares_torn: bool) -> [String; 2] {
    let main = with(&bridge::conf(), json!({"name": "net1", "cniVersion": "1.1.0"}));
    let keeper = Keeper { name, conf, main: Some(main), device: None, spares_torn };
    try_keeper(&Lab::new(Peer::Ours), &keeper)
}

#[test]
fn backups_of_tuning_are_no_hindrance() {
    let conf = tuning(with(&every_attribute(), json!({"sysctl": {"net.core.somaxconn": "517"}})));
    try_chained("tuning", conf, true).iter().for_each(|row| assert_is_evidence(row));
}

#[test]
fn records_of_sbr_are_no_hindrance() {
    let rows = try_chained("sbr", json!({"type": "sbr"}), false);
    rows.iter().for_each(|row| assert_is_evidence(row));
}

#[test]
fn records_of_vrf_are_no_hindrance() {
    if has_vrf(&Lab::new(Peer::Ours).container()) {
        try_chained("vrf", json!({"type": "vrf", "vrfname": "blue"}), false);
    }
}

/// The PID in a recorded path may belong to a process of the host after a reboot, or by reuse.
#[test]
fn a_record_with_a_path_that_is_now_the_host_s_is_harmless() {
    let lab = Lab::new(Peer::Ours);
    host_device::device(&lab);
    let conf = with(&host_device::layer_two(), json!({"name": "net1", "cniVersion": "1.1.0"}));
    let (container, root) = (lab.container(), lab.path(ROOT));
    let attachment = lab.attach(&container, &conf);
    attachment.add();
    let disk = Disk::read(&root);
    attachment.del();
    disk.write(&root);
    container.go_stale();
    lab.host.sh(&format!("mount --bind /proc/self/ns/net {}", container.netns));
    let before = lab.host.sh(DEVICE);
    attachment.gc(&[]).ok();
    assert_eq!(Disk::read(&root).files(), [""; 0].map(Path::new));
    assert_eq!(lab.host.sh(DEVICE), before);
}

/// After a reboot the device is on the host under its own name, whatever a record says.
#[test]
fn records_of_host_device_are_no_hindrance() {
    let lab = Lab::new(Peer::Ours);
    host_device::device(&lab);
    let conf = with(&host_device::layer_two(), json!({"name": "net1", "cniVersion": "1.1.0"}));
    let keeper =
        Keeper { name: "host-device", conf, main: None, device: Some(DEVICE), spares_torn: false };
    try_keeper(&lab, &keeper).iter().for_each(|row| assert_is_evidence(row));
}
