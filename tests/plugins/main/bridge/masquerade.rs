//! bridge with `ipMasq`: the source address that the outside sees, with each backend.

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_each_peer, for_ours, ips, skip, with};
use crate::support::netns::{Container, Lab};
use crate::support::networks::bridge::{dual_stack, static_ipam, warm_up};
use crate::support::networks::flannel;
use crate::support::peers::each_case;
use crate::support::snapshot::Watch;
use crate::support::traffic::{Ear, assert_masqueraded, assert_not_masqueraded, assert_pings};

/// `None` is the default of the plugin: nftables for ours, iptables for the reference.
const BACKENDS: [Option<&str>; 3] = [None, Some("iptables"), Some("nftables")];

pub fn conf(backend: Option<&str>) -> Value {
    with(&dual_stack(), json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": backend}))
}

fn the_outside_sees_the_host_and_del_leaves_no_rule(lab: &Lab) {
    for backend in BACKENDS {
        if backend == Some("nftables") {
            lab.hide_iptables();
        }
        let conf = conf(backend);
        warm_up(lab, &conf);
        let (container, attachment, before) = lab.watched(&conf);
        let result = attachment.add();
        ips(&result).iter().for_each(|ip| assert_masqueraded(lab, &container, ip));
        attachment.assert_ends(&result, &before);
    }
}

fn without_it_the_outside_sees_the_container(lab: &Lab) {
    let (container, _, result) = lab.added(&with(&conf(None), json!({"ipMasq": false})));
    ips(&result).iter().for_each(|ip| assert_not_masqueraded(lab, &container, ip));
}

fn containers_of_the_subnet_see_each_other_s_own_address(lab: &Lab) {
    for backend in BACKENDS {
        let [(a, _, from), (b, _, to)] = [(), ()].map(|()| lab.added(&conf(backend)));
        let ear = Ear::listen(&b);
        ips(&to).iter().for_each(|ip| assert_pings(&a, ip));
        assert_eq!(ear.heard(), ips(&from), "{backend:?}");
    }
}

fn the_host_sees_the_container_s_own_address(lab: &Lab) {
    let (container, _, result) = lab.added(&conf(None));
    let ear = Ear::listen(&lab.host);
    assert_pings(&container, "10.10.0.1");
    assert_pings(&container, "2001:db8:10::1");
    assert_eq!(ear.heard(), ips(&result));
}

/// Whether DEL of one interface succeeds beside a second one on the same network; if so, expects
/// that the second is still masqueraded.
pub fn second_attachment_survives_del_of_the_first(lab: &Lab, backend: Option<&str>) -> bool {
    let (container, first, _) = lab.added(&conf(backend));
    let second = first.clone().ifname("net1");
    let result = second.add();
    let deleted = first.try_del().status == 0;
    if deleted {
        ips(&result).iter().for_each(|ip| assert_masqueraded(lab, &container, ip));
        second.del();
    }
    deleted
}

#[test]
fn del_of_one_attachment_keeps_the_masquerade_of_the_other() {
    for_each_peer("bridge", |lab| {
        lab.hide_iptables();
        assert!(second_attachment_survives_del_of_the_first(lab, Some("nftables")));
    });
    // With iptables the reference fails: see tests/differences.
    for_ours("bridge", |lab| {
        assert!(second_attachment_survives_del_of_the_first(lab, None));
        assert!(second_attachment_survives_del_of_the_first(lab, Some("iptables")));
    });
}

#[test]
fn a_repeated_add_with_the_same_address_adds_no_second_rule() {
    let address = json!([{"address": "10.10.0.7/24", "gateway": "10.10.0.1"}]);
    let routes = json!([{"dst": "0.0.0.0/0", "gw": "10.10.0.1"}]);
    let fixed = static_ipam(&conf(Some("nftables")), address, routes);
    for_each_peer("bridge", |lab| {
        lab.hide_iptables();
        let rules = || lab.host.sh("nft -s list ruleset");
        let (container, ..) = lab.added(&fixed);
        let once = rules();
        // A runtime that lost its state adds the same ID again with a new namespace.
        container.vanish();
        let (again, repeated) = lab.place(&fixed);
        let repeated = repeated.id(&container.id);
        repeated.add();
        assert_eq!(rules(), once);
        assert_masqueraded(lab, &again, "10.10.0.7");
        repeated.del();
        assert!(!rules().contains("10.10.0.7"));
    });
}

fn multicast_keeps_its_source(lab: &Lab) {
    for backend in BACKENDS {
        let (container, _, result) = lab.added(&conf(backend));
        // The host does not forward multicast, so the test looks at the source of announcements
        // that reach a neighbour.
        let (neighbour, ..) = lab.added(&conf(backend));
        neighbour
            .sh("echo 0 > /proc/sys/net/ipv4/icmp_echo_ignore_broadcasts; ip maddr add 01:00:5e:00:00:fb dev eth0");
        let ear = Ear::listen(&neighbour);
        assert_pings(&container, "10.10.0.1");
        container.try_sh("ping -n -q -c1 -W1 -I eth0 224.0.0.1");
        assert_eq!(ear.heard(), ips(&result)[..1], "{backend:?}");
    }
}

/// Leaves the state of a killed DEL or GC: the address is free and the link is gone, but the rules
/// remain.
fn lose_all_but_the_rules(container: &Container, attachment: &Attachment<'_>) {
    attachment.clone().conf(json!({"type": "host-local"})).del();
    container.sh("ip link del eth0");
}

/// Which of these addresses have a rule of iptables.
fn have_rules(lab: &Lab, addresses: &[String]) -> Vec<bool> {
    let rules = lab.host.sh("iptables -t nat -S; ip6tables -t nat -S");
    addresses.iter().map(|ip| rules.contains(&format!("-s {ip}/"))).collect()
}

/// Whether a later ADD removes all of these rules.
pub fn add_takes_the_rules_of_a_lost_one_with_it(lab: &Lab) -> bool {
    let (container, attachment, result) = lab.added(&conf(Some("iptables")));
    let gone = ips(&result);
    lose_all_but_the_rules(&container, &attachment);
    assert!(ips(&attachment.add()).iter().all(|ip| !gone.contains(ip)));
    have_rules(lab, &gone) == [false, false]
}

/// A case with two attachments of one container by iptables, of which the second is added here.
fn with_two(case: impl Fn(&Lab, &Container, [&Attachment<'_>; 2])) {
    for_ours("bridge", |lab| {
        let conf = conf(Some("iptables"));
        warm_up(lab, &conf);
        let (container, first, before) = lab.watched(&conf);
        case(lab, &container, [&first, &first.clone().ifname("net1")]);
        before.assert_unchanged("ADDs and DELs");
    });
}

/// The addresses of the first ADD are free for other containers, and no DEL receives them.
#[test]
fn a_second_add_without_del_removes_iptables_rules_of_the_first() {
    for has_other_interface in [false, true] {
        with_two(|lab, container, [first, other]| {
            let kept = if has_other_interface { ips(&other.add()) } else { vec![] };
            let gone = ips(&first.add());
            lose_all_but_the_rules(container, first);
            let now = first.add();
            assert_eq!(have_rules(lab, &gone), [false, false], "not the container's any more");
            let all: Vec<String> = ips(&now).into_iter().chain(kept.clone()).collect();
            assert!(have_rules(lab, &all).iter().all(|has| *has));
            first.check(&now).ok();
            first.clone().netns(None).call("DEL", Some(&now)).run().ok();
            assert!(have_rules(lab, &kept).iter().all(|has| *has));
            if has_other_interface {
                other.del();
            }
        });
    }
}

/// The second DEL receives no address, and the address it finds in the container belongs to the
/// other interface.
#[test]
fn a_repeated_del_keeps_the_other_interface_masqueraded() {
    with_two(|lab, container, [first, other]| {
        let [gone, kept] = [first, other].map(|attachment| ips(&attachment.add()));
        container
            .sh("ip link set eth0 down; ip link set eth0 name renamed; ip link set renamed up");
        first.del();
        assert_eq!(have_rules(lab, &gone), [false, false]);
        first.del();
        kept.iter().for_each(|ip| assert_masqueraded(lab, container, ip));
        other.del();
    });
}

/// The second ADD uses another backend, so it does not look at those rules.
#[test]
fn del_removes_rules_of_addresses_that_left_the_interface() {
    with_two(|lab, container, [first, other]| {
        let [_, kept] = [first, other].map(|attachment| ips(&attachment.add()));
        lose_all_but_the_rules(container, first);
        let second = first.clone().conf(json!({"ipMasqBackend": "nftables"}));
        let result = second.add();
        second.call("DEL", Some(&result)).run().ok();
        let rules = lab.host.sh("iptables -t nat -S; ip6tables -t nat -S");
        let leading = rules.lines().filter(|line| line.starts_with("-A POSTROUTING")).count();
        assert_eq!(leading, kept.len(), "{rules}");
        kept.iter().for_each(|ip| assert_masqueraded(lab, container, ip));
        other.del();
    });
}

each_case! { |case| for_each_peer("bridge", case);
    the_outside_sees_the_host_and_del_leaves_no_rule
    without_it_the_outside_sees_the_container
    containers_of_the_subnet_see_each_other_s_own_address
    the_host_sees_the_container_s_own_address
    multicast_keeps_its_source
}

// --- exemptions: by a key, by IPsec, by rules of an administrator's own ---

const NAMED_BACKENDS: [&str; 2] = ["nftables", "iptables"];

/// The networks of the peer outside, with host bits, twice, and one more.
fn exempt() -> Value {
    json!(["198.51.100.9/24", "192.0.2.0/24", "2001:db8:ffff::/64", "198.51.100.0/24"])
}

#[test]
fn issue_40_exempt_networks_see_the_container() {
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    for (plugin, backend) in
        ["bridge", "ptp"].iter().flat_map(|it| NAMED_BACKENDS.map(|of| (it, of)))
    {
        let plain = with(&conf(Some(backend)), json!({"type": plugin, "ipam": {"routes": routes}}));
        for_ours(plugin, |lab| {
            warm_up(lab, &plain);
            let before = Watch::start(lab, &[]);
            let (a, exempted, of_a) =
                lab.added(&with(&plain, json!({"nonMasqueradeCIDRs": exempt()})));
            let (b, other, of_b) = lab.added(&plain);
            ips(&of_a).iter().for_each(|ip| assert_not_masqueraded(lab, &a, ip));
            ips(&of_b).iter().for_each(|ip| assert_masqueraded(lab, &b, ip));
            exempted.check(&of_a).ok();
            other.check(&of_b).ok();
            exempted.clone().netns(None).conf(json!({"nonMasqueradeCIDRs": null})).del();
            other.check_and_del(&of_b);
            before.assert_unchanged(&format!("{plugin} with {backend}"));
        });
    }
}

/// flannel hands the key on, as it does with `ipMasq`.
#[test]
fn issue_40_flannel_takes_exemptions_in_its_delegate() {
    for_ours("flannel", |lab| {
        flannel::node(lab);
        let keys = json!({"cniVersion": "1.0.0", "name": "cbr0", "delegate": {"nonMasqueradeCIDRs": exempt()}});
        let (container, _, result) = lab.added(&with(&flannel::conf(), keys));
        ips(&result).iter().for_each(|ip| assert_not_masqueraded(lab, &container, ip));
    });
}

/// The configuration was changed while the container runs.
#[test]
fn issue_40_other_exemptions_fail_check() {
    for (backend, words) in
        NAMED_BACKENDS.into_iter().zip(["of other nonMasqueradeCIDRs", "of chain CNI-"])
    {
        for_ours("bridge", |lab| {
            let (_, attachment, result) = lab.added(&conf(Some(backend)));
            attachment.check(&result).ok();
            let changed = attachment.conf(json!({"nonMasqueradeCIDRs": exempt()}));
            changed.check(&result).fails(103, words);
        });
    }
}

/// The two ends of a tunnel for the containers' packets.
const TUNNEL: &str = "
    state='proto esp spi 0x40 reqid 40 mode tunnel aead rfc4106(gcm(aes)) 0x0102030405060708090a0b0c0d0e0f1011121314 128'
    set -e
    for at in '' '-n outside'; do
        ip $at xfrm state add src 198.51.100.1 dst 198.51.100.2 $state
        ip $at xfrm state add src 2001:db8:ffff::1 dst 2001:db8:ffff::2 $state
    done
    ip xfrm policy add src 10.10.0.0/16 dst 198.51.100.0/24 dir out \
        tmpl src 198.51.100.1 dst 198.51.100.2 proto esp reqid 40 mode tunnel
    ip xfrm policy add src 2001:db8:10::/48 dst 2001:db8:ffff::/64 dir out \
        tmpl src 2001:db8:ffff::1 dst 2001:db8:ffff::2 proto esp reqid 40 mode tunnel";

#[test]
fn issue_40_packets_of_ipsec_keep_their_source() {
    for_ours("bridge", |lab| {
        let (a, one, result) = lab.added(&conf(Some("nftables")));
        ips(&result).iter().for_each(|ip| assert_masqueraded(lab, &a, ip));
        if !lab.host.try_sh(TUNNEL).status.success() {
            return skip("IPsec in the kernel (xfrm_user, esp4, esp6)");
        }
        let (b, _, other) = lab.added(&conf(Some("nftables")));
        ips(&other).iter().for_each(|ip| assert_not_masqueraded(lab, &b, ip));
        one.check(&result).ok();
    });
}
