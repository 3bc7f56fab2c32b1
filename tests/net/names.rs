//! `net check`, `net del` and `net inspect` find an attachment by each name of its container; `check`
//! and `del` take arguments from its record, and say what is not attached.

use std::fs;
use std::process::Output;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde_json::{Value, json};

use crate::support::call::{Peer, binary, farm};
use crate::support::netns::Lab;

const ID: &str = "3f2a91c07b1e";
const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=till";

/// A host with one container, `red`, that is attached by an id of a runtime.
pub struct Site(Lab);

impl Site {
    pub fn new() -> Site {
        let site = Site(Lab::new(Peer::Ours));
        let list = json!({"cniVersion": "1.1.0", "name": "pods", "plugins": [
            {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true,
             "ipMasqBackend": "nftables", "ipam": {"type": "host-local", "subnet": "10.45.0.0/24"}},
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}}]});
        site.0.host.sh("mkdir -p /run/net.d; ip netns add red");
        fs::write(site.0.path("/run/net.d/pods.conflist"), list.to_string()).unwrap();
        site.add();
        site
    }

    fn add(&self) {
        let line = format!(
            "add pods red --container-id {ID} --args '{POD}' -p 8080:80 --bandwidth ingress=1M"
        );
        let output = self.net(&line);
        assert!(output.status.success(), "{output:?}");
    }

    pub fn net(&self, line: &str) -> Output {
        self.run(&format!("net {line}"))
    }

    /// Runs libcni's own tool, as this binary has it.
    pub fn cnitool(&self, line: &str) -> Output {
        self.run(&format!("cnitool {line}"))
    }

    fn run(&self, line: &str) -> Output {
        let (program, path) = (binary(), farm());
        let (program, path) = (program.display(), path.display());
        self.0.host.try_sh(&format!("NETCONFPATH=/run/net.d CNI_PATH={path} {program} {line}"))
    }

    /// Runs a script on the host.
    pub fn sh(&self, script: &str) -> String {
        self.0.host.sh(script)
    }

    /// Status and stderr of a command without output.
    pub fn says(&self, line: &str) -> (Option<i32>, String) {
        let output = self.net(line);
        assert_eq!(output.stdout, b"", "{line}");
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

const SILENT: (Option<i32>, String) = (Some(0), String::new());

#[test]
fn check_inspect_and_del_take_any_name_of_a_container() {
    let site = Site::new();
    let sleeper = site.0.host.sh("ip netns exec red sleep 1000 >/dev/null 2>&1 & echo $!");
    site.0.host.sh(
        "for _ in $(seq 100); do ip netns pids red | grep -q . && exit; sleep 0.01; done; exit 1",
    );
    let pid = sleeper.trim().to_owned();
    let names = ["red", "/run/netns/red", "/var/run/netns/red", ID, "3f2a", "shop/till", &pid];
    for name in names {
        assert_eq!(site.says(&format!("check pods {name}")), SILENT, "{name}");
    }
    for name in names {
        for line in [format!("inspect {name} -o json"), format!("inspect pods {name} -o json")] {
            let output = site.net(&line);
            assert!(output.status.success(), "{line}: {output:?}");
            let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(printed["containerId"], ID, "{line}");
        }
    }
    for name in names {
        assert_eq!(site.says(&format!("del pods {name}")), SILENT, "{name}");
        assert_eq!(site.0.host.sh("ls /var/lib/cni/results"), "", "{name}");
        site.add();
    }
}

/// A node has thousands of records, and reading one takes 40 microseconds.
#[test]
fn only_the_record_with_the_typed_names_is_read() {
    let site = Site::new();
    site.sh("ip netns add blue");
    for line in ["add pods blue", "check pods blue", "del pods blue"] {
        let opened = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        let results = site.0.path("/var/lib/cni/results");
        opened.add_watch(&results, AddWatchFlags::IN_OPEN).unwrap();
        assert!(site.net(line).status.success(), "{line}");
        let names = opened.read_events().unwrap_or_default();
        let names = names.into_iter().filter_map(|event| event.name?.into_string().ok());
        let others: Vec<String> = names.filter(|name| name.contains(ID)).collect();
        assert!(others.is_empty(), "{line}: {others:?}");
    }
    assert_eq!(site.says("check pods red"), SILENT);
}

/// cnitool and runtimes have their records in libcni's default directory, or in one below it.
#[test]
fn what_other_programs_have_attached_is_found_too() {
    let site = Site::new();
    site.0.host.sh("ip netns add blue; mkdir -p /var/lib/cni/cache/results");
    assert!(site.cnitool("add pods /var/run/netns/blue -i net1").status.success());
    site.0.host.sh("mv /var/lib/cni/results/pods-3f2* /var/lib/cni/cache/results");
    for line in ["inspect blue", "inspect red", "inspect shop/till", "check pods red"] {
        let output = site.net(line);
        assert!(output.status.success() && output.stderr.is_empty(), "{line}: {output:?}");
    }
    let listed: Value = serde_json::from_slice(&site.net("ps -o json").stdout).unwrap();
    let names = |at: &Value| json!([at["name"], at["ifname"], at["pod"], at["ports"]]);
    let listed: Vec<Value> = listed.as_array().unwrap().iter().map(names).collect();
    let red = json!(["red", "eth0", "shop/till", ["8080:80/tcp"]]);
    assert_eq!(listed, [json!(["blue", "net1", null, []]), red]);
    assert_eq!(site.says("check pods blue -i net1"), SILENT);
    assert_eq!(site.says("del pods blue -i net1"), SILENT);
    assert_eq!(site.says("del pods red"), SILENT);
    let left = "ls /var/lib/cni/results /var/lib/cni/cache/results | grep pods || :";
    assert_eq!(site.sh(left), "");
}

#[test]
fn del_without_the_network_s_file_takes_the_record() {
    let site = Site::new();
    site.sh("mv /run/net.d/pods.conflist /run/pods.conflist");
    let unknown = "no net configurations found in /run/net.d\n";
    assert_eq!(site.says("check pods red"), (Some(1), unknown.to_owned()));
    assert_eq!(site.says("del pods purple"), (Some(1), unknown.to_owned()), "it has no record");
    let found = site.sh("ls /var/lib/cni/networks/pods; nft list ruleset");
    assert!(found.contains("10.45.0.2") && found.contains("8080"), "{found}");
    // A file that cannot be read may be the network's.
    site.sh("echo '{' >/run/net.d/torn.conflist");
    let (status, said) = site.says("del pods red");
    assert!(status == Some(1) && said.contains("torn.conflist"), "{said}");
    site.sh("rm /run/net.d/torn.conflist");
    let note = "network \"pods\" has no configuration in /run/net.d; detaching by the one recorded at add\n";
    assert_eq!(site.says("del pods shop/till"), (Some(0), note.to_owned()));
    assert_eq!(site.sh("ls /var/lib/cni/results; ip -br link show master pods0"), "");
    let left = site.sh("ls /var/lib/cni/networks/pods; nft list ruleset");
    assert!(!left.contains("10.45.0.2") && !left.contains("8080"), "{left}");
    assert_eq!(site.says("del pods shop/till"), (Some(1), unknown.to_owned()));
}

/// A wrong name is an error, or a success that says so.
#[test]
fn nothing_succeeds_silently_on_what_is_not_attached() {
    let site = Site::new();
    let said = |line: &str, status: i32, text: &str| {
        let (found, said) = site.says(line);
        assert!(found == Some(status) && said.contains(text), "{line}: {found:?} {said}");
    };
    for network in ["gc podz", "status podz", "sync podz", "sync podz --dry-run", "check podz red"]
    {
        said(network, 1, "available networks: pods");
    }
    said("del podz red", 1, "available networks: pods");
    said("inspect podz", 1, "recorded: red");
    said("inspect pods purple", 1, "recorded: red");
    said("inspect pods red -i eth7", 1, "recorded: red");
    said("del pods 3f2", 0, "no attachment of eth0 of 3f2 to pods was recorded");
    said("del pods purple", 0, "no attachment of eth0 of purple to pods was recorded");
    said("del pods red -i eth7", 0, "no attachment of eth7 of red to pods was recorded");
    let (status, said) = site.says("check pods purple");
    assert!(status == Some(1) && !said.is_empty(), "{said}");
    assert_eq!(site.says("check pods red"), SILENT);
}

#[test]
fn a_name_that_several_containers_have_is_refused() {
    let site = Site::new();
    site.0.host.sh("ip netns add blue");
    let line = format!("add pods blue --container-id 3f2abc --args '{POD}'");
    assert!(site.net(&line).status.success());
    let (status, said) = site.says("del pods 3f2a");
    assert_eq!(status, Some(1));
    assert_eq!(said, "several container ids begin with \"3f2a\"\n3f2a91c07b1e, 3f2abc\n");
    assert_eq!(site.says("check pods red"), SILENT);
}
