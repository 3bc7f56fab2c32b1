//! The links to the binary in a directory of PATH.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::place::Place;
use crate::support::call;
use crate::support::netns::is_root;

impl Place {
    fn path(&self) -> String {
        self.root.join("path").to_str().unwrap().to_owned()
    }

    /// Runs `cni-multi install`, which has to succeed; returns stdout and stderr with the root as
    /// `ROOT`.
    #[track_caller]
    fn done(&self, args: &[&str]) -> (String, String) {
        let output = self.command(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        [output.stdout, output.stderr].map(|text| self.text(text)).into()
    }

    fn text(&self, text: Vec<u8>) -> String {
        String::from_utf8(text).unwrap().replace(self.root.to_str().unwrap(), "ROOT")
    }

    /// The target of a link in the directory of PATH; empty if there is none.
    fn command_link(&self, name: &str) -> String {
        let link = fs::read_link(self.root.join("path").join(name));
        link.map(|to| self.text(to.into_os_string().into_encoded_bytes())).unwrap_or_default()
    }
}

#[test]
fn named_directory_gets_both_links_until_uninstall() {
    let place = Place::new();
    let (printed, said) = place.done(&["--path", &place.path(), "--list-only"]);
    assert!(
        printed.ends_with("would make ROOT/path/cni-multi\nwould make ROOT/path/cnitool\n"),
        "{printed}"
    );
    assert!(said.is_empty() && !place.root.join("path").exists(), "{said}");

    let (printed, _) = place.done(&["--path", &place.path()]);
    assert!(
        printed.ends_with(
            "Links to it in a directory of PATH: ROOT/path/cni-multi ROOT/path/cnitool\n"
        ),
        "{printed}"
    );
    for name in ["cni-multi", "cnitool"] {
        assert_eq!(place.command_link(name), "ROOT/bin/cni-multi");
        let help = Command::new(place.root.join("path").join(name)).arg("--help").output().unwrap();
        assert!(help.status.success(), "{help:?}");
    }
    place.ok(&["--binary", place.other("other").to_str().unwrap()]);
    place.done(&["--rollback", "--no-path"]);
    assert_eq!(place.command_link("cni-multi"), "ROOT/bin/cni-multi", "a rollback keeps it");

    let (printed, _) = place.done(&["--uninstall", "--dry-run"]);
    assert!(printed.contains("would remove ROOT/path/cnitool\n"), "{printed}");
    place.done(&["--uninstall"]);
    let left = fs::read_dir(place.path()).unwrap().count();
    assert_eq!((left, place.names()), (0, vec![]), "without --path: it is recorded");
}

#[test]
fn foreign_file_in_path_stays_and_is_named() {
    let place = Place::new();
    fs::create_dir(place.path()).unwrap();
    symlink("/opt/other/cni-multi", place.root.join("path/cni-multi")).unwrap();
    fs::write(place.root.join("path/cnitool"), "libcni's").unwrap();
    let output = place.command(&["--path", &place.path()]);
    let said = place.text(output.stderr);
    assert_eq!(output.status.code(), Some(1), "the directory was asked for: {said}");
    assert_eq!(
        said,
        "ROOT/bin: ROOT/path/cni-multi is not a link to ROOT/bin/cni-multi and stays; to replace it: \
         ln -sf ROOT/bin/cni-multi ROOT/path/cni-multi\n"
    );
    assert_eq!(place.says("bridge"), "unmarked", "the plugins are installed");
    place.done(&["--uninstall", "--path", &place.path()]);
    assert_eq!(place.command_link("cni-multi"), "/opt/other/cni-multi");
    assert_eq!(fs::read_to_string(place.root.join("path/cnitool")).unwrap(), "libcni's");
}

#[test]
fn script_hands_path_options_to_the_binary() {
    let place = Place::new();
    let binary = call::binary();
    let args = ["--binary", binary.to_str().unwrap(), "--path", &place.path()];
    assert!(place.ok(&args).contains("Links to it in a directory of PATH: "));
    assert_eq!(place.command_link("cnitool"), "ROOT/bin/cni-multi");
    let output = place.command(&["--path", "/x", "--no-path"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

/// Runs shell lines with `$1` as the binary, where /opt and /usr/local are private and empty.
#[track_caller]
fn on_private_host(lines: &str) -> String {
    let user: &[&str] = if is_root() { &[] } else { &["-r", "-U"] };
    let lines =
        format!("mount -t tmpfs tmpfs /opt; mount -t tmpfs tmpfs /usr/local; exec 2>&1; {lines}");
    let mut command = Command::new("unshare");
    command.args(user).args(["-m", "sh", "-euc", &lines, "sh"]).arg(call::binary());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn default_directory_is_linked_into_usr_local_bin() {
    let printed = on_private_host(
        "\"$1\" install >/dev/null; readlink /usr/local/bin/cni-multi /usr/local/bin/cnitool
        /usr/local/bin/cni-multi install --uninstall --no-path >/dev/null; ls /usr/local/bin
        \"$1\" install --no-path >/dev/null; ls /usr/local/bin
        \"$1\" install --dir /opt/elsewhere >/dev/null; ls /usr/local/bin; echo end",
    );
    let link = "/opt/cni/bin/cni-multi\n";
    assert_eq!(printed, format!("{link}{link}end\n"));
}

/// The plugins are what a runtime needs, so they are installed all the same.
#[test]
fn unwritable_usr_local_is_a_note() {
    let printed = on_private_host(
        "mount -o remount,ro /usr/local; \"$1\" install >/dev/null || echo failed
        mkdir /opt/usr; mount --bind /opt/usr /usr/local; mkdir /usr/local/bin; echo theirs >/usr/local/bin/cnitool
        \"$1\" install >/dev/null; cat /usr/local/bin/cnitool; readlink /usr/local/bin/cni-multi",
    );
    let advice = "--path DIR names another directory of PATH, and --no-path none\n";
    let denied =
        |name: &str| format!("link /usr/local/bin/{name}: read-only file system; {advice}");
    let taken = format!(
        "/usr/local/bin/cnitool is not a link to /opt/cni/bin/cni-multi and stays; to replace it: \
         ln -sf /opt/cni/bin/cni-multi /usr/local/bin/cnitool; {advice}"
    );
    let expected =
        [denied("cni-multi"), denied("cnitool"), taken, "theirs\n/opt/cni/bin/cni-multi\n".into()];
    assert_eq!(printed, expected.concat());
}
