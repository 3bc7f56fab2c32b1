//! Each plugin works with the capabilities of the table; without one of them, ADD names it and
//! leaves nothing.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::docs::{Page, code_spans};
use crate::plugins::main::bridge::del;
use crate::support::attachment::{Attachment, for_ours, skip, with};
use crate::support::call::{Outcome, farm};
use crate::support::netns::{Container, Lab};
use crate::support::networks::bandwidth::{both, can_limit};
use crate::support::networks::portmap::{portmap, web};
use crate::support::networks::route_override::every_key;
use crate::support::networks::tuning::tuning;
use crate::support::networks::vrf::has_vrf;
use crate::support::networks::{bond, bridge, dummy, flannel, host_device, ovs, stacked, tap};
use crate::support::snapshot::Watch;

/// Prepares the attachment of a row. None, with a skip, if the kernel lacks a feature.
type Prepare = for<'a> fn(&'a Lab, &Container) -> Option<Attachment<'a>>;

/// Makes a test for each row of the table.
macro_rules! rows {
    ($($test:ident: $row:literal => $prepare:expr,)+) => {
        const ROWS: &[&str] = &[$($row),+];
        mod the_table_says_what_is_needed_by {
            use super::*;
            $(
                #[test]
                fn $test() {
                    sweep($row, $prepare);
                }
            )+
        }
    };
}

rows! {
    loopback: "`loopback`" => |lab, container| {
        let conf = json!({"cniVersion": "1.1.0", "name": "lo", "type": "loopback"});
        Some(lab.attach(container, &conf).ifname("lo"))
    },
    bridge: "`bridge`" => |lab, container| main(lab, container, &del::everything("nftables")),
    ptp: "`ptp`" => |lab, container| {
        main(lab, container, &with(&bridge::conf(), json!({"type": "ptp", "ipMasq": true, "ipMasqBackend": "nftables"})))
    },
    macvlan: "`macvlan`" => |lab, container| main(lab, container, &stacked::MACVLAN.conf()),
    ipvlan: "`ipvlan`" => |lab, container| stacked(lab, container, &stacked::IPVLAN),
    vlan: "`vlan`" => |lab, container| stacked(lab, container, &stacked::VLAN),
    host_device: "`host-device`" => |lab, container| {
        host_device::device(lab);
        main(lab, container, &host_device::leased())
    },
    dummy: "`dummy`" => |lab, container| dummy::makes_dummies(lab).then(|| main(lab, container, &dummy::conf()))?,
    tap: "`tap`" => |lab, container| tap::makes_taps(lab).then(|| main(lab, container, &tap::conf()))?,
    flannel: "`flannel`" => |lab, container| {
        flannel::node(lab);
        main(lab, container, &with(&flannel::conf(), json!({"name": "net1"})))
    },
    bond: "`bond`" => |lab, container| bond::with_ports(lab).then(|| main(lab, container, &bond::leased()))?,
    ovs: "`ovs`" => |lab, container| ovs::node(lab).then(|| main(lab, container, &ovs::conf()))?,
    host_local: "`host-local`" => |lab, container| main(lab, container, &with(&bridge::conf(), json!({"type": "host-local"}))),
    cluster_local: "`cluster-local`" => |lab, container| {
        let ipam = json!({"type": "cluster-local", "scope": "machine", "ranges": [[{"subnet": "10.1.2.0/24"}]]});
        let conf = json!({"name": "net1", "type": "cluster-local", "ipam": ipam});
        main(lab, container, &conf)
    },
    whereabouts: "`whereabouts`" => |lab, container| {
        let ipam = json!({"type": "whereabouts", "scope": "machine", "range": "10.1.2.0/24"});
        let conf = json!({"name": "net1", "type": "whereabouts", "ipam": ipam});
        main(lab, container, &conf)
    },
    static_: "`static`" => |lab, container| {
        let conf = bridge::static_ipam(&bridge::conf(), json!([{"address": "10.10.0.2/24"}]), json!([]));
        main(lab, container, &with(&conf, json!({"type": "static"})))
    },
    portmap: "`portmap`" => |lab, container| meta(lab, container, &super::portmap(None, json!([web()]))),
    firewall: "`firewall`" => |lab, container| meta(lab, container, &json!({"type": "firewall"})),
    tuning: "`tuning`" => |lab, container| {
        let tuned = json!({"sysctl": {"net.core.somaxconn": "517"}, "mtu": 1400, "mac": "02:00:00:00:00:17"});
        meta(lab, container, &super::tuning(tuned))
    },
    bandwidth: "`bandwidth`" => |lab, container| can_limit(lab).then(|| meta(lab, container, &both()))?,
    sbr: "`sbr`" => |lab, container| meta(lab, container, &json!({"type": "sbr"})),
    vrf: "`vrf`" => |lab, container| has_vrf(container).then(|| meta(lab, container, &json!({"type": "vrf", "vrfname": "v"})))?,
    route_override: "`route-override`" => |lab, container| meta(lab, container, &every_key()),
    masquerading_by_iptables: "masquerading by iptables" => |lab, container| main(lab, container, &del::everything("iptables")),
    portmap_by_iptables: "`portmap` by iptables" => |lab, container| meta(lab, container, &super::portmap(Some("iptables"), json!([web()]))),
    a_namespace_named_by_a_process: "a namespace named by a process" => |lab, container| main(lab, container, &bridge::conf()),
    leases_in_another_user_s_directory: "leases in another user's directory" => |lab, container| {
        let made = lab.host.try_sh("mkdir -m 700 /run/theirs && chown 1000 /run/theirs");
        if !made.status.success() {
            skip("root, for a directory of another user");
            return None;
        }
        main(lab, container, &with(&bridge::conf(), json!({"ipam": {"dataDir": "/run/theirs"}})))
    },
}

fn main<'a>(lab: &'a Lab, container: &Container, conf: &Value) -> Option<Attachment<'a>> {
    Some(lab.attach(container, &with(conf, json!({"cniVersion": "1.1.0"}))))
}

fn stacked<'a>(
    lab: &'a Lab,
    container: &Container,
    kind: &stacked::Stacked,
) -> Option<Attachment<'a>> {
    kind.is_in(lab).then(|| main(lab, container, &kind.conf()))?
}

fn meta<'a>(lab: &'a Lab, container: &Container, conf: &Value) -> Option<Attachment<'a>> {
    let network =
        with(&bridge::dual_stack(), json!({"cniVersion": "1.1.0", "isDefaultGateway": true}));
    Some(lab.chain_in(container, "eth0", &network, conf).also(conf))
}

/// The table of SECURITY.md: the first cell of each row, and its capabilities.
fn table() -> Vec<(String, Vec<String>)> {
    let rows = Page::read("SECURITY.md").rows(Some("Capabilities of a plugin"));
    rows.into_iter().map(|row| (row[0].clone(), code_spans(&row[1]))).collect()
}

/// A call by a process with these capabilities only.
fn with_only(
    attachment: &Attachment<'_>,
    command: &str,
    result: Option<&Value>,
    kept: &[&String],
) -> Outcome {
    let added = |name: &&String| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase());
    let kept: String = kept.iter().map(added).collect();
    let mut call = attachment.call(command, result);
    let words = ["setpriv", "--bounding-set", &format!("-all{kept}"), "--"];
    call.wrapper.extend(words.map(str::to_owned));
    call.run()
}

fn sweep(row: &str, prepare: Prepare) {
    let needed =
        table().into_iter().find_map(|(of, needed)| (of == row).then_some(needed)).unwrap();
    for_ours("bridge", |lab| {
        let is_of_process = row.starts_with("a namespace named");
        let container = if is_of_process { lab.container_of_process() } else { lab.container() };
        let Some(attachment) = prepare(lab, &container) else { return };
        let is_repeatable = !["`sbr`", "`vrf`", "`route-override`"].contains(&row); // their changes go with the interface only
        if is_repeatable {
            attachment.add();
            attachment.del(); // leaves what may stay after DEL
        }
        let before = Watch::start(lab, &[&container]);
        let all: Vec<&String> = needed.iter().collect();
        let result = with_only(&attachment, "ADD", None, &all).ok();
        for command in ["CHECK", "STATUS", "DEL"] {
            with_only(&attachment, command, Some(&result), &all).ok();
        }
        if is_repeatable {
            before.assert_unchanged(&format!("{row} with what the table says"));
        }
        for lacking in &needed {
            let rest: Vec<&String> = needed.iter().filter(|name| *name != lacking).collect();
            let call =
                |container, attachment| Lacking { lab, container, attachment, lacking, rest };
            if is_repeatable {
                let call = call(&container, &attachment);
                call.add_fails_and_leaves_nothing();
                call.del_leaves_the_rest_to_the_next();
            } else {
                let container = lab.container();
                let attachment = prepare(lab, &container).unwrap();
                call(&container, &attachment).add_fails_and_leaves_nothing();
            }
        }
    });
}

/// An attachment of a container, by a process that lacks one of the capabilities it needs.
struct Lacking<'a> {
    lab: &'a Lab,
    container: &'a Container,
    attachment: &'a Attachment<'a>,
    lacking: &'a str,
    rest: Vec<&'a String>,
}

impl Lacking<'_> {
    fn add_fails_and_leaves_nothing(&self) {
        let (lab, lacking) = (self.lab, self.lacking);
        let before = Watch::start(lab, &[self.container]);
        let error = with_only(self.attachment, "ADD", None, &self.rest).err();
        let (_, missing) = error.details.split_once("the process lacks ").unwrap_or_default();
        assert!(missing.contains(lacking), "without {lacking}: {error:?}");
        before.assert_unchanged(&format!("ADD without {lacking}"));
    }

    /// DEL without the capability either removes everything, or names it and leaves the rest to the
    /// next DEL.
    fn del_leaves_the_rest_to_the_next(&self) {
        let (lab, lacking, attachment) = (self.lab, self.lacking, self.attachment);
        let before = Watch::start(lab, &[self.container]);
        let result = attachment.add();
        let outcome = with_only(attachment, "DEL", Some(&result), &self.rest);
        if outcome.status != 0 {
            let error = outcome.err();
            assert!(error.text().contains(lacking), "without {lacking}: {error:?}");
            attachment.call("DEL", Some(&result)).run().ok();
        }
        before.assert_unchanged(&format!("DEL without {lacking}"));
    }
}

#[test]
fn the_table_has_every_plugin_and_each_row_is_tried() {
    let table = table();
    let rows: BTreeSet<&str> = table.iter().map(|(row, _)| row.as_str()).collect();
    assert_eq!(rows, ROWS.iter().copied().chain(["`dhcp`"]).collect());
    let named: BTreeSet<String> = rows.iter().flat_map(|row| code_spans(row)).collect();
    let plugins = std::fs::read_dir(farm()).unwrap();
    let plugins = plugins.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(named, plugins.filter(|name| name != "cnitool").collect());
}
