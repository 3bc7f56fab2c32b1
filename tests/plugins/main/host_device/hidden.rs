//! host-device DEL and GC return the very device, or fail and keep the record, although processes
//! in the container can change, hide or replace every link there.

use serde_json::{Value, json};

use super::back::records;
use super::{MAC, assert_is_back};
use crate::support::attachment::{Attachment, for_ours, with};
use crate::support::call::Outcome;
use crate::support::case;
use crate::support::kernel;
use crate::support::netns::{Container, Lab};
use crate::support::networks::host_device::{conf, device, is_up, layer_two};
use crate::support::snapshot::Watch;
use crate::support::table::cells;
use crate::support::traffic::assert_pings;

/// A veth of the container with every attribute of the device that a container can set. `$END` is
/// the place of its peer.
const IMPOSTOR: &str = "ip link add eth0 address 02:00:00:00:dd:00 type veth peer name trap $END && \
    ip link set eth0 alias dev0 mtu 1400 up";

const DISGUISES: &str = r#"
renamed | ip link set eth0 down; ip link set eth0 name eth9
renamed to its name on the host | ip link set eth0 down; ip link set eth0 name dev0
renamed to that of another link of the host | ip link set eth0 down; ip link set eth0 name uplink
alias of another | ip link set eth0 alias dev7
no alias | ip link set eth0 alias ''
alias of ours | ip link set eth0 alias 'cni x'
altname | ip link property add dev eth0 altname a-name-of-the-container-s
altname of another link of the host | ip link property add dev eth0 altname uplink
altname that is its name on the host | ip link property add dev eth0 altname dev0
hardware address | ip link set eth0 address 02:00:00:00:00:01
down, with other queues | ip link set eth0 down; ip link set eth0 mtu 1300 txqueuelen 7 promisc on
port of a bridge | ip link add br0 type bridge && ip link set eth0 master br0
below a macvlan | ip link add link eth0 name mv0 type macvlan && ip link set mv0 up
names exchanged with another link | ip link add other type veth peer name trap; ip link set eth0 down; ip link set eth0 name tmp; ip link set other name eth0; ip link set tmp name other
"#;

/// Changes that leave the device in its namespace.
fn disguises() -> Vec<(&'static str, String)> {
    let renamed = "ip link set eth0 down; ip link set eth0 name eth9";
    let plain = cells(DISGUISES).into_iter().map(|[what, script]| (what, script.to_owned()));
    plain.chain([("an impostor in its place", format!("{renamed}; {}", IMPOSTOR.replace("$END", ""))),
(
            "an impostor, its peer in a nested namespace",
            format!("{renamed}; {}", IMPOSTOR.replace("$END", "netns nest")),
        ),
(
            "back from a nested namespace, with an impostor that has its ifindex",
            format!(
                "index=$(cat /sys/class/net/eth0/ifindex 2>/dev/null || ip -o link show eth0 | cut -d: -f1); \
                 ip link set eth0 netns nest; {}; ip -n nest link set eth0 name eth9 netns $(basename $NETNS)",
                IMPOSTOR.replace("add eth0", "add eth0 index $index").replace("$END", "netns nest")
            ),
        )]).collect()
}

fn nest(lab: &Lab) {
    lab.host.sh("touch /run/netns/nest && unshare --net=/run/netns/nest true");
}

fn unnest(lab: &Lab) {
    lab.host.sh("umount --lazy /run/netns/nest && rm /run/netns/nest");
}

fn by_container(container: &Container, script: &str) {
    container.sh(&format!("NETNS={}; {script}", container.netns));
}

fn attach<'a>(lab: &'a Lab, container: &Container) -> Attachment<'a> {
    lab.attach(container, &with(&conf(), json!({"cniVersion": "1.1.0"})))
}

type End = fn(&Attachment<'_>) -> Outcome;

/// Both ways to end an attachment.
const WAYS: [(&str, End); 2] =
    [("DEL", |attachment| attachment.try_del()), ("GC", |attachment| attachment.gc(&[]))];

#[test]
fn device_in_any_disguise_comes_back() {
    for_ours("host-device", |lab| {
        for (what, script) in case::in_turn(disguises(), 3) {
            for (way, end) in WAYS {
                device(lab);
                let before = Watch::start(lab, &[]);
                nest(lab);
                let container = lab.container();
                let attachment = attach(lab, &container);
                attachment.add();
                by_container(&container, &script);
                let had_impostor = container.link("trap").is_some();
                assert_eq!(end(&attachment).ok(), Value::Null, "{what}, {way}");
                unnest(lab);
                assert!(
                    container.link("mv0").is_none(),
                    "{what}: a macvlan would go on receiving the host's frames"
                );
                assert_eq!(
                    had_impostor,
                    container.link("trap").is_some(),
                    "{what}: what is the container's stays there"
                );
                container.vanish();
                before.assert_unchanged(&format!("{what}, {way}"));
                assert_pings(&lab.host, "10.40.0.1");
                lab.host.sh("ip link del dev0");
            }
        }
    });
}

/// Commands that move the device out of its namespace, and commands that move it back.
fn hiding_places() -> Vec<(&'static str, String, &'static str)> {
    let away = "ip link set eth0 netns nest";
    let impostor = |end| IMPOSTOR.replace("$END", end);
    let back = "ip -n nest link set eth0 netns $(basename $NETNS)";
    let beside = "ip -n nest link set eth0 name eth9 netns $(basename $NETNS)";
    vec![
        ("nested namespace", away.to_owned(), back),
        ("nested namespace, an impostor in its place", format!("{away}; {}", impostor("")), beside),
        (
            "nested namespace, an impostor with its peer there",
            format!("{away}; {}", impostor("netns nest")),
            beside,
        ),
        (
            "nested namespace, an impostor with its ifindex",
            format!(
                "index=$(ip -o link show eth0 | cut -d: -f1); {away}; {}",
                impostor("netns nest").replace("add eth0", "add eth0 index $index")
            ),
            beside,
        ),
    ]
}

/// The reference reports an error, and releases an address that the container still uses.
#[test]
fn device_out_of_its_namespace_is_an_error_until_it_is_back() {
    for_ours("host-device", |lab| {
        for (what, away, back) in case::in_turn(hiding_places(), 3) {
            for (way, end) in WAYS {
                device(lab);
                nest(lab);
                let container = lab.container();
                let attachment = attach(lab, &container);
                let before = Watch::start(lab, &[]);
                attachment.add();
                by_container(&container, &away);
                let hidden = Watch::start(lab, &[&container]);
                for (other, try_end) in WAYS {
                    let error = try_end(&attachment).err();
                    assert_eq!(error.code, 11, "{what}, {other}: {error:?}");
                    assert!(
                        error.msg.contains("failed to find \"eth0\" in containerNS"),
                        "{what}, {other}: {error:?}"
                    );
                    for part in ["dev0", MAC, container.netns.as_str(), "/run/cni/host-device"] {
                        assert!(
                            error.details.contains(part),
                            "{what}, {other}: {error:?} does not say {part}"
                        );
                    }
                    assert_eq!(records(lab), ["600 0"], "{what}, {other}");
                }
                hidden.assert_unchanged(what);
                by_container(&container, back);
                assert_eq!(end(&attachment).ok(), Value::Null, "{what}, {way}");
                assert_pings(&lab.host, "10.40.0.1");
                drop(before);
                unnest(lab);
                assert_eq!(
                    (is_up(&lab.host, "dev0"), records(lab)),
                    (true, vec![]),
                    "{what}, {way}"
                );
                container.vanish();
                lab.host.sh("ip link del dev0");
            }
        }
    });
}

/// A device deleted by the container is not hidden: its peer is on the host, so its absence shows.
#[test]
fn del_succeeds_after_the_container_deleted_the_device() {
    for_ours("host-device", |lab| {
        for (way, end) in WAYS {
            lab.host.sh("ip link add dev0 type veth peer name end0");
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            let attachment =
                lab.attach(&container, &with(&layer_two(), json!({"cniVersion": "1.1.0"})));
            attachment.add();
            container.sh("ip link del eth0");
            assert_eq!(end(&attachment).ok(), Value::Null, "{way}");
            assert_eq!(records(lab), [""; 0], "{way}");
            drop(before);
        }
    });
}

/// The peer is out of sight, so a deleted device cannot be told from a hidden one until the
/// namespace is gone.
#[test]
fn deleted_device_is_an_error_while_its_namespace_lives() {
    for_ours("host-device", |lab| {
        device(lab);
        let container = lab.container();
        let attachment = attach(lab, &container);
        attachment.add();
        container.sh("ip link del eth0");
        assert_eq!(attachment.try_del().err().code, 11);
        assert_eq!(records(lab), ["600 0"]);
        container.vanish();
        attachment.del();
        assert_eq!(records(lab), [""; 0]);
    });
}

/// The kernel returns hardware to the host when its namespace is destroyed, with the names and
/// addresses set in the container.
#[test]
fn device_that_came_back_by_itself_is_known_by_what_it_is() {
    let how_found = json!({"device": null, "hwaddr": "02:00:00:00:dd:77"});
    for_ours("host-device", |lab| {
        if !kernel::moves_altnames(lab) {
            return;
        }
        for way in ["DEL", "GC", "ADD"] {
            device(lab);
            lab.host.sh("ip link property add dev dev0 altname port-of-rack-7 && ip link set dev0 alias uplink-7");
            let before = Watch::start(lab, &[]);
            let container = lab.container();
            let attachment = attach(lab, &container);
            attachment.add();
            container.sh("ip link set eth0 down; ip link set eth0 name eth9 address 02:00:00:00:dd:77 alias dev7 && \
                 ip link property add dev eth9 altname dev0");
            container.sh(&format!("ip link set eth9 netns {}", lab.pid()));
            container.vanish();
            match way {
                "DEL" => attachment.del(),
                "GC" => drop(attachment.gc(&[]).ok()),
                _ => {
                    let next = lab.container();
                    let again = lab.attach(&next, &with(&conf(), how_found.clone()));
                    again.add();
                    again.del();
                    attachment.del();
                    next.vanish();
                }
            }
            before.assert_unchanged(way);
            lab.host.sh("ip link del dev0");
        }
    });
}

/// Container IDs and paths are reused: a path does not identify a namespace. The reference takes
/// the other container's device.
#[test]
fn path_of_another_container_gives_nothing_away() {
    for_ours("host-device", |lab| {
        for way in ["DEL", "GC", "GC, both records"] {
            device(lab);
            let first = lab.container();
            let stale = attach(lab, &first);
            stale.add();
            let record = lab.host.sh("ls /run/cni/host-device/*.json").trim().to_owned();
            lab.host.sh(&format!("cp {record} /run/kept"));
            // Move the device as the reference's DEL does, so that the record stays.
            first.sh(&format!(
                "ip link set eth0 down; ip link set eth0 alias '' name dev0 netns {}",
                lab.pid()
            ));
            lab.host.sh("ip addr add 10.40.0.9/24 dev dev0 && ip link set dev0 up");
            first.vanish();
            let path = &first.netns;
            lab.host.sh(&format!("touch {path} && unshare --net={path} true"));
            let valid = stale.clone().id("another");
            let result = valid.add();
            if way != "GC" {
                lab.host.sh(&format!("cp -p /run/kept {record}"));
            }
            let inside = Watch::start(lab, &[&first]);
            let outcome =
                if way == "DEL" { stale.try_del() } else { stale.gc(&[("another", "eth0")]) };
            assert_eq!(outcome.ok(), Value::Null, "{way}");
            assert!(
                first.link("eth0").is_some(),
                "{way}: the device of a valid attachment was taken"
            );
            let changes = inside.changes();
            let others: Vec<_> =
                changes.lines().filter(|line| !line.contains("/run/cni/host-device/")).collect();
            assert_eq!(others, [""; 0], "{way}");
            valid.check(&result).ok();
            stale.del(); // once more, without a record
            assert!(first.link("eth0").is_some(), "{way}: a repeated DEL took it");
            valid.del();
            assert_is_back(lab, &first);
            first.vanish();
            lab.host.sh("ip link del dev0");
        }
    });
}

/// Without a record every attribute may come from the container, so a link that the container can
/// have created stays there. The reference moves it to the host.
#[test]
fn del_without_a_record_leaves_the_container_its_own_links() {
    for_ours("host-device", |lab| {
        for kind in ["veth peer name trap", "bridge"] {
            let container = lab.container();
            container
                .sh(&format!("ip link add eth0 type {kind} && ip link set eth0 alias port0 up"));
            let before = Watch::start(lab, &[&container]);
            lab.attach(&container, &layer_two()).del();
            before.assert_unchanged(kind);
        }
    });
}

/// If sysfs cannot be mounted, the attributes that no process can change identify the device.
#[test]
fn device_is_known_without_sysfs_by_kind_and_other_end() {
    for_ours("host-device", |lab| {
        device(lab);
        nest(lab);
        let container = lab.container();
        let attachment = attach(lab, &container);
        let before = Watch::start(lab, &[]);
        for (what, script) in case::in_turn(disguises(), 3) {
            attachment.add();
            let forget = "sed -i 's/\"identity\":{\"inode\":[0-9]*/\"identity\":{\"inode\":null/' /run/cni/host-device/*.json";
            lab.host.sh(&format!("{forget} && grep -q inode.:null /run/cni/host-device/*.json"));
            by_container(&container, &script);
            attachment.del();
            before.assert_unchanged(what);
            container
                .try_sh("ip link del eth0; ip link del br0; ip link del other; ip link del eth9");
        }
    });
}
