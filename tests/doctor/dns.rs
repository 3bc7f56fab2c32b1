//! D6xx: names.

use std::process::{Child, Stdio};

use serde_json::{Value, json};

use super::site::{Site, bridge};
use crate::support::netns::Container;

/// A host with a network that names a nameserver, and a container that has it in the file of
/// `ip netns`.
struct Named {
    site: Site,
    container: Container,
    /// The file.
    file: String,
}

impl Named {
    fn new(block: u8) -> Named {
        let site = Site::empty().with_own_etc();
        let server = format!("10.182.{block}.1");
        let mut plugin = bridge("pods0", &format!("10.182.{block}.0/24"));
        plugin["dns"] = json!({"nameservers": [server, "192.0.2.53"]});
        site.configure("pods", &json!([plugin]));
        let container = site.attached("pods");
        let name = container.netns.rsplit('/').next().unwrap();
        let file = format!("/etc/netns/{name}/resolv.conf");
        let lines = format!("nameserver {server}\nnameserver 192.0.2.53\n");
        site.lab.host.sh(&format!("mkdir -p /etc/netns/{name}; printf '{lines}' >{file}"));
        Named { site, container, file }
    }
}

#[test]
fn a_file_without_the_nameservers_of_the_result_is_found_and_fixed() {
    let Named { site, container, file } = Named::new(1);
    for (fault, code) in [
        (format!("rm {file}"), "D603"),
        (format!("echo '# none' >{file}"), "D604"),
        (format!("echo nameserver 10.182.1.77 >{file}"), "D605"),
    ] {
        let finding = site.finds_and_fixes(&fault, code);
        assert_eq!(finding["container"], container.netns.rsplit('/').next().unwrap());
    }
}

#[test]
fn a_nameserver_without_a_route_is_found_and_fixed() {
    let site = Site::empty().with_own_etc();
    let mut plugin = bridge("pods0", "10.182.4.0/24");
    plugin["ipam"]["routes"] = json!([]);
    site.configure("pods", &json!([plugin]));
    let container = site.attached("pods");
    let name = container.netns.rsplit('/').next().unwrap();
    let script = format!(
        "cd /etc; mkdir -p netns/{name}; echo nameserver 192.0.2.53 >netns/{name}/resolv.conf"
    );
    let finding = site.finds_and_fixes(&script, "D601");
    assert!(finding["evidence"].as_str().unwrap().starts_with("192.0.2.53 "), "{finding}");
}

/// A resolver asks the next server at once when there is no route to one.
#[test]
fn a_nameserver_without_a_route_is_no_fault_beside_another() {
    let Named { site, file, .. } = Named::new(7);
    site.lab.host.sh(&format!("echo nameserver 2001:db8::53 >>{file}"));
    assert_eq!(site.findings(""), [Value::Null; 0]);
    site.lab.host.sh(&format!(
        "echo nameserver 2001:db8::53 >{file}; echo nameserver 2001:db8::54 >>{file}"
    ));
    let findings = site.findings("");
    let of_routes: Vec<&Value> = findings.iter().filter(|it| it["code"] == "D601").collect();
    assert_eq!(of_routes.len(), 1, "{findings:#?}");
    let both = "2001:db8::53, 2001:db8::54 of ";
    assert!(of_routes[0]["evidence"].as_str().unwrap().starts_with(both), "{findings:#?}");
}

/// A process of the container with an /etc of its own.
pub struct Program(Child);

impl Program {
    pub fn start(container: &Container, resolv_conf: &str) -> Program {
        let script = format!(
            "mount -t tmpfs etc /etc && echo '{resolv_conf}' >/etc/resolv.conf && echo ready && exec cat"
        );
        let mut command = container.command("unshare");
        command.args(["-m", "sh", "-c", &script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        Program(child)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_resolver_of_the_host_s_loopback_is_found() {
    let site = Site::with_bridge("10.182.5.0/24");
    let container = site.attached("pods");
    for (resolv_conf, code) in [
        ("nameserver 10.182.5.1", Some("D544")),
        ("nameserver 127.0.0.53", Some("D602")),
        ("", Some("D604")),
    ] {
        let program = Program::start(&container, resolv_conf);
        assert_eq!(site.codes(&container.netns), Vec::from_iter(code));
        drop(program);
    }
}

/// podman copies the host's nameservers into each container, also into those of internal networks.
#[test]
fn nameservers_beyond_an_internal_network_are_no_fault() {
    let site = Site::empty();
    let plugin = |is_gateway: bool| {
        let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.182.7.0/24"}]]});
        json!({"type": "bridge", "bridge": "pods0", "isGateway": is_gateway, "ipam": ipam})
    };
    for (is_gateway, wanted) in [(false, &[][..]), (true, &["D601"])] {
        site.configure("pods", &json!([plugin(is_gateway)]));
        let container = site.attached("pods");
        let _program = Program::start(&container, "nameserver 192.0.2.53");
        assert_eq!(site.codes(&container.netns), wanted);
    }
}

#[test]
fn a_file_of_a_container_is_never_one_of_the_host() {
    let site = Site::with_bridge("10.182.6.0/24");
    let container = site.attached("pods");
    site.write("/run/secret", "nameserver 127.0.0.53");
    let program = Program::start(&container, "nameserver 10.182.6.1");
    let root = format!("/proc/{}/root", program.0.id());
    container.sh(&format!(
        "nsenter -t {} -m sh -c 'mount -t tmpfs x /run; cd /etc; ln -sf /run/secret resolv.conf'",
        program.0.id()
    ));
    assert!(!std::path::Path::new(&root).join("run/secret").exists());
    assert_eq!(site.codes(&container.netns), [""; 0]);
}
