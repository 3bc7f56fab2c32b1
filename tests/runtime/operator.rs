//! What the operator gets to see.

use std::fs;

use super::{Host, assert_failed};

#[test]
fn networks_are_listed_in_the_order_of_the_search() {
    let host = Host::new("1.1.0");
    fs::write(host.0.join("net.d/20-bad.conflist"), "{").unwrap();
    fs::write(host.0.join("net.d/05-single.conf"), r#"{"name":"single","cniVersion":"0.3.1","type":"a"}"#).unwrap();
    let outcome = host.net("list");
    let lines: Vec<Vec<&str>> = outcome.stdout.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
    let at = |name: &str| format!("{}/net.d/{name}", host.0.text());
    assert_eq!(outcome.status, 0);
    assert_eq!(
        lines,
        [
            ["net", "1.1.0", &at("10-net.conflist")],
            ["-", "-", &at("20-bad.conflist:")],
            ["single", "0.3.1", &at("05-single.conf")]
        ]
    );
}

#[test]
fn mistakes_of_the_operator_run_nothing() {
    let host = Host::new("1.1.0");
    let dir = host.0.join("net.d");
    assert_failed(
        &host.net("add other /x"),
        &format!("no net configuration with name \"other\" in {}", dir.display()),
        "",
    );
    assert_failed(&host.net("add ../net /x"), "invalid characters found in network name", "../net");
    assert_failed(&host.net("del net /x --args oops"), "invalid CNI_ARGS pair \"oops\"", "");
    let nowhere = host.call("add net /x").env("NETCONFPATH", "/nonexistent").run();
    assert_failed(&nowhere, "no net configurations found in /nonexistent", "");
    for line in ["", "add net", "frobnicate net /x", "list net"] {
        let outcome = host.net(line);
        assert!(outcome.status == 2 && outcome.stdout.is_empty() && !outcome.stderr.is_empty(), "{line}: {outcome:?}");
    }
    assert_eq!(host.calls(), "");
}
