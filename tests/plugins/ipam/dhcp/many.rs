//! One daemon keeps many leases.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::attachment::{for_each_peer, for_ours, with};
use crate::support::dhcp::servers::Server;
use crate::support::dhcp::{Daemon, Kind, wait_until};
use crate::support::netns::Lab;
use crate::support::networks::dhcp::{conf, journal};

/// The number of leases that one GC releases.
const AT_ONCE: usize = 125;

/// Containers with links `eth0`, `eth1` and so on, on which commands of the plugin run in parallel.
struct Crowd {
    containers: usize,
    each: usize,
}

impl Crowd {
    /// Creates the links in private mode, in which the kernel does not copy a broadcast of one link
    /// to all the others.
    fn plug(&self, lab: &Lab) {
        let containers: Vec<_> = (0..self.containers).map(|_| lab.container()).collect();
        let links = containers.iter().flat_map(|container| {
            let name = container.netns.rsplit('/').next().unwrap().to_owned();
            (0..self.each).map(move |n| {
                format!("link add link lan name eth{n} netns {name} type macvlan mode private\n")
            })
        });
        std::fs::write(lab.path("/run/links"), links.collect::<String>()).unwrap();
        lab.host.sh("ip -batch /run/links; rm /run/links");
    }

    /// Runs CNI_COMMAND for every link and returns the number of failures.
    fn run(&self, lab: &Lab, command: &str, at_once: usize) -> usize {
        let dir = lab.peer.dir().display();
        let (containers, each) = (self.containers, self.each - 1);
        let script = format!(
            r#"export CNI_COMMAND={command} CNI_PATH={dir}
               one() {{ CNI_CONTAINERID=container-$1 CNI_NETNS=/run/netns/c$1 CNI_IFNAME=eth$2 {dir}/dhcp <<END
{{"cniVersion": "1.1.0", "name": "net1", "type": "dhcp", "ipam": {{"type": "dhcp"}}}}
END
               }}
               export -f one
               for c in $(seq {containers}); do for n in $(seq 0 {each}); do echo $c $n; done; done |
                   xargs -P {at_once} -L 1 bash -c 'one "$1" "$2" >>/tmp/out.$$ 2>&1 && rm -f /tmp/out.$$ || {{ cat /tmp/out.$$ >&2; rm -f /tmp/out.$$; echo failed; }}' bash | wc -l"#
        );
        let output = lab.host.command("bash").args(["-c", &script]).output().unwrap();
        eprintln!("{}", String::from_utf8_lossy(&output.stderr)); // shown if the case fails
        String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
    }
}

#[test]
fn two_hundred_at_once() {
    for_each_peer("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        let server = Server::for_many(lab);
        let _daemon = Daemon::start(lab);
        let crowd = Crowd { containers: 4, each: 50 };
        crowd.plug(lab);
        let start = Instant::now();
        assert_eq!(crowd.run(lab, "ADD", 200), 0);
        eprintln!("200 leases took {:?}", start.elapsed());
        assert_eq!(server.leases().len(), 200);
        assert_eq!(crowd.run(lab, "DEL", 200), 0);
        server.assert_has_no_lease();
    });
}

#[test]
fn a_thousand_leases_need_little_and_nothing_while_idle() {
    for_ours("dhcp", |lab| {
        lab.lan(Kind::Macvlan);
        let server = Server::for_many(lab);
        let mut daemon = Daemon::start(lab);
        let crowd = Crowd { containers: 4, each: 250 };
        crowd.plug(lab);
        assert_eq!(crowd.run(lab, "ADD", 40), 0);
        assert_eq!(server.leases().len(), 1000);
        assert_eq!(journal(lab).len(), 1000);
        let assert_modest = |daemon: &Daemon, when: &str| {
            let kilobytes = daemon.status("VmHWM");
            eprintln!("{when}: {kilobytes} kB, {} descriptors", daemon.descriptors());
            assert!(kilobytes <= 30 * 1024, "{when}: {kilobytes} kB");
            assert!(daemon.descriptors() < 30, "{when}");
        };
        wait_until("it is at rest", 10, || daemon.descriptors() < 30);
        assert_modest(&daemon, "after 1000 ADDs");
        assert_idle(&daemon);
        daemon.start_again();
        let known = lab.dhcp(&["leases", "-o", "json"]).ok();
        let bound =
            known.as_array().unwrap().iter().filter(|lease| lease["state"] == "bound").count();
        assert_eq!(bound, 1000, "all are known again");
        assert_modest(&daemon, "after a crash");
        assert_idle(&daemon);
        assert_eq!(server.log().matches("DHCPACK").count(), 1000, "nobody was asked again");
        collect_by_and_by(lab, &crowd, &server);
        assert_eq!(journal(lab).len(), 0);
        assert_modest(&daemon, "after GC");
    });
}

/// Releases the leases in batches. A DHCPRELEASE has no reply, and the server's socket buffers
/// about two hundred packets: of a thousand at once some would be lost if the server is not
/// scheduled in time.
fn collect_by_and_by(lab: &Lab, crowd: &Crowd, server: &Server) {
    let alone = with(&conf(), json!({"type": "dhcp", "master": null}));
    let collector = lab.attach(&lab.container(), &alone);
    let each = |container| {
        (0..crowd.each).map(move |n| (format!("container-{container}"), format!("eth{n}")))
    };
    let everyone: Vec<(String, String)> = (1..=crowd.containers).flat_map(each).collect();
    for released in (AT_ONCE..=everyone.len()).step_by(AT_ONCE) {
        let valid: Vec<(&str, &str)> =
            everyone[released..].iter().map(|(id, name)| (&**id, &**name)).collect();
        collector.gc(&valid).ok();
        wait_until("the server has what is valid", 3, || server.leases().len() == valid.len());
    }
}

/// An idle process is not woken, so it has no context switches.
fn assert_idle(daemon: &Daemon) {
    std::thread::sleep(Duration::from_millis(500)); // the last disconnect may be pending
    let switches =
        || daemon.status("voluntary_ctxt_switches") + daemon.status("nonvoluntary_ctxt_switches");
    let before = switches();
    std::thread::sleep(Duration::from_secs(2)); // no wake-up is expected
    assert_eq!(switches(), before, "it was woken");
}
