//! ADD on a kernel that lacks a kind of link: the error names the module and modprobe. Kinds that
//! this kernel has are refused by the tracer, as the kernel refuses a kind that it lacks.

use nix::errno::Errno;
use nix::libc;
use serde_json::{Value, json};

use crate::support::attachment::{Attachment, for_ours, skip, with};
use crate::support::call::Call;
use crate::support::netns::Lab;
use crate::support::networks::{bandwidth, bond, bridge};
use crate::support::snapshot::Watch;
use crate::support::tracer::{Stop, Then, trace};

const RTM_NEWLINK: u16 = 16;

/// A configuration of each plugin that creates a link, the link's kind, and its module.
fn makers() -> [(Value, &'static str, &'static str); 10] {
    let ipam =
        json!({"type": "static", "addresses": [{"address": "10.9.0.2/24", "gateway": "10.9.0.1"}]});
    let leased = |changes: Value| {
        with(&json!({"cniVersion": "1.0.0", "name": "net1", "ipam": ipam}), changes)
    };
    let vrf = json!({"cniVersion": "1.0.0", "name": "net1", "type": "vrf", "vrfname": "blue"});
    [
        (bridge::conf(), "bridge", "bridge"),
        (bridge::conf(), "veth", "veth"),
        (leased(json!({"type": "ptp"})), "veth", "veth"),
        (leased(json!({"type": "dummy"})), "dummy", "dummy"),
        (leased(json!({"type": "ipvlan", "master": "uplink"})), "ipvlan", "ipvlan"),
        (leased(json!({"type": "macvlan", "master": "uplink"})), "macvlan", "macvlan"),
        (leased(json!({"type": "vlan", "master": "uplink", "vlanId": 7})), "vlan", "8021q"),
        (leased(json!({"type": "tap"})), "tun", "tun"),
        (vrf, "vrf", "vrf"),
        (with(&bond::layer_two(), json!({"cniVersion": "1.0.0"})), "bond", "bonding"),
    ]
}

#[test]
fn add_names_the_module_of_a_missing_kind_of_link() {
    for (conf, kind, module) in makers() {
        for_ours(conf["type"].as_str().unwrap(), |lab| {
            let container = lab.container();
            let attachment = match kind {
                "vrf" => vrf_of(lab, &conf),
                "bond" => {
                    bond::ports(lab);
                    lab.attach(&container, &conf)
                }
                _ => lab.attach(&container, &conf),
            };
            let before = Watch::start(lab, &[&container]);
            assert_names(&attachment.call("ADD", None), kind, module);
            before.assert_unchanged(&format!("a refused ADD of {kind}"));
        });
    }
}

#[test]
fn bandwidth_names_the_module_of_its_ifb() {
    for_ours("bandwidth", |lab| {
        let chain = lab.chain(&bandwidth::network(), &bandwidth::both());
        assert_names(&chain.call("ADD", None), "ifb", "ifb");
    });
}

/// The kernel refuses some properties and lower links with the same errno.
#[test]
fn a_refused_property_does_not_blame_the_module() {
    for_ours("macvlan", |lab| {
        let (conf, kind, _) = makers()[5].clone();
        if !lab.host.try_sh("ip link add link uplink name probe type macvlan").status.success() {
            return skip("macvlan");
        }
        lab.host.sh("ip link del probe");
        let call = lab.attach(&lab.container(), &conf).call("ADD", None);
        let mut refused = false;
        let traced = trace(&call, |stop| {
            let refuses = !refused && creates(stop, kind);
            refused |= refuses;
            if refuses { Then::fail(Errno::EOPNOTSUPP) } else { Then::Go }
        });
        let error = traced.outcome.err();
        assert!(refused && error.msg.contains("operation not supported"), "{error:?}");
        assert!(!error.details.contains("modprobe"), "{error:?}");
    });
}

/// The VRF plugin runs behind another that has made the container's interface.
fn vrf_of<'a>(lab: &'a Lab, conf: &Value) -> Attachment<'a> {
    let container = lab.container();
    container.sh("ip link add eth0 type veth peer name other");
    let interface = json!({"name": "eth0", "sandbox": container.netns});
    let prev = json!({"cniVersion": "1.0.0", "interfaces": [interface], "ips": []});
    lab.attach(&container, &with(conf, json!({"prevResult": prev})))
}

#[track_caller]
fn assert_names(call: &Call, kind: &str, module: &str) {
    let error = trace(call, |stop| match (creates(stop, kind), opens_tun(stop, kind)) {
        (true, _) => Then::fail(Errno::EOPNOTSUPP),
        (_, true) => Then::fail(Errno::ENOENT),
        (false, false) => Then::Go,
    })
    .outcome
    .err();
    let advice =
        format!("the kernel's module {module} is missing; load it with: modprobe {module}");
    assert!(error.details.contains(&advice), "{kind}: {error:?}");
    assert!(!error.details.contains("undo: "), "{kind}: {error:?}");
}

/// Whether a system call requests a link of this kind.
fn creates(stop: &Stop, kind: &str) -> bool {
    if stop.call != libc::SYS_sendto || stop.result.is_some() || !stop.is_netlink() {
        return false;
    }
    let message = stop.memory(stop.args[1], stop.args[2] as usize);
    // rtnetlink(7): IFLA_INFO_KIND, its length in front
    let length = (kind.len() + 4) as u16;
    let attributes = [0, 1].map(|nul| {
        let header = [length + nul, 1].map(u16::to_ne_bytes).concat();
        [header, kind.as_bytes().to_vec()].concat()
    });
    let has = |part: &Vec<u8>| message.windows(part.len()).any(|window| window == part);
    stop.netlink_type() == RTM_NEWLINK && attributes.iter().any(has)
}

fn opens_tun(stop: &Stop, kind: &str) -> bool {
    kind == "tun"
        && stop.call == libc::SYS_openat
        && stop.result.is_none()
        && stop.text(1) == "/dev/net/tun"
}
