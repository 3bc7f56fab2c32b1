//! `install --only`: some of the plugins, in a directory that another program shares.

use std::fs;

use super::place::{MISSING, Place, listed_by, write_script};
use super::watch::Watch;
use crate::support::call;

/// The names that k3s and RKE2 have in their plugin directory.
const OF_K3S: &str = "bandwidth,bridge,firewall,flannel,host-local,loopback,portmap";

impl Place {
    /// The names of the links to the binary.
    fn linked(&self) -> Vec<String> {
        let is_link = |name: &String| self.link(name).as_deref() == Some("cni-multi");
        self.names().into_iter().filter(is_link).collect()
    }

    #[track_caller]
    fn assert_chosen(&self, names: &str) {
        assert_eq!(self.linked().join(","), names);
        let file = fs::read_to_string(self.dir.join(".cni-multi/only")).unwrap();
        let mut lines: Vec<&str> = file.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines.join(","), names, "one name a line");
    }
}

#[test]
fn chosen_names_stay_the_directory_s_until_all_are_wanted() {
    let place = Place::with_foreign_plugins();
    let before = place.snapshot();
    let build = place.build("new");
    let binary = build.to_str().unwrap();
    let report = place.ok(&["--binary", binary, "--only", OF_K3S]);
    assert!(!report.contains("--all links"), "{report}");
    place.assert_chosen(OF_K3S);
    assert_eq!(place.says("flannel"), "new");

    let report = place.install(&place.build("newer"));
    let line = ".cni-multi/only names these alone; --all links every plugin\n";
    assert!(report.contains(line), "{report}");
    place.assert_chosen(OF_K3S);

    place.ok(&["--rollback"]);
    assert_eq!(place.says("bridge"), "new");
    place.assert_chosen(OF_K3S);

    let report = place.ok(&["--binary", binary, "--all"]);
    assert!(report.contains(&listed_by(&build).join(" ")), "{report}");
    assert!(!place.dir.join(".cni-multi/only").exists());

    place.ok(&["--binary", binary, "--only", "bridge,ptp"]);
    place.assert_chosen("bridge,ptp");
    assert_eq!(place.snapshot()["portmap"], "-> /bin/true", "what had the name is back");
    place.ok(&["--uninstall"]);
    assert_eq!(place.snapshot(), before);
}

#[test]
fn a_rollback_links_the_chosen_names_that_the_binary_before_has() {
    let place = Place::new();
    place.install(&place.other("old"));
    let build = place.build("new");
    place.ok(&["--binary", build.to_str().unwrap(), "--only", &format!("bridge,{MISSING}")]);
    place.ok(&["--rollback"]);
    assert_eq!((place.linked(), place.says("bridge")), (vec!["bridge".into()], "old".into()));
}

#[test]
fn a_choice_that_leaves_nothing_is_refused_and_changes_nothing() {
    let place = Place::with_foreign_plugins();
    let before = place.snapshot();
    for (names, said) in [
        ("brigde", "--only: no plugin is named \"brigde\"; did you mean \"bridge\"?"),
        ("bridge,xyz", "no plugin is named \"xyz\"; `cni-multi list` lists the plugins"),
        ("bridge,", "no plugin is named \"\"; expected names, with one comma between two of them"),
        ("../bridge", "no plugin is named \"../bridge\""),
    ] {
        let output = place.command(&["--only", names]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && text.contains(said), "{names}: {text}");
        assert_eq!(place.snapshot(), before, "{names}");
    }
    for args in [["--only", "bridge", "--all"], ["--only", "bridge", "--rollback"]] {
        assert_eq!(place.command(&args).status.code(), Some(2), "{args:?}");
    }
    place.command(&["--only", "bridge"]);
    fs::write(place.dir.join(".cni-multi/only"), "gone\n").unwrap();
    let before = place.snapshot();
    let output = place.command(&[]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(".cni-multi/only names no plugin of this binary"), "{text}");
    assert!(text.contains("--all links every plugin"), "{text}");
    let mut after = place.snapshot();
    after.retain(|name, _| before.contains_key(name)); // the copy of the binary is removed, too
    assert_eq!(after, before);
}

#[test]
fn a_watch_keeps_the_chosen_names_and_follows_another_choice() {
    let place = Place::new();
    let build = place.build("new");
    assert!(place.command_of(&build, &["--only", "bridge,ptp"]).status.success());
    let watch = Watch::of(&place, &build);
    let portmap = place.dir.join("portmap");
    write_script(&portmap, "echo foreign");
    fs::remove_file(place.dir.join("bridge")).unwrap();
    write_script(&place.dir.join("bridge"), "echo foreign");
    watch.wait_until_says("bridge", "new");
    assert_eq!(place.says("portmap"), "foreign");
    assert!(place.command_of(&build, &["--only", "ptp,portmap"]).status.success());
    fs::remove_file(&portmap).unwrap();
    watch.wait_until_says("portmap", "new");
    assert_eq!(place.linked(), ["portmap", "ptp"]);
}

/// The binary under test, with the names of the installed plugins as `cni-multi list` has them.
#[test]
fn every_plugin_can_be_chosen_alone() {
    let place = Place::new();
    for name in listed_by(&call::binary()) {
        assert!(place.command(&["--only", &name]).status.success());
        place.assert_chosen(&name);
    }
}
