//! What every plugin owes a runtime, of whatever kind it is: each row of `support::subject`, a plugin with all of its
//! features or a whole list, is attached, checked and detached in every way that a runtime may have to.

use serde_json::{Value, json};

use crate::support::attachment::{Attachment, EVERY_VERSION, with};
use crate::support::netns::{Container, Lab};
use crate::support::networks::stacked::hasty_container;
use crate::support::snapshot::Watch;
use crate::support::subject::{Subject, test_each_subject};

/// The plugins that assign addresses and open no namespace.
const IPAM: [&str; 4] = ["host-local", "static", "cluster-local", "whereabouts"];

/// One attachment to the subject's list, as a runtime makes it.
struct Member<'a> {
    container: Container,
    plugins: Vec<Attachment<'a>>,
}

impl<'a> Member<'a> {
    fn of(lab: &'a Lab, subject: &Subject) -> Member<'a> {
        if subject.name == "vlan" {
            // The kernel ends a namespace a moment later, and its VLAN is taken until then.
            lab.host.sh(
                "for n in $(seq 400); do ip link add link uplink name probe0 type vlan id 100 2>/dev/null &&
                     ip link del probe0 && exit 0; sleep 0.05; done; exit 1",
            );
        }
        let container = hasty_container(lab);
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
            let is_chained = results.len() > 1;
            assert!(
                !is_chained || !before.changes_now().is_empty(),
                "no change by {}",
                plugin.conf
            );
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
    json!({"mtu": "large", "mode": 5, "vlanId": "x", "mac": 7, "bcqueuelen": -1, "linkInContainer": "yes", "master": 7,
           "backend": 7, "ingressPolicy": 7, "ingressRate": -1, "shapedSubnets": ["hello"], "table": "x", "vrfname": -1,
           "sysctl": 7, "ipMasq": "no", "delegate": 7, "args": 7, "runtimeConfig": {"portMappings": 7, "bandwidth": "wide"}})
}

fn only_the_keys(plugin: Attachment<'_>) -> Attachment<'_> {
    plugin.netns(None).conf(json!({"runtimeConfig": null}))
}

fn keeps_the_contract(lab: &Lab, subject: &Subject) {
    let has_device = ["host-device", "bond"].contains(&subject.name);
    // The kernel keeps some state in a namespace: the addresses of `lo` after its first start, and the rule of the first
    // VRF. A device goes with its peer when a namespace ends.
    let member = Member::of(lab, subject);
    let result = member.add().pop().unwrap();
    member.check(&result);
    member.del(|plugin| plugin.conf(json!({"prevResult": result})));
    let before = Watch::start(lab, &[&member.container]);

    member.del(|plugin| plugin);
    before.assert_unchanged("DEL before ADD");
    let result = member.add().pop().unwrap();
    member.check(&result);
    for plugin in &member.plugins {
        assert_eq!(plugin.status().ok(), Value::Null);
        plugin.call("GC", None).run().ok(); // without the list of valid attachments GC frees nothing
        assert_check_needs_the_result(plugin);
    }
    member.check(&result);
    member.del(|plugin| plugin.conf(json!({"prevResult": result})));
    before.assert_unchanged("ADD and DEL");
    member.del(|plugin| plugin.conf(json!({"prevResult": result})));
    before.assert_unchanged("the second DEL");
    member.add();
    member.del(|plugin| plugin.conf(json!({"runtimeConfig": null})));
    before.assert_unchanged("ADD and DEL without what the runtime knew");
    member.add();
    member.del(|plugin| plugin.conf(undecodable()).args("COLOUR=red"));
    before.assert_unchanged("ADD and DEL with a configuration that cannot be decoded");
    drop(before);
    if !has_device {
        survives_its_namespace(lab, subject);
    }
    needs_its_namespace(lab, subject);
    speaks_every_version(lab, subject);
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

/// DEL of a container that is gone: its namespace is deleted, or its mount point is left as a plain file.
fn survives_its_namespace(lab: &Lab, subject: &Subject) {
    let before = Watch::start(lab, &[]);
    for (what, end) in
        [("vanished", Container::vanish as fn(&Container)), ("a stale file", Container::go_stale)]
    {
        let member = Member::of(lab, subject);
        member.add();
        end(&member.container);
        member.del(|plugin| plugin);
        before.assert_unchanged(what);
        let member = Member::of(lab, subject);
        member.add();
        end(&member.container);
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
    let member = Member::of(lab, subject);
    member.container.vanish();
    let before = Watch::start(lab, &[]);
    let outcome = member.plugins[0].try_add();
    let kind = subject.plugins[0]["type"].as_str().unwrap();
    assert_eq!(outcome.status == 0, IPAM.contains(&kind), "{outcome:?}");
    if outcome.status == 0 {
        return member.plugins[0].del();
    }
    let error = outcome.err();
    assert_eq!(error.code, 4, "{error:?}");
    assert!(error.text().contains(&member.container.netns), "{error:?}");
    before.assert_unchanged("the failed ADD");
}

/// A chained plugin passes on what it got, but for what it changes itself; the result has the form of the version.
fn speaks_every_version(lab: &Lab, subject: &Subject) {
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
        member.del(|plugin| plugin);
        before.assert_unchanged(name);
    }
}

test_each_subject!(keeps_the_contract);
