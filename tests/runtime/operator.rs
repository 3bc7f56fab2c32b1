//! The errors that the operator sees.

use super::{Host, assert_failed};

#[test]
fn mistakes_of_the_operator_run_nothing() {
    let host = Host::new("1.1.0");
    let dir = host.0.join("net.d");
    assert_failed(
        &host.net("add other /x"),
        &format!("no net configuration with name \"other\" in {}", dir.display()),
        "available networks: net",
    );
    assert_failed(&host.net("add ../net /x"), "invalid characters found in network name", "../net");
    let outcome = host.net("del net /x --args oops");
    assert_eq!(outcome.stderr, "invalid CNI_ARGS pair \"oops\"\n");
    assert_eq!((outcome.status, outcome.stdout.as_str()), (2, ""));
    let nowhere = host.call("add net /x").env("NETCONFPATH", "/nonexistent").run();
    assert_failed(&nowhere, "no net configurations found in /nonexistent", "");
    for line in ["", "add net", "frobnicate net /x", "list net"] {
        let outcome = host.net(line);
        assert!(
            outcome.status == 2 && outcome.stdout.is_empty() && !outcome.stderr.is_empty(),
            "{line}: {outcome:?}"
        );
    }
    assert_eq!(host.calls(), "");
}
