//! The list of GC: one that cannot be understood removes nothing.

use serde_json::{Value, json};

use super::subjects::SUBJECTS;
use super::{Member, Subject};
use crate::support::attachment::{for_ours, with};
use crate::support::snapshot::Watch;

/// A key of the list, an entry that names no attachment, and what is said of it; the rest is tested where it is read. A Go
/// decoder reads empty names in them.
fn malformed() -> [(&'static str, Value, &'static str); 2] {
    [
        ("cni.dev/valid-attachments", json!({"containerID": "a"}), ".ifname: missing, expected a name"),
        ("cni.dev/attachments", json!(null), ": null is no attachment, expected containerID and ifname"),
    ]
}

fn assert_removes_nothing(subject: &Subject) {
    for_ours(subject.plugin, |lab| {
        let Some(_kept) = (subject.prepare)(lab) else { return };
        let chain = (subject.chain)(1, 1);
        let mut living = Member::of(lab, &chain);
        living.add();
        let before = Watch::start(lab, &[&living.container]);
        for (key, entry, problem) in malformed() {
            let list = json!({key: [{"containerID": "other", "ifname": "eth0"}, entry], "runtimeConfig": null});
            for conf in &chain {
                let error = lab.attach(&living.container, &with(conf, list.clone())).call("GC", None).run().err();
                assert_eq!((error.code, error.msg), (7, format!("{key}[1]{problem}")), "{conf}");
            }
        }
        before.assert_unchanged("a GC with a list that cannot be understood");
        living.assert_whole();
    });
}

#[test]
fn gc_with_a_malformed_list_is_code_7_and_removes_nothing() {
    let mut done = vec![];
    for subject in SUBJECTS.iter() {
        if !done.contains(&subject.plugin) {
            done.push(subject.plugin);
            assert_removes_nothing(subject);
        }
    }
}
