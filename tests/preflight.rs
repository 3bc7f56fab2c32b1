//! packaging/preflight.sh: what install.sh and tests/run say on machines that lack something, word
//! for word, and that nothing was compiled, installed or left by then.

mod machine;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use self::machine::{Machine, write_rustc};
use crate::install::place::write_script;
use crate::layers::root;
use crate::support::table::cells;

const RUSTUP: &str = "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y";
const DEMO: [&str; 2] = ["install.sh", "--demo"];
const BUILD: [&str; 2] = ["install.sh", "--build"];

/// Package managers, and what they are asked for.
const MANAGERS: [(&str, &str, &str); 5] = [
    (
        "apt-get",
        "SUDOapt-get update && SUDOapt-get install -y --no-install-recommends ",
        "curl ca-certificates gcc libc6-dev",
    ),
    ("dnf", "SUDOdnf install -y ", "curl gcc glibc-static"),
    ("zypper", "SUDOzypper --non-interactive install ", "curl gcc glibc-devel-static"),
    ("apk", "SUDOapk add ", "curl gcc musl-dev"),
    ("pacman", "SUDOpacman -Syu --needed --noconfirm ", "curl gcc"),
];

#[test]
fn one_line_installs_all_on_each_distribution() {
    for (manager, command, packages) in MANAGERS {
        let line = format!("{command}{packages}");
        let said = |line: String| {
            format!("This machine lacks: cargo, a C compiler\nFirst type: {line} && {RUSTUP}\n")
        };
        let bare = || Machine::new(manager).without(&["cargo", "rustc", "cc", "curl"]);
        bare().refuses(&DEMO, &said(line.replace("SUDO", "")));
        bare().refuses(&["tests/run"], &said(line.replace("SUDO", "")));
        bare().of_user().refuses(&BUILD, &said(line.replace("SUDO", "sudo ")));
        let no_sudo = bare().of_user().without(&["sudo"]);
        no_sudo.refuses(&DEMO, &said(format!("su -c '{}'", line.replace("SUDO", ""))));
    }
}

/// The programs that the machine is without, those that answer otherwise, separated by `@`, the script, what is lacking, and
/// what to type. RHEL and its derivatives have glibc-static in a repository that is not enabled.
const LACKS: &str = r#"
cargo rustc |  | install.sh --build | cargo | RUSTUP
cargo rustc |  | tests/run --lint | cargo | RUSTUP
cc |  | install.sh --build | a C compiler | APT
cc |  | tests/run | a C compiler | APT
 | cc echo 'ld: cannot find crt1.o' >&2; echo more >&2; exit 1 | install.sh --build | the C library's files to link with (ld: cannot find crt1.o) | APT
 | cc case $* in *-static*) echo 'ld: cannot find -lc' >&2; exit 1 ;; esac | install.sh --build | the static C library (ld: cannot find -lc) | APT
 | rustc echo 'rustc 1.63.0 (x 2023-01-01)' | install.sh --build | Rust NEEDED or newer: rustc is 1.63.0 | RUSTUP
 | rustc echo 'rustc 1.63.0 (x 2023-01-01)'@rustup true | install.sh --build | Rust NEEDED or newer: rustc is 1.63.0 | rustup update
 | rustc echo 'rustup could not choose a version' >&2; exit 1@rustup true | install.sh --build | Rust NEEDED or newer: rustc is there, but does not run | rustup default stable
cc | dnf exit 1@rpm case $1$2 in -E*) echo 9 ;; -qredhat-release) ;; *) exit 1 ;; esac | install.sh --demo | a C compiler | dnf install -y --enablerepo=codeready-builder-for-rhel-9-ARCH-rpms gcc glibc-static
cc | dnf exit 1@rpm case $1$2 in -E*) echo 9 ;; -qoraclelinux-release) ;; *) exit 1 ;; esac | install.sh --demo | a C compiler | dnf install -y --enablerepo=ol9_codeready_builder gcc glibc-static
cc | dnf exit 1@rpm case $1$2 in -E*) echo 10 ;; -qrocky-release) ;; *) exit 1 ;; esac | install.sh --demo | a C compiler | dnf install -y --enablerepo=crb gcc glibc-static
cc | dnf exit 1@rpm case $1$2 in -E*) echo 8 ;; -qalmalinux-release) ;; *) exit 1 ;; esac | install.sh --demo | a C compiler | dnf install -y --enablerepo=powertools gcc glibc-static
cc | dnf exit 1@rpm case $1$2 in -E*) ;; -qfedora-release) ;; *) exit 1 ;; esac | install.sh --demo | a C compiler | dnf install -y gcc glibc-static
"#;

#[test]
fn each_lack_is_named_with_what_to_type() {
    let apt = "apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev";
    for [without, fakes, line, lack, typed] in cells(LACKS) {
        let manager = if fakes.starts_with("dnf") { "dnf" } else { "apt-get" };
        let machine =
            Machine::new(manager).without(&without.split_whitespace().collect::<Vec<_>>());
        for (name, body) in fakes.split('@').filter_map(|fake| fake.split_once(' ')) {
            machine.fake(name, body);
        }
        let said = format!("This machine lacks: {lack}\nFirst type: {typed}\n")
            .replace("RUSTUP", RUSTUP)
            .replace("APT", apt)
            .replace("NEEDED", &needed_rust())
            .replace("ARCH", std::env::consts::ARCH);
        machine.refuses(&line.split(' ').collect::<Vec<_>>(), &said);
    }
    let machine = Machine::new("apt-get");
    write_rustc(&machine.tools, &format!("{}.0", needed_rust()));
    assert_builds(&machine, &machine.run("/bin/dash", &BUILD));
}

/// rustup's own musl target links the program without the system's static library.
#[test]
fn with_rustups_musl_no_static_library_is_needed() {
    let machine = Machine::new("apt-get");
    machine.fake("cc", "case $* in *-static*) exit 1 ;; esac");
    let sysroot = machine.home.join("sysroot");
    let arch = std::env::consts::ARCH;
    fs::create_dir_all(sysroot.join(format!("lib/rustlib/{arch}-unknown-linux-musl"))).unwrap();
    let version = "rustc 1.95.0 (x)";
    machine.fake(
        "rustc",
        &format!(
            "case $1 in --version) echo '{version}' ;; --print) echo '{}' ;; *) exit 9 ;; esac",
            sysroot.display()
        ),
    );
    let output = machine.run("/bin/dash", &BUILD);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!said.contains("lacks"), "{said}");
}

fn needed_rust() -> String {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    line.unwrap().trim_end_matches('"').to_owned()
}

/// The preflight let it pass, and the fake cargo has built.
#[track_caller]
fn assert_builds(machine: &Machine, output: &Output) {
    let said = String::from_utf8_lossy(&output.stderr);
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed, format!("{}\n", machine.built().display()), "{said}");
    assert!(output.status.success(), "{said}");
}

#[test]
fn cargo_is_found_in_rustups_places() {
    for (variable, place) in [("HOME", "a home/.cargo/bin"), ("CARGO_HOME", "a home/bin")] {
        let machine = Machine::new("apt-get").without(&["cargo", "rustc"]);
        machine.add_cargo(&machine.home.parent().unwrap().join(place));
        let mut command = machine.command("/bin/dash");
        command.args(BUILD).env(variable, &machine.home);
        assert_builds(&machine, &command.output().unwrap());
    }
}

/// Of a target directory that other projects share, a build reuses only profiles in which this
/// program was compiled before.
#[test]
fn room_is_reused_only_from_builds_of_this_program() {
    let machine = Machine::new("apt-get");
    machine.fake("df", "echo header; echo '/dev/a b 9000000 1 102400 99% /mnt/a 7% b'");
    machine.fake("du", "printf '600000\\t%s\\n' \"$2\"");
    let place = machine.target.clone();
    for foreign in ["doc", "tests", "release/.fingerprint/other-1", "x86_64-a/release/deps"] {
        fs::create_dir_all(place.join(foreign)).unwrap();
    }
    let said = format!(
        "This machine lacks: room: 100 MB are free in {}, and the build takes 600 MB\n\
         Free some, or set CARGO_TARGET_DIR to a directory on another file system.\n",
        place.display()
    );
    machine.refuses(&BUILD, &said);
    for own in ["release", "x86_64-unknown-linux-gnu/release"] {
        let mark = place.join(own).join(".fingerprint/cni-multi-0123");
        fs::create_dir_all(&mark).unwrap();
        assert_builds(&machine, &machine.run("/bin/dash", &BUILD));
        fs::remove_dir(&mark).unwrap();
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_named_before_a_build() {
    let machine = Machine::new("apt-get");
    let place = machine.home.join("read only");
    fs::create_dir(&place).unwrap();
    let dir = place.join("cni/bin");
    let line = ["--dir", dir.to_str().unwrap()];
    let said = format!(
        "This machine lacks: write permission for user root in {}\n\
         Its file system may be read-only: name another directory with --dir.\n",
        place.display()
    );
    assert_eq!(beside_read_only(&machine, &line, &machine.target), said);
    assert!(!machine.target.exists());
    let dry = beside_read_only(&machine, &[&line[..], &["--dry-run"]].concat(), &machine.target);
    assert!(!dry.contains("lacks") && machine.built().exists(), "{dry}");
}

/// What install.sh says that fails beside a read-only file system.
fn beside_read_only(machine: &Machine, line: &[&str], target: &Path) -> String {
    let prepared = "mount -t tmpfs -o ro tmpfs \"$HOME/read only\" &&
        PATH=$FAKES exec /bin/dash install.sh \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "/bin/sh", "-c", prepared, "sh"]).args(line).current_dir(root());
    command.env("HOME", &machine.home).env("FAKES", &machine.tools);
    let output = command.env("CARGO_TARGET_DIR", target).output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(1), vec![]));
    String::from_utf8(output.stderr).unwrap()
}

// --- installing ---

/// apt and rustup that do what they are asked for, into the directories of this machine.
fn installable(manager: &str) -> Machine {
    let machine = Machine::new(manager).without(&["cargo", "rustc", "cc", "curl"]);
    let stock = machine.home.join("stock");
    machine.add_cargo(&stock);
    machine.link("cp");
    let (tools, log) = (machine.tools.display(), machine.home.join("log").display().to_string());
    let body = format!(
        "echo \"{manager} $*\" >>'{log}'
        case $* in *gcc*) ;; *) exit 0 ;; esac
        printf '#!/bin/sh\\n' >'{tools}/cc'
        printf '#!/bin/sh\\ncat \"$HOME/rustup\"\\n' >'{tools}/curl'
        chmod 755 '{tools}/cc' '{tools}/curl'"
    );
    machine.fake(manager, &body);
    fs::write(
        machine.home.join("rustup"),
        format!(
            "echo \"rustup $*\" >>'{log}'; mkdir -p \"$HOME/.cargo/bin\"
            cp \"$HOME/stock\"/* \"$HOME/.cargo/bin\"\n"
        ),
    )
    .unwrap();
    machine
}

fn log_of(machine: &Machine) -> String {
    fs::read_to_string(machine.home.join("log")).unwrap_or_default()
}

/// Root alone, by managers that need no answers.
#[test]
fn yes_installs_and_goes_on() {
    let apt = "apt-get update\napt-get install -y --no-install-recommends \
         curl ca-certificates gcc libc6-dev\nrustup -y\n";
    let dnf = "dnf install -y curl gcc glibc-static\nrustup -y\n";
    for (machine, log) in [
        (installable("apt-get"), apt),
        (installable("dnf"), dnf),
        (installable("zypper"), ""),
        (installable("apt-get").of_user(), ""),
    ] {
        let output = machine.run("/bin/dash", &["install.sh", "--build", "--yes"]);
        match log {
            "" => assert_eq!(output.status.code(), Some(1), "{output:?}"),
            _ => assert_builds(&machine, &output),
        }
        assert_eq!(log_of(&machine), log);
    }
}

/// Types an answer on a terminal of its own, by script(1).
fn typed(machine: &Machine, answer: &str) -> Output {
    let mut shell = machine.command("/bin/sh");
    let line =
        "printf '%s\\n' \"$0\" | /usr/bin/script -qec '/bin/sh install.sh --build' /dev/null";
    shell.args(["-c", line, answer]).output().unwrap()
}

#[test]
fn on_a_terminal_the_answer_decides() {
    for (answer, installs) in [("y", true), ("n", false), ("", false)] {
        let machine = installable("apt-get");
        let output = typed(&machine, answer);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("Do that now? [y/N] "), "{said}");
        assert_eq!(output.status.success(), installs, "{answer:?}: {said}");
        assert_eq!(log_of(&machine).is_empty(), !installs, "{answer:?}: {said}");
        assert_eq!(machine.built().exists(), installs, "{answer:?}: {said}");
    }
}

// --- sudo ---

/// Root's machine, called by sudo; the calling user has cargo.
fn called_by_sudo() -> Machine {
    let machine = Machine::new("apt-get").without(&["cargo", "rustc"]);
    let home = machine.home.join("of bob");
    machine.add_cargo(&home.join(".cargo/bin"));
    let home = home.display();
    machine.fake("getent", &format!("[ \"$2\" != bob ] || echo 'bob:x:7:7::{home}:/bin/sh'"));
    let log = machine.home.join("log");
    machine.fake(
        "sudo",
        &format!(
            "echo \"$*\" >>'{}'; [ \"$1 $2 $3 $4\" = '-u bob -H --' ] || exit 9; shift 4
            unset SUDO_USER; HOME='{home}' exec \"$@\"",
            log.display()
        ),
    );
    machine
}

#[test]
fn with_sudo_the_users_cargo_builds_as_that_user_and_the_demo_apart() {
    let machine = called_by_sudo();
    let output = machine.command("/bin/dash").args(BUILD).env("SUDO_USER", "bob").output().unwrap();
    assert_builds(&machine, &output);
    let log = log_of(&machine);
    let target = machine.target.display();
    let env = format!("env CARGO_TARGET_DIR={target}");
    let build = format!("-u bob -H -- {env} {}/install.sh --build\n", root().display());
    assert!(log.ends_with(&build), "{log}");
    assert!(!machine.home.join(".cargo").exists());
    for machine in [Machine::new("apt-get"), called_by_sudo()] {
        let output =
            machine.command("/bin/dash").args(DEMO).env("SUDO_USER", "bob").output().unwrap();
        assert!(machine.built_demo().exists(), "{output:?}");
        assert!(!machine.built().exists(), "{output:?}");
    }
}

// --- namespaces ---

/// The fake machine's demo in a real process that lacks a right, or sees other sysctls.
fn demo_after(machine: &Machine, prepare: &str) -> String {
    write_script(&machine.home.join("binary"), "echo bridge");
    let binary = machine.home.join("binary");
    let line = format!("{prepare} /bin/dash install.sh --demo --binary \"$0\"");
    let mut command = Command::new("unshare");
    command.args(["-m", "/bin/sh", "-c", &line]).arg(&binary).current_dir(root());
    command.env("HOME", &machine.home).env("FAKES", &machine.tools);
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(1), vec![]), "{prepare}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn what_forbids_namespaces_is_named_with_the_sysctl() {
    for (directory, name, forbids, allows) in [
        ("user", "max_user_namespaces", "0", "15000"),
        ("kernel", "unprivileged_userns_clone", "0", "1"),
        ("kernel", "apparmor_restrict_unprivileged_userns", "1", "0"),
    ] {
        let machine = Machine::new("apt-get").of_user();
        machine.fake("unshare", "echo 'unshare: not here' >&2; exit 1");
        // The home has a blank in its name.
        let show = format!(
            "mkdir \"$HOME/{directory}\"; echo {forbids} >\"$HOME/{directory}/{name}\";
            mount --bind \"$HOME/{directory}\" /proc/sys/{directory} && env PATH=\"$FAKES\""
        );
        assert_eq!(
            demo_after(&machine, &show),
            format!(
                "This machine lacks: namespaces for user bob: {directory}.{name} is {forbids}\n\
                 An administrator can change that: sysctl -w {directory}.{name}={allows}\n"
            )
        );
    }
}
