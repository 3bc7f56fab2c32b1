//! A counter on the terminal during anything that takes longer than a moment, and none in a pipe.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::{on_terminal, run};
use crate::support::call::binary;
use crate::support::scratch::Scratch;

/// What precedes each update: the line is written again.
const ANEW: &str = "\r\u{1b}[K";

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// The numbers of all in updates such as `3/12` behind the text.
fn totals<'t>(shown: &'t str, before: &str) -> Vec<&'t str> {
    let start = [ANEW, before].concat();
    let updates = shown.split(&start).skip(1);
    let total = |update: &'t str| {
        let (done, rest) = update.split_once('/')?;
        done.parse::<usize>().ok()?;
        rest.split(|c: char| !c.is_ascii_digit()).next()
    };
    updates.filter_map(total).collect()
}

/// Each of twelve networks has a plugin of its own, which reports its versions after 0.1 s.
#[test]
fn validate_counts_files_on_a_terminal() {
    let dir = Scratch::new();
    for number in 10..22 {
        let name = format!("slow{number}");
        let plugin = dir.join(&name);
        let script = "#!/bin/sh\nsleep 0.1\necho '{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"1.1.0\"]}'\n";
        fs::write(&plugin, script).unwrap();
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        let list = json!({"cniVersion": "1.1.0", "name": name, "plugins": [{"type": name}]});
        fs::create_dir_all(dir.join("net.d")).unwrap();
        fs::write(dir.join(&format!("net.d/{name}.conflist")), list.to_string()).unwrap();
    }
    let line = format!("validate {0}/net.d --plugin-path {0}", dir.text());
    let Some((shown, status)) = on_terminal(&binary(), &line, "") else { return };
    assert!(totals(&shown, "").contains(&"12"), "{shown:?}");
    let rest = shown.rsplit(ANEW).next().unwrap();
    let piped = run(&words(&line));
    assert_eq!((rest.as_bytes(), &b""[..]), (&*piped.stdout, &*piped.stderr), "no counter stays");
    assert_eq!(piped.status.code(), Some(status));
}
