//! What every plugin owes a runtime, of whatever kind it is: each row of `support::subject`, a plugin with all of its
//! features or a whole list, is attached, checked and detached in every way that a runtime may have to.

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, EVERY_VERSION, for_reference, ips, with};
use crate::support::netns::{Container, Lab};
use crate::support::networks::host_device::device;
use crate::support::networks::stacked::hasty_container;
use crate::support::snapshot::Watch;
use crate::support::subject::{Subject, all, test_each_subject};

/// The plugins that assign addresses and open no namespace.
const IPAM: [&str; 4] = ["host-local", "static", "cluster-local", "whereabouts"];

/// Plugins whose links carry frames without addresses.
const LAYER_TWO: [&str; 5] = ["bridge", "macvlan", "tap", "host-device", "ovs"];

/// One attachment to the subject's list, as a runtime makes it.
struct Member<'a> {
    container: Container,
    plugins: Vec<Attachment<'a>>,
}

impl<'a> Member<'a> {
    fn of(lab: &'a Lab, subject: &Subject) -> Member<'a> {
        Member::within(lab, subject, hasty_container)
    }

    fn within(lab: &'a Lab, subject: &Subject, make: fn(&Lab) -> Container) -> Member<'a> {
        if subject.name == "vlan" {
            // The kernel ends a namespace a moment later, and its VLAN is taken until then.
            lab.host.sh(
                "for n in $(seq 400); do ip link add link uplink name probe0 type vlan id 100 2>/dev/null &&
                     ip link del probe0 && exit 0; sleep 0.05; done; exit 1",
            );
        }
        if subject.name == "host-device" && lab.host.link("dev0").is_none() {
            device(lab); // the last one has gone with its namespace
        }
        let container = make(lab);
        let plugins = subject.attach(lab, &container);
        Member { container, plugins }
    }

    /// The result of each ADD.
    fn add(&self) -> Vec<Value> {
        let mut results = vec![];
        for plugin in &self.plugins {
            results.push(plugin.call("ADD", results.last()).run().ok());
        }
        results
    }

    /// As `add`. Below version 0.4.0 there is no CHECK to fail after an ADD that does nothing.
    fn add_watched(&self, lab: &Lab) -> Vec<Value> {
        let mut results = vec![];
        for plugin in &self.plugins {
            let before = Watch::start(lab, &[&self.container]);
            results.push(plugin.call("ADD", results.last()).run().ok());
            let is_seen = results.len() == 1 || !before.changes_now().is_empty();
            assert!(is_seen, "no change by {}", plugin.conf);
        }
        results
    }

    fn check(&self, result: &Value) {
        self.plugins.iter().for_each(|plugin| assert_eq!(plugin.check(result).ok(), Value::Null));
    }

    fn del(&self, change: impl Fn(Attachment<'a>) -> Attachment<'a>) {
        self.plugins.iter().rev().for_each(|plugin| change(plugin.clone()).del());
    }
}

/// What DEL has no use for, in no form that ADD takes.
fn undecodable() -> Value {
    json!({"mtu": "large", "mode": 5, "vlanId": "x", "mac": 7, "bcqueuelen": -1, "links": "many", "linkInContainer": "yes", "master": 7,
           "backend": 7, "ingressPolicy": 7, "ingressRate": -1, "shapedSubnets": ["hello"], "table": "x", "vrfname": -1,
           "sysctl": 7, "ipMasq": "no", "delegate": 7, "args": 7, "runtimeConfig": {"portMappings": 7, "bandwidth": "wide"}})
}

fn container_of_process(lab: &Lab) -> Container {
    let container = lab.container_of_process();
    container.sh("echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad");
    container
}

fn keeps_the_contract(lab: &Lab, subject: &Subject) {
    // The kernel keeps some state in a namespace: the addresses of `lo` after its first start, and the rule of the first
    // VRF.
    let member = Member::of(lab, subject);
    let result = member.add().pop().unwrap();
    member.check(&result);
    member.del(|plugin| plugin.conf(json!({"prevResult": result})));
    let before = Watch::start(lab, &[&member.container]);

    member.del(|plugin| plugin);
    before.assert_unchanged("DEL before ADD");
    let results = member.add();
    let result = results.last().unwrap();
    member.check(result);
    for plugin in &member.plugins {
        assert_eq!(plugin.status().ok(), Value::Null);
        plugin.call("GC", None).run().ok(); // without the list of valid attachments GC frees nothing
        assert_check_needs_the_result(plugin);
    }
    assert_check_looks_for_link_and_lease(lab, &member, result);
    member.check(result);
    member.del(|plugin| plugin.conf(json!({"prevResult": result})));
    before.assert_unchanged("ADD and DEL");
    member.del(|plugin| plugin.conf(json!({"prevResult": result})));
    before.assert_unchanged("the second DEL");
    member.add();
    member.del(|plugin| plugin.conf(json!({"runtimeConfig": null})));
    before.assert_unchanged("ADD and DEL without what the runtime knew");
    member.add();
    member.del(|plugin| plugin.conf(undecodable()).args("COLOUR=red;MAC=y;;"));
    before.assert_unchanged("ADD and DEL with a configuration that cannot be decoded");
    drop(before);
    if subject.name != "bond" {
        survives_its_namespace(lab, subject); // its ports go with their peers when a namespace ends
    }
    needs_its_namespace(lab, subject);
    speaks_every_version(lab, subject, &results[0]);
    if subject.plugins.len() == 1 && LAYER_TWO.contains(&subject.name) {
        old_versions_need_addresses(lab, subject);
    }
}

/// The plugin of a link asks those of addresses, with its result; lo has what the kernel gives it.
fn assert_check_needs_the_result(plugin: &Attachment<'_>) {
    let outcome = plugin.call("CHECK", None).run();
    let kind = plugin.conf["type"].as_str().unwrap();
    if kind != "loopback" && !IPAM.contains(&kind) {
        let error = outcome.err();
        assert!(error.code == 7 && error.text().contains("prevResult"), "{error:?}");
    }
}

/// CHECK fails in another namespace, in one that is gone, for another name and without the lease.
fn assert_check_looks_for_link_and_lease(lab: &Lab, member: &Member<'_>, result: &Value) {
    let main = &member.plugins[0];
    let kind = main.conf["type"].as_str().unwrap();
    if kind == "loopback" || IPAM.contains(&kind) {
        return;
    }
    let elsewhere = lab.container();
    let there = main.clone().netns(Some(&elsewhere.netns));
    there.check(result).err();
    elsewhere.vanish();
    there.check(result).err();
    main.clone().ifname("net1").check(result).err();
    let lease = format!("/var/lib/cni/networks/net1/{}", ips(result)[0]);
    lab.host.sh(&format!("mv {lease} /run/lease"));
    main.check(result).fails(103, " held "); // by its attachment
    lab.host.sh(&format!("mv /run/lease {lease}"));
}

/// A device of the host ends with its peer, and with its namespace, which the kernel destroys with a delay.
fn lose_device(lab: &Lab) {
    lab.outside.try_sh("ip link del peer0");
}

/// DEL of a container that is gone: its namespace is deleted, or its mount point is left as a plain file. The runtime
/// may know nothing but the keys by then.
fn survives_its_namespace<'a>(lab: &'a Lab, subject: &Subject) {
    type Way<'s> = (&'s str, fn(&Lab) -> Container, fn(&Container), Option<&'s str>);
    let ways: [Way<'_>; 3] = [
        ("vanished", hasty_container, Container::vanish, None),
        ("a stale file", hasty_container, Container::go_stale, Some("")),
        ("of a process", container_of_process, Container::vanish, None),
    ];
    lose_device(lab);
    let before = Watch::start(lab, &[]);
    for (what, make, end, no_netns) in ways {
        let only_the_keys =
            |plugin: Attachment<'a>| plugin.netns(no_netns).conf(json!({"runtimeConfig": null}));
        let member = Member::within(lab, subject, make);
        member.add();
        end(&member.container);
        lose_device(lab);
        member.del(|plugin| plugin);
        before.assert_unchanged(what);
        let member = Member::within(lab, subject, make);
        member.add();
        end(&member.container);
        lose_device(lab);
        member.del(only_the_keys);
        before.assert_unchanged(&format!("{what}, DEL with nothing but the keys"));
        member.del(only_the_keys);
        before.assert_unchanged(&format!("{what}, the second DEL"));
    }
    if subject.plugins.len() == 1 {
        return;
    }
    // The namespace lives, and the runtime passes it to the main plugin alone.
    let member = Member::of(lab, subject);
    member.add();
    let main = &subject.plugins[0]["type"];
    member.del(|plugin| if plugin.conf["type"] == *main { plugin } else { plugin.netns(None) });
    before.assert_unchanged("DEL of the chained plugins without CNI_NETNS");
}

/// ADD without the namespace fails and leaves nothing; that of an IPAM plugin, which does not open it, succeeds.
fn needs_its_namespace(lab: &Lab, subject: &Subject) {
    for end in [Container::vanish as fn(&Container), Container::go_stale] {
        let member = Member::of(lab, subject);
        end(&member.container);
        let before = Watch::start(lab, &[]);
        let outcome = member.plugins[0].try_add();
        let kind = subject.plugins[0]["type"].as_str().unwrap();
        assert_eq!(outcome.status == 0, IPAM.contains(&kind), "{outcome:?}");
        if outcome.status != 0 {
            let error = outcome.err();
            assert_eq!(error.code, 4, "{error:?}");
            assert!(error.text().contains(&member.container.netns), "{error:?}");
            before.assert_unchanged("the failed ADD");
        }
        member.plugins[0].del();
        before.assert_unchanged("ADD without the namespace, and DEL");
    }
}

/// What ADD adds in an older version is the newest result in the form of that version, with what the container has.
fn in_form_of(version: &str, newest: &Value, result: &Value, container: &Container) -> Value {
    let (is_old, is_newest) = (version < "0.3.0", version >= "1.0.0");
    let old = |ip: &Value| format!("ip{}", if is_v6(&ip["address"]) { 6 } else { 4 });
    let mut expected = with(newest, json!({"cniVersion": version, "dns": {}}));
    let now = match newest.get("interfaces") {
        Some(_) => container.addresses("eth0"),
        None if is_old => {
            [&result["ip4"]["ip"], &result["ip6"]["ip"]].into_iter().filter_map(text).collect()
        }
        None => {
            result["ips"].as_array().unwrap().iter().filter_map(|ip| text(&ip["address"])).collect()
        }
    };
    for (ip, address) in expected["ips"].as_array_mut().unwrap().iter_mut().zip(now) {
        ip["address"] = json!(address);
        if !is_newest {
            ip["version"] = json!(&old(ip)[2..]);
        }
    }
    if newest.get("interfaces").is_some() && !is_old {
        let link = container.link("eth0").unwrap();
        let last = newest["interfaces"].as_array().unwrap().len() - 1;
        expected["interfaces"] = result["interfaces"].clone(); // those of the host have other names
        expected["interfaces"].as_array_mut().unwrap().truncate(last + 1);
        let own = json!({"name": "eth0", "mac": link["address"], "sandbox": container.netns});
        expected["interfaces"][last] = own;
    }
    if is_newest {
        return with(&expected, json!({"dns": newest.get("dns")}));
    }
    if !is_old {
        return expected;
    }
    let mut oldest = json!({"cniVersion": version, "dns": {}});
    for ip in expected["ips"].as_array().unwrap() {
        let of_family = |route: &&Value| is_v6(&route["dst"]) == is_v6(&ip["address"]);
        let routes: Vec<&Value> =
            newest["routes"].as_array().into_iter().flatten().filter(of_family).collect();
        let routes = if routes.is_empty() { Value::Null } else { json!(routes) };
        let own = json!({"ip": ip["address"], "gateway": ip["gateway"], "routes": routes});
        oldest[old(ip)] = with(&json!({}), own);
    }
    oldest
}

fn is_v6(address: &Value) -> bool {
    address.as_str().unwrap().contains(':')
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// A chained plugin passes on what it got, but for what it changes itself; the result has the form of the version.
fn speaks_every_version(lab: &Lab, subject: &Subject, newest: &Value) {
    let changes_the_result = ["tuning", "bandwidth", "route-override"];
    let speaks = |plugin: &Attachment<'_>, version: &str| {
        plugin.call("VERSION", None).run().ok()["supportedVersions"]
            .as_array()
            .unwrap()
            .contains(&json!(version))
    };
    let before = Watch::start(lab, &[]);
    for version in EVERY_VERSION {
        let mut member = Member::of(lab, subject);
        for plugin in &mut member.plugins {
            plugin.conf = with(&plugin.conf, json!({"cniVersion": version}));
        }
        let name = version.unwrap_or("0.1.0");
        if !member.plugins.iter().all(|plugin| speaks(plugin, name)) {
            continue;
        }
        let results = if name < "0.4.0" { member.add_watched(lab) } else { member.add() };
        for (at, plugin) in member.plugins.iter().enumerate() {
            assert_eq!(results[at]["cniVersion"], name, "{}", plugin.conf);
            let kind = plugin.conf["type"].as_str().unwrap();
            if at > 0 && !changes_the_result.contains(&kind) {
                assert_eq!(results[at], results[at - 1], "{kind}");
            }
            plugin.assert_operations_of(name, results.last().unwrap());
        }
        if results.len() == 1 && subject.name != "loopback" {
            let expected = in_form_of(name, newest, &results[0], &member.container);
            assert_eq!(results[0], expected, "{name}");
        }
        member.del(|plugin| plugin);
        before.assert_unchanged(name);
    }
}

/// Versions before 0.3.0 have no result without addresses; what ADD created is deleted.
fn old_versions_need_addresses(lab: &Lab, subject: &Subject) {
    let member = Member::of(lab, subject);
    let before = Watch::start(lab, &[&member.container]);
    for version in [None, Some("0.1.0"), Some("0.2.0")] {
        let conf = json!({"cniVersion": version, "ipam": null, "ipMasq": null});
        let attachment = member.plugins[0].clone().conf(conf);
        attachment.try_add().fails(7, "cannot convert: no valid IP addresses");
        before.assert_unchanged("the refused ADD");
        attachment.del();
    }
}

test_each_subject!(keeps_the_contract);

/// Plugins whose results the reference gives in the form of each version.
const FORMS: [&str; 7] = ["bridge", "ptp", "macvlan", "ipvlan", "vlan", "dummy", "tap"];

#[test]
fn the_reference_has_the_same_forms_and_needs_no_namespace() {
    for name in FORMS {
        for_reference(name, |lab| {
            let subject = all().into_iter().find(|it| it.name == name).unwrap();
            if !(subject.prepare)(lab) {
                return;
            }
            let member_in = |version: &str| {
                let mut member = Member::of(lab, &subject);
                let main = &mut member.plugins[0];
                // The reference's DEL of a masquerade fails where its chain is not there.
                main.conf = with(&main.conf, json!({"cniVersion": version, "ipMasq": null}));
                member
            };
            let member = member_in("1.1.0");
            member.del(|plugin| plugin);
            let newest = member.add().pop().unwrap();
            member.container.vanish();
            member.del(|plugin| plugin.netns(None));
            for version in ["0.2.0", "0.4.0", "1.0.0"] {
                let member = member_in(version);
                let result = member.add().pop().unwrap();
                let expected = in_form_of(version, &newest, &result, &member.container);
                assert_eq!(result, expected, "{name} {version}");
                member.del(|plugin| plugin);
            }
        });
    }
}
