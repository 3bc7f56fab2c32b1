//! GET of a whole network: the drafts of 0.4.0 had it in place of CHECK.

use std::fs;

use cni_multi::cni::attachment::Key;
use cni_multi::cni::json;
use cni_multi::runtime::parameters::Parameters;
use serde_json::{Value, json};

use super::{Host, result};

fn get(host: &Host) -> Result<Value, String> {
    let at = Parameters {
        key: Key::parse("net", "id-1", "eth0").unwrap(),
        netns: "/x".into(),
        args: vec![("IgnoreUnknown".into(), "1".into())],
        capability_args: json::Value::parse(br#"{"mac":"02:00:00:00:00:01"}"#).unwrap(),
    };
    let got = host.with_runtime(|runtime, list| runtime.get(list, &at));
    got.map(|result| serde_json::from_str(&result.to_text()).unwrap())
        .map_err(|error| error.to_string())
}

#[test]
fn each_plugin_gets_the_answer_before_it_and_the_last_is_kept() {
    let host = Host::new("1.0.0");
    host.cache("net-id-1-eth0", &result("10.0.0.9/24"));
    for (plugin, address) in [("a", "10.0.0.1/24"), ("b", "10.0.0.2/24"), ("c", "10.0.0.3/24")] {
        host.answer("GET", plugin, &result(address), false);
    }
    let got = get(&host).unwrap();
    assert_eq!(host.calls(), "GET a, GET b, GET c");
    let previous = |plugin: &str| {
        host.config(&format!("GET-{plugin}"))["prevResult"]["ips"][0]["address"].clone()
    };
    assert_eq!(
        [previous("a"), previous("b"), previous("c")],
        ["10.0.0.9/24", "10.0.0.1/24", "10.0.0.2/24"]
    );
    assert_eq!(host.config("GET-a")["runtimeConfig"], json!({"mac": "02:00:00:00:00:01"}));
    assert!(host.env("GET-c").starts_with(
        "CNI_ARGS=IgnoreUnknown=1\nCNI_COMMAND=GET\nCNI_CONTAINERID=id-1\nCNI_IFNAME=eth0\n"
    ));
    let cached: Value = serde_json::from_str(&fs::read_to_string(host.cached()).unwrap()).unwrap();
    assert_eq!((&got["ips"][0]["address"], &cached["result"]), (&json!("10.0.0.3/24"), &got));
}

#[test]
fn a_plugin_that_knows_no_get_ends_it_and_what_is_kept_stays() {
    let host = Host::new("1.0.0");
    host.cache("net-id-1-eth0", &result("10.0.0.9/24"));
    host.answer("GET", "a", &result("10.0.0.1/24"), false);
    host.answer("GET", "b", r#"{"code":4,"msg":"unknown CNI_COMMAND: GET"}"#, true);
    let msg = "plugin type=\"b\" name=\"own\" failed (get): unknown CNI_COMMAND: GET";
    assert_eq!(get(&host).unwrap_err(), msg);
    assert_eq!(host.calls(), "GET a, GET b");
    assert_eq!(fs::read_to_string(host.cached()).unwrap(), result("10.0.0.9/24"));
}

#[test]
fn get_is_for_what_add_has_made_and_from_0_4_0_on() {
    let host = Host::new("0.3.1");
    let msg = "configuration version \"0.3.1\" does not support the GET command";
    assert_eq!(get(&host).unwrap_err(), msg);
    host.network(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "static", "ipam": {"type": "static", "addresses": [{"address": "10.5.0.2/24"}]}},
    ]}));
    let error = get(&host).unwrap_err();
    assert!(error.contains("unknown container \"id-1\""), "{error}");
    let added = host.net("add net /x --container-id id-1").ok();
    assert_eq!(get(&host), Ok(added));
}
