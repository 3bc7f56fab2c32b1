//! Capability arguments given by command line options.

use std::fs;

use serde_json::{Value, json};

use super::{Site, assert_failed};
use crate::support::call::Outcome;
use crate::support::table::cells;

const ALL: [&str; 4] = ["portMappings", "ips", "mac", "bandwidth"];

fn site(capabilities: &[&str]) -> Site {
    let site = Site::new();
    let declared: Value = capabilities
        .iter()
        .map(|&name| (name.to_owned(), json!(true)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let plugins = json!([{"type": "slow"}, {"type": "slow", "capabilities": declared}]);
    site.network(
        "lab.conflist",
        &json!({"cniVersion": "1.1.0", "name": "lab", "plugins": plugins}),
    );
    site
}

/// The `runtimeConfig` the plugin received.
#[track_caller]
fn runtime_config(site: &Site, options: &str) -> Value {
    let outcome = site.net(&format!("add lab /nonexistent --container-id c {options}"));
    assert_eq!((outcome.status, outcome.stderr.as_str()), (0, ""), "{options}");
    let config: Value =
        serde_json::from_str(&fs::read_to_string(site.at("ADD-c.stdin")).unwrap()).unwrap();
    config["runtimeConfig"].clone()
}

fn fails(site: &Site, options: &str) -> Outcome {
    let outcome = site.net(&format!("add lab /nonexistent --container-id c {options}"));
    assert!(!site.has("ADD-c.stdin"), "{options} runs a plugin");
    outcome
}

#[test]
fn options_reach_the_plugin_that_declares_them() {
    let line = "-p 8080:80 --publish [::1]:53-54:5353-5354/udp --ip 10.1.2.3 --ip fd00::3/64 --mac 02-00-00-00-00-07 \
                --bandwidth ingress=10M,egress=800k,egressBurst=1M";
    let expected = json!({
        "portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 53, "containerPort": 5353, "protocol": "udp", "hostIP": "::1"},
            {"hostPort": 54, "containerPort": 5354, "protocol": "udp", "hostIP": "::1"},
        ],
        "ips": ["10.1.2.3", "fd00::3/64"],
        "mac": "02:00:00:00:00:07",
        "bandwidth": {"ingressRate": 10_000_000, "ingressBurst": 524_288, "egressRate": 800_000, "egressBurst": 1_000_000},
    });
    assert_eq!(runtime_config(&site(&ALL), line), expected);
}

#[test]
fn options_and_json_are_joined_and_nothing_is_said_twice() {
    let site = site(&["mac", "ips", "aliases"]);
    let json = r#"--capability-args {"aliases":["a"],"ips":["10.0.0.1"]}"#;
    let expected = json!({"aliases": ["a"], "ips": ["10.0.0.1"], "mac": "02:00:00:00:00:07"});
    assert_eq!(runtime_config(&site, &format!("{json} --mac 02:00:00:00:00:07")), expected);
    fs::remove_file(site.at("ADD-c.stdin")).unwrap();
    let twice = r#"--capability-args {"mac":1,"mac":2}"#;
    for (options, told) in [
        (&*format!("{json} --ip 10.0.0.2"), "--ip: ips is given by --capability-args as well\n"),
        (twice, "--capability-args: mac is given by --capability-args as well\n"),
    ] {
        let outcome = fails(&site, options);
        assert_eq!((outcome.status, outcome.stderr.as_str()), (2, told));
    }
}

#[test]
fn the_variable_counts_where_no_option_says_otherwise() {
    let site = site(&["mac", "ips"]);
    let line = "add lab /nonexistent --container-id c --mac 02:00:00:00:00:07";
    let call = site
        .call(line)
        .env("CAP_ARGS", r#"{"mac":"02:00:00:00:00:01","ips":["10.0.0.1"],"portMappings":[1]}"#);
    assert_eq!(call.run().status, 0, "a runtime's argument that nobody declares is no mistake");
    let config: Value =
        serde_json::from_str(&fs::read_to_string(site.at("ADD-c.stdin")).unwrap()).unwrap();
    assert_eq!(config["runtimeConfig"], json!({"mac": "02:00:00:00:00:07", "ips": ["10.0.0.1"]}));
}

#[test]
fn what_no_plugin_declares_is_a_mistake() {
    let cases = [
        ("--publish 80:80", "portMappings", "of type portmap"),
        ("--ip 10.0.0.1", "ips", "that has the ipam section"),
        ("--mac 02:00:00:00:00:07", "mac", "that makes the interface, or of type tuning"),
        ("--bandwidth egress=1M", "bandwidth", "of type bandwidth"),
        (r#"--capability-args {"aliases":[]}"#, "aliases", "that understands it"),
    ];
    for (options, capability, plugin) in cases {
        let others: Vec<&str> = ALL.into_iter().filter(|name| *name != capability).collect();
        let site = site(&others);
        let option = options.split(' ').next().unwrap();
        let msg =
            format!("{option}: no plugin of network \"lab\" declares the capability {capability}");
        let details = format!(
            "its plugins are slow, slow; the one {plugin} needs the line \"capabilities\": {{\"{capability}\": true}}"
        );
        assert_failed(&fails(&site, options), &msg, &details);
        for verb in ["check", "del"] {
            assert_failed(&site.net(&format!("{verb} lab /nonexistent {options}")), &msg, &details);
        }
    }
}

#[test]
fn mistakes_name_the_option_the_value_and_what_was_expected() {
    let site = site(&ALL);
    let cases = r#"
--publish 80 | "80": expected [ADDRESS:]HOST:CONTAINER[/PROTOCOL], such as 8080:80/tcp or [::1]:8000-8010:80-90
-p 0:80 | "0:80": "0" is not a port or range of ports, expected 1 to 65535
--ip 10.0.0 | "10.0.0" is not an address, expected one like 10.1.2.3 or fd00::2/64
--ip 10.0.0.1/33 | "10.0.0.1/33" is not an address, expected one like 10.1.2.3 or fd00::2/64
--mac 02:00 | "02:00" is not a hardware address, expected one like 0a:58:0a:01:02:03
--mac 02:00:00:00:00:07 --mac 02:00:00:00:00:08 | given twice, expected once
--bandwidth 10M | "10M": expected ingress=RATE, egress=RATE or both separated by a comma, such as ingress=10M,egress=5M
"#;
    for [options, problem] in cells(cases) {
        let option = options.split(' ').next().unwrap();
        let option = if option == "-p" { "--publish" } else { option };
        let outcome = fails(&site, options);
        outcome.assert_is(2, "", &format!("{option}: {problem}\n"));
        for verb in ["check", "del"] {
            assert_eq!(site.net(&format!("{verb} lab /nonexistent {options}")).status, 2, "{verb}");
        }
    }
    let outcome = site.call("add lab /nonexistent").env("CAP_ARGS", "[]").run();
    assert_eq!(outcome.status, 1, "the variable is no part of the line: {outcome:?}");
}
