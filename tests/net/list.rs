//! `net list` shows each network, its file and any error.

use std::fs;

use serde_json::json;

use super::{Site, assert_failed};

/// Files of each kind: a valid list, a shadowed single-plugin file, a broken list, and a list after
/// the broken one.
fn site() -> Site {
    let site = Site::with_lab();
    site.network("05-lab.conf", &json!({"cniVersion": "0.4.0", "name": "lab", "type": "loopback"}));
    fs::write(site.at("net.d/20-torn.conflist"), "{").unwrap();
    let chain = json!([{"type": "bridge"}, {"type": "portmap"}]);
    site.network(
        "30-a-network-with-a-long-name.conflist",
        &json!({"name": "a-network-with-a-long-name", "plugins": chain}),
    );
    site
}

/// In search order, with what hides them.
#[test]
fn networks_are_listed_with_their_files_and_errors() {
    let site = site();
    let table = site.prints("list");
    for line in [
        "lab 1.1.0 static /net.d/10-lab.conflist",
        "lab 0.4.0 loopback /net.d/05-lab.conf shadowed by",
    ] {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(table.lines().any(|it| words(it).starts_with(line)), "{line}: {table}");
    }
    assert_eq!(site.net("status lab").status, 0, "it is before the torn file");
    let torn = "error parsing configuration list: EOF while parsing an object at line 1 column 1";
    let hidden = site.net("status a-network-with-a-long-name");
    assert_failed(&hidden, torn, &format!("the file is {}", site.at("net.d/20-torn.conflist")));
    assert_eq!(
        site.json("list"),
        json!([
            {"network": "lab", "cniVersion": "1.1.0", "plugins": ["static"], "file": "/net.d/10-lab.conflist"},
            {"file": "/net.d/20-torn.conflist", "problem": torn},
            {
                "network": "a-network-with-a-long-name", "plugins": ["bridge", "portmap"],
                "file": "/net.d/30-a-network-with-a-long-name.conflist",
                "problem": "not found, since /net.d/20-torn.conflist cannot be read",
            },
            {
                "network": "lab", "cniVersion": "0.4.0", "plugins": ["loopback"], "file": "/net.d/05-lab.conf",
                "problem": "shadowed by /net.d/10-lab.conflist",
            },
        ])
    );
}

#[test]
fn no_directory_is_no_network_and_one_that_is_none_is_an_error() {
    let site = Site::new();
    assert_eq!(site.prints("list"), "NETWORK  VERSION  PLUGINS  FILE\n");
    assert_eq!(site.prints("list --conf-dir /nonexistent"), "NETWORK  VERSION  PLUGINS  FILE\n");
    assert_eq!(site.json("list --conf-dir /nonexistent"), json!([]));
    assert_failed(
        &site.net("list --conf-dir /etc/passwd"),
        "open /etc/passwd: not a directory",
        "",
    );
}
