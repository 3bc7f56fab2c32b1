//! k3s's plugin directory: links that k3s makes again at each upgrade, beside files of others.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::place::{Place, write_script};
use super::watch::Watch;
use crate::support::attachment::with;
use crate::support::call::{self, Peer};
use crate::support::netns::Lab;
use crate::support::networks::flannel;

/// What k3s's program of all plugins is called by.
const NAMES: [&str; 7] =
    ["bandwidth", "bridge", "firewall", "flannel", "host-local", "loopback", "portmap"];

/// Unpacks a version of k3s, as its wrapper does: `data/VERSION/bin` has the program and its links,
/// and links of `data/cni` are replaced by links to the program. Files there stay.
fn unpack(data: &Path, version: &str) {
    let bin = data.join(version).join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::create_dir_all(data.join("cni")).unwrap();
    write_script(&bin.join("cni"), &format!("echo k3s {version}"));
    for name in NAMES {
        symlink("cni", bin.join(name)).unwrap();
    }
    for name in ["cni"].into_iter().chain(NAMES) {
        let link = data.join("cni").join(name);
        match fs::symlink_metadata(&link) {
            Ok(there) if !there.is_symlink() => continue,
            Ok(_) => fs::remove_file(&link).unwrap(),
            Err(_) => (),
        }
        symlink(bin.join("cni"), &link).unwrap();
    }
}

/// A directory of k3s, and beside it the plugins of others: a file of Multus.
fn k3s() -> Place {
    let mut place = Place::new();
    unpack(&place.root.join("data"), "one");
    place.dir = place.root.join("data/cni");
    write_script(&place.dir.join("multus"), "echo multus");
    place
}

#[test]
fn what_k3s_links_at_its_upgrade_comes_back_by_uninstall() {
    let place = k3s();
    let before = place.snapshot();
    let build = place.build("new");
    place.ok(&["--binary", build.to_str().unwrap(), "--only", &NAMES.join(",")]);
    assert!(NAMES.iter().all(|name| place.says(name) == "new"));
    assert_eq!((place.says("cni"), place.says("multus")), ("k3s one".into(), "multus".into()));
    place.ok(&["--uninstall"]);
    assert_eq!(place.snapshot(), before);

    place.ok(&["--binary", build.to_str().unwrap(), "--only", &NAMES.join(",")]);
    let watch = Watch::of(&place, &build);
    unpack(&place.root.join("data"), "two");
    NAMES.iter().for_each(|name| watch.wait_until_says(name, "new"));
    drop(watch);
    assert_eq!(place.says("cni"), "k3s two");
    fs::remove_dir_all(place.root.join("data/one")).unwrap();
    place.ok(&["--uninstall"]);
    assert!(NAMES.iter().all(|name| place.says(name) == "k3s two"));
    assert_eq!(place.says("multus"), "multus");
}

/// Every program of the list is called by its name in the directory.
#[test]
fn the_list_of_k3s_attaches_through_its_directory() {
    let place = k3s();
    let binary = call::binary();
    place.ok(&["--binary", binary.to_str().unwrap(), "--only", &NAMES.join(",")]);
    let peer = Peer::Reference(place.dir.clone());
    let lab = Lab::new(Peer::Ours);
    flannel::node(&lab);
    let container = lab.container();
    let list = flannel::list_of_k3s();
    let (mut added, mut result) = (vec![], None);
    for plugin in list["plugins"].as_array().unwrap().iter().take(2) {
        let head = serde_json::json!({"name": list["name"], "cniVersion": list["cniVersion"]});
        let at = lab.attach(&container, &with(plugin, head)).by(&peer);
        result = Some(at.call("ADD", result.as_ref()).run().ok());
        added.push(at);
    }
    let address = format!("{}", result.as_ref().unwrap()["ips"][0]["address"]);
    assert!(address.starts_with("\"10.244.1."), "{address}");
    let gateway = lab.host.addresses("cni0");
    assert!(gateway.contains(&"10.244.1.1/24".to_owned()), "{gateway:?}");
    container.sh("ping -c 1 -W 5 10.244.1.1");
    for at in added.iter().rev() {
        at.call("DEL", result.as_ref()).run().ok();
    }
    assert!(container.link("eth0").is_none());
}
