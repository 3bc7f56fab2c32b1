//! The commands of docs/cluster-local.md that make two hosts share one subnet, run as they are there.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::attachment::{for_ours, has_programs, ips};
use crate::support::call::{Peer, binary};
use crate::support::netns::Lab;
use crate::support::node::commands;

/// A host of the page. Its background processes end with it.
struct Host {
    lab: Lab,
    name: &'static str,
}

impl Drop for Host {
    fn drop(&mut self) {
        let text = std::fs::read_to_string(self.lab.path("/run/pids")).unwrap_or_default();
        for pid in text.lines().filter_map(|line| line.parse().ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL); // it may have ended by itself
        }
    }
}

impl Host {
    /// A host with this address on a segment.
    fn on(segment: &Lab, name: &'static str, address: &str) -> Host {
        let lab = Lab::new(Peer::Ours);
        let pid = lab.pid();
        segment.host.sh(&format!(
            "ip link add {name} up type veth peer name eth1 netns {pid} && ip link set {name} master lan"
        ));
        lab.host.sh(&format!(
            "ip addr add {address}/24 dev eth1 && ip link set eth1 up
             mount -t tmpfs lab /etc && echo 127.0.0.1 localhost >/etc/hosts
             echo {name} | sha256sum | cut -c1-32 >/etc/machine-id
             mkdir -p /run/bin && ln -s '{}' /run/bin/cni-multi",
            binary().display()
        ));
        Host { lab, name }
    }

    /// Runs commands under the host's own name.
    #[track_caller]
    fn run(&self, commands: &str) -> String {
        let script = format!(
            "set -e; export PATH=/run/bin:$PATH; echo {} >/proc/sys/kernel/hostname\n{commands}\n\
             test -z \"$!\" || echo $! >>/run/pids",
            self.name
        );
        let mut command = self.lab.host.command("unshare");
        command.args(["--uts", "sh", "-c", &script]);
        let output = command.stderr(Stdio::piped()).output().unwrap();
        assert!(output.status.success(), "{commands}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn pods_of_two_hosts_share_a_subnet() {
    for_ours("macvlan", |segment| {
        if !has_programs(&["etcd"]) {
            return;
        }
        segment.host.sh("ip link add lan up type bridge");
        let one = Host::on(segment, "host-a", "10.0.0.1");
        let two = Host::on(segment, "host-b", "10.0.0.2");
        // The etcd of the first host, and each host's part.
        let page = include_str!("../../../../docs/cluster-local.md");
        let blocks = commands(page, "two_hosts::pods_of_two_hosts_share_a_subnet");
        one.run(blocks[0]);
        let address = |printed: String| ips(&serde_json::from_str(&printed).unwrap()).join(" ");
        let there = [&one, &two].map(|host| address(host.run(blocks[1])));
        assert_ne!(there[0], there[1]);
        for (host, ip) in [(&one, &there[1]), (&two, &there[0])] {
            host.run(&format!("ip netns exec pod ping -c 1 -W 5 {ip}"));
        }
        let log = std::fs::read_to_string(two.lab.path("/run/cni-multi-ipam.log")).unwrap();
        assert!(log.contains("registered"), "{log}");
        for host in [&one, &two] {
            host.run("cni-multi net del lan pod");
            assert!(host.run("cni-multi ipam blocks").contains("10.0.8."), "blocks stay borrowed");
        }
    });
}
