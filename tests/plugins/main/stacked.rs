//! What macvlan, ipvlan and vlan have in common: the container's link is created on another link,
//! its master, and shares its network.
//!
//! The master is the lab's uplink. The peer behind it has an address in the containers' subnet, so
//! that the tests ping a neighbour that is not the host. Each function here is a case of all three
//! plugins; their modules run it and add their own cases.

mod kinds;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::kinds::{own_breaks, own_failing};
use crate::support::attachment::with;
use crate::support::broken::{Break, assert_check_finds, breaks};
use crate::support::call::Peer;
use crate::support::case;
use crate::support::contract::{
    assert_del_leaves_nothing, assert_dns_of_network_or_ipam, assert_result_of_one_link,
};
use crate::support::failed_add::rows;
use crate::support::failed_add::{Case, assert_fails};
use crate::support::netns::{Container, Lab, Namespace};
use crate::support::networks::bridge::static_ipam;
use crate::support::networks::stacked::{PEER, Stacked, hasty_container};
use crate::support::patience;
use crate::support::snapshot::Watch;
use crate::support::traffic::{assert_pings, assert_pings_with, assert_two_containers_talk};

/// Creates a second link on the host with another peer behind it, without addresses.
pub fn second_master(lab: &Lab) {
    lab.host.sh("ip link add second up type veth peer name second netns outside; ip -n outside link set second up");
}

/// Creates a link in the container; its other end is outside and has the address 10.20.0.1.
pub fn master_in_container(lab: &Lab, container: &Container, vlan: Option<u16>) {
    let name = container.netns.rsplit('/').next().unwrap();
    let outside = format!("outside-{name}");
    lab.host.sh(&format!(
        "ip link add lower up netns {name} type veth peer name {outside} netns outside"
    ));
    lab.outside.sh(&format!("ip link set {outside} up"));
    let end = match vlan {
        None => outside,
        Some(id) => {
            lab.outside
                .sh(&format!("ip link add link {outside} name {name}.{id} up type vlan id {id}"));
            format!("{name}.{id}")
        }
    };
    lab.outside.sh(&format!("ip addr add 10.20.0.1/24 dev {end}"));
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
    let cases = [
        (kind.conf(), vec![PEER[0]], vec!["10.10.0.2/24"]),
        (with(&kind.conf(), v6), vec![PEER[1]], vec!["2001:db8:10::2/64"]),
        (kind.dual_stack(), PEER.to_vec(), vec!["10.10.0.2/24", "2001:db8:10::2/64"]),
    ];
    kind.for_each_peer(|lab| {
        for (at, (conf, peers, addresses)) in cases.iter().enumerate() {
            // IPv6 alone keeps the kernel's default, duplicate address detection (DAD).
            let container = if at == 2 { hasty_container(lab) } else { lab.container() };
            let before = Watch::start(lab, &[&container]);
            let attachment =
                lab.attach(&container, &with(conf, json!({"name": format!("net{at}")})));
            let result = attachment.add();
            assert_eq!(container.addresses("eth0"), *addresses);
            peers.iter().for_each(|peer| assert_pings(&container, peer));
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

/// Ours only: the reference drops IPAM's DNS.
pub fn dns_of_the_network_replaces_that_of_ipam_as_a_whole(kind: &Stacked) {
    kind.for_ours(|lab| assert_dns_of_network_or_ipam(lab, &kind.address("10.10.0.7/24")));
}

pub fn the_mtu_is_given_or_the_master_s(kind: &Stacked) {
    kind.for_each_peer(|lab| {
        lab.host.sh("ip link set uplink mtu 1400");
        lab.outside.sh("ip link set uplink mtu 1400");
        for (changes, expected) in [
            (json!({}), 1400),
            (json!({"mtu": 0}), 1400),
            (json!({"mtu": 1300}), 1300),
            (json!({"mtu": 1400}), 1400),
        ] {
            let container = lab.container();
            let attachment = lab.attach(&container, &with(&kind.conf(), changes));
            attachment.add();
            assert_eq!(eth0(&container)["mtu"], expected);
            assert_pings_with(&container, PEER[0], &format!("-M do -s {}", expected - 28));
            let too_large =
                container.try_sh(&format!("ping -c1 -W1 -M do -s {} {}", expected - 27, PEER[0]));
            assert!(!too_large.status.success());
            attachment.del();
        }
    });
}

/// Names on the host and in the container are independent: the host may be connected through an
/// eth0 of its own.
pub fn the_host_may_have_an_interface_of_the_same_name(kind: &Stacked) {
    kind.for_each_peer(|lab| {
        lab.host.sh("ip link set uplink down; ip link set uplink name eth0; ip link set eth0 up");
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let attachment = lab.attach(&container, &with(&kind.conf(), json!({"master": "eth0"})));
        let result = attachment.add();
        assert!(stands_on(lab, &container, "eth0"));
        assert_pings(&container, PEER[0]);
        attachment.check(&result).ok();
        attachment.del();
        before.assert_unchanged("ADD");
    });
}

pub fn the_master_may_be_named_by_an_alternative_name(kind: &Stacked) {
    kind.for_each_peer(|lab| {
        for name in ["short", "a-name-that-is-longer-than-the-kernel-has-room-for"] {
            lab.host.sh(&format!("ip link property add dev uplink altname {name}"));
            let container = lab.container();
            let attachment = lab.attach(&container, &with(&kind.conf(), json!({"master": name})));
            let result = attachment.add();
            assert!(stands_on(lab, &container, "uplink"));
            assert_pings(&container, PEER[0]);
            attachment.check(&result).ok();
            attachment.del();
        }
    });
}

pub fn the_master_is_looked_for_where_link_in_container_says(kind: &Stacked) {
    let inside = |link: Value| {
        with(
            &kind.conf(),
            json!({"linkInContainer": link, "master": "lower", "ipam": {"subnet": "10.20.0.0/24"}}),
        )
    };
    kind.for_each_peer(|lab| {
        for outside in [json!(false), Value::Null] {
            let container = lab.container();
            let attachment =
                lab.attach(&container, &with(&kind.conf(), json!({"linkInContainer": outside})));
            attachment.add();
            assert!(stands_on(lab, &container, "uplink"));
            attachment.del();
        }
        let container = hasty_container(lab);
        master_in_container(lab, &container, kind.conf()["vlanId"].as_u64().map(|id| id as u16));
        let before = Watch::start(lab, &[&container]);
        let attachment = lab.attach(&container, &inside(json!(true)));
        let result = attachment.add();
        assert_eq!(eth0(&container)["link"], "lower");
        assert_pings(&container, "10.20.0.1");
        attachment.check(&result).ok();
        attachment.del();
        before.assert_unchanged("ADD");
        // A link in the container is not found on the host, and the reverse.
        for conf in [
            inside(json!(false)),
            inside(Value::Null),
            with(&kind.conf(), json!({"linkInContainer": true})),
        ] {
            let error = lab.attach(&container, &conf).try_add().err();
            before.assert_unchanged("the refused ADD");
            if lab.peer == Peer::Ours {
                assert_eq!(error.code, 7, "{error:?}");
                assert!(error.text().contains(&format!("master: {}", conf["master"])), "{error:?}");
            }
        }
    });
}

/// Without `master` it is the link of the default route (macvlan, ipvlan).
pub fn the_master_is_the_link_of_the_default_route(kind: &Stacked) {
    let routes = [
        ("IPv4", "ip route add default via 198.51.100.2", "ip route del default"),
        ("IPv6 only", "ip -6 route add default via 2001:db8:ffff::2", "ip -6 route del default"),
        ("without a gateway", "ip route add default dev uplink", "ip route del default"),
        (
            "in the main table",
            "ip route add default dev second table 77; ip route add default dev uplink",
            "ip route del default",
        ),
    ];
    let conf = with(&kind.conf(), json!({"master": null}));
    kind.for_each_peer(|lab| {
        second_master(lab);
        for (what, add, del) in routes {
            lab.host.sh(add);
            let container = lab.container();
            let attachment = lab.attach(&container, &conf);
            attachment.add();
            assert!(stands_on(lab, &container, "uplink"), "{what}");
            assert_pings(&container, PEER[0]);
            attachment.del();
            lab.host.sh(del);
        }
        let container = lab.container();
        let before = Watch::start(lab, &[&container]);
        let error = lab.attach(&container, &conf).try_add().err();
        before.assert_unchanged("the refused ADD");
        if lab.peer == Peer::Ours {
            assert_eq!(error.code, 7, "{error:?}");
            assert!(error.text().contains("master: "), "{error:?}");
        }
    });
}

/// Ours only: the reference finds no link in a default route with several next hops, and its CHECK
/// of ipvlan needs `master`.
pub fn the_master_is_that_of_the_first_of_several_next_hops(kind: &Stacked) {
    kind.for_ours(|lab| {
        second_master(lab);
        lab.host.sh("ip addr add 192.0.2.1/24 dev second");
        lab.host.sh("ip route add default nexthop via 198.51.100.2 dev uplink nexthop via 192.0.2.2 dev second");
        let container = lab.container();
        let attachment = lab.attach(&container, &with(&kind.conf(), json!({"master": null})));
        let result = attachment.add();
        assert!(stands_on(lab, &container, "uplink"));
        assert_pings(&container, PEER[0]);
        attachment.check(&result).ok();
        attachment.del();
    });
}

pub fn the_default_route_is_the_container_s_where_the_master_is(kind: &Stacked) {
    kind.for_each_peer(|lab| {
        lab.host.sh("ip route add default via 198.51.100.2");
        let container = lab.container();
        master_in_container(lab, &container, None);
        container.sh("ip route add default dev lower metric 7");
        let conf = with(
            &kind.conf(),
            json!({"master": null, "linkInContainer": true, "ipam": {"subnet": "10.20.0.0/24"}}),
        );
        let attachment = lab.attach(&container, &conf);
        attachment.add();
        assert_eq!(eth0(&container)["link"], "lower");
        assert_pings(&container, "10.20.0.1");
        attachment.del();
    });
}

// --- addresses ---

/// A reused address: the outside peer has a stale neighbour entry and learns the new hardware
/// address without a query. With these sysctls the kernel announces the address when the link comes
/// up.
pub fn neighbours_are_told(lab: &Lab, kind: &Stacked) {
    let device = kind.peer_link;
    lab.outside
        .sh(&format!("ip neigh replace 10.10.0.7 lladdr 02:00:00:00:00:99 dev {device} nud stale"));
    lab.outside.sh(&format!(
        "ip neigh replace 2001:db8:10::7 lladdr 02:00:00:00:00:99 dev {device} nud stale"
    ));
    let container = lab.container();
    let addresses = json!([{"address": "10.10.0.7/24"}, {"address": "2001:db8:10::7/64"}]);
    lab.attach(&container, &static_ipam(&kind.conf(), addresses, json!([]))).add();
    assert_eq!(sysctl(&container, "ipv4/conf/eth0/arp_notify"), "1");
    assert_eq!(sysctl(&container, "ipv6/conf/eth0/ndisc_notify"), "1");
    let own = mac(&container, "eth0");
    for address in ["10.10.0.7", "2001:db8:10::7"] {
        let deadline = Instant::now() + patience(4);
        let known = || {
            lab.outside.json(&format!("ip -j neigh show {address} dev {device}"))[0]["lladdr"]
                .clone()
        };
        while known() != own.as_str() {
            assert!(
                Instant::now() < deadline,
                "the peer outside still has {} for {address}",
                known()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// ADD returns after duplicate address detection, when the addresses can be used.
pub fn ipv6_addresses_can_be_used_when_add_returns(kind: &Stacked) {
    kind.for_ours(|lab| {
        for gateway in [json!(PEER[1]), Value::Null] {
            let container = lab.container();
            let mut conf = kind.address("2001:db8:10::7/64");
            conf["ipam"]["addresses"][0] =
                with(&conf["ipam"]["addresses"][0], json!({"gateway": gateway}));
            let attachment = lab.attach(&container, &conf);
            attachment.add();
            let shown = container.json("ip -j -6 addr show dev eth0 scope global")[0]["addr_info"]
                [0]
            .clone();
            assert_eq!(shown["local"], "2001:db8:10::7");
            assert!(shown.get("tentative").is_none() && shown.get("nodad").is_none(), "{shown}");
            let once = container.try_sh(&format!("ping -n -q -c1 -W3 {}", PEER[1]));
            assert!(once.status.success(), "the first ping is answered");
            attachment.del();
        }
    });
}

pub fn a_duplicate_ipv6_address_is_refused(kind: &Stacked) {
    kind.for_ours(|lab| {
        for gateway in [json!("2001:db8:10::99"), Value::Null] {
            let mut conf = kind.address(&format!("{}/64", PEER[1]));
            conf["ipam"]["addresses"][0] =
                with(&conf["ipam"]["addresses"][0], json!({"gateway": gateway}));
            let container = lab.container();
            let before = Watch::start(lab, &[&container]);
            let error = lab.attach(&container, &conf).try_add().err();
            assert_eq!(error.code, 102, "{error:?}");
            assert!(error.text().contains(PEER[1]), "{error:?}");
            before.assert_unchanged("the failed ADD");
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

// --- CHECK ---

fn common_breaks() -> Vec<Break> {
    let renamed = "ip link set eth0 down; ip link set eth0 name eth9; ip link set eth9 up";
    let replaced = "mac=$(ip -o link show eth0 | sed 's/.*ether \\([^ ]*\\).*/\\1/'); ip link del eth0; \
         ip link add eth0 address $mac up type veth peer name other; ip link set other up; \
         ip addr add 10.10.0.2/24 dev eth0; ip addr add 2001:db8:10::2/64 dev eth0 nodad; \
         ip route add default via 10.10.0.1; ip route add default via 2001:db8:10::1";
    let own = vec![
        Break::new("v4 route removed", "ip route del default", "0.0.0.0/0"),
        Break::new("v6 route removed", "ip -6 route del default", "::/0"),
        Break::new("link renamed", renamed, "eth0"),
        Break::new("replaced by another kind", replaced, "eth0"),
    ];
    breaks(["10.10.0.2/24", "2001:db8:10::2/64"], own)
}

pub fn check_finds(lab: &Lab, conf: &Value, case: &Break) {
    let container = hasty_container(lab);
    let attachment = lab.attach(&container, conf);
    assert_check_finds(lab, &container, &attachment, case);
    attachment.del();
    assert!(
        !lab.path("/var/lib/cni/networks/net1/10.10.0.2").exists(),
        "{}: the lease is left",
        case.what
    );
    // The next case gets the same addresses, which a renamed link would still have.
    container.try_sh("ip link del eth9");
    lab.host.sh("rm -r /var/lib/cni/networks/net1");
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
        let container = lab.container();
        let status =
            |changes: Value| lab.attach(&container, &with(&conf, changes)).netns(None).status();
        assert_eq!(status(json!({})).ok(), Value::Null);
        assert_eq!(
            status(json!({"master": "nonesuch", "linkInContainer": true})).ok(),
            Value::Null,
            "nobody can know"
        );
        let missing = status(json!({"master": "nonesuch"})).err();
        assert_eq!(missing.code, 50, "{missing:?}");
        assert!(missing.text().contains("nonesuch"), "{missing:?}");
        if kind.plugin != "vlan" {
            assert_eq!(status(json!({"master": null})).err().code, 50);
            lab.host.sh("ip route add default via 198.51.100.2");
            status(json!({"master": null})).ok();
        }
        let full = json!({"ipam": {"subnet": "10.10.0.0/30"}});
        let quiet = status(full.clone());
        assert_eq!((quiet.ok(), quiet.stderr.as_str()), (Value::Null, ""));
        lab.attach(&container, &with(&conf, full.clone())).add();
        let full = status(full);
        assert!(full.stderr.contains("no IP addresses available in range set"), "{full:?}");
        assert_eq!(full.ok(), Value::Null, "the next DEL frees an address");
    });
}

pub fn check_finds_what_has_changed(kind: &Stacked) {
    let cases = case::in_turn(common_breaks().into_iter().chain(own_breaks(kind)), 3);
    kind.for_each_peer(|lab| {
        cases.iter().for_each(|case| check_finds(lab, &kind.dual_stack(), case))
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

// --- the tests ---

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
    dns_of_the_network_replaces_that_of_ipam_as_a_whole
    the_mtu_is_given_or_the_master_s
    the_host_may_have_an_interface_of_the_same_name
    the_master_may_be_named_by_an_alternative_name
    the_master_is_looked_for_where_link_in_container_says
    a_new_container_is_announced_to_neighbours
    ipv6_addresses_can_be_used_when_add_returns
    a_duplicate_ipv6_address_is_refused
    del_after_the_master_is_gone_leaves_nothing
    status_tells_that_no_container_could_be_attached
    check_finds_what_has_changed
    add_fails_and_nothing_has_changed
}
