//! `install --dry-run`: each path of the plan, and the cases in which it cannot be made.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use super::place::{ANOTHER, MISSING, Place, listed_by, write_script};
use crate::support::call;
use crate::support::netns::is_root;

impl Place {
    /// The plan that the binary prints, with the directory as `DIR`; the script has to print the
    /// same.
    #[track_caller]
    fn plan(&self, args: &[&str]) -> Vec<String> {
        let before = self.snapshot();
        let output = self.command(&[&["--dry-run"], args].concat());
        assert!(output.status.success(), "{args:?}: {output:?}");
        let plan = String::from_utf8(output.stdout).unwrap();
        let binary = call::binary();
        let binary = ["--dry-run", "--binary", binary.to_str().unwrap()];
        assert_eq!(plan, self.ok(&[&binary, args].concat()), "{args:?}");
        assert_eq!(self.snapshot(), before, "{args:?}");
        plan.lines().map(|line| line.replace(self.dir.to_str().unwrap(), "DIR")).collect()
    }
}

fn lines(before: &[&str], names: &[String], line: impl Fn(&str) -> String) -> Vec<String> {
    let first = before.iter().map(|line| (*line).to_owned());
    first.chain(names.iter().map(|name| line(name))).collect()
}

fn make(name: &str) -> String {
    format!("would make DIR/{name}")
}

#[test]
fn plan_of_first_install_names_each_path() {
    let place = Place::with_foreign_plugins();
    let expected = [
        "would make DIR/.cni-multi/replaced/bridge",
        "would make DIR/.cni-multi/replaced/portmap",
        "would make DIR/cni-multi",
    ];
    let link = |name: &str| match name {
        "bridge" | "portmap" => format!("would replace DIR/{name}"),
        name => make(name),
    };
    assert_eq!(place.plan(&[]), lines(&expected, &listed_by(&call::binary()), link));
}

#[test]
fn plan_of_upgrade_names_what_is_kept_and_unlinked() {
    let place = Place::with_foreign_plugins();
    place.install(&place.other("old"));
    fs::write(place.dir.join(".cni-multi/rolled-back"), "").unwrap();
    fs::remove_file(place.dir.join("bridge")).unwrap();
    write_script(&place.dir.join("bridge"), "echo a package upgrade");
    let expected = [
        "would make DIR/.cni-multi/previous",
        "would remove DIR/.cni-multi/rolled-back",
        "DIR/bridge came after DIR/.cni-multi/replaced/bridge, which stays the one that is kept",
        &format!("would make DIR/.cni-multi/replaced/{MISSING}"),
        "would replace DIR/cni-multi",
        "would replace DIR/bridge",
        &format!("would replace DIR/{MISSING}"),
        &format!("would remove DIR/{ANOTHER}"),
    ];
    assert_eq!(place.plan(&[]), expected);
    place.ok(&["--binary", call::binary().to_str().unwrap()]);
    let same = ["DIR/cni-multi is this build already", "would replace DIR/cni-multi"];
    assert_eq!(place.plan(&[]), same);
}

#[test]
fn plan_of_rollback_and_uninstall_names_each_path() {
    let place = Place::with_foreign_plugins();
    place.install(&place.other("old"));
    place.install(&call::binary());
    let rollback = [
        make(".cni-multi/rolled-back"),
        "would replace DIR/cni-multi".to_owned(),
        make(ANOTHER),
        format!("would replace DIR/{MISSING}"),
    ];
    assert_eq!(place.plan(&["--rollback"]), rollback);
    let mut listed = listed_by(&call::binary());
    listed.sort();
    let mut uninstall = lines(&[], &listed, |name| match name {
        "bridge" | MISSING => format!("would replace DIR/{name}"),
        name => format!("would remove DIR/{name}"),
    });
    let remove = "would remove DIR/cni-multi";
    uninstall.push(remove.to_owned());
    assert_eq!(place.plan(&["--uninstall"]), uninstall);
    for (word, expected) in [
        ("echo reference bridge", "would remove DIR/.cni-multi/replaced/bridge"),
        (
            "echo a package upgrade",
            "DIR/bridge is not a link to cni-multi and stays; what was replaced earlier stays in \
             DIR/.cni-multi/replaced/bridge",
        ),
    ] {
        fs::remove_file(place.dir.join("bridge")).unwrap();
        write_script(&place.dir.join("bridge"), word);
        let plan = place.plan(&["--uninstall"]);
        assert_eq!(plan[plan.len() - 2..], [expected, remove], "{plan:#?}");
    }
}

/// Only root can read the state, so a plan made by another user would be incomplete.
#[test]
fn plan_by_user_who_cannot_read_the_state_is_refused() {
    if !is_root() {
        return; // a user namespace has no other user
    }
    let place = Place::new();
    let build = place.build("new");
    place.install(&build);
    place.install(&place.build("newer"));
    fs::set_permissions(&place.root, fs::Permissions::from_mode(0o755)).unwrap();
    for args in [&[][..], &["--rollback"], &["--uninstall"]] {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&build)
            .args(["install", "--dry-run", "--dir"])
            .arg(&place.dir)
            .args(args)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let expected = format!("{}: read .cni-multi: permission denied\n", place.dir.display());
        assert_eq!((output.status.code(), said), (Some(1), expected), "{args:?}");
    }
}
