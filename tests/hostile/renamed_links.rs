//! A process with all capabilities in the container gives links other names, altnames and aliases,
//! among them ours. DEL removes the attachment's own link and no other: neither another
//! attachment's nor the host's.

use cni_multi::cni::attachment::{Key, hex};
use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_ours, with};
use crate::support::extent::{is_emulated, is_long};
use crate::support::netns::{Container, Lab, Namespace};
use crate::support::networks::host_device::is_up;
use crate::support::networks::stacked::{MACVLAN, VLAN, hasty_container};
use crate::support::networks::{bridge, ptp, sbr, tuning, vrf};
use crate::support::peers::tests;
use crate::support::subject::{Subject, in_a_lab};
use crate::support::table::cells;

/// Two attachments of one container: `eth0` to net1, which DEL removes, and `net1` to net2, which
/// stays.
struct Pair<'a> {
    container: Container,
    goes: Attachment<'a>,
    stays: Attachment<'a>,
    /// The ifindexes of both.
    indexes: [u64; 2],
}

impl<'a> Pair<'a> {
    fn add(lab: &'a Lab, subject: &Subject) -> Pair<'a> {
        let container = hasty_container(lab);
        let goes = subject.attach(lab, &container).remove(0);
        let range = json!([[{"subnet": "10.61.0.0/24"}]]);
        let ipam = json!({"ranges": range, "subnet": null, "routes": []});
        let mut conf = with(&goes.conf, json!({"name": "net2", "ipam": ipam}));
        if conf["type"] == VLAN.plugin {
            conf["vlanId"] = json!(200);
        }
        if conf["type"] == "bond" {
            conf["links"] = json!([{"name": "port2"}, {"name": "port3"}]);
            lab.host.try_sh("ip link add port2 type veth; ip link add port3 type veth");
        }
        let stays = lab.attach(&container, &conf).ifname("net1");
        goes.add();
        stays.add();
        let indexes = ["eth0", "net1"].map(|name| index(&container, name));
        Pair { container, goes, stays, indexes }
    }

    /// Runs a trick in the container. Shell variables hold both aliases, empty after DEL, and the passing name that
    /// `eth0` had during ADD.
    fn play(&self, trick: &str) {
        let key = Key::parse("net1", &self.goes.container_id, "eth0").unwrap();
        let [of_goes, of_stays] = self.indexes.map(|index| text(&self.container, index, "ifalias"));
        let [of_goes, of_stays] = [of_goes, of_stays].map(Option::unwrap_or_default);
        let passing = format!("cni{}", &hex(&key.attachment_hash())[..11]);
        self.container.sh(&format!(
            "set -e; goes='{of_goes}'; stays='{of_stays}'; passing={passing}; {trick}"
        ));
    }

    #[track_caller]
    fn assert_spared(&self, what: &str) {
        let left = name(&self.container, self.indexes[1]);
        assert!(left.is_some(), "{what}: the other attachment's link is gone");
    }
}

fn links(namespace: &Namespace) -> Vec<Value> {
    namespace.json("ip -j -d link").as_array().unwrap().clone()
}

fn index(namespace: &Namespace, name: &str) -> u64 {
    namespace.link(name).unwrap_or_else(|| panic!("no link {name}"))["ifindex"].as_u64().unwrap()
}

/// A text among the attributes of the link with this index.
fn text(namespace: &Namespace, index: u64, key: &str) -> Option<String> {
    let link = links(namespace).into_iter().find(|link| link["ifindex"] == index)?;
    Some(link[key].as_str().unwrap_or_default().to_owned())
}

fn name(namespace: &Namespace, index: u64) -> Option<String> {
    text(namespace, index, "ifname")
}

const DOWN: &str = "ip link set eth0 down; ip link set net1 down";

/// What the process does, and `stays` where the attachment's own link exists afterwards.
const TRICKS: &str = r#"
renamed | ip link set eth0 name mine | stays
names swapped | ip link set eth0 name x; ip link set net1 name eth0; ip link set x name net1 | stays
aliases swapped | ip link set eth0 alias "$stays"; ip link set net1 alias "$goes" | stays
names and aliases swapped | ip link set eth0 name x; ip link set net1 name eth0; ip link set x name net1; ip link set net1 alias "$stays"; ip link set eth0 alias "$goes" | stays
alias taken away | ip link set eth0 alias ''; ip link set eth0 name mine | stays
another's alias | ip link set eth0 alias "$stays" | stays
an alias of nobody | ip link set eth0 alias 'cni 00-00, if: eth0' | stays
its name as altname of the other | ip link set eth0 name mine; ip link property add dev net1 altname eth0; ip link set net1 alias '' | stays
deleted, the other in its place | ip link del eth0; ip link set net1 name eth0
deleted, the other in its place with its alias | ip link del eth0; ip link set net1 name eth0; ip link set eth0 alias "$goes"
deleted, the other without alias | ip link del eth0; ip link set net1 name eth0 alias ''
the other has its passing name | ip link set net1 name $passing; ip link set $passing alias '' | stays
the other has its alias alone | ip link del eth0; ip link set net1 alias "$goes"
"#;

/// In the virtual machine, which is slow, the plugins share the tricks, since they share their
/// code. The long form, and a run elsewhere, tries all with each.
fn tricks_for(subject: &Subject) -> impl Iterator<Item = [&'static str; 3]> {
    let (is_shared, turn) = (is_emulated() && !is_long(), subject.name.len() % 3);
    let is_its_turn = move |number: usize| !is_shared || number % 3 == turn;
    (0..).zip(cells(TRICKS)).filter(move |(number, _)| is_its_turn(*number)).map(|(_, trick)| trick)
}

fn del_removes_its_own_link_alone(lab: &Lab, subject: &Subject) {
    for [what, trick, own] in tricks_for(subject) {
        let pair = Pair::add(lab, subject);
        let names = || pair.indexes.map(|index| name(&pair.container, index));
        pair.play(&format!("{DOWN}; {trick}"));
        assert_eq!(names()[0].is_some(), own == "stays", "{what}");
        pair.goes.del();
        pair.assert_spared(what);
        assert_eq!(names()[0], None, "{what}: its own link is left");
        pair.goes.del();
        pair.assert_spared(&format!("{what}, DEL again"));
        pair.stays.del();
        assert_eq!(names()[1], None, "{what}: the other's DEL leaves its link");
        pair.container.vanish();
    }
}

/// A repeated ADD removes what a killed ADD has left, but not another attachment's link.
fn add_removes_no_link_of_another(lab: &Lab, subject: &Subject) {
    let pair = Pair::add(lab, subject);
    pair.goes.del();
    pair.play(
        "ip link set net1 down; ip link set net1 name $passing; ip link set $passing alias ''",
    );
    let _ = pair.goes.try_add(); // fails if the name is taken
    pair.assert_spared("the passing name");
    pair.goes.del();
    pair.assert_spared("the passing name, DEL");
}

tests! {
    del_of_macvlan_removes_its_own_link = in_a_lab("macvlan", del_removes_its_own_link_alone);
    del_of_ipvlan_removes_its_own_link = in_a_lab("ipvlan", del_removes_its_own_link_alone);
    del_of_vlan_removes_its_own_link = in_a_lab("vlan", del_removes_its_own_link_alone);
    del_of_dummy_removes_its_own_link = in_a_lab("dummy", del_removes_its_own_link_alone);
    del_of_tap_removes_its_own_link = in_a_lab("tap", del_removes_its_own_link_alone);
    del_of_bond_removes_its_own_link = in_a_lab("bond", del_removes_its_own_link_alone);
    repeated_add_of_macvlan_removes_no_link_of_another = in_a_lab("macvlan", add_removes_no_link_of_another);
    repeated_add_of_ipvlan_removes_no_link_of_another = in_a_lab("ipvlan", add_removes_no_link_of_another);
    repeated_add_of_vlan_removes_no_link_of_another = in_a_lab("vlan", add_removes_no_link_of_another);
    repeated_add_of_dummy_removes_no_link_of_another = in_a_lab("dummy", add_removes_no_link_of_another);
    repeated_add_of_tap_removes_no_link_of_another = in_a_lab("tap", add_removes_no_link_of_another);
    repeated_add_of_bond_removes_no_link_of_another = in_a_lab("bond", add_removes_no_link_of_another);
}

// --- Devices of the host ---

/// A device of the host that host-device has moved into the container as `net1`.
fn lend<'a>(lab: &'a Lab, container: &Container, device: &str) -> Attachment<'a> {
    lab.host.sh(device);
    let conf =
        json!({"cniVersion": "1.1.0", "name": "net2", "type": "host-device", "device": "dev0"});
    let lent = lab.attach(container, &conf).ifname("net1");
    lent.add();
    lent
}

/// The hardware address of the lent device, which shows whether the device still exists.
const LENT: &str = "02:00:00:00:00:77";

/// After DEL the process gives the lent device the name and the alias of the attachment's link.
fn repeated_del_spares_a_lent_device(lab: &Lab, conf: &Value, device: &str) {
    let container = hasty_container(lab);
    let attachment = lab.attach(&container, &with(conf, json!({"name": "net1"})));
    attachment.add();
    let alias = text(&container, index(&container, "eth0"), "ifalias").unwrap();
    let _lent = lend(lab, &container, device);
    attachment.del();
    for alias in ["", &alias] {
        container.sh(&format!(
            "name=$(ip -o link | grep {LENT} | sed 's/^[0-9]*: \\([^:@]*\\).*/\\1/'); \
             ip link set $name down; ip link set $name name eth0; ip link set eth0 alias '{alias}'"
        ));
        attachment.del();
        let is_there = links(&container).iter().any(|link| link["address"] == LENT);
        assert!(is_there, "{}: the host's device is gone (alias {alias:?})", conf["type"]);
    }
}

#[test]
fn repeated_del_of_a_pair_spares_a_device_of_the_host() {
    let device = format!("ip link add dev0 address {LENT} type veth peer name dev1");
    for conf in [bridge::conf(), ptp::conf()] {
        for_ours("host-device", |lab| {
            repeated_del_spares_a_lent_device(lab, &conf, &device);
            assert!(lab.host.link("dev1").is_some());
        });
    }
}

#[test]
fn repeated_del_of_macvlan_spares_a_device_of_the_host() {
    let device =
        format!("ip link add link uplink name dev0 address {LENT} type macvlan mode bridge");
    MACVLAN.for_ours(|lab| repeated_del_spares_a_lent_device(lab, &MACVLAN.conf(), &device));
}

/// A macvlan `net1` on another network.
fn another<'a>(lab: &'a Lab, container: &Container) -> Attachment<'a> {
    lab.attach(container, &with(&MACVLAN.conf(), json!({"name": "net2"}))).ifname("net1")
}

/// After DEL the link of another attachment takes the name.
#[test]
fn repeated_del_of_a_pair_spares_links_of_other_kinds() {
    for conf in [bridge::conf(), ptp::conf()] {
        MACVLAN.for_ours(|lab| {
            let container = hasty_container(lab);
            let attachment = lab.attach(&container, &with(&conf, json!({"name": "net1"})));
            attachment.add();
            another(lab, &container).add();
            attachment.del();
            container.sh("ip link set net1 down; ip link set net1 name eth0 alias ''");
            attachment.del();
            assert!(container.link("eth0").is_some(), "the other attachment's link is gone");
        });
    }
}

// --- Chained plugins, and the loopback interface ---

/// Any link can be named `lo`; the kernel's loopback interface has ifindex 1.
#[test]
fn del_of_loopback_sets_no_other_link_down() {
    MACVLAN.for_ours(|lab| {
        let container = hasty_container(lab);
        another(lab, &container).add();
        let conf = json!({"cniVersion": "1.1.0", "name": "lo", "type": "loopback"});
        let loopback = lab.attach(&container, &conf).ifname("lo");
        loopback.add();
        container.sh("ip link set lo down; ip link set lo name own; ip link set own up
             ip link set net1 down; ip link set net1 name lo; ip link set lo up");
        loopback.del();
        assert!(is_up(&container, "lo"), "the other attachment's link is down");
        assert!(!is_up(&container, "own"), "the loopback interface is up");
    });
}

/// Swaps both names between ADD and DEL.
const SWAP: &str = "ip link set eth0 down; ip link set net1 down
    ip link set eth0 name x; ip link set net1 name eth0; ip link set x name net1
    ip link set eth0 up; ip link set net1 up";

#[test]
fn del_of_tuning_gives_back_to_its_own_link() {
    MACVLAN.for_ours(|lab| {
        let container = hasty_container(lab);
        container.sh("ip link set lo up");
        let main = lab.attach(&container, &MACVLAN.address("10.10.0.7/24"));
        let result = main.add();
        let other = with(&MACVLAN.address("10.10.0.8/24"), json!({"name": "net2"}));
        lab.attach(&container, &other).ifname("net1").add();
        let conf = tuning::tuning(json!({
            "cniVersion": "1.0.0", "name": "net1", "mtu": 1400, "txQLen": 77, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"},
        }));
        let attachment = lab.attach(&container, &with(&conf, json!({"prevResult": result})));
        attachment.add();
        container.sh("ip link set net1 mtu 1300 txqueuelen 88; echo 1 > /proc/sys/net/ipv4/conf/net1/arp_filter");
        container.sh(SWAP);
        attachment.del();
        let tuned = |name: &str| {
            let link = container.link(name).unwrap();
            let filter = container.sh(&format!("cat /proc/sys/net/ipv4/conf/{name}/arp_filter"));
            (link["mtu"].as_u64().unwrap(), link["txqlen"].as_u64().unwrap(), filter.trim().to_owned())
        };
        assert_eq!(tuned("eth0"), (1300, 88, "1".to_owned()), "the other attachment's link has changed");
        let (mtu, queue, filter) = tuned("net1");
        assert_eq!((mtu, filter.as_str()), (1500, "0"), "its own link is not as before");
        assert_ne!(queue, 77);
    });
}

#[test]
fn del_of_sbr_empties_the_tables_of_its_own_link() {
    for_ours("sbr", |lab| {
        let (container, attachment) = sbr::two_uplinks(lab, json!({}));
        attachment.add();
        assert!(!sbr::rules(&container).is_empty());
        container.sh("ip route add 10.66.0.0/16 dev eth0 table 100");
        let swapped = "ip link set net1 name x; ip link property add dev eth0 altname net1";
        container.sh(&format!("{swapped} || ip link property add dev eth0 altname net1"));
        attachment.clone().conf(json!({"prevResult": null})).del();
        assert!(sbr::rules(&container).is_empty());
        let left = container.sh("ip route show table 100");
        assert_eq!(left.trim(), "10.66.0.0/16 dev eth0 scope link", "of another link, and its own");
    });
}

#[test]
fn del_of_vrf_takes_out_its_own_link_alone() {
    for_ours("vrf", |lab| {
        let Some(container) = vrf::container(lab) else { return };
        let goes = vrf::attach(lab, &container, &vrf::network(1, 2), "eth0", "blue");
        goes.add();
        let stays = vrf::attach(lab, &container, &vrf::network(2, 3), "net1", "blue");
        stays.add();
        let indexes = ["eth0", "net1"].map(|name| index(&container, name));
        container.sh(SWAP);
        goes.del();
        let master = |index: u64| vrf::master(&container, &name(&container, index).unwrap());
        assert_eq!([master(indexes[0]), master(indexes[1])], [Value::Null, json!("blue")]);
        stays.del();
        assert!(container.link("blue").is_none(), "the VRF goes with its last interface");
    });
}
