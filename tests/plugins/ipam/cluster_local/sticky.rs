//! Sticky addresses.

use std::fs;

use serde_json::{Value, json};

use super::Net;
use crate::support::attachment::ips;
use crate::support::call::Outcome;
use crate::support::scratch::Scratch;

fn sticky(subnet: &str, by: &str) -> Value {
    json!({"ranges": [[{"subnet": subnet}]], "sticky": by})
}

fn add(net: &Net<'_>, id: &str, args: &str) -> Outcome {
    net.call("ADD", id).env("CNI_ARGS", args).run()
}

/// The address of a new attachment.
#[track_caller]
fn got(net: &Net<'_>, id: &str, args: &str) -> String {
    ips(&add(net, id, args).ok()).join(" ")
}

fn pod(name: &str) -> String {
    format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID=4f"
    )
}

#[test]
fn a_pod_gets_its_address_again() {
    let data = Scratch::new();
    let net = Net::new(&data, "net", sticky("10.1.0.0/24", "pod"));
    let first = got(&net, "a", &pod("web-0"));
    assert_eq!(first, "10.1.0.224", "names live in the last eighth");
    assert_eq!(got(&net, "b", &pod("web-1")), "10.1.0.225");
    let held = add(&net, "c", &pod("web-0")).err();
    let said = "10.1.0.224 of \"shop/web-0/eth0\" is held by container a";
    assert_eq!((held.code, held.msg.as_str()), (11, said));
    net.del("a");
    net.del("b");
    assert_eq!(got(&net, "d", &pod("web-2")), "10.1.0.226");
    assert_eq!(got(&net, "c", &pod("web-0")), first);
}

#[test]
fn a_name_that_is_used_again_outlives_one_that_is_not() {
    let data = Scratch::new();
    let net = Net::new(&data, "net", sticky("10.1.0.0/28", "arg:VM")); // one address for names
    assert_eq!(got(&net, "a", "VM=one"), "10.1.0.14");
    let full = "every address that is kept for names is held by an attachment";
    add(&net, "b", "VM=two").fails(101, full);
    net.del("a");
    assert_eq!(got(&net, "b", "VM=two"), "10.1.0.14", "nobody has the name now");
}

#[test]
fn a_missing_name_is_an_error_with_a_next_step() {
    let data = Scratch::new();
    for (by, args, text) in [
        ("pod", "", "ipam.sticky: CNI_ARGS has no K8S_POD_NAMESPACE"),
        ("pod", "K8S_POD_NAMESPACE=shop", "CNI_ARGS has no K8S_POD_NAME"),
        ("arg:VM", "IP=10.1.0.3", "call with CNI_ARGS=VM=NAME, or set ipam.sticky to none"),
    ] {
        add(&Net::new(&data, "net", sticky("10.1.0.0/24", by)), "a", args).fails(7, text);
    }
}

#[test]
fn no_other_network_gets_the_address_of_a_name() {
    let data = Scratch::new();
    let named = Net::new(&data, "named", sticky("10.1.0.0/28", "arg:VM"));
    let plain = Net::new(&data, "plain", super::subnet("10.1.0.0/28"));
    add(&named, "a", "VM=one").ok();
    named.del("a");
    for id in 0..12 {
        assert_ne!(plain.add(&format!("c{id}")), "10.1.0.14");
    }
    assert_eq!(plain.try_add("last").err().code, 101);
    assert_eq!(got(&named, "b", "VM=one"), "10.1.0.14");
}

/// The names that have an address.
fn names(net: &Net<'_>) -> Value {
    serde_json::from_slice(&fs::read(net.dir().join("names.json")).unwrap()).unwrap()
}

/// Plants names without an attachment, the first of which was used last.
fn plant(net: &Net<'_>, count: u64) {
    let mut names = names(net);
    for number in 0..count {
        let (name, used) = (format!("planted-{number}/eth0"), 1_700_000_000 - number);
        names[format!("10.255.{}.{}", number / 256, number % 256)] =
            json!({"network": "net", "name": name, "used": used});
    }
    fs::write(net.dir().join("names.json"), names.to_string()).unwrap();
}

#[test]
fn a_realm_keeps_256_names_without_an_attachment() {
    for args in ["VM=new", "VM=again"] {
        let data = Scratch::new();
        let net = Net::new(&data, "net", sticky("10.0.0.0/8", "arg:VM"));
        let first = got(&net, "a", "VM=first");
        plant(&net, 8000);
        net.del("a");
        assert_ne!(got(&net, "b", args), first);
        let kept = names(&net);
        let all = kept.as_object().unwrap().values().map(|kept| kept["name"].as_str().unwrap());
        let planted: Vec<&str> = all.filter(|name| name.starts_with("planted")).collect();
        assert!((254..=256).contains(&planted.len()), "{args}: {}", planted.len());
        assert_eq!(got(&net, "c", "VM=first"), first);
        assert!(planted.contains(&"planted-0/eth0"), "{args}: the last one used stays");
    }
}

#[test]
fn a_name_that_is_too_long_is_no_reason_to_fail() {
    let data = Scratch::new();
    let net = Net::new(&data, "net", sticky("10.1.0.0/24", "arg:VM"));
    let outcome = add(&net, "a", &format!("VM={}", "n".repeat(600)));
    let said = "ipam.sticky: the name has 605 bytes, expected at most 253; it keeps no address";
    assert!(outcome.stderr.contains(said), "{outcome:?}");
    assert_eq!(ips(&outcome.ok()), ["10.1.0.2"]);
}

#[test]
fn a_file_of_names_that_cannot_be_read_is_an_error_with_the_next_step() {
    let data = Scratch::new();
    let net = Net::new(&data, "net", sticky("10.1.0.0/24", "arg:VM"));
    add(&net, "a", "VM=one").ok();
    fs::write(net.dir().join("names.json"), "{").unwrap();
    let error = add(&net, "b", "VM=two").err();
    assert!(error.msg.contains("default/names.json"), "{error:?}");
    assert!(error.details.contains("restore the file"), "{error:?}");
    net.del("a");
}
