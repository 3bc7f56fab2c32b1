//! `install --alias`: further names of plugins, and links that others have made.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::place::{ANOTHER, MISSING, Place, write_script};
use super::watch::Watch;
use crate::support::call;
use crate::support::dhcp::wait_until;

const KEPT: &str = ".cni-multi/aliases";

#[test]
fn an_alias_is_its_plugin_until_the_uninstall() {
    let place = Place::with_foreign_plugins();
    write_script(&place.dir.join("cnv-bridge"), "echo a copy of the reference's bridge");
    let before = place.snapshot();
    let build = place.build("old");
    let report = place.ok(&[
        "--binary",
        build.to_str().unwrap(),
        "--alias",
        "cnv-bridge=bridge,cnv-tuning=tuning",
        "--alias",
        "buildkit-cni-bridge=bridge",
    ]);
    assert!(report.contains(" cnv-bridge=bridge cnv-tuning=tuning buildkit-cni"), "{report}");
    for (alias, plugin) in [("cnv-bridge", "bridge"), ("cnv-tuning", "tuning")] {
        assert_eq!(place.link(alias).as_deref(), Some(plugin));
        assert_eq!(place.says(alias), "old");
    }
    place.install(&place.build("new"));
    assert_eq!(place.says("buildkit-cni-bridge"), "new", "an upgrade keeps it");
    place.ok(&["--rollback"]);
    assert_eq!(place.says("cnv-tuning"), "old");
    fs::remove_file(place.dir.join("cnv-tuning")).unwrap();
    place.ok(&["--rollback"]);
    assert_eq!(place.says("cnv-tuning"), "old", "a rollback that was interrupted");
    let plan = place.ok(&["--dry-run", "--uninstall"]);
    assert!(plan.contains("bin/cnv-tuning\n") && !plan.contains("stays"), "{plan}");
    place.ok(&["--uninstall"]);
    assert_eq!(place.snapshot(), before);
}

#[test]
fn an_alias_goes_with_another_choice_and_with_its_plugin() {
    let place = Place::with_foreign_plugins();
    write_script(&place.dir.join("cnv-bridge"), "echo a copy");
    let build = place.build("new");
    let binary = ["--binary", build.to_str().unwrap()];
    let ok = |args: &[&str]| place.ok(&[&binary, args].concat());
    ok(&["--alias", &format!("cnv-bridge=bridge,ports={MISSING}")]);
    assert_eq!(place.says("ports"), "new");
    place.install(&place.other("another"));
    assert_eq!(place.link("ports"), None, "it would lead nowhere");
    ok(&["--alias", "cnv-tuning=tuning"]);
    assert_eq!(place.says("cnv-bridge"), "a copy");
    ok(&["--only", "bridge"]);
    assert_eq!(place.link("cnv-tuning"), None);
    ok(&["--all"]);
    assert_eq!(place.says("cnv-tuning"), "new");
    ok(&["--no-alias"]);
    assert_eq!((place.link("cnv-tuning"), place.dir.join(KEPT).exists()), (None, false));
    assert!(!place.dir.join(ANOTHER).exists());
}

#[test]
fn names_that_cannot_be_aliases_are_refused() {
    let place = Place::new();
    let before = place.snapshot();
    for (alias, problem) in [
        ("cnv-bridge", "is no further name; expected NAME=PLUGIN"),
        ("tuning=bridge", "is no further name"),
        ("../x=bridge", "is no further name"),
        ("cni-multi-x=bridge", "is no further name"),
        ("cnitool=bridge", "is no further name"),
        ("=bridge", "is no further name"),
        ("cnv-bridge=bridg", "--alias: no plugin is named \"bridg\"; did you mean \"bridge\"?"),
        ("x=bridge,y=ptp,x=ptp", "--alias: \"x\" is given twice"),
        (
            "x=bridge",
            "--alias: \"bridge\" would not be linked; expected one of the linked plugins: ptp vlan",
        ),
    ] {
        let only = if alias == "x=bridge" { &["--only", "vlan,ptp"][..] } else { &[] };
        let output = place.command(&[&["--alias", alias], only].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(problem), "{alias}: {said}");
        assert_eq!(place.snapshot(), before);
    }
}

#[test]
fn a_watch_links_aliases_again() {
    let place = Place::new();
    let build = place.build("new");
    let aliases = "cnv-bridge=bridge,my-ovs=ovs,my-ipam=whereabouts";
    place.ok(&["--binary", build.to_str().unwrap(), "--alias", aliases]);
    let watch = Watch::of(&place, &build);
    fs::remove_file(place.dir.join("cnv-bridge")).unwrap();
    write_script(&place.dir.join("cnv-bridge"), "echo a copy");
    fs::remove_file(place.dir.join("my-ovs")).unwrap();
    // The original of another vendor.
    fs::remove_file(place.dir.join("whereabouts")).unwrap();
    write_script(&place.dir.join("whereabouts"), "echo the original");
    let is_linked = |name, plugin| place.link(name).as_deref() == Some(plugin);
    wait_until("the alias is linked", 10, || is_linked("cnv-bridge", "bridge"));
    watch.wait_for("linked again: cnv-bridge my-ovs");
    assert_eq!(place.says("cnv-bridge"), "new");
    assert!(is_linked("my-ovs", "ovs") && is_linked("ovs", "cni-multi"), "of ours");
    assert_eq!(place.says("whereabouts"), "the original");
    assert_eq!(place.link("my-ipam"), None, "an alias of another program");
}

/// One step, by the path: nothing else says which plugin an unknown name is.
#[test]
fn a_link_that_others_have_made_is_the_plugin_that_it_leads_to() {
    let place = Place::new();
    place.install(&call::binary());
    let elsewhere = place.root.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let version = |name: &str| {
        let mut command = Command::new(elsewhere.join(name));
        command.env_clear().env("CNI_COMMAND", "VERSION").output().unwrap()
    };
    for (name, target, is_plugin) in [
        ("absolute", place.dir.join("host-local"), true),
        ("relative", "../bin/tuning".into(), true),
        ("binary", place.dir.join("cni-multi"), false),
        ("second", elsewhere.join("absolute"), false),
    ] {
        symlink(target, elsewhere.join(name)).unwrap();
        let output = version(name);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.success(), is_plugin, "{name}: {said}");
        assert_eq!(said.contains("supportedVersions"), is_plugin, "{name}: {said}");
        assert_eq!(said.contains("unknown plugin"), !is_plugin, "{name}: {said}");
    }
}
