//! tap: an interface that exchanges its frames with a program.

mod cable;

use serde_json::{Value, json};

use self::cable::{Cable, open_as};
use super::stacked::eth0;
use crate::support::attachment::{Attachment, for_ours, ips, skip, with};
use crate::support::contract::{
    MainPlugin, assert_del_leaves_nothing, assert_mac_is_that_of_the_most_specific_source,
    assert_result_of_one_link, assert_shown,
};
use crate::support::failed_add::{Case, assert_fails, assert_refused, rows};
use crate::support::netns::Lab;
use crate::support::networks::bridge::warm_up;
use crate::support::networks::host_device::is_up;
use crate::support::networks::portmap::at;
use crate::support::networks::tap::{conf, layer_two, makes_taps};
use crate::support::peers::each_case;
use crate::support::traffic::{
    TcpServer, assert_carry_frames, assert_mtu_passes, assert_pings, connect,
};

fn dual_stack() -> Value {
    let ranges = json!([[{"subnet": "10.50.0.0/24"}], [{"subnet": "2001:db8:50::/64"}]]);
    let routes = json!([{"dst": "10.99.0.0/16"}, {"dst": "2001:db8:99::/48"}]);
    with(&conf(), json!({"ipam": {"subnet": null, "ranges": ranges, "routes": routes}}))
}

fn plugin() -> MainPlugin {
    MainPlugin { name: "tap", prepare: makes_taps }
}

fn data(link: &Value) -> &Value {
    assert_eq!(link["linkinfo"]["info_kind"], "tun");
    &link["linkinfo"]["info_data"]
}

#[test]
fn the_interface_is_a_lasting_tap_and_del_leaves_nothing() {
    let expected = json!({"type": "tap", "pi": false, "multi_queue": false, "persist": true});
    plugin().for_each_peer(|lab| {
        for (at, conf) in [conf(), dual_stack(), layer_two()].iter().enumerate() {
            let conf = with(conf, json!({"name": format!("net{at}")}));
            warm_up(lab, &conf);
            let (container, attachment, before) = lab.watched(&conf);
            let result = attachment.add();
            let link = eth0(&container);
            assert_eq!(with(data(&link), json!({"vnet_hdr": null})), expected);
            assert!(is_up(&container, "eth0"));
            attachment.check(&result).ok();
            assert_del_leaves_nothing(&attachment, &before);
        }
    });
}

fn programs_behind_two_taps_let_their_containers_talk(lab: &Lab) {
    for (changes, queues) in [(json!({}), 1), (json!({"multiQueue": true}), 1 + 1)] {
        let conf = with(&dual_stack(), changes);
        let (a, b) = (lab.container(), lab.container_of_process());
        let attachments = [&a, &b].map(|container| lab.attach(container, &conf));
        let [first, second] = attachments.each_ref().map(|attachment| ips(&attachment.add()));
        let _cable = Cable::join(lab, &a, &b, queues);
        let _server = TcpServer::start(&b, 80);
        assert_pings(&a, &second[0]);
        assert_pings(&b, &first[1]);
        for family in [0, 1] {
            assert_eq!(connect(&a, &at(&second[family], 80)).as_ref(), Some(&first[family]));
        }
        attachments.iter().for_each(Attachment::del);
    }
}

fn a_tap_of_several_queues_says_so(lab: &Lab) {
    let (a, b) = (lab.container(), lab.container());
    let conf = with(&layer_two(), json!({"multiQueue": true}));
    lab.attach(&a, &conf).add();
    assert_eq!(data(&eth0(&a))["multi_queue"], true);
    lab.attach(&b, &conf).add();
    let _cable = Cable::join(lab, &a, &b, 3);
    assert_eq!(data(&eth0(&a))["numqueues"], 3);
}

#[test]
fn result_says_what_the_kernel_has() {
    let told = ["10.50.0.2/24", "10.50.0.1", "10.99.0.0/16"];
    plugin().for_each_peer(|lab| {
        assert_result_of_one_link(lab, &conf(), told);
        let notifies = r#"{} | in: cat /proc/sys/net/ipv4/conf/eth0/arp_notify |  | 1"#;
        assert_shown(lab, &conf(), notifies);
    });
}

fn layer_two_taps_carry_frames_without_ipam(lab: &Lab) {
    for version in ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
        let conf = with(&layer_two(), json!({"cniVersion": version}));
        let (a, attachment, result) = lab.added(&conf);
        assert_eq!(result.get("ips").filter(|ips| **ips != json!([])), None, "{version}");
        assert!(is_up(&a, "eth0"));
        let (b, ..) = lab.added(&conf);
        let _cable = Cable::join(lab, &a, &b, 1);
        assert_carry_frames(&a, &b);
        if version >= "0.4.0" {
            attachment.check(&result).ok();
        }
        attachment.del();
    }
}

/// The bridge is in the container, as launchers of virtual machines set it up.
fn a_tap_is_a_port_of_a_bridge_of_the_container(lab: &Lab) {
    for base in [layer_two(), conf()] {
        let (a, b) = (lab.container(), lab.container());
        a.sh("ip link add br0 up type bridge && ip addr add 10.30.0.1/24 dev br0");
        let attachment = lab.attach(&a, &with(&base, json!({"bridge": "br0"})));
        let result = attachment.add();
        assert_eq!(eth0(&a)["master"], "br0");
        lab.attach(&b, &layer_two()).add();
        b.sh("ip addr add 10.30.0.2/24 dev eth0");
        {
            let _cable = Cable::join(lab, &a, &b, 1);
            assert_pings(&b, "10.30.0.1");
        }
        attachment.check(&result).ok();
        attachment.del();
        assert!(a.link("eth0").is_none());
        assert_eq!(a.addresses("br0"), ["10.30.0.1/24"], "the bridge stays");
    }
}

fn mtu_is_that_of_the_interface_and_the_largest_packet_passes(lab: &Lab) {
    let conf = with(&conf(), json!({"mtu": 5000}));
    let [(a, ..), (b, _, result)] = [(), ()].map(|()| lab.added(&conf));
    assert_eq!(eth0(&a)["mtu"], 5000);
    let _cable = Cable::join(lab, &a, &b, 1);
    assert_mtu_passes(&a, &ips(&result)[0], 5000);
}

fn the_mac_comes_from_the_most_specific_source(lab: &Lab) {
    for base in [conf(), layer_two()] {
        assert_mac_is_that_of_the_most_specific_source(lab, &base, None);
    }
}

/// The reference ignores mtu and mac if both owner and group are set: see tests/differences.
#[test]
fn owner_and_group_go_with_everything_else() {
    let all = json!({"mtu": 1400, "mac": "02:00:00:00:00:01", "multiQueue": true, "owner": 0, "group": 0});
    let flags = json!({"type": "tap", "pi": false, "multi_queue": true, "persist": true});
    plugin().for_ours(|lab| {
        for base in [conf(), layer_two()] {
            let (container, attachment, result) = lab.added(&with(&base, all.clone()));
            let link = eth0(&container);
            assert_eq!((&link["mtu"], &link["address"]), (&all["mtu"], &all["mac"]));
            let has = data(&link);
            for (key, value) in flags.as_object().unwrap() {
                assert_eq!(has[key], *value, "{key}");
            }
            assert!(has.get("user").is_some() && has.get("group").is_some(), "{has}");
            attachment.check_and_del(&result);
        }
    });
}

/// The owner and group can open the tap without privileges, and no other user can.
#[test]
fn owner_and_group_can_open_the_tap() {
    let cases = [
        (json!({"owner": 1000}), vec![(1000, 7)], vec![(1001, 7), (1001, 1000)]),
        (json!({"group": 2000}), vec![(7, 2000)], vec![(7, 2001), (2000, 7)]),
        (json!({"owner": 1000, "group": 2000}), vec![(1000, 2000)], vec![(1000, 7), (7, 2000)]),
    ];
    let refused = Err("eth0: Operation not permitted".to_owned());
    plugin().for_each_peer(|lab| {
        let as_another = "setpriv --reuid=1000 --regid=2000 --clear-groups true";
        if !lab.host.try_sh(as_another).status.success() {
            return skip("users beside root");
        }
        for (changes, may, may_not) in &cases {
            let (container, ..) = lab.added(&with(&layer_two(), changes.clone()));
            for (who, expected) in [(may_not, &refused), (may, &Ok(()))] {
                for (user, group) in who {
                    let opened = open_as(lab, &container, *user, *group);
                    assert_eq!(opened, *expected, "{changes}: {user}:{group}");
                }
            }
        }
    });
}

#[test]
fn check_looks_at_an_interface_without_addresses() {
    let conf = with(&layer_two(), json!({"mac": "02:00:00:00:00:01"}));
    let another = "ip link del eth0; ip link add eth0 address 02:00:00:00:00:01 type veth peer name other; ip link set eth0 up";
    for change in ["ip link set eth0 address 02:00:00:00:00:99", "ip link del eth0", another] {
        plugin().for_ours(|lab| {
            let (container, attachment, result) = lab.added(&conf);
            attachment.check(&result).ok();
            container.sh(change);
            attachment.check(&result).fails(103, "eth0");
            attachment.del();
        });
    }
}

pub fn failing() -> Vec<Case> {
    rows(
        r#"
IPAM plugin unknown | {"ipam": {"type": "no-such-ipam"}} | 104: no-such-ipam
IPAM refuses | {"ipam": {"subnet": "10.50.0.0/31"}} | 7: 10.50.0.0/31
route unreachable | {"ipam": {"routes": [{"dst": "10.98.0.0/16", "gw": "10.88.0.1"}]}} | 100: 10.88.0.1
mtu out of range | {"mtu": 100000} | 7: mtu: 100000
mtu too small | {"mtu": 40} | 7: mtu: 40
bad mac | {"mac": "02:00:00:00:00"} | 7: mac: "02:00:00:00:00"
mac of a group | {"mac": "03:00:00:00:00:01"} | 7: 03:00:00:00:00:01
bad mac of the runtime | {"runtimeConfig": {"mac": "x"}} | 7: runtimeConfig.mac: "x"
no such bridge | {"bridge": "br0"} | 7: bridge: "br0"
owner is a name | {"owner": "nobody"} | 6: owner | both
group is negative | {"group": -1} | 7: group | both
owner beyond 32 bits | {"owner": 4294967296} | 7: owner | both
multiQueue is a number | {"multiQueue": 4} | 6: multiQueue | both
"#,
    )
}

#[test]
fn add_fails_and_nothing_has_changed() {
    for base in [conf(), layer_two()] {
        for case in failing() {
            if base.get("ipam").is_none() && case.changes.get("ipam").is_some() {
                continue;
            }
            plugin().for_each_peer(|lab| assert_fails(lab, &base, &case));
        }
    }
}

/// Failures that the reference does not detect: see tests/differences.
#[test]
fn add_that_the_kernel_cannot_serve_fails_and_leaves_nothing() {
    let cases = rows(
        r#"
interface exists | {} | 102: eth0 | in: ip link add eth0 type veth peer name other
a second name is taken | {} | 102: eth0 | in: ip link add other type veth peer name more && ip link property add dev other altname eth0
a tap exists | {} | 102: eth0 | in: ip tuntap add eth0 mode tap
the bridge is none | {"bridge": "br0"} | 7: br0 | in: ip link add br0 type veth peer name other
a user that nobody can be | {"owner": 4294967295} | 7: owner: 4294967295
a group that nobody can be | {"group": 4294967295} | 7: group: 4294967295
"#,
    );
    for base in [conf(), layer_two()] {
        cases.iter().for_each(|case| plugin().for_ours(|lab| assert_fails(lab, &base, case)));
    }
}

#[test]
fn a_context_of_selinux_needs_a_kernel_with_it() {
    plugin().for_ours(|lab| {
        if lab.host.try_sh("grep -qw selinuxfs /proc/filesystems").status.success() {
            return; // a kernel with SELinux accepts the context
        }
        let context = json!({"selinuxContext": "system_u:system_r:container_t:s0"});
        let words = "selinuxContext: \"system_u:system_r:container_t:s0\"";
        assert_refused(lab, &with(&conf(), context), 7, words);
    });
}

#[test]
fn a_host_without_the_tun_driver_gets_an_error_that_says_so() {
    // The reference's STATUS asks only the IPAM plugin.
    for_ours("tap", |lab| {
        lab.host.sh("mount -t tmpfs empty /dev/net");
        for base in [conf(), layer_two()] {
            let conf = with(&base, json!({"cniVersion": "1.1.0"}));
            let (_, attachment, before) = lab.watched(&conf);
            attachment.status().fails(50, "/dev/net/tun");
            let error = attachment.try_add().err();
            assert!(error.text().contains("/dev/net/tun"), "{error:?}");
            attachment.del();
            before.assert_unchanged("the refused ADD");
        }
    });
}

// --- `selinuxContext`, without a policy: initial contexts are built into the kernel ---

/// Not `kernel`, which every process has without a policy.
const CONTEXT: &str = "unlabeled";

/// Since Linux 6.8 a program that is executed gets the context `init` as long as there is no policy.
fn changes_contexts(lab: &Lab) -> bool {
    let executed = lab.host.try_sh(&format!(
        "printf {CONTEXT} >/proc/self/attr/exec && exec grep -aw {CONTEXT} /proc/self/attr/current"
    ));
    let changes = executed.status.success();
    if !changes {
        skip("SELinux that changes contexts without a policy, as before Linux 6.8");
    }
    changes
}

/// The command line of a process in that context. The test delays the creation of the tap, so that
/// the process can be observed.
fn seen_in_context(lab: &Lab) -> String {
    lab.host.sh(&format!(
        "for try in $(seq 600); do
            for context in $(grep -lsaw {CONTEXT} /proc/[0-9]*/attr/current); do
                line=$(tr '\\0' ' ' <${{context%/attr/current}}/cmdline) && echo \"$line\" && exit
            done
            sleep 0.05
        done"
    ))
}

fn the_tap_is_made_in_the_context_asked_for(lab: &Lab) {
    if !changes_contexts(lab) {
        return;
    }
    let own = json!({"selinuxContext": CONTEXT, "owner": 1000, "group": 1001, "multiQueue": true});
    let (container, attachment, before) = lab.watched(&with(&layer_two(), own));
    let mut call = attachment.call("ADD", None);
    let strace = "strace -f -qq -o /dev/null -e trace=ioctl -e inject=ioctl:delay_enter=2000000";
    call.wrapper.extend(strace.split(' ').map(str::to_owned));
    let maker = std::thread::scope(|scope| {
        let adding = scope.spawn(|| call.run().ok());
        let maker = seen_in_context(lab);
        adding.join().unwrap();
        maker
    });
    assert!(maker.contains("tap"), "it makes the tap: {maker:?}");
    let link = eth0(&container);
    let has = data(&link);
    assert_eq!((&has["type"], &has["multi_queue"]), (&json!("tap"), &json!(true)), "{has}");
    assert!(has.get("user").is_some() && has.get("group").is_some(), "{has}");
    attachment.del();
    before.assert_unchanged("ADD");
}

each_case! { |case| plugin().for_each_peer(case);
    programs_behind_two_taps_let_their_containers_talk
    a_tap_of_several_queues_says_so
    layer_two_taps_carry_frames_without_ipam
    a_tap_is_a_port_of_a_bridge_of_the_container
    mtu_is_that_of_the_interface_and_the_largest_packet_passes
    the_mac_comes_from_the_most_specific_source
    the_tap_is_made_in_the_context_asked_for
}
