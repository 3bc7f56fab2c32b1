//! A host in namespaces with networks, containers and faults.

use std::fs;
use std::process::Output;

use serde_json::{Value, json};

use crate::support::call::{Peer, binary, farm};
use crate::support::netns::{Container, Lab};

/// A host with a directory of networks.
pub struct Site {
    pub lab: Lab,
    /// CNI_PATH.
    pub plugin_path: String,
}

impl Site {
    /// A host without networks. Its default routes lead to the peer outside.
    pub fn empty() -> Site {
        let lab = Lab::new(Peer::Ours);
        lab.host.sh("mkdir -p /run/net.d; ip route add default via 198.51.100.2
            ip -6 route add default via 2001:db8:ffff::2");
        Site { lab, plugin_path: farm().display().to_string() }
    }

    /// A host with the network `pods` of bridge and host-local in a subnet such as `10.9.7.0/24`.
    pub fn with_bridge(subnet: &str) -> Site {
        let site = Site::empty();
        site.configure("pods", &json!([bridge("pods0", subnet)]));
        site
    }

    /// Writes the network's configuration.
    pub fn configure(&self, name: &str, plugins: &Value) {
        let list = json!({"cniVersion": "1.1.0", "name": name, "plugins": plugins});
        self.write(&format!("/run/net.d/{name}.conflist"), &list.to_string());
    }

    /// Writes a file of the host.
    pub fn write(&self, path: &str, text: &str) {
        fs::write(self.lab.path(path), text).unwrap();
    }

    /// Runs a command of the binary.
    pub fn run(&self, line: &str) -> Output {
        let program = binary();
        self.lab.host.try_sh(&format!("{} {} {line}", self.variables(), program.display()))
    }

    /// A container that is attached to the network.
    pub fn attached(&self, network: &str) -> Container {
        let container = self.lab.container();
        self.attach(network, &container, "eth0");
        container
    }

    /// A container whose `lo` is attached to `cni-loopback`.
    pub fn attached_to_lo(&self) -> Container {
        let container = self.lab.container();
        self.attach("cni-loopback", &container, "lo");
        container
    }

    /// Attaches an interface of the container.
    pub fn attach(&self, network: &str, container: &Container, ifname: &str) {
        let netns = &container.netns;
        let output = self.run(&format!("net add {network} {netns} --ifname {ifname}"));
        assert!(output.status.success(), "{output:?}");
    }

    /// Destroys the container's namespace and waits until the kernel has removed the host's end.
    pub fn vanish(&self, container: &Container) {
        let links = "ls /sys/class/net | wc -l";
        let before = self.lab.host.sh(links);
        container.vanish();
        let wait = format!(
            "for _ in $(seq 200); do [ $({links}) -lt {} ] && exit 0; sleep 0.1; done; exit 1",
            before.trim()
        );
        self.lab.host.sh(&wait);
    }

    /// The findings about the node and everything on it, or about one container. The exit status is
    /// 1 if there are any, else 0.
    #[track_caller]
    pub fn findings(&self, subject: &str) -> Vec<Value> {
        let output = self.run(&format!("doctor {subject} -o json"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"));
        let findings = report["findings"].as_array().unwrap().clone();
        assert_eq!(output.status.code(), Some(i32::from(!findings.is_empty())), "{stderr}");
        findings
    }

    /// The codes of the findings.
    #[track_caller]
    pub fn codes(&self, subject: &str) -> Vec<String> {
        let code = |finding: &Value| finding["code"].as_str().unwrap().to_owned();
        self.findings(subject).iter().map(code).collect()
    }

    /// There is no finding; after the script on the host there is one with this code, and its fix
    /// repairs the host. Returns the finding.
    #[track_caller]
    pub fn finds_and_fixes(&self, fault: &str, code: &str) -> Value {
        let finding = self.finds(fault, code);
        self.fix(&finding);
        assert_eq!(self.findings(""), [Value::Null; 0], "after the fix");
        finding
    }

    /// There is no finding; after the script on the host there is one with this code.
    #[track_caller]
    pub fn finds(&self, fault: &str, code: &str) -> Value {
        assert_eq!(self.findings(""), [Value::Null; 0], "before the fault");
        self.lab.host.sh(fault);
        let findings = self.findings("");
        let finding = findings.iter().find(|finding| finding["code"] == code);
        finding.unwrap_or_else(|| panic!("no {code} in {findings:#?}")).clone()
    }

    /// Runs the fix of a finding, as root would.
    #[track_caller]
    pub fn fix(&self, finding: &Value) {
        let dir = binary().parent().unwrap().display().to_string();
        let fix = finding["fix"].as_str().unwrap();
        let variables = self.variables();
        let sudo = "sudo() { \"$@\"; }";
        self.lab.host.sh(&format!("{sudo}; export PATH={dir}:$PATH {variables}; {fix}"));
    }

    fn variables(&self) -> String {
        format!("NETCONFPATH=/run/net.d CNI_PATH={}", self.plugin_path)
    }

    /// Gives the host an /etc of its own.
    pub fn with_own_etc(self) -> Site {
        let copy = "mkdir /run/etc; cp -a /etc/. /run/etc 2>/dev/null; mount --bind /run/etc /etc";
        self.lab.host.sh(copy);
        self
    }
}

/// A bridge that is the gateway of its containers.
pub fn bridge(name: &str, subnet: &str) -> Value {
    json!({"type": "bridge", "bridge": name, "isGateway": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}]}})
}
