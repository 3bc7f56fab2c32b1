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

#[test]
fn networks_are_listed_in_search_order_with_what_hides_them() {
    let expected = "\
NETWORK                     VERSION  PLUGINS         FILE
lab                         1.1.0    static          /net.d/10-lab.conflist
-                           -        -               /net.d/20-torn.conflist                        error parsing configuration list: EOF while parsing an object at line 1 column 1
a-network-with-a-long-name  -        bridge,portmap  /net.d/30-a-network-with-a-long-name.conflist  not found, since /net.d/20-torn.conflist cannot be read
lab                         0.4.0    loopback        /net.d/05-lab.conf                             shadowed by /net.d/10-lab.conflist
";
    // Compare words, not columns: the column width depends on the length of the temporary path.
    let words = |text: &str| -> Vec<Vec<String>> {
        let of_line = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        text.lines().map(of_line).collect()
    };
    let site = site();
    assert_eq!(words(&site.prints("list")), words(expected));
    let table = site.net("list").stdout;
    let starts: Vec<_> =
        table.lines().map(|line| line.find(" /").or(line.find("FILE").map(|at| at - 1))).collect();
    assert!(starts.iter().all(|start| *start == starts[0]), "{table}");
    assert!(table.lines().all(|line| !line.ends_with(' ')), "{table:?}");
}

#[test]
fn what_hides_a_network_is_true() {
    let site = site();
    let outcome = site.net("status a-network-with-a-long-name");
    let msg = "error parsing configuration list: EOF while parsing an object at line 1 column 1";
    assert_failed(&outcome, msg, &format!("the file is {}", site.at("net.d/20-torn.conflist")));
    assert_eq!(site.net("status lab").status, 0, "it is before that file");
}

#[test]
fn programs_get_the_same_as_json() {
    let torn = "error parsing configuration list: EOF while parsing an object at line 1 column 1";
    assert_eq!(
        site().json("list"),
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
