//! CNI_PATH: the directories of programs that run as root. `protocol::delegate` tests how a program
//! is found in them.

use serde_json::json;

use crate::support::attachment::for_ours;
use crate::support::call::{Call, Peer, binary, farm};
use crate::support::netns::Lab;

/// Puts programs with the names of plugins into the caller's working directory.
fn prepare(lab: &Lab) {
    lab.host.sh(
        "mkdir -p /run/cwd /run/net.d; cd /run/cwd; printf '#!/bin/sh\\necho >/run/called\\n' >evil; chmod +x evil; cp evil host-local; cp evil static",
    );
    let list = json!({"cniVersion": "1.1.0", "name": "net1", "plugins": [{"type": "evil"}]});
    std::fs::write(lab.path("/run/net.d/10-net1.conflist"), list.to_string()).unwrap();
}

/// Makes the call in that directory, and returns whether a program there ran.
fn from_there(lab: &Lab, mut call: Call) -> bool {
    call.wrapper = lab.host.enter.clone();
    call.wrapper.extend(["sh", "-c", "cd /run/cwd && exec \"$@\"", "sh"].map(str::to_owned));
    call.run();
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
                ["net status net1", "net add net1 /run/x", "validate /run/net.d/10-net1.conflist"]
            {
                let args = line.split(' ').map(str::to_owned).collect();
                let call =
                    Call { program: binary(), args, ..bridge("", path) }.without("CNI_COMMAND");
                assert!(
                    !from_there(lab, call.env("NETCONFPATH", "/run/net.d")),
                    "{line} by {path:?}"
                );
            }
        }
    });
}
