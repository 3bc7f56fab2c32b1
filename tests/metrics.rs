//! `cni-multi metrics`: values of a host, in a format that collectors read.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::support::call::{Peer, binary, farm};
use crate::support::netns::Lab;

mod findings;
pub mod openmetrics;

use self::openmetrics::Values;

/// A host with a network of five addresses, one container, and a lease of a container that is gone.
fn host() -> Lab {
    let lab = Lab::new(Peer::Ours);
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.178.7.0/29"}]]});
    let list = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [
        {"type": "bridge", "bridge": "pods0", "ipam": ipam}]});
    lab.host.sh("mkdir -p /run/net.d");
    fs::write(lab.path("/run/net.d/pods.conflist"), list.to_string()).unwrap();
    let container = lab.container();
    let line = format!("net add pods {} --plugin-path {}", container.netns, farm().display());
    run(&lab, &line);
    lab.host.sh("cd /var/lib/cni/networks/pods; printf 'abandoned\\r\\neth0' >10.178.7.6
        touch -d '1 hour ago' 10.178.7.6");
    let links = "ls /sys/class/net | wc -l";
    let before = lab.host.sh(links);
    container.vanish();
    lab.host.sh(&format!(
        "for _ in $(seq 200); do [ $({links}) -lt {} ] && exit 0; sleep 0.1; done; exit 1",
        before.trim()
    ));
    lab
}

fn run(lab: &Lab, line: &str) -> String {
    lab.host.sh(&format!("NETCONFPATH=/run/net.d {} {line}", binary().display()))
}

/// The samples by name and labels.
#[track_caller]
fn samples(text: &str) -> Values {
    openmetrics::parse(text).unwrap_or_else(|problem| panic!("{problem}\n{text}"))
}

#[test]
fn metrics_count_addresses_leases_and_attachments() {
    let lab = host();
    let samples = samples(&run(&lab, "metrics"));
    let range = r#"network="pods",ipam="host-local",range="10.178.7.1-10.178.7.6""#;
    let leases = r#"network="pods",ipam="host-local""#;
    for (sample, value) in [
        (format!("range_addresses{{{range}}}"), 5.0),
        (format!("range_held{{{range}}}"), 2.0),
        (format!("leases_readable{{{leases}}}"), 1.0),
        (format!("leases{{{leases},namespace=\"alive\"}}"), 0.0),
        (format!("leases{{{leases},namespace=\"gone\"}}"), 2.0),
        ("attachments{network=\"pods\",namespace=\"gone\"}".to_owned(), 1.0),
        ("attachments{network=\"pods\",namespace=\"alive\"}".to_owned(), 0.0),
    ] {
        assert_eq!(samples.get(&format!("cni_multi_{sample}")), Some(&value), "{samples:#?}");
    }
}

#[test]
fn textfile_is_replaced_in_one_step() {
    let lab = host();
    lab.host.sh("mkdir /run/textfile; ln -s /run/outside /run/textfile/.cni-multi.prom.draft");
    assert_eq!(run(&lab, "metrics --textfile /run/textfile"), "");
    assert_eq!(lab.host.sh("ls -A /run/textfile"), "cni-multi.prom\n");
    assert!(!lab.path("/run/outside").exists());
    let file = lab.path("/run/textfile/cni-multi.prom");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    samples(&fs::read_to_string(file).unwrap());
    let output =
        lab.host.try_sh(&format!("{} metrics --textfile /run/missing", binary().display()));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("/run/missing/cni-multi.prom"), "{said}");
}

/// A network that cannot be read is a value, and the others are still there.
#[test]
fn unreadable_leases_are_a_metric() {
    let lab = host();
    lab.host.sh("cd /var/lib/cni/networks; rm -r pods; ln -s pods pods");
    let samples = samples(&run(&lab, "metrics"));
    let readable = r#"cni_multi_leases_readable{network="pods",ipam="host-local"}"#;
    assert_eq!(samples.get(readable), Some(&0.0), "{samples:#?}");
}

#[test]
fn calls_are_counted_while_an_administrator_wishes() {
    let lab = host();
    let calls = |lab: &Lab| -> Values {
        let samples = samples(&run(lab, "metrics"));
        samples.into_iter().filter(|(name, _)| name.contains("calls_total")).collect()
    };
    assert_eq!(calls(&lab), Values::new(), "before");
    assert_eq!(run(&lab, "metrics --count start"), "");
    assert_eq!(calls(&lab), Values::new(), "nothing was called yet");
    let container = lab.container();
    let with = |verb: &str| format!("net {verb} pods {}", container.netns);
    for line in ["add", "del", "del"].map(with) {
        run(&lab, &format!("{line} --plugin-path {}", farm().display()));
    }
    let bridge = farm().join("bridge");
    let bad = format!("! echo '{{}}' | env CNI_COMMAND=STATUS {}", bridge.display());
    lab.host.sh(&format!("{bad}; ! env CNI_COMMAND=LOOK {} </dev/null", bridge.display()));
    lab.host.sh(&format!("CNI_COMMAND=VERSION {} </dev/null", bridge.display()));
    let named = |command: &str, code: u32| {
        format!("cni_multi_calls_total{{plugin=\"bridge\",command=\"{command}\",code=\"{code}\"}}")
    };
    let expected = [(named("ADD", 0), 1.0), (named("DEL", 0), 2.0), (named("STATUS", 4), 1.0)];
    assert_eq!(calls(&lab), Values::from(expected));
    assert_eq!(lab.host.sh("stat -c %a /run/cni/calls").trim(), "700");
    assert_eq!(run(&lab, "metrics --count stop"), "");
    run(&lab, "metrics --count stop");
    lab.host.sh("[ ! -e /run/cni/calls ]");
}
