//! The backup file: written in the reference's format, restored by either peer, never left behind.

use super::*;
use crate::support::attachment::not_compared;
use crate::support::networks::tuning::backup_of;

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
            assert_eq!(with(&read(lab, &path).unwrap(), json!({"cni-multi": null})), had);
            let mode = |path: &str| lab.host.sh(&format!("stat -c %a {path}")).trim().to_owned();
            assert_eq!(mode(&path), "600");
            if lab.peer == Peer::Ours {
                assert_eq!((mode(dir).as_str(), mode("/run/cni").as_str()), ("700", "755"));
            }
            chain.del();
            assert_eq!(read(lab, &path), None);
        }
    });
    for_ours("tuning", |lab| {
        lab.host.sh("mkdir -m 0600 /run/cni/tuning"); // the reference's
        let chain = chain(lab, json!({"mac": MAC}));
        chain.add();
        chain.del();
        assert_eq!(lab.host.sh("stat -c %a /run/cni/tuning").trim(), "600");
    });
}

/// The file holds only the values that ADD changes.
#[test]
fn the_file_has_no_more_than_what_is_tuned() {
    for_each_peer("tuning", |lab| {
        let chain = chain(lab, json!({"mtu": 1400}));
        chain.add();
        let found = with(&read(lab, &backup_of(&chain)).unwrap(), json!({"cni-multi": null}));
        assert_eq!(found, json!({"mtu": 1500}));
    });
    for_ours("tuning", |lab| {
        let chain = chain(lab, set_filter());
        chain.add();
        let set = json!(["net/ipv4/conf/eth0/arp_filter", "0", "1"]);
        let ours = json!({"network": "net1", "containerID": chain.container_id, "ifname": "eth0", "set": {}, "sysctl": [set]});
        let found = read(lab, &backup_of(&chain)).unwrap();
        let of_namespace = json!({"netnsCookie": null, "netnsFile": null, "ifindex": null});
        assert_eq!(with(&found, json!({"cni-multi": of_namespace})), json!({"cni-multi": ours}));
        let member = &found["cni-multi"];
        // Before Linux 5.14 namespaces have no cookies.
        assert_ne!(member["netnsCookie"].is_u64(), member["netnsFile"][1].is_u64(), "{member}");
        assert!(member["ifindex"].is_u64(), "{member}");
        let enable = "echo 1 > /proc/sys/net/ipv4/conf/eth0/arp_filter";
        chain.container.sh(enable);
        chain.del();
        // A sysctl that already has the value is not changed, so DEL does not restore it.
        chain.container.sh(enable);
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

/// A repeated ADD finds the values that the first one set, and a second tuning plugin of the list shares the file, which
/// is named after container and interface: these are not the originals. Nor are those of an earlier interface of the name.
#[test]
fn the_first_backup_is_kept() {
    let whole = with(&every_attribute(), set_filter());
    for_ours("tuning", |lab| {
        let old = chain(lab, whole.clone());
        old.add();
        let stale = std::fs::read(lab.path(&backup_of(&old))).unwrap();
        old.del();
        let chain = chain(lab, whole.clone());
        chain.container.sh("ip link set eth0 mtu 1450; echo 0 > /proc/sys/net/core/somaxconn");
        let before = Watch::start(lab, &[&chain.container]);
        std::fs::write(lab.path(&backup_of(&chain)), stale).unwrap();
        chain.add();
        chain.add();
        let changed = json!({"mtu": 1300, "txQLen": 5, "sysctl": {"net.core.somaxconn": "9"}});
        chain.clone().conf(changed).add();
        chain.del();
        before.assert_unchanged("three ADDs over a stale file");

        let first = chain.clone().conf(json!({"txQLen": null}));
        let second = chain.clone().conf(with(&json!({"mac": null, "mtu": null}), set_filter()));
        first.add();
        second.add();
        second.del();
        first.del();
        before.assert_unchanged("ADDs of two plugins");
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
        let path = lab.path(&backup_of(&chain));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        for content in ["", "{", "[]", "7", r#"{"mtu":"x"}"#, r#"{"cni-multi":{"network":"../x"}}"#]
        {
            std::fs::write(&path, content).unwrap();
            chain.del();
            assert!(!path.exists(), "{content}");
            std::fs::write(&path, content).unwrap();
            chain.add();
            chain.del();
            assert_eq!(chain.container.link("eth0").unwrap()["mtu"], 1500, "{content}");
        }
    });
}

/// A path that cannot hold a backup leaves DEL and GC nothing to do. An error would make every
/// retry fail. hostile::planted_files has links and the like in place of the files.
#[test]
fn del_and_gc_succeed_where_no_backup_can_be_stored() {
    for_ours("tuning", |lab| {
        let main = with(&bridge::conf(), json!({"cniVersion": "1.1.0"}));
        let chain = lab.chain(&main, &tuning(json!({"mtu": 1400})));
        lab.host.sh(&format!(
            "touch /run/file; mkdir -p /run/planted/{}_eth0.json /run/victims; ln -s /run/victims /run/linked",
            chain.container_id
        ));
        let before = Watch::start(lab, &[&chain.container]);
        let unfit = ["/run/file", "/run/file/x", "/dev/null/x", "/run/planted"];
        let linked = ["/run/linked", "/run/linked/", "/run/x/../linked"];
        for data_dir in unfit.into_iter().chain(linked) {
            let attachment = chain.clone().conf(json!({"dataDir": data_dir}));
            let error = attachment.try_add().err();
            assert!(matches!(error.code, 5 | 7), "{data_dir}: {error:?}");
            attachment.del();
            attachment.gc(&[]).ok();
            before.assert_unchanged(data_dir);
        }
        for data_dir in ["relative", "/proc/x", "/run/a\u{0}b"] {
            let error = chain.clone().conf(json!({"dataDir": data_dir})).try_add().err();
            assert!(matches!(error.code, 5 | 7), "{data_dir}: {error:?}");
            before.assert_unchanged(data_dir);
        }
    });
}
