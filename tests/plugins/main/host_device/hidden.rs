//! host-device DEL and GC return the very device, or fail and keep the record, although processes
//! in the container can change, hide or replace every link there.

use serde_json::{Value, json};

use super::back::{assert_only_records_changed, assert_records};
use super::{MAC, assert_is_back};
use crate::support::attachment::{Attachment, for_ours, with};
use crate::support::call::{Call, Outcome};
use crate::support::netns::{Container, Lab};
use crate::support::networks::host_device::{conf, device, is_up, layer_two};
use crate::support::networks::{bridge, stacked, tap};
use crate::support::peers::each_case;
use crate::support::snapshot::Watch;
use crate::support::table::cells;
use crate::support::tracer::{Then, trace};
use crate::support::traffic::assert_pings;
use crate::support::{case, kernel};

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
    let impostor = |end| format!("{renamed}; {}", IMPOSTOR.replace("$END", end));
    let of_index =
        IMPOSTOR.replace("add eth0", "add eth0 index $index").replace("$END", "netns nest");
    let back = format!(
        "index=$(cat /sys/class/net/eth0/ifindex 2>/dev/null || ip -o link show eth0 | cut -d: -f1); \
         ip link set eth0 netns nest; {of_index}; ip -n nest link set eth0 name eth9 netns $(basename $NETNS)"
    );
    let plain = cells(DISGUISES).into_iter().map(|[what, script]| (what, script.to_owned()));
    let impostors = [
        ("an impostor in its place", impostor("")),
        ("an impostor, its peer in a nested namespace", impostor("netns nest")),
        ("back from a nested namespace, with an impostor that has its ifindex", back),
    ];
    plain.chain(impostors).collect()
}

fn by_container(container: &Container, script: &str) {
    container.sh(&format!("NETNS={}; {script}", container.netns));
}

/// Makes the namespace that the device is hidden in.
fn nest(lab: &Lab) {
    lab.host.sh("touch /run/netns/nest && unshare --net=/run/netns/nest true");
}

fn unnest(lab: &Lab) {
    lab.host.sh("umount --lazy /run/netns/nest && rm /run/netns/nest");
}

fn newest() -> Value {
    with(&conf(), json!({"cniVersion": "1.1.0"}))
}

type End = fn(&Attachment<'_>) -> Outcome;

/// Both ways to end an attachment.
const WAYS: [(&str, End); 2] =
    [("DEL", |attachment| attachment.try_del()), ("GC", |attachment| attachment.gc(&[]))];

fn device_in_any_disguise_comes_back(lab: &Lab) {
    for (what, script) in case::in_turn(disguises(), 3) {
        for (way, end) in WAYS {
            device(lab);
            let before = Watch::start(lab, &[]);
            nest(lab);
            let (container, attachment, _) = lab.added(&newest());
            by_container(&container, &script);
            let had_impostor = container.link("trap").is_some();
            assert_eq!(end(&attachment).ok(), Value::Null, "{what}, {way}");
            unnest(lab);
            // A macvlan would go on receiving the host's frames.
            assert!(container.link("mv0").is_none(), "{what}");
            let has_impostor = container.link("trap").is_some();
            assert_eq!(had_impostor, has_impostor, "{what}: the container's own stays there");
            container.vanish();
            before.assert_unchanged(&format!("{what}, {way}"));
            assert_pings(&lab.host, "10.40.0.1");
            assert_pings(&lab.host, "2001:db8:40::1");
            lab.host.sh("ip link del dev0");
        }
    }
}

/// Commands that move the device out of its namespace, and commands that move it back.
fn hiding_places() -> Vec<(&'static str, String, &'static str)> {
    let away = "ip link set eth0 netns nest";
    let impostor = |end| format!("{away}; {}", IMPOSTOR.replace("$END", end));
    let of_index = impostor("netns nest").replace("add eth0", "add eth0 index $index");
    let of_index = format!("index=$(ip -o link show eth0 | cut -d: -f1); {of_index}");
    let back = "ip -n nest link set eth0 netns $(basename $NETNS)";
    let beside = "ip -n nest link set eth0 name eth9 netns $(basename $NETNS)";
    vec![
        ("nested namespace", away.to_owned(), back),
        ("nested namespace, an impostor in its place", impostor(""), beside),
        ("nested namespace, an impostor with its peer there", impostor("netns nest"), beside),
        ("nested namespace, an impostor with its ifindex", of_index, beside),
    ]
}

/// The reference reports an error, and releases an address that the container still uses.
fn device_out_of_its_namespace_is_an_error_until_it_is_back(lab: &Lab) {
    for (what, away, back) in case::in_turn(hiding_places(), 3) {
        for (way, end) in WAYS {
            device(lab);
            nest(lab);
            let (container, attachment, _) = lab.added(&newest());
            by_container(&container, &away);
            let hidden = Watch::start(lab, &[&container]);
            for (other, try_end) in WAYS {
                eprintln!("{what}, {other}"); // shown when the case fails
                let not_found = "failed to find \"eth0\" in containerNS";
                let error = try_end(&attachment).fails(11, not_found);
                for part in ["dev0", MAC, &container.netns, "/run/cni/host-device"] {
                    assert!(error.details.contains(part), "{error:?} does not say {part}");
                }
                assert_records(lab, 1);
            }
            hidden.assert_unchanged(what);
            by_container(&container, back);
            assert_eq!(end(&attachment).ok(), Value::Null, "{what}, {way}");
            assert_pings(&lab.host, "10.40.0.1");
            unnest(lab);
            assert!(is_up(&lab.host, "dev0"), "{what}, {way}");
            assert_records(lab, 0);
            container.vanish();
            lab.host.sh("ip link del dev0");
        }
    }
}

/// A device deleted by the container is not hidden: its peer is on the host, so its absence shows.
fn del_succeeds_after_the_container_deleted_the_device(lab: &Lab) {
    for (way, end) in WAYS {
        lab.host.sh("ip link add dev0 type veth peer name end0");
        let (container, attachment, _) =
            lab.added(&with(&layer_two(), json!({"cniVersion": "1.1.0"})));
        container.sh("ip link del eth0");
        assert_eq!(end(&attachment).ok(), Value::Null, "{way}");
        assert_records(lab, 0);
    }
}

/// The peer is out of sight, so a deleted device cannot be told from a hidden one until the
/// namespace is gone.
fn deleted_device_is_an_error_while_its_namespace_lives(lab: &Lab) {
    device(lab);
    let (container, attachment, _) = lab.added(&newest());
    container.sh("ip link del eth0");
    attachment.try_del().fails(11, "");
    assert_records(lab, 1);
    container.vanish();
    attachment.del();
    assert_records(lab, 0);
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
            let (container, attachment, _) = lab.added(&newest());
            container.sh(&format!(
                "ip link set eth0 down; ip link set eth0 name eth9 address 02:00:00:00:dd:77 alias dev7 && \
                 ip link property add dev eth9 altname dev0; ip link set eth9 netns {}",
                lab.pid()
            ));
            container.vanish();
            if way == "ADD" {
                let (next, again, _) = lab.added(&with(&conf(), how_found.clone()));
                again.del();
                next.vanish();
            }
            let ended = if way == "GC" { attachment.gc(&[]) } else { attachment.try_del() };
            assert_eq!(ended.ok(), Value::Null);
            before.assert_unchanged(way);
            lab.host.sh("ip link del dev0");
        }
    });
}

/// Container IDs and paths are reused: a path does not identify a namespace. The reference takes
/// the other container's device.
fn path_of_another_container_gives_nothing_away(lab: &Lab) {
    for way in ["DEL", "GC", "GC, both records"] {
        device(lab);
        let (first, stale, _) = lab.added(&newest());
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
        let ended = match way {
            "DEL" => stale.try_del(),
            _ => stale.gc(&[("another", "eth0")]),
        };
        assert_eq!(ended.ok(), Value::Null, "{way}");
        assert!(first.link("eth0").is_some(), "{way} took the device of a valid attachment");
        assert_only_records_changed(&inside);
        valid.check(&result).ok();
        stale.del(); // once more, without a record
        assert!(first.link("eth0").is_some(), "{way}: a repeated DEL took it");
        valid.del();
        assert_is_back(lab, &first);
        first.vanish();
        lab.host.sh("ip link del dev0");
    }
}

/// Without a record every attribute may come from the container, so a link that the container can
/// have created stays there. The reference moves it to the host.
fn del_without_a_record_leaves_the_container_its_own_links(lab: &Lab) {
    // An alias for another purpose is not the name of a device.
    for (kind, alias) in [
        ("veth peer name trap", "port0"),
        ("bridge", "port0"),
        ("veth peer name trap", "uplink of rack 7"),
    ] {
        let container = lab.container();
        container
            .sh(&format!("ip link add eth0 type {kind} && ip link set eth0 alias '{alias}' up"));
        let before = Watch::start(lab, &[&container]);
        lab.attach(&container, &layer_two()).del();
        before.assert_unchanged(kind);
    }
}

/// If sysfs cannot be mounted, the attributes that no process can change identify the device.
#[test]
fn device_is_known_without_sysfs_by_kind_and_other_end() {
    let forget = "sed -i 's/\"identity\":{\"inode\":[0-9]*/\"identity\":{\"inode\":null/' /run/cni/host-device/*.json && \
        grep -q inode.:null /run/cni/host-device/*.json";
    for_ours("host-device", |lab| {
        device(lab);
        nest(lab);
        let (container, attachment) = lab.place(&newest());
        let before = Watch::start(lab, &[]);
        for (what, script) in case::in_turn(disguises(), 3) {
            attachment.add();
            lab.host.sh(forget);
            by_container(&container, &script);
            attachment.del();
            before.assert_unchanged(what);
            container
                .try_sh("ip link del eth0; ip link del br0; ip link del other; ip link del eth9");
        }
    });
}

each_case! { |case| for_ours("host-device", case);
    device_in_any_disguise_comes_back
    device_out_of_its_namespace_is_an_error_until_it_is_back
    del_succeeds_after_the_container_deleted_the_device
    deleted_device_is_an_error_while_its_namespace_lives
    path_of_another_container_gives_nothing_away
    del_without_a_record_leaves_the_container_its_own_links
}

// --- other plugins beside a device: DEL after a killed ADD removes their links and spares the device ---

/// Lists all links except the permanent ones.
const OTHERS: &str = "ip -o link | grep -vE ' (lo|eth0|uplink|br0)(@[^ ]*)?: ' || true";

/// Runs the call and kills it before its `number`th system call; false if it makes fewer.
fn kill_before(call: &Call, number: usize) -> bool {
    let mut calls = 0;
    let traced = trace(call, |stop| {
        calls += usize::from(stop.is_own && stop.result.is_none());
        if calls == number { Then::Kill } else { Then::Go }
    });
    traced.killed
}

/// Kills ADD before each of its system calls and expects DEL to remove the leftovers.
fn assert_killed_adds_leave_nothing(lab: &Lab, container: &Container, conf: &Value) {
    let attachment = lab.attach(container, conf).ifname("eth1");
    let mut kills = 0;
    while kill_before(&attachment.call("ADD", None), kills + 1) {
        kills += 1;
        attachment.del();
        let when = format!("{}: left after kill {kills}", conf["type"]);
        assert_eq!(container.sh(OTHERS), "", "{when}");
        assert_eq!(lab.host.sh(OTHERS), "", "{when}");
    }
    assert!(kills > 50, "{}: {kills} system calls", conf["type"]);
    attachment.del();
}

/// Between its creation and its alias or record, only its name and kind identify the owner of a
/// link.
#[test]
fn killed_adds_beside_a_device_leave_nothing_after_del() {
    for_ours("host-device", |lab| {
        device(lab);
        let container = lab.container();
        let device = lab.attach(&container, &layer_two());
        device.add();
        for conf in [bridge::conf(), stacked::MACVLAN.conf(), tap::conf()] {
            assert_killed_adds_leave_nothing(lab, &container, &conf);
        }
        device.del();
    });
}

/// Both links are of one kind; only the inode tells the device from the link of the killed ADD.
#[test]
fn killed_macvlan_beside_a_macvlan_leaves_nothing_after_del() {
    for_ours("host-device", |lab| {
        if !stacked::MACVLAN.is_in(lab) {
            return;
        }
        lab.host.sh("ip link add link uplink name dev0 type macvlan mode bridge");
        let container = lab.container();
        let device = lab.attach(&container, &layer_two());
        device.add();
        assert_killed_adds_leave_nothing(lab, &container, &stacked::MACVLAN.conf());
        assert_eq!(container.link("eth0").unwrap()["ifalias"], "dev0", "the device is still there");
        device.del();
        assert!(lab.host.link("dev0").is_some(), "the device is back");
    });
}
