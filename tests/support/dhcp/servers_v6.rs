//! IPv6 on the network: a router (radvd), a DHCPv6 server (Kea), or dnsmasq as both.

use std::collections::BTreeMap;
use std::process::Stdio;

use serde_json::json;

use super::servers::{kea_leases, kea_line, wait_for};
use super::{Process, wait_until};
use crate::support::netns::Lab;
use crate::support::scratch::Scratch;

/// The servers' address.
pub const SERVER_V6: &str = "2001:db8::1";

impl Lab {
    /// Gives the servers' interface its address, and waits until its link-local address is usable.
    /// The pretend host ignores router advertisements.
    pub fn lan_v6(&self) {
        self.host.sh("for link in lan br0; do ip link show $link >/dev/null 2>&1 && sysctl -qw net.ipv6.conf.$link.accept_ra=0; done; true");
        self.outside.sh(&format!(
            "ip addr add {SERVER_V6}/64 dev lan nodad
             until ip -6 addr show dev lan scope link | grep inet6 | grep -vq tentative; do sleep 0.05; done"
        ));
    }
}

/// radvd, which advertises 2001:db8::/64.
pub struct Router<'a> {
    lab: &'a Lab,
    line: Vec<String>,
    process: Process,
    scratch: Scratch,
}

impl<'a> Router<'a> {
    /// For hosts that get their addresses from a DHCPv6 server.
    pub fn start(lab: &'a Lab) -> Router<'a> {
        Router::advertising(
            lab,
            "AdvAutonomous off; AdvPreferredLifetime 600; AdvValidLifetime 600;",
        )
    }

    /// For hosts that form their own addresses (SLAAC), with these lifetimes in seconds.
    pub fn with_prefix(lab: &'a Lab, preferred: u32, valid: u32) -> Router<'a> {
        let lifetimes = format!("AdvPreferredLifetime {preferred}; AdvValidLifetime {valid};");
        Router::advertising(lab, &format!("AdvAutonomous on; {lifetimes}"))
    }

    fn advertising(lab: &'a Lab, prefix: &str) -> Router<'a> {
        let scratch = Scratch::new();
        let file = scratch.join("radvd.conf");
        let conf = format!(
            "interface lan {{ AdvSendAdvert on; AdvDefaultLifetime 600;
               prefix 2001:db8::/64 {{ AdvOnLink on; {prefix} }};
               RDNSS 2001:db8::53 {{ }}; DNSSL lan.example {{ }}; }};"
        );
        std::fs::write(&file, conf).unwrap();
        let line = ["radvd", "-n", "-m", "stderr", "-d", "1", "-C", file.to_str().unwrap(), "-p"];
        let mut line: Vec<String> = line.map(str::to_owned).into();
        line.push(scratch.join("pid").to_str().unwrap().to_owned());
        let process = Process::start(&lab.outside, &line, Stdio::null(), scratch.join("log"));
        wait_until("radvd has started", 10, || process.output().contains("version"));
        Router { lab, line, process, scratch }
    }

    /// Stops without a final advertisement.
    pub fn stop(&mut self) {
        self.process.kill();
    }

    pub fn start_again(&mut self) {
        self.process.kill();
        self.process =
            Process::start(&self.lab.outside, &self.line, Stdio::null(), self.scratch.join("log"));
    }
}

/// kea-dhcp6; its clients renew after two seconds.
pub struct Kea {
    _process: Process,
    scratch: Scratch,
}

impl Kea {
    /// Hands out 2001:db8::`first` to 2001:db8::`last`, in hex.
    pub fn start(lab: &Lab, first: u16, last: u16) -> Kea {
        let scratch = Scratch::new();
        let conf = json!({"Dhcp6": {
            "interfaces-config": {"interfaces": ["lan"]},
            "data-directory": scratch.text(),
            "lease-database": {"type": "memfile", "persist": true, "name": format!("{}/leases", scratch.text()), "lfc-interval": 0},
            "preferred-lifetime": 10, "valid-lifetime": 12, "renew-timer": 2, "rebind-timer": 9,
            "option-data": [{"name": "dns-servers", "data": "2001:db8::54"}],
            "subnet6": [{
                "id": 1, "subnet": "2001:db8::/64", "interface": "lan",
                "pools": [{"pool": format!("2001:db8::{first:x}-2001:db8::{last:x}")}],
            }],
        }});
        let line = kea_line(&scratch, "kea-dhcp6", &conf);
        let process = Process::start(&lab.outside, &line, Stdio::null(), scratch.join("log"));
        wait_for(&process, "DHCP6_STARTED");
        Kea { _process: process, scratch }
    }

    /// The leases in its lease file: when each address' lease ends, in seconds since 1970.
    pub fn leases(&self) -> BTreeMap<String, u64> {
        let text = std::fs::read_to_string(self.scratch.join("leases")).unwrap_or_default(); // none before the first lease
        kea_leases(&text, [2, 3, 13])
    }
}

/// dnsmasq with addresses of both families; it is the router too.
pub struct Dnsmasq {
    _process: Process,
    scratch: Scratch,
}

impl Dnsmasq {
    /// Hands out 10.60.0.50 to 10.60.0.59 and 2001:db8::50 to 2001:db8::59.
    pub fn start(lab: &Lab) -> Dnsmasq {
        let scratch = Scratch::new();
        let line = [
            "dnsmasq --keep-in-foreground --conf-file=/dev/null --port=0 --interface=lan --bind-interfaces --no-ping",
            " --dhcp-authoritative --user=root --pid-file= --log-facility=- --enable-ra",
            " --dhcp-range=10.60.0.50,10.60.0.59,255.255.255.0,2m --dhcp-range=2001:db8::50,2001:db8::59,64,2m",
            " --dhcp-option=option:domain-search,lan.example --dhcp-option=option6:domain-search,lan.example",
            &format!(" --dhcp-leasefile={}/leases", scratch.text()),
        ];
        let line: Vec<String> = line.concat().split(' ').map(str::to_owned).collect();
        let process = Process::start(&lab.outside, &line, Stdio::null(), scratch.join("log"));
        wait_for(&process, "sockets bound");
        Dnsmasq { _process: process, scratch }
    }

    /// The addresses in its lease file. Columns: expiry, hardware address or IAID, address, …
    pub fn leases(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.scratch.join("leases")).unwrap_or_default();
        let columns = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        columns.filter(|columns| columns.len() > 2).map(|columns| columns[2].to_owned()).collect()
    }
}
