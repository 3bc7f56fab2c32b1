//! The DHCP servers that people run: dnsmasq and Kea, as Debian packages them.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use super::{Process, SERVER, wait_until};
use crate::support::attachment::has_programs;
use crate::support::call::Peer;
use crate::support::netns::Lab;
use crate::support::scratch::Scratch;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Dnsmasq,
    Kea,
}

pub const BOTH: [Program; 2] = [Program::Dnsmasq, Program::Kea];

impl Program {
    fn command(self) -> &'static str {
        match self {
            Program::Dnsmasq => "dnsmasq",
            Program::Kea => "kea-dhcp4",
        }
    }

    /// Whether the program is installed; the test skips if not.
    pub fn is_there(self) -> bool {
        has_programs(&[self.command()])
    }

    /// The renewal time of clients in seconds: the shortest that dnsmasq accepts, and its leases
    /// last two minutes at least.
    pub fn t1(self) -> u64 {
        match self {
            Program::Dnsmasq => 3,
            Program::Kea => 2,
        }
    }
}

/// A server in the namespace outside that hands out addresses of 10.60.0.0/24.
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
        let line = match program {
            Program::Dnsmasq => {
                dnsmasq(&scratch, &format!("{first},{last},255.255.255.0,2m"), [program.t1(), 8])
            }
            Program::Kea => kea(&scratch, &first, &last),
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
        let sign = match self.program {
            Program::Dnsmasq => "sockets bound",
            Program::Kea => "DHCP4_STARTED",
        };
        wait_for(&self.process, sign);
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
                };
            }
            text = again;
        }
    }
}

/// Waits until the server's output contains this sign of its start.
#[track_caller]
pub fn wait_for(server: &Process, sign: &str) {
    wait_until("the server has started", 10, || server.output().contains(sign));
}

/// Columns: expiry, hardware address, address, name, client id.
fn dnsmasq_leases(text: &str) -> BTreeMap<String, u64> {
    let lines = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines.map(|columns| (columns[2].to_owned(), columns[0].parse().unwrap())).collect()
}

/// A journal: later lines replace earlier ones, and the last may be in the middle of being written.
/// These columns have the lifetime, the end of the lease and its state, of which 0 is assigned.
pub fn kea_leases(text: &str, [lifetime, expires, state]: [usize; 3]) -> BTreeMap<String, u64> {
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
fn dnsmasq(scratch: &Scratch, range: &str, [t1, t2]: [u64; 2]) -> Vec<String> {
    [
        "dnsmasq --keep-in-foreground --conf-file=/dev/null --port=0 --interface=lan --bind-interfaces --no-ping",
        " --dhcp-authoritative --user=root --pid-file= --log-facility=-",
        &format!(" --dhcp-range={range} --dhcp-leasefile={}/leases", scratch.text()),
        &format!(" --dhcp-lease-max=5000 --dhcp-option=option:T1,{t1} --dhcp-option=option:T2,{t2}"),
    ]
    .concat()
    .split(' ')
    .map(str::to_owned)
    .collect()
}

fn kea(scratch: &Scratch, first: &str, last: &str) -> Vec<String> {
    let conf = json!({"Dhcp4": {
        "interfaces-config": {"interfaces": ["lan"], "dhcp-socket-type": "raw"},
        "lease-database": {"type": "memfile", "persist": true, "name": format!("{}/leases", scratch.text()), "lfc-interval": 0},
        "valid-lifetime": 12, "renew-timer": Program::Kea.t1(), "rebind-timer": 9, "authoritative": true,
        "subnet4": [{
            "id": 1, "subnet": "10.60.0.0/24", "pools": [{"pool": format!("{first}-{last}")}],
            "option-data": [{"name": "routers", "data": SERVER}],
        }],
    }});
    kea_line(scratch, "kea-dhcp4", &conf)
}

/// The command line of a Kea with this configuration. Its default directories are the machine's.
pub fn kea_line(scratch: &Scratch, program: &str, conf: &serde_json::Value) -> Vec<String> {
    let file = scratch.join("kea.json");
    std::fs::write(&file, conf.to_string()).unwrap();
    let mut line = vec!["env".to_owned()];
    line.extend(["PIDFILE", "LOCKFILE"].map(|kind| format!("KEA_{kind}_DIR={}", scratch.text())));
    line.extend([program, "-c", file.to_str().unwrap()].map(str::to_owned));
    line
}
