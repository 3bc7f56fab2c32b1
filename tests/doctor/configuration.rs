//! What `validate` finds: each fixture of `validate` is a directory of networks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cni_multi::commands::validate::FAULTS;
use serde_json::{Value, json};

use super::site::{Site, bridge};
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

#[test]
fn every_mistake_that_validate_finds_is_a_finding() {
    let all: BTreeSet<&str> = FAULTS.iter().map(|it| it.code).collect();
    let mut seen = BTreeSet::new();
    for dir in folders() {
        let validated = findings(&dir, &["validate", "-o", "json", "."]);
        let examined = findings(&dir, &["doctor", "-o", "json", "--conf-dir", "."]);
        let named: BTreeSet<(String, String)> =
            examined.into_iter().filter(|(code, _)| all.contains(code.as_str())).collect();
        assert_eq!(named, validated, "{}", dir.display());
        seen.extend(named.into_iter().map(|(code, _)| code));
    }
    let unseen: Vec<&&str> = all.iter().filter(|code| !seen.contains(**code)).collect();
    assert_eq!(unseen, [&"not-on-path"], "another test has it");
}

/// podman has its default network in memory, so that it runs containers without a file.
#[test]
fn no_file_is_no_fault_beside_podman_s_default_network() {
    for (network, codes) in [("podman", &[][..]), ("pods", &["no-files"])] {
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
    let finding = site.finds_and_fixes(&write, "duplicate-name");
    let evidence = finding["evidence"].as_str().unwrap();
    assert!(evidence.starts_with("/run/net.d/z.conflist:1:"), "{evidence}");
    assert!(evidence.ends_with("; by its name, /run/net.d/pods.conflist is found"), "{evidence}");
    assert_eq!(finding["network"], "pods");
}
