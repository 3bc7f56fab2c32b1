//! `cni-multi install`, and install.sh, which calls it, run as an operator runs them: on private
//! directories, with copies of the binary under test as other builds and versions.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use self::place::{ANOTHER, MISSING, Place, RUSTC, listed_by, script, write_script};
use crate::support::call;
use crate::support::netns::is_root;

mod alias;
mod binary;
mod choice;
mod faults;
mod going_back;
mod k3s;
mod on_path;
pub mod place;
mod plan;
mod watch;

/// The caller's compiler flags, or a linker, can produce a binary that crashes at start.
#[test]
fn a_build_that_does_not_run_is_reported_with_its_flags() {
    let place = Place::new();
    let tools = place.root.join("tools");
    let target = place.root.join("target");
    let built = target.join("x86_64-unknown-linux-gnu/release/cni-multi");
    fs::create_dir_all(&tools).unwrap();
    fs::create_dir_all(built.parent().unwrap()).unwrap();
    write_script(&tools.join("rustc"), RUSTC);
    let metadata = format!("echo '{{\"target_directory\":\"{}\"}}'", target.display());
    write_script(&tools.join("cargo"), &format!("if [ \"$1\" = metadata ]; then {metadata}; fi"));
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let build = |flags: &str| {
        let mut script = Command::new(script());
        script
            .arg("--build")
            .env("PATH", &path)
            .env("CARGO_TARGET_DIR", &target)
            .env("RUSTFLAGS", flags)
            .output()
            .unwrap()
    };
    write_script(&built, "kill -SEGV $$");
    for (flags, advice) in [("", "failed.\n"), ("-C x", "'-C x' and took part in the build")] {
        let output = build(flags);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{said}");
        assert!(said.contains("was built and does not run") && said.contains(advice), "{said}");
    }
    write_script(&built, "echo bridge");
    let output = build("-C x");
    assert_eq!(output.stdout, format!("{}\n", built.display()).into_bytes(), "{output:?}");
}

#[test]
fn every_listed_name_is_a_link_that_survives_a_moved_directory() {
    let mut place = Place::new();
    let build = place.root.join("a build of another name");
    fs::rename(place.build("new"), &build).unwrap();
    let mut listed = listed_by(&build);
    let report = place.install(&build);
    assert!(report.contains(&listed.join(" ")), "{report}");
    assert!(listed.iter().all(|name| place.link(name).as_deref() == Some("cni-multi")));
    listed.push("cni-multi".to_owned());
    listed.sort();
    assert_eq!(place.names(), listed);
    let moved = place.root.join("moved");
    fs::rename(&place.dir, &moved).unwrap();
    place.dir = moved;
    assert_eq!((place.says("bridge"), place.says("host-local")), ("new".into(), "new".into()));
}

#[test]
fn the_binary_under_test_installs_and_answers_version() {
    let place = Place::new();
    place.install(&call::binary());
    let output = Command::new(place.dir.join("bridge"))
        .env_clear()
        .env("CNI_COMMAND", "VERSION")
        .output()
        .unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        answer["supportedVersions"].as_array().unwrap().iter().any(|version| version == "1.0.0"),
        "{answer}"
    );
}

#[test]
fn foreign_plugins_are_kept_and_other_files_untouched() {
    let place = Place::with_foreign_plugins();
    place.install(&place.build("new"));
    assert_eq!(place.says("bridge"), "new");
    let files = place.snapshot();
    assert_eq!(files["calico"], "100644 another vendor's");
    assert!(files[".cni-multi/replaced/bridge"].contains("reference bridge"), "{files:?}");
    assert_eq!(files[".cni-multi/replaced/portmap"], "-> /bin/true");
    place.install(&place.other("another"));
    assert_eq!(place.says(ANOTHER), "another");
    assert_eq!(place.link(MISSING).as_deref(), Some("/bin/true"), "the new binary has none");
}

/// Steps in a directory with plugins of others: `install`, or `other` for a build with another set of plugins; `package`, by
/// which another program replaces the bridge; and options of install.sh. A step may be followed by what `bridge` is then,
/// by `=N` for the files after the step N, where 0 is the beginning, and by words that it prints.
const STEPS: &str = r#"
what was there before comes back | install old: old | other new: new | --uninstall: =0 | --uninstall: "nothing to do", =0
a plugin that came later is spared | install new | package | --uninstall: "bin/bridge is not a link to cni-multi and stays", a package upgrade
the first replaced file of a name is kept | install old | package | install new: "stays the one that is kept", new | --uninstall: reference bridge
the previous binary and its names come back | install old: old | other new: new | --rollback: =1, old
a second rollback does nothing | install old | install new | --rollback: =1, old | --rollback: "was rolled back already", =1, old
an install after a rollback can be rolled back | install old | install new | --rollback | install newer: newer | --rollback: old
a rollback of a first install restores the replaced plugins | install new | --rollback: =0 | --rollback: "nothing to do"
the same binary again is not its own predecessor | install old | install new | install new | --rollback: old
"#;

#[test]
fn uninstall_leaves_what_was_there_before_and_rollback_is_one_step_back() {
    for line in STEPS.lines().filter(|line| !line.is_empty()) {
        let place = Place::with_foreign_plugins();
        let mut after = vec![place.snapshot()];
        for step in line.split(" | ").skip(1) {
            let (step, expected) = step.split_once(": ").unwrap_or((step, ""));
            let said = match step.split_once(' ') {
                Some(("install", word)) => place.install(&place.build(word)),
                Some((_, word)) => place.install(&place.other(word)),
                None if step == "package" => {
                    fs::remove_file(place.dir.join("bridge")).unwrap();
                    write_script(&place.dir.join("bridge"), "echo a package upgrade");
                    String::new()
                }
                None => place.ok(&[step]),
            };
            let mut files = place.snapshot();
            let kept = files.get(".cni-multi/replaced/bridge");
            assert!(kept.is_none_or(|it| it.contains("reference bridge")), "{line}: {files:?}");
            after.push(files.clone());
            for expected in expected.split(", ").filter(|it| !it.is_empty()) {
                match expected.strip_prefix('=') {
                    Some(number) => {
                        let number: usize = number.parse().unwrap();
                        assert!(number == 0 || files.remove(".cni-multi/rolled-back").is_some());
                        assert_eq!(files, after[number], "{line}: {step}");
                    }
                    None if expected.starts_with('"') => {
                        assert!(said.contains(expected.trim_matches('"')), "{line}: {said}");
                    }
                    None => assert_eq!(place.says("bridge"), expected, "{line}: {step}"),
                }
            }
        }
    }
}

#[test]
fn dry_run_changes_nothing_and_says_what_it_would_do() {
    let place = Place::with_foreign_plugins();
    let old = place.other("old");
    let new = place.build("new");
    let mut before = place.snapshot();
    let plan = place.ok(&["--dry-run", "--binary", old.to_str().unwrap()]);
    assert!(plan.lines().all(|line| line.starts_with("would ")), "{plan}");
    assert!(plan.contains("would replace ") && plan.contains("/bin/bridge\n"), "{plan}");
    assert_eq!(place.snapshot(), before);
    place.install(&old);
    place.install(&new);
    before = place.snapshot();
    for (action, expected) in [("--rollback", "would replace "), ("--uninstall", "would remove ")] {
        let plan = place.ok(&["--list-only", action]);
        assert!(plan.contains(expected), "{action}: {plan}");
        assert_eq!(place.snapshot(), before, "{action}");
    }
}

#[test]
fn a_binary_that_is_not_cni_multi_changes_nothing() {
    let place = Place::with_foreign_plugins();
    let before = place.snapshot();
    let (fails, lists) = (place.root.join("fails"), place.root.join("lists"));
    write_script(&fails, "exit 3");
    write_script(&lists, "echo bridge");
    let cases = [
        (fails, "fails does not run here: `cni-multi list` failed"),
        (lists, "lists does not know `install --dry-run`"),
        (place.root.join("absent"), "absent is not a file"),
    ];
    for (binary, expected) in cases {
        for args in [&[][..], &["--rollback"], &["--uninstall"]] {
            let error = place.err(&[&["--binary", binary.to_str().unwrap()], args].concat());
            assert!(error.contains(expected), "{expected}: {error}");
            assert_eq!(place.snapshot(), before, "{expected}");
        }
    }
}

/// Root can write regardless of the mode, so the case of root is a read-only mount.
#[test]
fn a_read_only_directory_is_named_and_stays_as_it_is() {
    let place = Place::with_foreign_plugins();
    let before = place.snapshot();
    let dir = place.dir.to_str().unwrap();
    let binary = place.build("new");
    let prepare = if is_root() {
        format!("mount --bind -o ro {dir} {dir}")
    } else {
        format!("chmod 0555 {dir}")
    };
    let line = format!(
        "{prepare} && exec {} --dir {dir} --binary {}",
        script().display(),
        binary.display()
    );
    let output = if is_root() {
        Command::new("unshare").args(["-m", "sh", "-c", &line]).output().unwrap()
    } else {
        Command::new("sh").args(["-c", &line]).output().unwrap()
    };
    fs::set_permissions(&place.dir, fs::Permissions::from_mode(0o755)).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.starts_with(&format!("{dir}: cannot be written: ")), "{error}");
    assert_eq!(place.snapshot(), before);
}

/// The kernel refuses to write to a running program (ETXTBSY), but permits replacing it by rename.
#[test]
fn a_binary_that_is_running_is_replaced() {
    let place = Place::new();
    place.install(&place.build("old"));
    let mut add = call::Call::new(&call::Peer::Ours, "", "ADD", "");
    add.program = place.dir.join("bridge");
    let mut running = Command::new(&add.program)
        .envs(&add.env)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    place.install(&place.build("new"));
    assert_eq!(place.says("bridge"), "new");
    place.ok(&["--uninstall"]);
    assert!(running.try_wait().unwrap().is_none(), "the running one goes on");
    drop(running.stdin.take());
    running.wait().unwrap();
}

#[test]
fn installs_at_the_same_time_take_turns() {
    let place = Place::with_foreign_plugins();
    let before = place.snapshot();
    let builds =
        [place.build("one"), place.other("two"), place.build("three"), place.other("four")];
    std::thread::scope(|scope| {
        for build in &builds {
            scope.spawn(|| place.install(build));
        }
    });
    let files = place.snapshot();
    let winner = place.root.join(format!("cni-multi-{}", place.says("bridge")));
    let mut links = place.names();
    links.retain(|name| place.link(name).as_deref() == Some("cni-multi"));
    let mut listed = listed_by(&winner);
    listed.sort();
    assert_eq!(links, listed, "the links are those of the binary: {files:?}");
    assert!(
        !files
            .keys()
            .any(|name| name.contains("new.") || name.contains("link.") || name.contains("keep.")),
        "{files:?}"
    );
    place.ok(&["--uninstall"]);
    assert_eq!(place.snapshot(), before);
}

#[test]
fn a_binary_for_another_processor_is_refused_first() {
    let place = Place::with_foreign_plugins();
    let before = place.snapshot();
    let mut content = fs::read(call::binary()).unwrap();
    let (other, name) = match std::env::consts::ARCH {
        "aarch64" => (0x3e, "x86_64"),
        _ => (0xb7, "aarch64"),
    };
    content[18] = other;
    let binary = place.root.join("foreign");
    fs::write(&binary, content).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    let path = binary.to_str().unwrap();
    let here = std::env::consts::ARCH;
    let said = format!(
        "install.sh: {path} does not run here: it is for {name}, and this machine is {here}\n"
    );
    for args in [&["--binary", path][..], &["--demo", "--binary", path]] {
        assert_eq!(place.err(args), said);
        assert_eq!(place.snapshot(), before);
    }
}

#[test]
fn a_wrong_option_is_named() {
    let place = Place::new();
    let misuses: [(&[&str], &str); 4] = [
        (&["--force"], "--force is not an option"),
        (&["--binary"], "--binary wants a path"),
        (&["--manual"], "--manual wants a path"),
        (&["--rollback", "--uninstall"], "--rollback and --uninstall exclude each other"),
    ];
    for (args, expected) in misuses {
        let output = place.run(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let output = place.command(&["--force"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("'--force'") && said.contains("try '--help'"), "{said}");
}
