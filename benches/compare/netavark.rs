//! Attaches containers by netavark, podman's own program for networks, with the rules of nftables
//! that it makes for a bridge and published ports.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::Result;
use crate::namespaces::{Netns, SCRATCH};
use crate::process::{Invocation, find_program};
use crate::schedule::Round;

/// `$CNI_NETAVARK`, else the one that a package has installed.
pub fn find() -> Option<PathBuf> {
    let named = std::env::var_os("CNI_NETAVARK").map(PathBuf::from);
    let installed =
        || Some(PathBuf::from("/usr/lib/podman/netavark")).filter(|file| file.is_file());
    named.or_else(|| find_program("netavark")).or_else(installed)
}

/// Attaches the containers to one bridge; returns their addresses. The host's files are in a
/// directory named after `state`. `mappings` are those of the
/// container with a number, in CNI's words.
pub fn attach(
    round: &mut Round,
    program: &Path,
    state: &str,
    containers: &[Netns],
    mappings: impl Fn(usize) -> Result<Value>,
) -> Result<Vec<IpAddr>> {
    let dir = format!("{SCRATCH}/netavark-{state}");
    let mut addresses = vec![];
    for (number, netns) in containers.iter().enumerate() {
        let address = address(number)?;
        let call = Invocation {
            args: ["--config", &dir, "setup", &netns.path()].map(str::to_owned).to_vec(),
            env: vec![("NETAVARK_FW".to_owned(), "nftables".to_owned())],
            stdin: options(number, address, &mappings(number)?).to_string(),
            ..Invocation::new(program)
        };
        round.untimed(&call)?;
        addresses.push(address.into());
    }
    Ok(addresses)
}

/// The addresses after the gateway's.
fn address(number: usize) -> Result<Ipv4Addr> {
    let first = u32::from(Ipv4Addr::new(10, 88, 0, 2));
    let number = u32::try_from(number).map_err(|e| format!("address: {e}"))?;
    Ok((first + number).into())
}

fn options(number: usize, address: Ipv4Addr, mappings: &Value) -> Value {
    const NAME: &str = "podman";
    let mappings = mappings.as_array().into_iter().flatten();
    let ports = mappings.map(|mapping| {
        json!({
            "container_port": mapping["containerPort"],
            "host_ip": "",
            "host_port": mapping["hostPort"],
            "protocol": mapping["protocol"],
            "range": 1,
        })
    });
    json!({
        "container_id": format!("{number:064x}"),
        "container_name": format!("container-{number}"),
        "port_mappings": ports.collect::<Vec<_>>(),
        "networks": {NAME: {"interface_name": "eth0", "static_ips": [address]}},
        "network_info": {NAME: {
            "name": NAME,
            "id": format!("{:064x}", 1),
            "driver": "bridge",
            "network_interface": "bench0",
            "subnets": [{"subnet": "10.88.0.0/16", "gateway": "10.88.0.1"}],
            "ipam_options": {"driver": "host-local"},
            "dns_enabled": false,
            "internal": false,
            "ipv6_enabled": false,
        }},
    })
}
