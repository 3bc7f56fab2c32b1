//! CNI_PATH: the directories of programs that run as root. `protocol::delegate` tests how a program
//! is found in them.

use serde_json::json;

use super::in_directory;
use crate::support::attachment::for_ours;
use crate::support::call::{Call, Peer, farm};
use crate::support::netns::Lab;

/// Puts programs with the names of plugins into the caller's working directory.
fn prepare(lab: &Lab) {
    lab.host.sh(
        "mkdir -p /run/cwd; cd /run/cwd; printf '#!/bin/sh\\necho >/run/called\\n' >evil; chmod +x evil; cp evil host-local; cp evil static",
    );
    lab.configure(&json!({"cniVersion": "1.1.0", "name": "net1", "plugins": [{"type": "evil"}]}));
}

/// Makes the call in that directory, and returns whether a program there ran.
fn from_there(lab: &Lab, call: Call) -> bool {
    in_directory(call.wrapped(&lab.host.enter), "/run/cwd").run();
    lab.host.try_sh("rm /run/called").status.success()
}

#[test]
fn an_empty_element_of_the_path_is_not_the_working_directory() {
    for_ours("bridge", |lab| {
        prepare(lab);
        let farm = farm().to_str().unwrap();
        let bridge = |ipam: &str, path: &str| {
            let conf = json!({"cniVersion": "1.1.0", "name": "net1", "type": "bridge", "ipam": {"type": ipam}});
            Call::new(&Peer::Ours, "bridge", "STATUS", conf.to_string()).env("CNI_PATH", path)
        };
        assert!(from_there(lab, bridge("evil", ".")), "the program works");
        for path in
            [":", "::", &format!(":{farm}"), &format!("{farm}:"), &format!("/nothing::{farm}")]
        {
            for ipam in ["evil", "host-local", "static"] {
                assert!(!from_there(lab, bridge(ipam, path)), "{ipam} by {path:?}");
            }
            for line in
                ["net status net1", "net add net1 /run/x", "validate /run/net.d/net1.conflist"]
            {
                let call = Call::cni_multi(&[], line.split(' ')).env("CNI_PATH", path);
                let is_run = from_there(lab, call.env("NETCONFPATH", "/run/net.d"));
                assert!(!is_run, "{line} by {path:?}");
            }
        }
    });
}
