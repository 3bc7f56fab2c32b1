//! The DHCP servers that people run, dnsmasq and Kea, and a router for IPv6 (radvd), as Debian packages them.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Process, SERVER, wait_until};
use crate::support::attachment::has_programs;
use crate::support::call::Peer;
use crate::support::netns::Lab;
use crate::support::scratch::Scratch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Dnsmasq,
    Kea,
    KeaV6,
    Radvd,
}

pub const BOTH: [Program; 2] = [Program::Dnsmasq, Program::Kea];

impl Program {
    fn command(self) -> &'static str {
        match self {
            Program::Dnsmasq => "dnsmasq",
            Program::Kea => "kea-dhcp4",
            Program::KeaV6 => "kea-dhcp6",
            Program::Radvd => "radvd",
        }
    }

    /// What it says once it has started.
    fn sign(self) -> &'static str {
        match self {
            Program::Dnsmasq => "sockets bound",
            Program::Kea => "DHCP4_STARTED",
            Program::KeaV6 => "DHCP6_STARTED",
            Program::Radvd => "version",
        }
    }

    /// Whether the program is installed; the test skips if not.
    pub fn is_there(self) -> bool {
        has_programs(&[self.command()])
    }

    /// The renewal time of clients in seconds: the shortest that dnsmasq accepts, and its leases
    /// last two minutes at least.
    pub fn t1(self) -> u64 {
        if self == Program::Dnsmasq { 3 } else { 2 }
    }
}

/// A server in the namespace outside.
pub struct Server<'a> {
    lab: &'a Lab,
    pub program: Program,
    line: Vec<String>,
    process: Process,
    scratch: Scratch,
}

impl<'a> Server<'a> {
    /// Hands out 10.60.0.`first` to 10.60.0.`last`.
    pub fn start(lab: &'a Lab, program: Program, first: u8, last: u8) -> Server<'a> {
        let (first, last) = (format!("10.60.0.{first}"), format!("10.60.0.{last}"));
        let scratch = Scratch::new();
        let line = if program == Program::Dnsmasq {
            dnsmasq(&scratch, &format!("{first},{last},255.255.255.0,2m"), [program.t1(), 8])
        } else {
            let conf = json!({"Dhcp4": {
                "interfaces-config": {"interfaces": ["lan"], "dhcp-socket-type": "raw"},
                "lease-database": lease_database(&scratch),
                "valid-lifetime": 12, "renew-timer": program.t1(), "rebind-timer": 9, "authoritative": true,
                "subnet4": [{
                    "id": 1, "subnet": "10.60.0.0/24", "pools": [{"pool": format!("{first}-{last}")}],
                    "option-data": [{"name": "routers", "data": SERVER}],
                }],
            }});
            kea(&scratch, program, &conf)
        };
        Server::run(lab, program, line, scratch)
    }

    /// Hands out thousands of addresses, 10.60.16.0 to 10.60.31.255; their leases need no renewal
    /// for hours. Its answers are unicast, so each reaches one client only.
    pub fn for_many(lab: &'a Lab) -> Server<'a> {
        let scratch = Scratch::new();
        let line =
            dnsmasq(&scratch, "10.60.16.0,10.60.31.255,255.255.0.0,24h", [12 * 3600, 21 * 3600]);
        Server::run(lab, Program::Dnsmasq, line, scratch)
    }

    fn run(lab: &'a Lab, program: Program, line: Vec<String>, scratch: Scratch) -> Server<'a> {
        let process = Process::start(&lab.outside, &line, Stdio::null(), scratch.join("log"));
        let server = Server { lab, program, line, process, scratch };
        server.wait_for_start();
        server
    }

    #[track_caller]
    fn wait_for_start(&self) {
        wait_until("the server has started", 10, || self.log().contains(self.program.sign()));
        assert!(!self.log().contains("DHCPSRV_NO_SOCKETS_OPEN"), "{}", self.log());
    }

    /// Kills the server and starts another one with the same leases.
    #[track_caller]
    pub fn restart(&mut self) {
        self.stop();
        std::fs::write(self.scratch.join("log"), "").unwrap();
        self.process =
            Process::start(&self.lab.outside, &self.line, Stdio::null(), self.scratch.join("log"));
        self.wait_for_start();
    }

    pub fn stop(&mut self) {
        self.process.kill();
    }

    /// Its output since it was started.
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// Our daemon has released all its leases. The reference may release one after its link is
    /// gone, and sends the RELEASE without a source address, so that only a server with a packet
    /// socket could receive it.
    #[track_caller]
    pub fn assert_has_no_lease(&self) {
        if self.lab.peer == Peer::Ours {
            wait_until("the server has no lease", 3, || self.leases().is_empty());
        }
    }

    /// The leases in its lease file: when each address' lease ends, in seconds since 1970.
    pub fn leases(&self) -> BTreeMap<String, u64> {
        let read = || std::fs::read_to_string(self.scratch.join("leases")).unwrap_or_default(); // none before the first lease
        let mut text = read();
        loop {
            // The server may be in the middle of writing.
            std::thread::sleep(Duration::from_millis(5));
            let again = read();
            if again == text && (text.is_empty() || text.ends_with('\n')) {
                return match self.program {
                    Program::Dnsmasq => dnsmasq_leases(&text),
                    Program::Kea => kea_leases(&text, [3, 4, 9]),
                    Program::KeaV6 => kea_leases(&text, [2, 3, 13]),
                    Program::Radvd => BTreeMap::new(),
                };
            }
            text = again;
        }
    }
}

/// Columns: expiry, hardware address or IAID, address, name, client id.
fn dnsmasq_leases(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let leases = lines.filter(|columns| columns.len() > 2); // the others have the server's own id
    leases.map(|columns| (columns[2].to_owned(), columns[0].parse().unwrap())).collect()
}

/// A journal: later lines replace earlier ones, and the last may be in the middle of being written.
/// These columns have the lifetime, the end of the lease and its state, of which 0 is assigned.
fn kea_leases(text: &str, [lifetime, expires, state]: [usize; 3]) -> BTreeMap<String, u64> {
    let mut leases = BTreeMap::new();
    for line in text.lines().skip(1) {
        let columns: Vec<&str> = line.split(',').collect();
        match (columns.get(lifetime), columns.get(state)) {
            (Some(lifetime), Some(&"0")) if *lifetime != "0" => {
                leases.insert(columns[0].to_owned(), columns[expires].parse().unwrap());
            }
            (_, Some(_)) => drop(leases.remove(columns[0])),
            _ => (),
        }
    }
    leases
}

/// No DNS, no ping before an offer, no configuration file of the machine.
const DNSMASQ: &str = "dnsmasq --keep-in-foreground --conf-file=/dev/null --port=0 --interface=lan --bind-interfaces --no-ping \
    --dhcp-authoritative --user=root --pid-file= --log-facility=-";

fn dnsmasq(scratch: &Scratch, range: &str, [t1, t2]: [u64; 2]) -> Vec<String> {
    let line = format!(
        "{DNSMASQ} --dhcp-range={range} --dhcp-leasefile={}/leases --dhcp-lease-max=5000 \
         --dhcp-option=option:T1,{t1} --dhcp-option=option:T2,{t2}",
        scratch.text()
    );
    line.split_whitespace().map(str::to_owned).collect()
}

/// The command line of a Kea with this configuration. Its default directories are the machine's.
fn kea(scratch: &Scratch, program: Program, conf: &Value) -> Vec<String> {
    let file = scratch.join("kea.json");
    std::fs::write(&file, conf.to_string()).unwrap();
    let mut line = vec!["env".to_owned()];
    line.extend(["PIDFILE", "LOCKFILE"].map(|kind| format!("KEA_{kind}_DIR={}", scratch.text())));
    line.extend([program.command(), "-c", file.to_str().unwrap()].map(str::to_owned));
    line
}

fn lease_database(scratch: &Scratch) -> Value {
    let name = format!("{}/leases", scratch.text());
    json!({"type": "memfile", "persist": true, "name": name, "lfc-interval": 0})
}

// --- IPv6 ---

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

/// radvd, which advertises 2001:db8::/64. It is stopped without a final advertisement.
pub struct Router;

impl Router {
    /// For hosts that get their addresses from a DHCPv6 server.
    pub fn start(lab: &Lab) -> Server<'_> {
        Router::advertising(lab, "off", 600, 600)
    }

    /// For hosts that form their own addresses (SLAAC), with these lifetimes in seconds.
    pub fn with_prefix(lab: &Lab, preferred: u32, valid: u32) -> Server<'_> {
        Router::advertising(lab, "on", preferred, valid)
    }

    fn advertising<'a>(lab: &'a Lab, slaac: &str, preferred: u32, valid: u32) -> Server<'a> {
        let scratch = Scratch::new();
        let conf = format!(
            "interface lan {{ AdvSendAdvert on; AdvDefaultLifetime 600;
               prefix 2001:db8::/64 {{ AdvOnLink on; AdvAutonomous {slaac}; AdvPreferredLifetime {preferred};
                 AdvValidLifetime {valid}; }};
               RDNSS 2001:db8::53 {{ }}; DNSSL lan.example {{ }}; }};"
        );
        std::fs::write(scratch.join("radvd.conf"), conf).unwrap();
        let line = format!("radvd -n -m stderr -d 1 -C {0}/radvd.conf -p {0}/pid", scratch.text());
        let line = line.split(' ').map(str::to_owned).collect();
        Server::run(lab, Program::Radvd, line, scratch)
    }
}

/// kea-dhcp6; its clients renew after two seconds.
pub struct Kea;

impl Kea {
    /// Hands out 2001:db8::`first` to 2001:db8::`last`, in hex.
    pub fn start(lab: &Lab, first: u16, last: u16) -> Server<'_> {
        let scratch = Scratch::new();
        let conf = json!({"Dhcp6": {
            "interfaces-config": {"interfaces": ["lan"]},
            "data-directory": scratch.text(),
            "lease-database": lease_database(&scratch),
            "preferred-lifetime": 10, "valid-lifetime": 12, "renew-timer": 2, "rebind-timer": 9,
            "option-data": [{"name": "dns-servers", "data": "2001:db8::54"}],
            "subnet6": [{
                "id": 1, "subnet": "2001:db8::/64", "interface": "lan",
                "pools": [{"pool": format!("2001:db8::{first:x}-2001:db8::{last:x}")}],
            }],
        }});
        let line = kea(&scratch, Program::KeaV6, &conf);
        Server::run(lab, Program::KeaV6, line, scratch)
    }
}

/// dnsmasq with addresses of both families; it is the router too.
pub struct Dnsmasq;

impl Dnsmasq {
    /// Hands out 10.60.0.50 to 10.60.0.59 and 2001:db8::50 to 2001:db8::59.
    pub fn start(lab: &Lab) -> Server<'_> {
        let scratch = Scratch::new();
        let line = format!(
            "{DNSMASQ} --enable-ra --dhcp-range=10.60.0.50,10.60.0.59,255.255.255.0,2m \
             --dhcp-range=2001:db8::50,2001:db8::59,64,2m --dhcp-option=option:domain-search,lan.example \
             --dhcp-option=option6:domain-search,lan.example --dhcp-leasefile={}/leases",
            scratch.text()
        );
        let line = line.split_whitespace().map(str::to_owned).collect();
        Server::run(lab, Program::Dnsmasq, line, scratch)
    }
}
