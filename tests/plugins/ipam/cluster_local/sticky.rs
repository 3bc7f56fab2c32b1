//! Sticky addresses.

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

fn pod(name: &str) -> String {
    format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID=4f"
    )
}

#[test]
fn a_pod_gets_its_address_again() {
    let data = Scratch::new();
    let net = Net::new(&data, "net", sticky("10.1.0.0/24", "pod"));
    let first = ips(&add(&net, "a", &pod("web-0")).ok());
    assert_eq!(first, ["10.1.0.224"], "names live in the last eighth");
    assert_eq!(ips(&add(&net, "b", &pod("web-1")).ok()), ["10.1.0.225"]);
    let held = add(&net, "c", &pod("web-0")).err();
    assert_eq!(held.code, 11);
    assert_eq!(held.msg, "10.1.0.224 of \"shop/web-0/eth0\" is held by container a");
    net.del("a");
    net.del("b");
    assert_eq!(ips(&add(&net, "d", &pod("web-2")).ok()), ["10.1.0.226"]);
    assert_eq!(ips(&add(&net, "c", &pod("web-0")).ok()), first);
}

#[test]
fn a_name_that_is_used_again_outlives_one_that_is_not() {
    let data = Scratch::new();
    let net = Net::new(&data, "net", sticky("10.1.0.0/28", "arg:VM")); // one address for names
    assert_eq!(ips(&add(&net, "a", "VM=one").ok()), ["10.1.0.14"]);
    let full = add(&net, "b", "VM=two").err();
    assert_eq!(full.code, 101, "{full:?}");
    assert!(
        full.text().contains("every address that is kept for names is held by an attachment"),
        "{full:?}"
    );
    net.del("a");
    assert_eq!(ips(&add(&net, "b", "VM=two").ok()), ["10.1.0.14"], "nobody has the name now");
}

#[test]
fn a_missing_name_is_an_error_with_a_next_step() {
    let data = Scratch::new();
    for (by, args, text) in [
        ("pod", "", "ipam.sticky: CNI_ARGS has no K8S_POD_NAMESPACE"),
        ("pod", "K8S_POD_NAMESPACE=shop", "CNI_ARGS has no K8S_POD_NAME"),
        ("arg:VM", "IP=10.1.0.3", "call with CNI_ARGS=VM=NAME, or set ipam.sticky to none"),
    ] {
        let error = add(&Net::new(&data, "net", sticky("10.1.0.0/24", by)), "a", args).err();
        assert_eq!(error.code, 7, "{error:?}");
        assert!(error.text().contains(text), "{error:?}");
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
    assert_eq!(ips(&add(&named, "b", "VM=one").ok()), ["10.1.0.14"]);
}
