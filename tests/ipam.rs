//! `cni-multi ipam`: who holds which address, and what frees, exports and imports leases.

use std::fs;
use std::process::Output;

use serde_json::{Value, json};

use crate::support::call::{Peer, binary, farm};
use crate::support::netns::{Container, Lab};

/// The leases of the network of the tests.
const STORE: &str = "/var/lib/cni/networks/pods";

/// A host with one network of bridge and host-local. GC looks at the addresses of every namespace on
/// the machine, so each test has a block of its own.
struct Site {
    lab: Lab,
    block: u8,
}

impl Site {
    fn new(block: u8) -> Site {
        let lab = Lab::new(Peer::Ours);
        lab.host.sh("mkdir -p /run/net.d");
        let site = Site { lab, block };
        site.configure("pods", &site.address(0));
        site
    }

    fn configure(&self, name: &str, subnet: &str) {
        let ranges = json!([[{"subnet": format!("{subnet}/28")}]]);
        let list = json!({"cniVersion": "1.1.0", "name": name, "plugins": [
            {"type": "bridge", "bridge": "pods0", "ipam": {"type": "host-local", "ranges": ranges}},
        ]});
        let file = self.lab.path(&format!("/run/net.d/{name}.conflist"));
        fs::write(file, list.to_string()).unwrap();
    }

    /// An address of the block.
    fn address(&self, last: u8) -> String {
        format!("10.{}.7.{last}", self.block)
    }

    fn run(&self, line: &str) -> Output {
        let program = binary();
        self.lab.host.try_sh(&format!("NETCONFPATH=/run/net.d {} {line}", program.display()))
    }

    /// Stdout of a command that succeeds.
    fn prints(&self, line: &str) -> String {
        let output = self.run(line);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// A command fails with this status, and says this.
    #[track_caller]
    fn fails(&self, line: &str, status: i32, words: &str) {
        let output = self.run(line);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{line}: {stderr}");
        assert_eq!(output.stdout, b"", "{line}");
        assert!(stderr.contains(words), "{line}: {stderr} has no {words}");
    }

    fn write(&self, document: &str) {
        fs::write(self.lab.path("/run/leases.json"), document).unwrap();
    }

    fn add(&self, container: &Container) {
        let path = farm();
        self.prints(&format!(
            "net add pods {} --container-id {} --plugin-path {} \
             --args 'IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=till'",
            container.netns,
            container.id,
            path.display()
        ));
    }

    fn leases(&self) -> Vec<Value> {
        let listed: Value = serde_json::from_str(&self.prints("ipam ls pods -o json")).unwrap();
        listed["leases"].as_array().unwrap().clone()
    }

    fn write_lease(&self, last: u8, content: &str) {
        let file = self.lab.path(&format!("{STORE}/{}", self.address(last)));
        fs::write(file, content).unwrap();
    }

    /// A lease of a container without a namespace, as old as an interrupted ADD never is.
    fn abandon(&self, last: u8) {
        self.write_lease(last, "abandoned\r\neth0");
        let file = format!("{STORE}/{}", self.address(last));
        self.lab.host.sh(&format!("touch -d '1 hour ago' {file}"));
    }

    /// The files of the store with their content.
    fn store(&self) -> String {
        self.lab.host.sh(&format!("cd {STORE} && grep -r . 10.* | sort"))
    }
}

#[test]
fn ls_names_the_owner_of_each_address() {
    let site = Site::new(171);
    let container = site.lab.container();
    site.add(&container);
    site.abandon(9);
    let leases = site.leases();
    let keys = ["address", "containerId", "namespace", "pod"];
    let cells = |row: &Value| keys.map(|key| row[key].as_str().unwrap_or_default().to_owned());
    let said: Vec<[String; 4]> = leases.iter().map(cells).collect();
    let of_container = [&*site.address(2), &*container.id, "alive", "shop/till"];
    assert_eq!(said, [of_container, [&*site.address(9), "abandoned", "gone", ""]]);
    let table = site.prints("ipam list");
    let range = format!("pods     {}-{}  2     13    11", site.address(1), site.address(14));
    assert!(table.contains(&range), "{table}");
    site.fails("ipam ls pots", 1, "networks with leases: pods");
}

#[test]
fn free_refuses_a_living_owner_and_frees_a_gone_one() {
    let site = Site::new(172);
    let container = site.lab.container();
    site.add(&container);
    site.abandon(9);
    let before = site.store();
    for force in ["", " --force"] {
        let line = format!("ipam free pods {}{force}", site.address(2));
        site.fails(&line, 1, "is not freed: eth0 of container");
        let advice = format!("cni-multi net del pods {} --container-id", container.netns);
        site.fails(&line, 1, &advice);
    }
    assert_eq!(site.store(), before);
    let line = format!("ipam free pods {}", site.address(9));
    let said = format!("freed {}, which eth0 of container abandoned had\n", site.address(9));
    assert_eq!(site.prints(&line), said);
    assert_eq!(site.leases().len(), 1);
    site.fails(&line, 1, "is not held in network \"pods\"");
}

/// ADD allocates before it makes the interface.
#[test]
fn free_refuses_what_an_add_may_be_making() {
    let site = Site::new(173);
    site.lab.host.sh(&format!("mkdir -p {STORE}"));
    site.write_lease(9, "starting\r\neth0");
    let line = format!("ipam free pods {}", site.address(9));
    site.fails(&line, 1, "if it is gone, add --force");
    site.prints(&format!("{line} --force"));
    site.write_lease(8, "what is this\nanyhow\nat all");
    site.fails(&format!("ipam free pods {}", site.address(8)), 1, "by hand");
}

#[test]
fn exported_leases_are_imported_on_another_machine() {
    let here = Site::new(174);
    let container = here.lab.container();
    here.add(&container);
    here.abandon(9);
    let exported = here.prints("ipam export");
    let there = Site::new(174);
    there.write(&exported);
    let dry = "ipam import --dry-run /run/leases.json";
    assert_eq!(there.prints(dry), "pods: would import 2, already there 0\n");
    assert!(!there.lab.path(STORE).exists());
    for (line, said) in [
        ("ipam import /run/leases.json", "pods: imported 2, already there 0\n"),
        ("ipam import pods - </run/leases.json", "pods: imported 0, already there 2\n"),
    ] {
        assert_eq!(there.prints(line), said);
        assert_eq!(there.store(), here.store());
    }
    assert_eq!(there.prints("ipam export pods"), exported);
}

/// The imported addresses are taken: an ADD gets the next one.
#[test]
fn imported_leases_are_not_allocated_again() {
    let site = Site::new(175);
    let lease =
        |last| json!({"address": site.address(last), "containerId": "moved", "ifname": "eth0"});
    let leases: Vec<Value> = (2..6).map(lease).collect();
    let networks = json!([{"network": "pods", "ipam": "host-local", "leases": leases}]);
    let document = json!({"cniMultiLeases": 1, "networks": networks});
    site.write(&document.to_string());
    site.prints("ipam import /run/leases.json");
    let container = site.lab.container();
    site.add(&container);
    assert_eq!(container.addresses("eth0")[0], format!("{}/28", site.address(6)));
}

#[test]
fn import_is_all_or_nothing() {
    let site = Site::new(176);
    site.configure("other", &format!("10.{}.8.0", site.block));
    site.lab.host.sh(&format!("mkdir -p {STORE}"));
    site.abandon(9);
    let before = site.lab.host.sh("cd /var/lib/cni && find . -type f | sort");
    let free = format!("10.{}.8.2", site.block);
    for (address, id, problem) in [
        (site.address(9), "moved", "is held by abandoned here, and by moved there"),
        (site.address(15), "moved", "is not in the ranges of the network"),
        ("192.0.2.1".to_owned(), "moved", "is not in the ranges of the network"),
    ] {
        let document = json!({"cniMultiLeases": 1, "networks": [
            {"network": "other", "ipam": "host-local", "leases": [
                {"address": free, "containerId": "moved", "ifname": "eth0"}]},
            {"network": "pods", "ipam": "host-local", "leases": [
                {"address": site.address(3), "containerId": "moved", "ifname": "eth0"},
                {"address": address, "containerId": id, "ifname": "eth0"}]},
        ]});
        site.write(&document.to_string());
        for line in ["ipam import /run/leases.json", "ipam import --dry-run /run/leases.json"] {
            site.fails(line, 1, "network \"pods\"");
            site.fails(line, 1, problem);
        }
        let leases =
            "cd /var/lib/cni && find . -type f ! -path '*/.cni-multi/*' ! -name lock | sort";
        assert_eq!(site.lab.host.sh(leases), before);
    }
}

#[test]
fn wrong_documents_and_words_are_named() {
    let site = Site::new(177);
    for (text, said) in [
        ("{\"cniMultiLeases\": 1, \"netw", "/run/leases.json"),
        ("{\"cniMultiLeases\": 9}", "version 9 is unknown"),
        ("[]", "the output of cni-multi ipam export"),
        (
            r#"{"cniMultiLeases":1,"networks":[{"network":"pots","ipam":"host-local","leases":[]}]}"#,
            "network \"pots\" with host-local is not configured here",
        ),
    ] {
        site.write(text);
        site.fails("ipam import /run/leases.json", 1, said);
    }
    site.write(r#"{"cniMultiLeases":1,"networks":[]}"#);
    for (line, status, said) in [
        ("import pods /run/leases.json", 1, "the document has no network \"pods\""),
        ("import /run/missing", 1, "/run/missing"),
        ("import /run/missing", 1, "ipam export"),
        ("free pods 10.0.0.300", 2, "is not an IP address"),
        ("free pods", 2, "<ADDRESS>"),
        ("ls ../x", 2, "network name"),
        ("", 2, "ls"),
    ] {
        site.fails(&format!("ipam {line}"), status, said);
    }
}
