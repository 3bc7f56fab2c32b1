//! How the configuration is read: by which commands, until when, and the errors.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::Duration;

use super::{PLUGINS, static_conf};
use crate::support::call::{Call, Outcome, Peer};
use crate::support::peers::peers;
use crate::support::stdin::{spawn, with_silent_stdin};

peers! {
    version_never_reads_stdin,
    about_text_never_reads_stdin,
    configuration_is_read_to_its_end,
    unreadable_stdin_is_an_io_error,
    closed_stdin_is_an_error,
    ten_megabytes_are_read,
}

/// As in the reference: reading could wait for ever.
fn version_never_reads_stdin(peer: &Peer) {
    for plugin in PLUGINS {
        with_silent_stdin(&Call::new(peer, plugin, "VERSION", "")).ok();
    }
}

fn about_text_never_reads_stdin(peer: &Peer) {
    for plugin in PLUGINS {
        let outcome = with_silent_stdin(&Call::new(peer, plugin, "", ""));
        assert_eq!((outcome.status, outcome.stdout.as_str()), (0, ""));
        assert!(outcome.stderr.starts_with("CNI "), "{outcome:?}");
    }
}

fn configuration_is_read_to_its_end(peer: &Peer) {
    let conf = static_conf("1.1.0");
    let (head, tail) = conf.split_at(conf.len() / 2);
    let mut child = spawn(&Call::new(peer, "static", "ADD", ""), Stdio::piped());
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(head.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    stdin.write_all(tail.as_bytes()).unwrap();
    stdin.write_all(b"\n").unwrap();
    drop(stdin);
    assert_eq!(Outcome::of(child).ok()["ips"][0]["address"], "10.1.2.3/24");
}

fn unreadable_stdin_is_an_io_error(peer: &Peer) {
    for plugin in PLUGINS {
        for command in ["ADD", "DEL", "CHECK", "GC", "STATUS", "NOPE"] {
            let directory = File::open("/").unwrap();
            assert!((&directory).read(&mut [0]).is_err());
            let outcome = Outcome::of(spawn(&Call::new(peer, plugin, command, ""), directory));
            let error = outcome.err();
            assert_eq!((outcome.status, error.code), (1, 5), "{outcome:?}");
            assert!(error.msg.starts_with("error reading from stdin: "), "{outcome:?}");
            assert!(error.msg.contains("is a directory"), "{outcome:?}");
        }
    }
}

/// Both open /dev/null for a closed stdin, so the configuration is empty.
fn closed_stdin_is_an_error(peer: &Peer) {
    let mut call = Call::new(peer, "static", "ADD", "");
    call.wrapper = ["sh", "-c", r#"exec "$0" "$@" <&-"#].map(str::to_owned).to_vec();
    let outcome = call.run();
    assert_eq!((outcome.status, outcome.err().code), (1, 6), "{outcome:?}");
}

fn ten_megabytes_are_read(peer: &Peer) {
    let padding = "x".repeat(10 << 20);
    let many: String = (0..400_000).map(|i| format!(r#""key-{i}":[{i}],"#)).collect();
    for keys in [format!(r#""padding":"{padding}","#), many] {
        let conf = static_conf("1.1.0").replacen('{', &format!("{{{keys}"), 1);
        let added = Call::new(peer, "static", "ADD", conf).run().ok();
        assert_eq!(added["ips"][0]["address"], "10.1.2.3/24");
    }
}
