//! D101 to D138: each fixture of `validate` is a directory of networks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::site::{Site, bridge};
use crate::docs::Page;
use crate::support::call::{binary, farm};

fn folders() -> Vec<PathBuf> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/validate");
    fs::read_dir(fixtures).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The findings of a command about a directory, each as code and severity.
fn findings(dir: &Path, args: &[&str]) -> BTreeSet<(String, String)> {
    let output = Command::new(binary())
        .args(args)
        .current_dir(dir)
        .env("CNI_PATH", format!("{}:./bin", farm().display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
    let text = |finding: &Value, key| finding[key].as_str().unwrap().to_owned();
    let findings = report["findings"].as_array().unwrap();
    findings.iter().map(|it| (text(it, "code"), text(it, "severity"))).collect()
}

/// The codes of `validate` by those of doctor, from the page.
fn codes() -> BTreeMap<String, String> {
    let rows = Page::read("docs/findings.md").rows(Some("D1xx: configuration and records"));
    let of = |row: &Vec<String>| {
        let code = row[3].strip_prefix('`')?.split_once("`.")?.0;
        Some((row[0].trim_matches('`').to_owned(), code.to_owned()))
    };
    rows.iter().filter_map(of).collect()
}

#[test]
fn every_mistake_that_validate_finds_has_a_code() {
    let codes = codes();
    let mut seen = BTreeSet::new();
    for dir in folders() {
        let validated = findings(&dir, &["validate", "-o", "json", "."]);
        let examined = findings(&dir, &["doctor", "-o", "json", "--conf-dir", "."]);
        let of_configuration = examined.iter().filter(|(code, _)| codes.contains_key(code));
        let named: BTreeSet<(String, String)> = of_configuration
            .map(|(code, severity)| (codes[code].clone(), severity.clone()))
            .collect();
        assert_eq!(named, validated, "{}", dir.display());
        seen.extend(named.into_iter().map(|(code, _)| code));
    }
    let all: BTreeSet<String> = codes.into_values().collect();
    let unseen: Vec<&String> = all.difference(&seen).collect();
    assert_eq!(unseen, ["not-on-path"], "another test has it");
}

/// podman has its default network in memory, so that it runs containers without a file.
#[test]
fn no_file_is_no_fault_beside_podman_s_default_network() {
    for (network, codes) in [("podman", &[][..]), ("pods", &["D113"])] {
        let site = Site::empty();
        site.configure(network, &json!([bridge("pods0", "10.180.32.0/24")]));
        let _container = site.attached(network);
        site.lab.host.sh("rm /run/net.d/*");
        assert_eq!(site.codes(""), codes, "{network}");
    }
}

#[test]
fn the_file_of_a_second_network_of_one_name_is_put_away() {
    let site = Site::with_bridge("10.180.30.0/24");
    let other = json!({"cniVersion": "1.1.0", "name": "pods",
        "plugins": [bridge("pods1", "10.180.31.0/24")]});
    let write = format!("echo '{other}' >/run/net.d/z.conflist");
    let finding = site.finds_and_fixes(&write, "D104");
    let evidence = finding["evidence"].as_str().unwrap();
    assert!(evidence.starts_with("/run/net.d/z.conflist:1:"), "{evidence}");
    assert!(evidence.ends_with("; by its name, /run/net.d/pods.conflist is found"), "{evidence}");
    assert_eq!(finding["network"], "pods");
}
