//! GC with a list it cannot parse removes nothing.

use serde_json::{Value, json};

use super::subjects::SUBJECTS;
use super::{Member, Subject};
use crate::support::attachment::{for_ours, with};
use crate::support::snapshot::Watch;

/// Each row: a key of the list, an entry that names no attachment, and the expected error. A Go
/// decoder reads empty names from these entries. Other malformed lists are tested beside the
/// parser.
fn malformed() -> [(&'static str, Value, &'static str); 2] {
    [
        (
            "cni.dev/valid-attachments",
            json!({"containerID": "a"}),
            ".ifname: missing, expected a name",
        ),
        (
            "cni.dev/attachments",
            json!(null),
            ": null is not an attachment, expected containerID and ifname",
        ),
    ]
}

fn assert_removes_nothing(subject: &Subject) {
    for_ours(subject.plugin, |lab| {
        let Some(_kept) = subject.prepare(lab) else { return };
        let chain = subject.chain(1, 1);
        let mut living = Member::of(lab, &chain);
        living.add();
        let before = Watch::start(lab, &[&living.container]);
        for (key, entry, problem) in malformed() {
            let list = json!({key: [{"containerID": "other", "ifname": "eth0"}, entry], "runtimeConfig": null});
            for conf in &chain {
                let attachment = lab.attach(&living.container, &with(conf, list.clone()));
                let error = attachment.call("GC", None).run().err();
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

/// A list larger than any node produces: IDs in containerd's format, under both keys as libcni
/// writes them, 40 MB in total.
#[test]
fn gc_with_200_000_valid_attachments_removes_the_stale_one() {
    let subject = SUBJECTS.iter().find(|subject| subject.plugin == "bridge").unwrap();
    for_ours(subject.plugin, |lab| {
        let Some(_kept) = subject.prepare(lab) else { return };
        let chain = |nth| subject.chain(1, nth);
        let living = Member::of(lab, &chain(1)).added();
        let before = Watch::start(lab, &[&living.container]);
        let _stale = Member::of(lab, &chain(2)).added();
        let others = (1..200_000).map(|number| format!("{number:064x}"));
        let ids = others.chain([living.container.id.clone()]);
        let valid: Value = ids.map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
        let list = json!({"cni.dev/valid-attachments": valid, "cni.dev/attachments": valid, "runtimeConfig": null});
        for conf in &chain(0) {
            lab.attach(&living.container, &with(conf, list.clone())).call("GC", None).run().ok();
        }
        before.assert_unchanged("the stale attachment");
        living.assert_whole();
    });
}
