//! `null.rs` is the plugin that docs/architecture.md shows. It is not in the registry: each call of
//! it runs this test program again, in the namespaces of a lab.

use std::rc::Rc;
use std::{env, io};

use cni_multi::cni::attachment::Key;
use cni_multi::cni::env::Environment;
use cni_multi::plugin::{self, Entry};
use cni_multi::registry::PLUGINS;
use cni_multi::repair::{Extent, Repairs};
use cni_multi::runner::Execution;
use cni_multi::terminal::Streams;
use serde_json::{Value, json};

use crate::support::attachment::Attachment;
use crate::support::call::{Outcome, Peer};
use crate::support::netns::{Container, Lab};
use crate::support::networks::dummy::makes_dummies;
use crate::support::snapshot::Watch;

mod null;

static NULL: Entry = Entry::of::<null::Null>();

/// When this variable is set, the test below runs the plugin.
const ROLE: &str = "CNI_LAB_NULL_ROLE";
const ROLE_TEST: &str = "null_plugin::mistakes_in_the_address_are_named";

fn attach<'a>(lab: &'a Lab, container: &Container, address: Value) -> Attachment<'a> {
    let conf = json!({"cniVersion": "1.1.0", "name": "net1", "type": "null", "address": address});
    lab.attach(container, &conf)
}

/// Runs the plugin in a process of its own, which prints the outcome in its last line. `command` is
/// CNI_COMMAND, or `look` or `make` for a repair; `more` are keys of this configuration.
fn run(at: &Attachment<'_>, command: &str, more: Value) -> Outcome {
    let mut call = at.clone().conf(more).call(command, None).env(ROLE, "plugin");
    call.program = env::current_exe().unwrap();
    call.args = [ROLE_TEST, "--exact", "--nocapture"].map(str::to_owned).into();
    let process = call.run();
    let outcome = process.stderr.lines().last().and_then(|line| serde_json::from_str(line).ok());
    let (status, stdout) = outcome.unwrap_or_else(|| panic!("{process:?}"));
    Outcome { status, stdout, stderr: process.stderr }
}

/// The work of that process: returns the status and the output.
fn serve() -> (u8, String) {
    let env = Environment::of_process();
    let plugin = Execution { entry: &NULL, plugins: PLUGINS, env: &env, handles: &Rc::default() };
    let extent = match env.get("CNI_COMMAND").as_str() {
        "look" => Some(Extent::Look),
        "make" => Some(Extent::Make),
        _ => None,
    };
    let Some(extent) = extent else {
        let (stdin, stdout, stderr) = (&mut io::stdin(), &mut vec![], &mut io::stderr());
        let failed = plugin.run(&mut Streams { stdin, stdout, stderr }).is_err();
        return (u8::from(failed), String::from_utf8_lossy(stdout).into_owned());
    };
    let conf = io::read_to_string(io::stdin()).unwrap().into_bytes();
    let [id, ifname, netns] = ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"].map(|it| env.get(it));
    let at = plugin::Attachment::new(Key::parse("net1", &id, &ifname).unwrap(), netns, None);
    let repairs = Repairs::new(extent);
    plugin.repair(conf, &at, &repairs).unwrap();
    (0, repairs.take_changes().join("\n"))
}

#[test]
fn mistakes_in_the_address_are_named() {
    if env::var_os(ROLE).is_some() {
        return eprintln!("{}", json!(serve()));
    }
    let lab = Lab::new(Peer::Ours);
    for address in [json!(null), json!(""), json!("192.0.2.2"), json!(7)] {
        let error = run(&attach(&lab, &lab.container(), address), "ADD", json!({})).err();
        assert!(error.text().contains("address: "), "{error:?}");
    }
}

/// Runs a case with an address of each family, and the words of `ip` for the route to it.
fn for_each_family(case: impl Fn(&Lab, &Container, &Attachment<'_>, [&str; 2])) {
    let lab = Lab::new(Peer::Ours);
    if makes_dummies(&lab) {
        for (ip, to, length) in [("ip", "192.0.2.2", 32), ("ip -6", "2001:db8::2", 128)] {
            let container = lab.container();
            let at = attach(&lab, &container, json!(format!("{to}/{length}")));
            case(&lab, &container, &at, [&format!("{ip} route"), to]);
        }
    }
}

#[test]
fn the_route_is_checked_made_again_and_removed() {
    for_each_family(|lab, container, at, [ip, to]| {
        let before = Watch::start(lab, &[container]);
        let result = json!({"prevResult": run(at, "ADD", json!({})).ok()});
        assert_eq!(container.link("eth0").unwrap()["linkinfo"]["info_kind"], "dummy");
        assert_eq!(container.addresses("eth0"), [at.conf["address"].as_str().unwrap()]);
        assert_ne!(lab.host.sh(&format!("{ip} show {to} dev lo")), "");
        let made = Watch::start(lab, &[container]);
        run(at, "STATUS", json!({})).ok();
        run(at, "CHECK", result.clone()).ok();
        let repair = |command| run(at, command, result.clone()).stdout;
        let delete = format!("{ip} del {to} dev lo");
        lab.host.sh(&delete);
        let error = run(at, "CHECK", result.clone()).err();
        assert!(error.code == 103 && error.msg.contains(to), "{error:?}");
        let change = format!("route {to} to \"lo\"");
        assert_eq!(["look", "make", "look"].map(repair), [&change, &change, ""]);
        made.assert_unchanged(&delete);

        container.sh("ip link set eth0 down");
        assert_eq!(run(at, "CHECK", result.clone()).err().code, 103);
        assert_eq!(repair("make"), "", "the container's side stays as it is");
        for _ in 0..2 {
            run(at, "DEL", json!({})).ok();
            before.assert_unchanged("ADD");
        }
    });
}

#[test]
fn gc_removes_the_route_of_a_stale_attachment() {
    for_each_family(|lab, _, at, _| {
        let before = Watch::start(lab, &[]);
        run(at, "ADD", json!({})).ok();
        let made = Watch::start(lab, &[]);
        let valid = json!([{"containerID": at.container_id, "ifname": "eth0"}]);
        for (valid, expected) in [(valid, made), (json!([]), before)] {
            run(at, "GC", json!({"cni.dev/valid-attachments": valid})).ok();
            expected.assert_unchanged("GC");
        }
    });
}

#[test]
fn a_failed_add_leaves_nothing() {
    for_each_family(|lab, container, at, [ip, to]| {
        for (on_host, inside, said) in [
            (format!("{ip} add {to} dev uplink"), "true", to),
            (format!("{ip} add {to} dev lo"), "true", to),
            (format!("{ip} add {to} dev lo metric 7"), "true", to),
            ("true".to_owned(), "ip link add eth0 type veth peer name other", "eth0"),
        ] {
            lab.host.sh(&on_host);
            container.sh(inside);
            let before = Watch::start(lab, &[container]);
            let error = run(at, "ADD", json!({})).err();
            assert!(error.code == 102 && error.msg.contains(said), "{error:?}");
            before.assert_unchanged("the failed ADD");
            run(at, "DEL", json!({})).ok();
            before.assert_unchanged("the DEL after it");
            lab.host.sh(&on_host.replace(" add ", " del "));
        }
    });
}
