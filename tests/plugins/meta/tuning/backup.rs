//! The backup file: written in the reference's format, restored by either peer, never left behind.

use serde_json::{Value, json};

use super::attributes;
use crate::support::attachment::{for_each_peer, for_ours, not_compared, reference_with, with};
use crate::support::call::Peer;
use crate::support::netns::Lab;
use crate::support::networks::bridge;
use crate::support::networks::tuning::{MAC, backup_of, chain, every_attribute, sysctl, tuning};
use crate::support::snapshot::Watch;

fn read(lab: &Lab, path: &str) -> Option<Value> {
    // Read inside the lab: an ordinary user cannot enter the reference's directory from outside.
    let output = lab.host.try_sh(&format!("cat {path}"));
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

fn set_filter() -> Value {
    json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}})
}

#[test]
fn the_file_has_what_the_interface_had() {
    for_each_peer("tuning", |lab| {
        for (data_dir, dir) in [(None, "/run/cni/tuning"), (Some("/run/a/b/../c"), "/run/a/c")] {
            let chain = chain(lab, with(&every_attribute(), json!({"dataDir": data_dir})));
            let had = attributes(&chain.container, "eth0");
            chain.add();
            let path = format!("{dir}/{}_eth0.json", chain.container_id);
            let mut found = read(lab, &path).unwrap();
            found.as_object_mut().unwrap().remove("cni-multi");
            assert_eq!(found, had);
            let mode = |path: &str| lab.host.sh(&format!("stat -c %a {path}")).trim().to_owned();
            assert_eq!(mode(&path), "600");
            if lab.peer == Peer::Ours {
                assert_eq!((mode(dir).as_str(), mode("/run/cni").as_str()), ("700", "755"));
            }
            chain.del();
            assert_eq!(read(lab, &path), None);
        }
    });
}

/// The file holds only the values that ADD changes.
#[test]
fn the_file_has_no_more_than_what_is_tuned() {
    for_each_peer("tuning", |lab| {
        let chain = chain(lab, json!({"mtu": 1400}));
        chain.add();
        let mut found = read(lab, &backup_of(&chain)).unwrap();
        found.as_object_mut().unwrap().remove("cni-multi");
        assert_eq!(found, json!({"mtu": 1500}));
    });
    for_ours("tuning", |lab| {
        let chain = chain(lab, set_filter());
        chain.add();
        let set = json!(["net/ipv4/conf/eth0/arp_filter", "0", "1"]);
        let ours = json!({"network": "net1", "containerID": chain.container_id, "ifname": "eth0", "set": {}, "sysctl": [set]});
        let mut found = read(lab, &backup_of(&chain)).unwrap();
        let member = found["cni-multi"].as_object_mut().unwrap();
        let cookie = member.remove("netnsCookie").is_some_and(|number| number.is_u64());
        let file = member.remove("netnsFile").is_some_and(|file| file[1].is_u64()); // before Linux 5.14
        assert!(cookie != file && member.remove("ifindex").is_some_and(|number| number.is_u64()));
        assert_eq!(found, json!({"cni-multi": ours}));
        chain.container.sh("echo 1 > /proc/sys/net/ipv4/conf/eth0/arp_filter");
        chain.del();
        // A sysctl that already has the value is not changed, so DEL does not restore it.
        chain.container.sh("echo 1 > /proc/sys/net/ipv4/conf/eth0/arp_filter");
        chain.add();
        assert_eq!(read(lab, &backup_of(&chain)), None);
        chain.del();
        assert_eq!(sysctl(&chain.container, "ipv4/conf/eth0/arp_filter"), "1");
    });
}

/// Upgrade and rollback: one peer tunes, the other restores.
#[test]
fn either_restores_what_the_other_has_tuned() {
    let Some(reference) = reference_with("tuning") else { return not_compared("tuning") };
    for_ours("tuning", |lab| {
        for (from, to) in [(&reference, &Peer::Ours), (&Peer::Ours, &reference)] {
            for changes in
                [every_attribute(), json!({"mtu": 1400}), json!({"promisc": true}), set_filter()]
            {
                let chain = chain(lab, changes.clone());
                let before = Watch::start(lab, &[&chain.container]);
                let had = attributes(&chain.container, "eth0");
                let result = chain.clone().by(from).add();
                chain.clone().by(to).check(&result).ok();
                chain.clone().by(to).del();
                let what = format!("{changes} by {from:?}, DEL by {to:?}");
                assert_eq!(attributes(&chain.container, "eth0"), had, "{what}");
                assert!(read(lab, &backup_of(&chain)).is_none(), "{what}");
                // The reference neither backs up sysctls nor restores them.
                if changes.get("sysctl").is_none() {
                    before.assert_unchanged(&what);
                }
                chain.main.del();
            }
        }
    });
}

/// A repeated ADD finds the values that the first one set; these are not the originals.
#[test]
fn the_first_backup_is_kept() {
    for_ours("tuning", |lab| {
        let changes = with(&every_attribute(), set_filter());
        let chain = chain(lab, changes.clone());
        let before = Watch::start(lab, &[&chain.container]);
        chain.add();
        chain.add();
        // The configuration has changed between the two ADDs.
        chain
            .clone()
            .conf(json!({"mtu": 1300, "txQLen": 5, "sysctl": {"net.core.somaxconn": "9"}}))
            .add();
        chain.del();
        before.assert_unchanged("three ADDs");
    });
    let Some(reference) = reference_with("tuning") else { return not_compared("tuning") };
    for_ours("tuning", |lab| {
        let chain = chain(lab, every_attribute());
        let before = Watch::start(lab, &[&chain.container]);
        chain.clone().by(&reference).add();
        chain.add();
        chain.del();
        before.assert_unchanged("the reference's ADD and ours");
    });
}

/// The file name has only the container and the interface, so two tuning plugins in one list share
/// a file.
#[test]
fn two_of_one_list_are_both_undone() {
    for_ours("tuning", |lab| {
        let chain = chain(lab, json!({"mtu": 1400, "sysctl": {"net.core.somaxconn": "9"}}));
        let second = chain.clone().conf(json!({"mtu": null, "txQLen": 77, "sysctl": {"net.core.somaxconn": null, "net.ipv4.conf.IFNAME.arp_filter": "1"}}));
        let before = Watch::start(lab, &[&chain.container]);
        chain.add();
        second.add();
        second.del();
        chain.del();
        before.assert_unchanged("two ADDs");
    });
}

/// A backup file left over from an earlier interface of the same name does not hold this
/// interface's original values.
#[test]
fn a_stale_file_is_not_believed() {
    for_ours("tuning", |lab| {
        let changes = with(&every_attribute(), set_filter());
        let old = chain(lab, changes.clone());
        old.add();
        let stale = std::fs::read(lab.path(&backup_of(&old))).unwrap();
        old.del();
        let chain = chain(lab, changes);
        chain
            .container
            .sh("ip link set eth0 mtu 1450; echo 0 > /proc/sys/net/core/somaxconn; true");
        let before = Watch::start(lab, &[&chain.container]);
        std::fs::write(lab.path(&backup_of(&chain)), stale).unwrap();
        let attachment = chain.clone();
        attachment.add();
        attachment.del();
        before.assert_unchanged("ADD over a stale file");
    });
}

/// The reference ignores every error in DEL. Ours restores what it can and reports the rest, and
/// the next DEL succeeds.
#[test]
fn del_does_all_it_can_and_says_what_it_could_not() {
    for_ours("tuning", |lab| {
        let chain = chain(lab, with(&every_attribute(), set_filter()));
        let had = attributes(&chain.container, "eth0");
        chain.add();
        let mut file = read(lab, &backup_of(&chain)).unwrap();
        file["mtu"] = json!(999_999);
        let nonsense = json!(["net/ipv4/ip_forward", "nonsense", "1"]);
        file["cni-multi"]["sysctl"].as_array_mut().unwrap().push(nonsense);
        std::fs::write(lab.path(&backup_of(&chain)), file.to_string()).unwrap();
        let told = chain.try_del().err().text();
        assert!(told.contains("mtu 999999") && told.contains("net/ipv4/ip_forward"), "{told}");
        assert_eq!(attributes(&chain.container, "eth0"), with(&had, json!({"mtu": 1400})));
        assert_eq!(sysctl(&chain.container, "ipv4/conf/eth0/arp_filter"), "0");
        assert_eq!(read(lab, &backup_of(&chain)), None);
        chain.del();
    });
}

/// A malformed file restores nothing, fails neither ADD nor DEL, and is removed.
#[test]
fn a_torn_file_is_no_backup() {
    for_ours("tuning", |lab| {
        let chain = chain(lab, json!({"mtu": 1400}));
        for content in ["", "{", "[]", "7", r#"{"mtu":"x"}"#, r#"{"cni-multi":{"network":"../x"}}"#]
        {
            std::fs::create_dir_all(lab.path("/run/cni/tuning")).unwrap();
            std::fs::write(lab.path(&backup_of(&chain)), content).unwrap();
            chain.del();
            assert!(!lab.path(&backup_of(&chain)).exists(), "{content}");
            std::fs::write(lab.path(&backup_of(&chain)), content).unwrap();
            chain.add();
            chain.del();
            assert_eq!(chain.container.link("eth0").unwrap()["mtu"], 1500, "{content}");
        }
    });
}

/// A path that cannot hold a backup leaves DEL and GC nothing to do. An error would make every
/// retry fail.
#[test]
fn del_and_gc_succeed_where_no_backup_can_be_stored() {
    for_ours("tuning", |lab| {
        let main = with(&bridge::conf(), json!({"cniVersion": "1.1.0"}));
        let chain = lab.chain(&main, &tuning(json!({"mtu": 1400})));
        lab.host.sh(&format!(
            "touch /run/file; mkdir -p /run/planted/{}_eth0.json",
            chain.container_id
        ));
        let before = Watch::start(lab, &[&chain.container]);
        for data_dir in ["/run/file", "/run/file/x", "/dev/null/x", "/run/planted"] {
            let attachment = chain.clone().conf(json!({"dataDir": data_dir}));
            assert_eq!(attachment.try_add().err().code, 5, "{data_dir}");
            attachment.del();
            attachment.gc(&[]).ok();
            before.assert_unchanged(data_dir);
        }
    });
}

/// Symbolic links planted in the directory lead to no write outside it.
#[test]
fn links_in_the_way_are_not_followed() {
    for_ours("tuning", |lab| {
        let chain = chain(lab, every_attribute());
        lab.host.sh(&format!(
            "mkdir /run/victims /run/data; echo precious > /run/victims/file; ln -s /run/victims /run/linked; \
             ln -s /run/victims/file /run/data/{id}_eth0.json; ln -s /run/victims/file /run/data/{id}_eth0.draft; \
             mkdir /run/fifo; mkfifo /run/fifo/{id}_eth0.json",
            id = chain.container_id
        ));
        let before = Watch::start(lab, &[&chain.container]);
        let links = ["/run/linked", "/run/linked/", "/run/x/../linked", "/run/data", "/run/fifo"];
        for data_dir in links.into_iter().chain(["relative", "/proc/x", "/run/a\u{0}b"]) {
            let error = chain.clone().conf(json!({"dataDir": data_dir})).try_add().err();
            assert!(matches!(error.code, 5 | 7), "{data_dir}: {error:?}");
            before.assert_unchanged(data_dir);
        }
        // The linked directory cannot hold a backup of ours, and an error would make every DEL
        // fail.
        lab.host.sh(&format!("echo {{}} > /run/victims/{}_eth0.json", chain.container_id));
        chain.clone().conf(json!({"dataDir": "/run/linked"})).del();
        lab.host.sh(&format!("rm /run/victims/{}_eth0.json", chain.container_id));
        // A draft file that is a link is replaced, not written through.
        lab.host.sh(&format!("rm /run/data/{}_eth0.json", chain.container_id));
        let linked = chain.clone().conf(json!({"dataDir": "/run/data"}));
        linked.add();
        linked.del();
        assert_eq!(lab.host.sh("cat /run/victims/*"), "precious\n");
        let left = lab.host.sh("ls /run/data /run/victims | tr '\\n' ' '");
        assert_eq!(left, "/run/data:  /run/victims: file ");
    });
}

#[test]
fn the_reference_s_private_directory_is_used_unchanged() {
    for_ours("tuning", |lab| {
        lab.host.sh("mkdir -m 0600 /run/cni/tuning");
        let chain = chain(lab, json!({"mac": MAC}));
        chain.add();
        chain.del();
        assert_eq!(lab.host.sh("stat -c %a /run/cni/tuning").trim(), "600");
    });
}
