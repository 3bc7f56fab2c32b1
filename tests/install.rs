//! install.sh as an operator runs it, on directories of its own, with small scripts in the place of
//! the binary; and the binary's own `install`, which has to leave the same files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::call;

/// A plugin directory below a directory of the test's own, which is removed with it.
struct Place {
    root: PathBuf,
    dir: PathBuf,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root); // a leftover in the temporary directory harms nobody
    }
}

impl Place {
    fn new() -> Place {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!(
            "cni-multi-install-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let root = std::env::temp_dir().join(unique);
        let dir = root.join("bin");
        fs::create_dir_all(&dir).unwrap();
        Place { root, dir }
    }

    /// A directory as the reference leaves it: two plugins, one of them a symlink, and one of
    /// someone else.
    fn with_foreign_plugins() -> Place {
        let place = Place::new();
        write_script(&place.dir.join("bridge"), "echo reference bridge");
        symlink("/bin/true", place.dir.join("portmap")).unwrap();
        fs::write(place.dir.join("calico"), "another vendor's").unwrap();
        place
    }

    /// A stand-in for the binary that lists `names` and says `word` when it runs as a plugin.
    fn binary(&self, word: &str, names: &[&str]) -> PathBuf {
        let path = self.root.join(format!("build-{word}"));
        write_script(
            &path,
            &format!(
                "if [ \"${{0##*/}} $1\" = \"cni-multi list\" ]; then printf '%s\\n' {}; else echo {word}; fi",
                names.join(" ")
            ),
        );
        path
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(script())
            .arg("--dir")
            .arg(&self.dir)
            .args(args)
            .current_dir(&self.root)
            .output()
            .unwrap()
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "install.sh {args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn err(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "install.sh {args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    #[track_caller]
    fn install(&self, binary: &Path) -> String {
        self.ok(&["--binary", binary.to_str().unwrap()])
    }

    /// What the plugin of this name says: whose it is.
    #[track_caller]
    fn says(&self, name: &str) -> String {
        let output = Command::new(self.dir.join(name)).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn link(&self, name: &str) -> Option<String> {
        fs::read_link(self.dir.join(name)).ok().map(|target| target.to_str().unwrap().to_owned())
    }

    fn snapshot(&self) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        collect(&self.dir, "", &mut files);
        files
    }
}

/// Every path below `dir` with its kind, mode and content.
fn collect(dir: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}{}", path.file_name().unwrap().to_str().unwrap());
        let metadata = path.symlink_metadata().unwrap();
        let content = if metadata.is_symlink() {
            format!("-> {}", fs::read_link(&path).unwrap().display())
        } else if metadata.is_dir() {
            collect(&path, &format!("{name}/"), files);
            "directory".to_owned()
        } else {
            let content = fs::read(&path).unwrap();
            let text = String::from_utf8(content)
                .unwrap_or_else(|binary| format!("{} bytes", binary.as_bytes().len()));
            format!("{:o} {text}", metadata.permissions().mode())
        };
        files.insert(name, content);
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh")
}

fn write_script(path: &Path, body: &str) {
    fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().unwrap().stdout == b"0\n"
}

/// Flags of the caller, or a linker, can make a binary that crashes at its start.
#[test]
fn a_build_that_does_not_run_is_told_with_the_flags_that_took_part() {
    let place = Place::new();
    let tools = place.root.join("tools");
    let target = place.root.join("target");
    let built = target.join("x86_64-unknown-linux-gnu/release/cni-multi");
    fs::create_dir_all(&tools).unwrap();
    fs::create_dir_all(built.parent().unwrap()).unwrap();
    write_script(
        &tools.join("rustc"),
        "if [ \"$1\" = -vV ]; then echo 'host: x86_64-unknown-linux-gnu'; fi",
    );
    let metadata = format!("echo '{{\"target_directory\":\"{}\"}}'", target.display());
    write_script(&tools.join("cargo"), &format!("if [ \"$1\" = metadata ]; then {metadata}; fi"));
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let build = |flags: &str| {
        let mut script = Command::new(script());
        script.arg("--build").env("PATH", &path).env("RUSTFLAGS", flags).output().unwrap()
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
fn every_listed_name_is_a_link_that_survives_a_move_of_the_directory() {
    let place = Place::new();
    let report = place.install(&place.binary("new", &["bridge", "host-local"]));
    assert!(report.contains("bridge host-local"), "{report}");
    assert_eq!(place.link("bridge").as_deref(), Some("cni-multi"));
    assert_eq!(place.link("host-local").as_deref(), Some("cni-multi"));
    let names: Vec<String> = place.snapshot().into_keys().collect();
    assert_eq!(names, ["bridge", "cni-multi", "host-local"]);
    let moved = place.root.join("moved");
    fs::rename(&place.dir, &moved).unwrap();
    let output = Command::new(moved.join("bridge")).output().unwrap();
    assert_eq!(output.stdout, b"new\n");
}

#[test]
fn a_missing_directory_is_made() {
    let place = Place::new();
    let binary = place.binary("new", &["bridge"]);
    let dir = place.root.join("opt/cni/bin");
    place.ok(&["--dir", dir.to_str().unwrap(), "--binary", binary.to_str().unwrap()]);
    assert!(dir.join("bridge").exists());
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
    place.install(&place.binary("new", &["bridge", "portmap", "vlan"]));
    assert_eq!(place.says("bridge"), "new");
    let files = place.snapshot();
    assert_eq!(files["calico"], "100644 another vendor's");
    assert!(files[".cni-multi/replaced/bridge"].contains("reference bridge"), "{files:?}");
    assert_eq!(files[".cni-multi/replaced/portmap"], "-> /bin/true");
}

#[test]
fn uninstall_leaves_what_was_there_before() {
    let place = Place::with_foreign_plugins();
    let before = place.snapshot();
    place.install(&place.binary("old", &["bridge", "portmap", "vlan"]));
    place.install(&place.binary("new", &["bridge", "portmap", "vlan", "vrf"]));
    place.ok(&["--uninstall"]);
    assert_eq!(place.snapshot(), before);
    assert!(place.ok(&["--uninstall"]).contains("nothing to do"));
}

#[test]
fn uninstall_spares_a_plugin_that_came_later() {
    let place = Place::with_foreign_plugins();
    place.install(&place.binary("new", &["bridge", "vlan"]));
    fs::remove_file(place.dir.join("bridge")).unwrap();
    write_script(&place.dir.join("bridge"), "echo a package upgrade");
    let report = place.ok(&["--uninstall"]);
    assert!(report.contains("bin/bridge is not a link to cni-multi and stays"), "{report}");
    assert_eq!(place.says("bridge"), "a package upgrade");
    assert!(place.snapshot()[".cni-multi/replaced/bridge"].contains("reference bridge"));
}

#[test]
fn the_first_replaced_file_of_a_name_is_the_one_that_is_kept() {
    let place = Place::with_foreign_plugins();
    place.install(&place.binary("old", &["bridge"]));
    fs::remove_file(place.dir.join("bridge")).unwrap();
    write_script(&place.dir.join("bridge"), "echo a package upgrade");
    let report = place.install(&place.binary("new", &["bridge"]));
    assert!(report.contains("stays the one that is kept"), "{report}");
    assert_eq!(place.says("bridge"), "new");
    place.ok(&["--uninstall"]);
    assert_eq!(place.says("bridge"), "reference bridge");
}

#[test]
fn rollback_brings_back_the_previous_binary_and_its_names() {
    let place = Place::with_foreign_plugins();
    place.install(&place.binary("old", &["bridge", "portmap", "vlan"]));
    let before = place.snapshot();
    place.install(&place.binary("new", &["bridge", "vrf"]));
    assert_eq!((place.says("bridge"), place.says("vrf")), ("new".to_owned(), "new".to_owned()));
    assert_eq!(
        place.link("portmap").as_deref(),
        Some("/bin/true"),
        "the new binary has no portmap: the replaced one is back"
    );
    place.ok(&["--rollback"]);
    let mut after = place.snapshot();
    assert!(after.remove(".cni-multi/rolled-back").is_some());
    assert_eq!(after, before);
}

#[test]
fn rollback_twice_is_one_step_back() {
    let place = Place::with_foreign_plugins();
    place.install(&place.binary("old", &["bridge"]));
    place.install(&place.binary("new", &["bridge"]));
    place.ok(&["--rollback"]);
    let after = place.snapshot();
    assert!(place.ok(&["--rollback"]).contains("was rolled back already"));
    assert_eq!(place.snapshot(), after);
    assert_eq!(place.says("bridge"), "old");
}

#[test]
fn rollback_goes_on_after_it_was_interrupted() {
    let place = Place::new();
    place.install(&place.binary("old", &["bridge", "vlan"]));
    place.install(&place.binary("new", &["bridge"]));
    fs::write(place.dir.join(".cni-multi/rolled-back"), "").unwrap();
    fs::rename(place.dir.join(".cni-multi/previous"), place.dir.join("cni-multi")).unwrap();
    place.ok(&["--rollback"]);
    assert_eq!(place.says("vlan"), "old");
}

#[test]
fn an_install_after_a_rollback_can_be_rolled_back() {
    let place = Place::new();
    place.install(&place.binary("old", &["bridge"]));
    place.install(&place.binary("new", &["bridge"]));
    place.ok(&["--rollback"]);
    place.install(&place.binary("newer", &["bridge"]));
    place.ok(&["--rollback"]);
    assert_eq!(place.says("bridge"), "old");
}

#[test]
fn rollback_of_a_first_install_restores_the_replaced_plugins() {
    let place = Place::with_foreign_plugins();
    let before = place.snapshot();
    place.install(&place.binary("new", &["bridge", "portmap", "vlan"]));
    place.ok(&["--rollback"]);
    assert_eq!(place.snapshot(), before);
    assert!(place.ok(&["--rollback"]).contains("nothing to do"));
}

#[test]
fn rollback_with_nothing_to_go_back_to_is_refused() {
    let place = Place::new();
    place.install(&place.binary("new", &["bridge"]));
    let before = place.snapshot();
    let error = place.err(&["--rollback"]);
    assert!(error.contains("no previous binary and no replaced plugins"), "{error}");
    assert_eq!(place.snapshot(), before);
}

#[test]
fn rollback_to_a_binary_that_does_not_run_changes_nothing() {
    let place = Place::new();
    place.install(&place.binary("old", &["bridge"]));
    place.install(&place.binary("new", &["bridge"]));
    write_script(&place.dir.join(".cni-multi/previous"), "exit 1");
    let before = place.snapshot();
    let error = place.err(&["--rollback"]);
    assert!(error.contains(".cni-multi/previous does not run here"), "{error}");
    assert_eq!(place.snapshot(), before);
}

#[test]
fn the_same_binary_again_does_not_become_its_own_predecessor() {
    let place = Place::new();
    place.install(&place.binary("old", &["bridge"]));
    let new = place.binary("new", &["bridge"]);
    place.install(&new);
    place.install(&new);
    place.ok(&["--rollback"]);
    assert_eq!(place.says("bridge"), "old");
}

#[test]
fn dry_run_changes_nothing_and_says_what_it_would_do() {
    let place = Place::with_foreign_plugins();
    let old = place.binary("old", &["bridge", "vlan"]);
    let new = place.binary("new", &["bridge", "vrf"]);
    let mut before = place.snapshot();
    let plan = place.ok(&["--dry-run", "--binary", old.to_str().unwrap()]);
    assert!(plan.lines().all(|line| line.starts_with("would ")), "{plan}");
    assert!(plan.contains("/bin/bridge to "), "{plan}");
    assert_eq!(place.snapshot(), before);
    place.install(&old);
    place.install(&new);
    before = place.snapshot();
    for (action, expected) in [("--rollback", "would link "), ("--uninstall", "would remove ")] {
        let plan = place.ok(&["--list-only", action]);
        assert!(plan.contains(expected), "{action}: {plan}");
        assert_eq!(place.snapshot(), before, "{action}");
    }
}

#[test]
fn a_binary_that_is_not_cni_multi_changes_nothing() {
    let place = Place::with_foreign_plugins();
    let before = place.snapshot();
    let fails = place.root.join("fails");
    write_script(&fails, "exit 3");
    let cases = [
        (fails, "does not run here"),
        (place.binary("dots", &["bridge", "../../etc/passwd"]), "printed '../../etc/passwd'"),
        (place.binary("self", &["cni-multi"]), "printed 'cni-multi'"),
        (place.binary("hidden", &[".cni-multi"]), "printed '.cni-multi'"),
        (place.binary("none", &[]), "printed ''"),
        (place.root.join("absent"), "absent is not a file"),
    ];
    for (binary, expected) in cases {
        let error = place.err(&["--binary", binary.to_str().unwrap()]);
        assert!(
            error.contains(expected)
                || (expected == "printed ''" && error.contains("printed nothing")),
            "{expected}: {error}"
        );
        assert_eq!(place.snapshot(), before, "{expected}");
    }
}

#[test]
fn a_directory_at_a_plugins_name_is_refused_before_any_change() {
    let place = Place::with_foreign_plugins();
    fs::create_dir(place.dir.join("vlan")).unwrap();
    let before = place.snapshot();
    let error =
        place.err(&["--binary", place.binary("new", &["bridge", "vlan"]).to_str().unwrap()]);
    assert!(error.contains("bin/vlan is a directory; nothing was changed"), "{error}");
    assert_eq!(place.snapshot(), before);
}

#[test]
fn a_file_in_the_place_of_the_directory_is_named() {
    let place = Place::new();
    let file = place.root.join("file");
    fs::write(&file, "").unwrap();
    let binary = place.binary("new", &["bridge"]);
    for dir in [file.clone(), file.join("below")] {
        let error =
            place.err(&["--dir", dir.to_str().unwrap(), "--binary", binary.to_str().unwrap()]);
        assert!(error.contains(dir.to_str().unwrap()), "{error}");
    }
}

/// Root writes whatever the mode says, so root's case is a read-only mount.
#[test]
fn a_read_only_directory_is_named_and_stays_as_it_is() {
    let place = Place::with_foreign_plugins();
    let before = place.snapshot();
    let dir = place.dir.to_str().unwrap();
    let binary = place.binary("new", &["bridge"]);
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
    assert!(error.contains(&format!("{dir} cannot be written")), "{error}");
    assert_eq!(place.snapshot(), before);
}

#[test]
fn no_name_is_missing_at_any_moment() {
    let place = Place::with_foreign_plugins();
    let old = place.binary("old", &["bridge", "portmap"]);
    let new = place.binary("new", &["bridge", "portmap", "vlan"]);
    let done = AtomicBool::new(false);
    let looks = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut looks = 0;
            while !done.load(Ordering::Relaxed) {
                for name in ["bridge", "portmap"] {
                    fs::File::open(place.dir.join(name)).unwrap();
                }
                looks += 1;
            }
            looks
        });
        for _ in 0..3 {
            place.install(&old);
            place.install(&new);
            place.ok(&["--rollback"]);
            place.ok(&["--uninstall"]);
        }
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap()
    });
    assert!(looks > 100, "the watcher looked only {looks} times");
}

/// The kernel refuses to write to a program that runs (ETXTBSY) and to replace nothing by rename.
/// A shell is the binary here: it runs the file `list` of the working directory when told `list`.
#[test]
fn a_binary_that_is_running_is_replaced() {
    let place = Place::new();
    let shell = place.root.join("shell");
    fs::copy("/bin/sh", &shell).unwrap();
    fs::write(place.root.join("list"), "echo bridge").unwrap();
    place.install(&shell);
    let mut running = Command::new(place.dir.join("bridge"))
        .args(["-c", "read word"])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    place.install(&place.binary("new", &["bridge"]));
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
    let builds: Vec<PathBuf> = ["one", "two", "three", "four"]
        .iter()
        .map(|word| place.binary(word, &["bridge", "portmap", word]))
        .collect();
    std::thread::scope(|scope| {
        for build in &builds {
            scope.spawn(|| place.install(build));
        }
    });
    let files = place.snapshot();
    let winner = place.says("bridge");
    assert_eq!(place.says(&winner), winner, "the links are those of the binary: {files:?}");
    assert_eq!(files.values().filter(|content| *content == "-> cni-multi").count(), 3, "{files:?}");
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
fn what_a_killed_run_left_is_cleared_by_the_next() {
    let place = Place::new();
    fs::create_dir_all(place.dir.join(".cni-multi/replaced")).unwrap();
    fs::write(place.dir.join(".cni-multi/new.99"), "half a binary").unwrap();
    place.install(&place.binary("new", &["bridge"]));
    let names: Vec<String> = place.snapshot().into_keys().collect();
    assert_eq!(names, ["bridge", "cni-multi"]);
}

#[test]
fn a_wrong_option_is_named() {
    let place = Place::new();
    assert!(place.err(&["--force"]).contains("--force is not an option"));
    assert!(place.err(&["--binary"]).contains("--binary wants a path"));
    assert!(place.err(&["--manual"]).contains("--manual wants a path"));
}

/// What it writes is looked at in net::manual.
#[test]
fn the_manual_is_announced_and_the_plugin_directory_left_alone() {
    let place = Place::with_foreign_plugins();
    let before = place.snapshot();
    let printed = place.ok(&["--manual", "share", "--dry-run"]);
    let share = place.root.join("share");
    assert_eq!(
        printed,
        format!("would write the manual and the completions below {}\n", share.display())
    );
    assert!(!share.exists() && place.snapshot() == before);
}

// --- `cni-multi install` ---

/// Who does it.
#[derive(Clone, Copy, Debug)]
enum By {
    Script,
    Binary,
}

/// What is done to a directory that has plugins of others.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// Another cni-multi, with fewer names and one more, is installed by the script.
    Other,
    /// A package writes its file over a link.
    Foreign,
    Install,
    Rollback,
    Uninstall,
}
use Step::{Foreign, Install, Other, Rollback, Uninstall};

impl Place {
    fn command(&self, args: &[&str]) -> Output {
        Command::new(call::binary())
            .arg("install")
            .arg("--dir")
            .arg(&self.dir)
            .args(args)
            .output()
            .unwrap()
    }

    /// What it said at last, with the directory as `DIR`.
    #[track_caller]
    fn take(&self, step: Step, by: By) -> String {
        let binary = call::binary();
        let (script, command): (Vec<&str>, Vec<&str>) = match step {
            Other => (vec!["--binary", "build-other"], vec![]),
            Foreign => {
                fs::remove_file(self.dir.join("bridge")).unwrap();
                write_script(&self.dir.join("bridge"), "echo a package upgrade");
                return String::new();
            }
            Install => (vec!["--binary", binary.to_str().unwrap()], vec![]),
            Rollback => (vec!["--rollback"], vec!["--rollback"]),
            Uninstall => (vec!["--uninstall"], vec!["--uninstall"]),
        };
        let output = match by {
            By::Binary if step != Other => self.command(&command),
            _ => self.run(&script),
        };
        assert!(output.status.success(), "{step:?} {by:?}: {output:?}");
        let text =
            String::from_utf8(output.stdout).unwrap().replace(self.dir.to_str().unwrap(), "DIR");
        text.lines().last().unwrap().to_owned()
    }
}

#[test]
fn the_binary_installs_as_the_script_does_and_either_takes_back_what_the_other_did() {
    let sequences: [&[Step]; 9] = [
        &[Install, Uninstall, Uninstall],
        &[Install, Rollback, Rollback],
        &[Install, Install, Uninstall],
        &[Other, Install, Rollback, Rollback, Uninstall],
        &[Other, Install, Rollback, Install, Rollback],
        &[Other, Install, Uninstall],
        &[Install, Foreign, Uninstall],
        &[Install, Foreign, Install, Uninstall],
        &[Other, Foreign, Install, Rollback],
    ];
    for steps in sequences {
        let ways = [
            [By::Script, By::Script],
            [By::Binary, By::Binary],
            [By::Script, By::Binary],
            [By::Binary, By::Script],
        ];
        let outcomes = ways.map(|way| {
            let place = Place::with_foreign_plugins();
            // The kernel tells a script its path, whatever it was called.
            write_script(
                &place.root.join("build-other"),
                "[ \"$1\" = list ] && printf '%s\\n' bridge portmap another",
            );
            let by = way.iter().cycle();
            steps
                .iter()
                .zip(by)
                .map(|(step, by)| (place.take(*step, *by), place.snapshot()))
                .collect::<Vec<_>>()
        });
        for (way, outcome) in ways.iter().zip(&outcomes) {
            assert_eq!(outcome, &outcomes[0], "{steps:?} by {way:?}");
        }
    }
}

#[test]
fn taking_back_where_nothing_is_says_so_and_makes_nothing() {
    for arg in ["--rollback", "--uninstall"] {
        let place = Place::new();
        fs::remove_dir(&place.dir).unwrap();
        let (script, binary) = (place.run(&[arg]), place.command(&[arg]));
        assert!(script.status.success() && binary.status.success(), "{script:?} {binary:?}");
        assert_eq!(
            String::from_utf8(binary.stdout).unwrap(),
            String::from_utf8(script.stdout).unwrap()
        );
        assert!(!place.dir.exists());
    }
}

#[test]
fn the_binary_installs_all_that_it_lists() {
    let place = Place::new();
    place.take(Install, By::Binary);
    let listed = Command::new(call::binary()).arg("list").output().unwrap();
    let mut expected: Vec<String> =
        String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect();
    expected.push("cni-multi".to_owned());
    expected.sort();
    assert_eq!(place.snapshot().into_keys().collect::<Vec<_>>(), expected);
    assert_eq!(place.link("host-local").as_deref(), Some("cni-multi"));
}

#[test]
fn what_the_script_refuses_the_binary_refuses_and_changes_nothing() {
    fn prepare(place: &Place) {
        place.install(&place.binary("other", &["bridge", "vlan"]));
    }
    type Case = (fn(&Place), &'static [&'static str], &'static str);
    let cases: [Case; 4] = [
        (
            |place| fs::create_dir(place.dir.join("vlan")).unwrap(),
            &[],
            "vlan is a directory; nothing was changed",
        ),
        (
            prepare,
            &["--rollback"],
            "no previous binary and no replaced plugins to go back to; --uninstall removes cni-multi",
        ),
        (
            |place| {
                prepare(place);
                fs::create_dir(place.dir.join(".cni-multi")).unwrap();
                write_script(&place.dir.join(".cni-multi/previous"), "exit 1");
            },
            &["--rollback"],
            ".cni-multi/previous is not cni-multi, or does not run here",
        ),
        (
            |place| {
                prepare(place);
                fs::create_dir(place.dir.join(".cni-multi")).unwrap();
                write_script(&place.dir.join(".cni-multi/previous"), "printf '%s\\n' bridge ../x");
            },
            &["--rollback"],
            ".cni-multi/previous is not cni-multi, or does not run here",
        ),
    ];
    for (prepare, args, expected) in cases {
        let place = Place::new();
        prepare(&place);
        let before = place.snapshot();
        assert!(
            !place
                .run(&[args, &["--binary", call::binary().to_str().unwrap()]].concat())
                .status
                .success()
        );
        assert_eq!(place.snapshot(), before, "install.sh: {expected}");
        let output = place.command(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said, format!("{}: {expected}\n", place.dir.display()));
        assert_eq!((output.status.code(), place.snapshot()), (Some(1), before), "{expected}");
    }
}

#[test]
fn the_binary_names_a_directory_that_it_cannot_make() {
    let place = Place::new();
    fs::write(place.root.join("file"), "").unwrap();
    let dir = place.root.join("file/bin");
    let output =
        Command::new(call::binary()).args(["install", "--dir"]).arg(&dir).output().unwrap();
    let (said, dir) = (String::from_utf8(output.stderr).unwrap(), dir.display());
    assert_eq!(
        (output.status.code(), said),
        (Some(1), format!("{dir}: make {dir}: not a directory\n"))
    );
}

/// A package's script may run in a root that has no /proc.
#[test]
fn the_binary_finds_itself_without_proc() {
    let place = Place::new();
    let line = "mount -t tmpfs tmpfs /proc && exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", line, "sh"])
        .arg(call::binary())
        .args(["install", "--dir"])
        .arg(&place.dir)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read(place.dir.join("cni-multi")).unwrap(), fs::read(call::binary()).unwrap());
}

#[test]
fn no_name_is_missing_while_the_binary_and_the_script_take_turns() {
    let place = Place::with_foreign_plugins();
    let other = place.binary("other", &["bridge", "portmap"]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for name in ["bridge", "portmap"] {
                    fs::File::open(place.dir.join(name)).unwrap();
                }
            }
        });
        let at_once = scope.spawn(|| {
            for _ in 0..4 {
                place.install(&other);
            }
        });
        for _ in 0..2 {
            for step in [Install, Rollback, Uninstall] {
                let output = place.command(match step {
                    Install => &[],
                    Rollback => &["--rollback"],
                    _ => &["--uninstall"],
                });
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(
                    output.status.success() || said.contains("no previous binary"),
                    "{step:?}: {said}"
                );
            }
        }
        at_once.join().unwrap();
        done.store(true, Ordering::Relaxed);
        watcher.join().unwrap();
    });
    let files = place.snapshot();
    assert!(!files.keys().any(|name| name.ends_with(".0")), "{files:?}");
}

/// A run that was killed between the two steps of keeping a binary has left two names of one file.
#[test]
fn a_rollback_by_the_binary_uses_up_what_it_goes_back_to() {
    let place = Place::new();
    write_script(&place.root.join("build-other"), "[ \"$1\" = list ] && echo bridge");
    place.take(Other, By::Script);
    fs::create_dir(place.dir.join(".cni-multi")).unwrap();
    fs::hard_link(place.dir.join("cni-multi"), place.dir.join(".cni-multi/previous")).unwrap();
    place.take(Rollback, By::Binary);
    let names: Vec<String> = place.snapshot().into_keys().collect();
    assert_eq!(names, [".cni-multi", ".cni-multi/rolled-back", "bridge", "cni-multi"]);
}

#[test]
fn the_binary_waits_for_no_fifo_at_a_name_of_its_own() {
    let place = Place::with_foreign_plugins();
    place.take(Install, By::Binary);
    for (args, expected) in [
        (&[][..], "is installed in"),
        (&["--uninstall"], "bridge is not a link to cni-multi and stays"),
    ] {
        for name in ["cni-multi", "bridge"] {
            fs::remove_file(place.dir.join(name)).unwrap();
            assert!(Command::new("mkfifo").arg(place.dir.join(name)).status().unwrap().success());
        }
        let mut command = Command::new("timeout");
        command.arg("10").arg(call::binary()).args(["install", "--dir"]).arg(&place.dir).args(args);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(expected), "{args:?}: {output:?}");
    }
}

#[test]
fn ordinary_users_can_start_what_the_binary_installs_whatever_the_umask() {
    let place = Place::new();
    let dir = place.root.join("opt/cni/bin");
    let line = "umask 077 && exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", line, "sh"]).arg(call::binary()).args(["install", "--dir"]).arg(&dir);
    assert!(shell.status().unwrap().success());
    for path in [place.root.join("opt"), dir.clone(), dir.join("cni-multi")] {
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o755,
            "{}",
            path.display()
        );
    }
}

#[test]
fn the_binary_is_not_told_to_go_back_in_two_ways() {
    let place = Place::with_foreign_plugins();
    place.take(Install, By::Binary);
    let before = place.snapshot();
    let output = place.command(&["--rollback", "--uninstall"]);
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(place.snapshot(), before);
}
