//! What macvlan, ipvlan and vlan have in common: the container's link is created on another link,
//! its master, and shares its network.
//!
//! The master is the lab's uplink. The peer behind it has an address in the containers' subnet, so
//! that the tests ping a neighbour that is not the host. Each function here is a case of all three
//! plugins; their modules run it and add their own cases.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::attachment::with;
use crate::support::call::Peer;
use crate::support::contract::{assert_del_leaves_nothing, assert_result_of_one_link};
use crate::support::failed_add::{Case, assert_fails, assert_refused, rows};
use crate::support::netns::{Container, Lab, Namespace};
use crate::support::networks::bridge::static_ipam;
use crate::support::networks::stacked::{PEER, Stacked, hasty_container};
use crate::support::snapshot::Watch;
use crate::support::table::cells;
use crate::support::traffic::{assert_mtu_passes, assert_pings, assert_two_containers_talk};
use crate::support::{case, patience};

/// Creates a second link on the host with another peer behind it, without addresses.
pub fn second_master(lab: &Lab) {
    lab.host.sh("ip link add second up type veth peer name second netns outside; ip -n outside link set second up");
}

/// Creates a link in the container; its other end is outside and has the address 10.20.0.1.
fn master_in_container(lab: &Lab, container: &Container, vlan: Option<u64>) {
    let name = container.netns.rsplit('/').next().unwrap();
    let mut end = format!("outside-{name}");
    lab.host
        .sh(&format!("ip link add lower up netns {name} type veth peer name {end} netns outside"));
    lab.outside.sh(&format!("ip link set {end} up"));
    if let Some(id) = vlan {
        let tagged = format!("{name}.{id}");
        lab.outside.sh(&format!("ip link add link {end} name {tagged} up type vlan id {id}"));
        end = tagged;
    }
    lab.outside.sh(&format!("ip addr add 10.20.0.1/24 dev {end}"));
    container.sh("ip route add default dev lower metric 7");
}

pub fn eth0(namespace: &Namespace) -> Value {
    namespace.link("eth0").expect("eth0 is there")
}

pub fn mac(namespace: &Namespace, link: &str) -> String {
    namespace.link(link).unwrap()["address"].as_str().unwrap().to_owned()
}

pub fn sysctl(namespace: &Namespace, key: &str) -> String {
    namespace.sh(&format!("cat /proc/sys/net/{key}")).trim().to_owned()
}

/// Whether the container's link stands on the host's link of this name.
pub fn stands_on(lab: &Lab, container: &Namespace, master: &str) -> bool {
    eth0(container)["link_index"] == lab.host.link(master).unwrap()["ifindex"]
}

// --- ADD ---

pub fn the_peer_is_reached_and_del_leaves_nothing(kind: &Stacked) {
    let v6 = json!({"ipam": {"subnet": "2001:db8:10::/64", "routes": [{"dst": "::/0"}]}});
    let cases = [kind.conf(), with(&kind.conf(), v6), kind.dual_stack()];
    let peers = [&PEER[..1], &PEER[1..], &PEER];
    let addresses = ["10.10.0.2/24", "2001:db8:10::2/64"];
    let addresses = [&addresses[..1], &addresses[1..], &addresses];
    kind.for_each_peer(|lab| {
        for (at, conf) in cases.iter().enumerate() {
            // IPv6 alone keeps the kernel's default, duplicate address detection (DAD).
            let container = if at == 2 { hasty_container(lab) } else { lab.container() };
            let before = Watch::start(lab, &[&container]);
            let attachment =
                lab.attach(&container, &with(conf, json!({"name": format!("net{at}")})));
            let result = attachment.add();
            assert_eq!(container.addresses("eth0"), addresses[at]);
            peers[at].iter().for_each(|peer| assert_pings(&container, peer));
            assert_eq!(attachment.check(&result).ok(), Value::Null);
            assert_del_leaves_nothing(&attachment, &before);
        }
    });
}

pub fn the_result_says_what_the_kernel_has(kind: &Stacked) {
    kind.for_each_peer(|lab| {
        let told = ["10.10.0.2/24", PEER[0], "0.0.0.0/0"];
        let container = assert_result_of_one_link(lab, &kind.conf(), told);
        let link = eth0(&container);
        assert_eq!(link["linkinfo"]["info_kind"], kind.plugin);
        assert!(link["flags"].as_array().unwrap().contains(&json!("LOWER_UP")), "{link}"); // ipvlan has no operstate
        assert!(stands_on(lab, &container, "uplink"), "{link}");
        assert_eq!(container.json("ip -j link").as_array().unwrap().len(), 2, "lo and eth0");
    });
}

pub fn the_mtu_is_given_or_the_master_s(kind: &Stacked) {
    kind.for_each_peer(|lab| {
        for namespace in [&lab.host, &lab.outside] {
            namespace.sh("ip link set uplink mtu 1400");
        }
        for (mtu, expected) in
            [(None, 1400), (Some(0), 1400), (Some(1300), 1300), (Some(1400), 1400)]
        {
            let (container, attachment, _) = lab.added(&with(&kind.conf(), json!({"mtu": mtu})));
            assert_eq!(eth0(&container)["mtu"], expected);
            assert_mtu_passes(&container, PEER[0], expected);
            attachment.del();
        }
    });
}

/// Where the master is: what prepares the host, changes to the network, the master, and what puts the host back. Names on
/// the host and in the container are independent. `lower` is in the container, which has its default route there.
const MASTERS: &str = r#"
 | {"linkInContainer": false} | uplink
 | {"linkInContainer": true, "master": "lower", "ipam": {"subnet": "10.20.0.0/24"}} | lower
ip link property add dev uplink altname short | {"master": "short"} | uplink
ip link property add dev uplink altname a-name-that-is-longer-than-the-kernel-has-room-for | {"master": "a-name-that-is-longer-than-the-kernel-has-room-for"} | uplink
ip link set uplink down; ip link set uplink name eth0; ip link set eth0 up | {"master": "eth0"} | eth0
"#;

/// Without `master` it is the link of the default route (macvlan, ipvlan).
const DEFAULT_ROUTES: &str = r#"
ip route add default via 198.51.100.2 | {"master": null} | uplink | ip route del default
ip -6 route add default via 2001:db8:ffff::2 | {"master": null} | uplink | ip -6 route del default
ip route add default dev uplink | {"master": null} | uplink | ip route del default
ip route add default dev second table 77; ip route add default dev uplink | {"master": null} | uplink | ip route del default
ip route add default via 198.51.100.2 | {"master": null, "linkInContainer": true, "ipam": {"subnet": "10.20.0.0/24"}} | lower
"#;

const SEVERAL_NEXT_HOPS: &str = r#"
ip addr add 192.0.2.1/24 dev second; ip route add default nexthop via 198.51.100.2 dev uplink nexthop via 192.0.2.2 dev second | {"master": null} | uplink
"#;

fn assert_masters(lab: &Lab, kind: &Stacked, table: &'static str) {
    second_master(lab);
    for [prepare, changes, master, put_back] in cells(table) {
        let container = hasty_container(lab);
        let is_inside = master == "lower";
        if is_inside {
            master_in_container(lab, &container, kind.conf()["vlanId"].as_u64());
        }
        lab.host.sh(prepare);
        let before = Watch::start(lab, &[&container]);
        let conf = with(&kind.conf(), serde_json::from_str(changes).unwrap());
        let attachment = lab.attach(&container, &conf);
        let result = attachment.add();
        let stands = if is_inside {
            eth0(&container)["link"] == "lower"
        } else {
            stands_on(lab, &container, master)
        };
        assert!(stands, "{prepare}, {changes}: {}", eth0(&container));
        assert_pings(&container, if is_inside { "10.20.0.1" } else { PEER[0] });
        if lab.peer == Peer::Ours {
            attachment.check(&result).ok(); // that of the reference's ipvlan needs `master`
        }
        attachment.del();
        before.assert_unchanged(changes);
        lab.host.sh(put_back);
    }
}

pub fn the_master_is_where_the_configuration_says(kind: &Stacked) {
    kind.for_each_peer(|lab| assert_masters(lab, kind, MASTERS));
}

/// Without `master` it is the link of the default route (macvlan, ipvlan).
pub fn the_master_is_the_link_of_the_default_route(kind: &Stacked) {
    kind.for_each_peer(|lab| assert_masters(lab, kind, DEFAULT_ROUTES));
}

/// Ours only: the reference finds no link in a default route with several next hops, and its CHECK
/// of ipvlan needs `master`.
pub fn the_master_is_that_of_the_first_of_several_next_hops(kind: &Stacked) {
    kind.for_ours(|lab| assert_masters(lab, kind, SEVERAL_NEXT_HOPS));
}

// --- addresses ---

/// A reused address: the outside peer has a stale neighbour entry and learns the new hardware
/// address without a query. With these sysctls the kernel announces the address when the link comes
/// up.
pub fn neighbours_are_told(lab: &Lab, kind: &Stacked) {
    let (device, addresses) = (kind.peer_link, ["10.10.0.7", "2001:db8:10::7"]);
    for address in addresses {
        lab.outside.sh(&format!(
            "ip neigh replace {address} lladdr 02:00:00:00:00:99 dev {device} nud stale"
        ));
    }
    let both = json!([{"address": "10.10.0.7/24"}, {"address": "2001:db8:10::7/64"}]);
    let (container, ..) = lab.added(&static_ipam(&kind.conf(), both, json!([])));
    assert_eq!(sysctl(&container, "ipv4/conf/eth0/arp_notify"), "1");
    assert_eq!(sysctl(&container, "ipv6/conf/eth0/ndisc_notify"), "1");
    let own = mac(&container, "eth0");
    for address in addresses {
        let known = || lab.outside.sh(&format!("ip neigh show {address} dev {device}"));
        let deadline = Instant::now() + patience(4);
        while !known().contains(&own) {
            assert!(Instant::now() < deadline, "the peer outside still has {}", known());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A network with one address, and each kind of gateway: one on the link, and none.
fn gateways(kind: &Stacked, address: &str, gateway: &str) -> [Value; 2] {
    [json!({"gateway": gateway}), json!({})].map(|gateway| {
        let address = with(&json!({"address": address}), gateway);
        static_ipam(&kind.conf(), json!([address]), json!([]))
    })
}

/// ADD returns after duplicate address detection, when the addresses can be used.
pub fn ipv6_addresses_can_be_used_when_add_returns(kind: &Stacked) {
    kind.for_ours(|lab| {
        for conf in gateways(kind, "2001:db8:10::7/64", PEER[1]) {
            let (container, attachment, _) = lab.added(&conf);
            let shown = container.sh("ip -6 addr show dev eth0 scope global");
            assert!(shown.contains("2001:db8:10::7/64"), "{shown}");
            assert!(!shown.contains("tentative") && !shown.contains("nodad"), "{shown}");
            container.sh(&format!("ping -n -q -c1 -W3 {}", PEER[1])); // the first ping is answered
            attachment.del();
        }
    });
}

pub fn a_duplicate_ipv6_address_is_refused(kind: &Stacked) {
    kind.for_ours(|lab| {
        for conf in gateways(kind, "2001:db8:10::1/64", "2001:db8:10::99") {
            assert_refused(lab, &conf, 102, PEER[1]);
        }
    });
}

// --- DEL, GC, STATUS ---

/// ADD, then deletion of the master (and with it the container's link), then DEL twice. Returns the
/// status of the first DEL. The lease is gone too.
pub fn del_after_the_master(lab: &Lab, kind: &Stacked) -> i32 {
    let container = lab.container();
    let before = Watch::start(lab, &[&container]);
    second_master(lab);
    let attachment = lab.attach(&container, &with(&kind.conf(), json!({"master": "second"})));
    attachment.add();
    lab.host.sh("ip link del second");
    let status = attachment.try_del().status;
    if status == 0 {
        before.assert_unchanged("ADD");
        attachment.del();
    }
    status
}

/// Whether DEL spares an interface of another kind that has the attachment's name.
pub fn del_spares_an_interface_of_another_kind(lab: &Lab, kind: &Stacked) -> bool {
    let container = lab.container();
    container.sh("ip link add eth0 type veth peer name other");
    lab.attach(&container, &kind.conf()).del();
    container.link("eth0").is_some()
}

/// The status of CHECK for an attachment on another master, with all else equal.
pub fn check_with_another_master(lab: &Lab, kind: &Stacked) -> i32 {
    second_master(lab);
    let container = lab.container();
    let conf = kind.address("10.10.0.7/24");
    let attachment = lab.attach(&container, &with(&conf, json!({"master": "second"})));
    let result = attachment.add();
    attachment.check(&result).ok();
    attachment.conf(json!({"master": "uplink"})).check(&result).status
}

// --- ADD that fails ---

/// Failures of all three plugins. The reference's ipvlan accepts any `mtu`: see `failing_mtu`.
pub fn failing() -> Vec<Case> {
    rows(
        r#"
IPAM plugin unknown | {"ipam": {"type": "no-such-ipam"}} | 104: no-such-ipam
IPAM refuses | {"ipam": {"subnet": "10.10.0.0/31"}} | 7: 10.10.0.0/31
subnet full | {"ipam": {"subnet": "10.10.0.0/30"}} | 101: 10.10.0.1-10.10.0.2 | host: mkdir -p /var/lib/cni/networks/net1 && printf 'other\neth0' >/var/lib/cni/networks/net1/10.10.0.2
IPAM tells no address | {"ipam": {"type": "static", "subnet": null, "addresses": [], "routes": null}} | 101: missing IP config
interface exists | {} | 102: eth0 | in: ip link add eth0 type veth peer name other
interface of that kind exists | {} | 102: eth0 | in: ip link add lower type veth peer name other; ip link add link lower name eth0 type macvlan
route unreachable | {"ipam": {"routes": [{"dst": "10.99.0.0/16", "gw": "10.88.0.1"}]}} | 100: 10.88.0.1
master unknown | {"master": "nonesuch"} | 7: master: "nonesuch" | both
master in the container only | {"master": "lower"} | 7: master: "lower" | in: ip link add lower type veth peer name other | both
the same, as configured | {"master": "lower", "linkInContainer": false} | 7: master: "lower" | in: ip link add lower type veth peer name other | both
master on the host only | {"linkInContainer": true} | 7: master: "uplink" | both
master is no name | {"master": "a name"} | 7: master: "a name" | both
master of a wrong type | {"master": 7} | 6: master | both
mtu of a wrong type | {"mtu": "large"} | 6: mtu | both
linkInContainer of a wrong type | {"linkInContainer": "yes"} | 6: linkInContainer | both
dns of a wrong type | {"dns": {"search": "example.org"}} | 6: dns.search | both
"#,
    )
}

pub fn failing_mtu() -> Vec<Case> {
    rows(
        r#"
mtu above the master's | {"mtu": 1501} | 7: mtu: 1501 | both
mtu above the master's in the container | {"mtu": 1401, "linkInContainer": true, "master": "lower"} | 7: mtu: 1401 | in: ip link add lower mtu 1400 type veth peer name other | both
mtu negative | {"mtu": -100} | 7: mtu | both
"#,
    )
}

/// The reference's STATUS asks only IPAM.
pub fn status_tells_that_no_container_could_be_attached(kind: &Stacked) {
    let conf = with(&kind.conf(), json!({"cniVersion": "1.1.0"}));
    kind.for_ours(|lab| {
        let status = |changes: Value| lab.place(&with(&conf, changes)).1.netns(None).status();
        status(json!({})).ok();
        status(json!({"master": "nonesuch", "linkInContainer": true})).ok(); // nobody can know
        status(json!({"master": "nonesuch"})).fails(50, "nonesuch");
        if kind.plugin != "vlan" {
            status(json!({"master": null})).fails(50, "");
            lab.host.sh("ip route add default via 198.51.100.2");
            status(json!({"master": null})).ok();
        }
        let full = json!({"ipam": {"subnet": "10.10.0.0/30"}});
        status(full.clone()).assert_is(0, "", "");
        lab.added(&with(&conf, full.clone()));
        let full = status(full);
        assert!(full.stderr.contains("no IP addresses available in range set"), "{full:?}");
        full.ok(); // the next DEL frees an address
    });
}

pub fn add_fails_and_nothing_has_changed(kind: &Stacked) {
    // The reference's ipvlan accepts any MTU: see tests/differences.
    let mtu = if kind.plugin == "ipvlan" { vec![] } else { failing_mtu() };
    let cases = case::in_turn(failing().into_iter().chain(own_failing(kind)).chain(mtu), 3);
    let (alone, together): (Vec<Case>, Vec<Case>) =
        cases.into_iter().partition(|case| case.host != "true");
    kind.for_each_peer(|lab| {
        together.iter().for_each(|case| assert_fails(lab, &kind.conf(), case))
    });
    alone.iter().for_each(|case| kind.for_each_peer(|lab| assert_fails(lab, &kind.conf(), case)));
}

pub fn two_containers_of_one_master_talk(kind: &Stacked) {
    kind.for_each_peer(|lab| assert_two_containers_talk(lab, &kind.dual_stack()));
}

/// The reference's vlan differs: see tests/differences.
fn for_each_peer_but_of_vlan(kind: &Stacked, case: impl Fn(&Lab)) {
    if kind.plugin == "vlan" { kind.for_ours(case) } else { kind.for_each_peer(case) }
}

pub fn a_new_container_is_announced_to_neighbours(kind: &Stacked) {
    for_each_peer_but_of_vlan(kind, |lab| neighbours_are_told(lab, kind));
}

pub fn del_after_the_master_is_gone_leaves_nothing(kind: &Stacked) {
    for_each_peer_but_of_vlan(kind, |lab| assert_eq!(del_after_the_master(lab, kind), 0));
}

/// Tests of one kind of link: a function of this file for each name.
macro_rules! tests_of {
    ($kind:ident: $($case:ident)+) => {$(
        #[test]
        fn $case() {
            $crate::plugins::main::stacked::$case(&$crate::support::networks::stacked::$kind);
        }
    )+};
}
pub(crate) use tests_of;

macro_rules! tests_of_each_kind {
    ($($case:ident)+) => {
        mod macvlan {
            super::tests_of! { MACVLAN: $($case)+ }
        }
        mod ipvlan {
            super::tests_of! { IPVLAN: $($case)+ }
        }
        mod vlan {
            super::tests_of! { VLAN: $($case)+ }
        }
    };
}

tests_of_each_kind! {
    the_peer_is_reached_and_del_leaves_nothing
    the_result_says_what_the_kernel_has
    the_mtu_is_given_or_the_master_s
    the_master_is_where_the_configuration_says
    a_new_container_is_announced_to_neighbours
    ipv6_addresses_can_be_used_when_add_returns
    a_duplicate_ipv6_address_is_refused
    del_after_the_master_is_gone_leaves_nothing
    status_tells_that_no_container_could_be_attached
    add_fails_and_nothing_has_changed
}

// --- what one kind has alone ---

/// Failures of this kind alone.
pub fn own_failing(kind: &Stacked) -> Vec<Case> {
    match kind.plugin {
        "macvlan" => rows(
            r#"
no master and no default route | {"master": null} | 7: master: | both
no IPAM, interface exists | {"ipam": null} | 102: eth0 | in: ip link add eth0 type veth peer name other | both
no IPAM, master unknown | {"ipam": null, "master": "nonesuch"} | 7: master: "nonesuch" | both
mode unknown | {"mode": "nonsense"} | 7: mode: "nonsense" | both
mode of another plugin | {"mode": "l2"} | 7: mode: "l2" | both
mode of a wrong type | {"mode": 4} | 6: mode | both
mac is none | {"mac": "02:00:00:00:00"} | 7: mac: "02:00:00:00:00" | both
mac of the runtime is none | {"runtimeConfig": {"mac": "x"}} | 7: runtimeConfig.mac: "x" | both
bcqueuelen of a wrong type | {"bcqueuelen": "long"} | 6: bcqueuelen | both
passthru on a master in use | {"mode": "passthru"} | 100: uplink | host: ip link add link uplink name other type macvlan mode bridge | both
another way into a master in passthru mode | {} | 100: uplink | host: ip link add link uplink name other type macvlan mode passthru | both
the master is a port of a bridge | {"mode": "bridge"} | 100: uplink | host: ip link add br0 type bridge; ip link set uplink master br0 | both
"#,
        ),
        "ipvlan" => rows(
            r#"
no master and no default route | {"master": null} | 7: master: | both
mode unknown | {"mode": "nonsense"} | 7: mode: "nonsense" | both
mode of another plugin | {"mode": "bridge"} | 7: mode: "bridge" | both
mode of a wrong type | {"mode": 2} | 6: mode | both
a macvlan is on the master | {} | 100: uplink | host: ip link add link uplink name other type macvlan | both
the master is a port of a bridge | {} | 100: uplink | host: ip link add br0 type bridge; ip link set uplink master br0 | both
"#,
        ),
        _ => rows(
            r#"
no master | {"master": null} | 7: master: | both
no master, but a default route | {"master": null} | 7: master: | host: ip route add default via 198.51.100.2 | both
master empty | {"master": ""} | 7: master: | both
number too large | {"vlanId": 4095} | 7: vlanId: 4095 | both
number much too large | {"vlanId": 5000} | 7: vlanId: 5000 | both
number negative | {"vlanId": -1} | 7: vlanId: -1 | both
number of a wrong type | {"vlanId": "100"} | 6: vlanId | both
number taken on the host | {} | 102: vlanId: 100 | host: ip link add link uplink name taken type vlan id 100 | both
no IPAM | {"ipam": null} | 7: ipam.type:
"#,
        ),
    }
}
