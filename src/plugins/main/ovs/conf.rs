//! The configuration of `ovs`.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::ovsdb::{Address, Database};
use super::vlan::{self, VlanMode, Vlans};
use crate::cni::args::Args;
use crate::cni::conf::{self, ConfArgs};
use crate::cni::decode;
use crate::error::{Code, Error, Result};
use crate::net::mac::MacAddr;
use crate::plain_file;
use crate::plugin::{Context, PluginConf};
use crate::steps::dns::DnsConf;
use crate::steps::hardware_address::{self, MacConf};
use crate::steps::ipam;
use crate::steps::settings::AcceptRa;
use crate::steps::veth::{self, Wishes};
use crate::steps::vlan_trunk::Trunk;

/// The socket where Open vSwitch's packages have it.
const SOCKET: &str = "unix:/var/run/openvswitch/db.sock";
/// The bridge of OVN's ports.
const OVN_BRIDGE: &str = "br-int";
/// The OpenFlow port numbers that the schema allows; 0 leaves the number to Open vSwitch.
const OFPORTS: std::ops::RangeInclusive<i64> = 0..=65279;
/// The keys of CNI_ARGS. The original's library takes its keys by the names of Go's fields, and its
/// pages write them in small letters.
const ARGS: [&str; 5] = ["MAC", "mac", "OvnPort", "ovnPort", "K8S_POD_UID"];

/// The keys of the configuration. The file in `configuration_path` fills what is left out, see
/// [`completed`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Conf {
    pub(super) bridge: String,
    pub(super) vlan: Option<i64>,
    pub(super) vlan_mode: Option<VlanMode>,
    pub(super) trunk: Vec<Trunk>,
    pub(super) mtu: u32,
    pub(super) ofport_request: i64,
    pub(super) interface_type: String,
    #[serde(rename = "deviceID")]
    pub(super) device_id: String,
    pub(super) configuration_path: String,
    pub(super) socket_file: String,
    pub(super) link_state_check_retries: u32,
    pub(super) link_state_check_interval: u32,
    #[serde(rename = "acceptRA")]
    pub(super) accept_ra: AcceptRa,
    pub(super) dns: DnsConf,
    args: ConfArgs<CniArgs>,
    #[serde(rename = "runtimeConfig")]
    runtime_config: MacConf,
    /// What the container's caller asks for, from the source that takes precedence.
    #[serde(skip)]
    pub asked: Asked,
}

/// `args.cni`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct CniArgs {
    #[serde(deserialize_with = "crate::net::mac::optional")]
    mac: Option<MacAddr>,
    #[serde(rename = "ovnPort", deserialize_with = "crate::cni::decode::or_default")]
    ovn_port: String,
}

/// What CNI_ARGS, `args.cni` and capabilities say of the container.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The hardware address of the container's end.
    pub mac: Option<MacAddr>,
    /// The logical port of OVN; empty for none.
    pub ovn_port: String,
    /// The pod's UID; empty if unknown.
    pub pod_uid: String,
}

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "bridge | string | `br-int` for a port of OVN, else required | The bridge, which must exist.
        vlan | integer | none | The VLAN of an access port, 0 to 4094. Without `vlan` and `trunk` the port has every VLAN.
        trunk | list | none | The VLANs that the container sees with their tags. They take precedence over `vlan`, unless `vlan_mode` is set.
        trunk[].id | integer | none | One VLAN, 1 to 4094.
        trunk[].minID | integer | none | The first of a range, with `maxID`.
        trunk[].maxID | integer | none | The last of the range.
        vlan_mode | string | none | `native-untagged` or `native-tagged`: the port is a trunk with `vlan` as its native VLAN, and Open vSwitch sends frames of that VLAN untagged or tagged. Without `trunk` the port carries every VLAN.
        mtu | integer | 0 | The MTU of both ends, 68 to 65535; 0 leaves it to the kernel.
        ofport_request | integer | 0 | The OpenFlow port number, up to 65279; 0 leaves it to Open vSwitch.
        interface_type | string | none | `type` of the interface's row. `system` is what a veth is, and `internal` is refused.
        socket_file | string | `unix:/var/run/openvswitch/db.sock` | `unix:PATH`, a path, or `tcp:IP:PORT`. `ssl:` is refused: this client has no TLS.
        configuration_path | string | none | The first place of a file with further keys.
        link_state_check_retries | integer | 0 | With the next key: ADD waits for the carrier as long as their product; 0 is 5.
        link_state_check_interval | integer | 0 | In milliseconds; 0 is 600.
        deviceID | string | none | Refused: the port is a veth.",
        AcceptRa::KEY,
        DnsConf::KEYS,
        "ipam.type | string | none | The IPAM plugin, such as [host-local](host-local.md) or [static](static.md).
        args.cni.mac | string | of the first IP address | The container's hardware address.
        args.cni.ovnPort | string | none | The logical port of OVN, which the interface's `external_ids` have as `iface-id`.
        runtimeConfig.mac | string | none | Capability `mac`: overrides the other places.",
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        self.asked = self.asked_by(cx.args)?;
        self.validate_keys()
    }

    fn validate_add(&self, cx: &Context<'_>) -> Result<()> {
        ipam::require_type_or_layer_two(cx)
    }
}

impl Conf {
    /// Checks each key that is given: those of the configuration, and those of the flat file.
    pub fn validate_keys(&self) -> Result<()> {
        if !self.device_id.is_empty() {
            let problem = "offload to a virtual function and vDPA are not supported";
            return Err(Error::config("deviceID", problem).expecting("none: the port is a veth"));
        }
        // Open vSwitch would make a device of its own beside the pair.
        if self.interface_type == "internal" {
            return Err(Error::config("interface_type", "\"internal\" is no veth")
                .expecting("none, or \"system\""));
        }
        vlan::validate(self.vlan, self.vlan_mode, &self.trunk)?;
        veth::validate_mtu(self.mtu)?;
        if !OFPORTS.contains(&self.ofport_request) {
            return Err(Error::out_of_range("ofport_request", self.ofport_request, OFPORTS));
        }
        self.address().map(drop)
    }

    fn asked_by(&self, cni_args: &str) -> Result<Asked> {
        let args = Args::parse(cni_args, &ARGS)?;
        let text = |keys: [&str; 2]| keys.iter().find_map(|key| args.get(key)).unwrap_or_default();
        let given = hardware_address::parse_arg(text(["MAC", "mac"]))?;
        let mac = hardware_address::strongest([
            ("runtimeConfig.mac", self.runtime_config.mac.as_ref()),
            ("CNI_ARGS: MAC", given.as_ref()),
            ("args.cni.mac", self.args.cni.mac.as_ref()),
        ])?;
        let ovn_port = match text(["OvnPort", "ovnPort"]) {
            "" => &self.args.cni.ovn_port,
            port => port,
        };
        let pod_uid = args.get("K8S_POD_UID").unwrap_or_default().to_owned();
        Ok(Asked { mac, ovn_port: ovn_port.to_owned(), pod_uid })
    }

    /// The bridge's name.
    pub fn bridge(&self) -> Result<&str> {
        match (self.bridge.as_str(), self.asked.ovn_port.as_str()) {
            ("", "") => Err(Error::missing("bridge", "the name of a bridge of Open vSwitch")
                .saying("failed to get bridge name")),
            ("", _) => Ok(OVN_BRIDGE),
            (bridge, _) => Ok(bridge),
        }
    }

    /// The address of the database.
    pub fn address(&self) -> Result<Address> {
        Address::parse(self.socket())
    }

    /// The text of that address.
    pub fn socket(&self) -> &str {
        if self.socket_file.is_empty() { SOCKET } else { &self.socket_file }
    }

    /// Connects to the database.
    pub fn connect(&self, cx: &Context<'_>) -> Result<Database> {
        Database::connect(&self.address()?, cx.deadline())
    }

    /// The VLANs of the port.
    pub fn vlans(&self) -> Vlans {
        vlan::plan(self.vlan, self.vlan_mode, &self.trunk)
    }

    /// The requested properties of the veth pair.
    pub fn wishes(&self) -> Wishes {
        let mtu = Some(self.mtu).filter(|mtu| *mtu != 0);
        Wishes { mtu, mac: self.asked.mac.clone() }
    }

    /// How long ADD waits for the carrier.
    pub fn patience(&self) -> Duration {
        let or = |given: u32, usual| u64::from(if given == 0 { usual } else { given });
        let retries = or(self.link_state_check_retries, 5);
        Duration::from_millis(retries.saturating_mul(or(self.link_state_check_interval, 600)))
    }
}

/// The error of a database without the bridge.
pub fn bridge_missing(bridge: &str) -> Error {
    Error::new(Code::TRY_AGAIN, format!("failed to find bridge {bridge}"))
        .with_details(format_args!("bridge: OVSDB has no {bridge:?}; ovs-vsctl add-br makes it"))
}

/// The places of the file after `configuration_path`, as in the original.
const PLACES: [&str; 2] =
    ["/etc/kubernetes/cni/net.d/ovs.d/ovs.conf", "/etc/cni/net.d/ovs.d/ovs.conf"];

/// The configuration with the keys of the first file that exists, where it has none of its own.
/// Without a file it is complete.
pub fn completed(conf: &Conf) -> Result<Conf> {
    let Some((path, text)) = find(&conf.configuration_path)? else { return Ok(conf.clone()) };
    let completed = || {
        let completed = merged(conf.clone(), decode::from_value(&conf::document(&text)?)?);
        completed.validate_keys()?;
        Ok(completed)
    };
    completed().map_err(|e: Error| {
        e.context(format_args!("parse ovs config file {}: error", path.display()))
    })
}

fn find(configured: &str) -> Result<Option<(PathBuf, Vec<u8>)>> {
    for path in [configured].iter().chain(&PLACES).filter(|path| !path.is_empty()) {
        match plain_file::read_configuration(Path::new(path)) {
            Ok(text) => return Ok(Some((path.into(), text))),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => (),
            Err(e) => {
                let what = format_args!("open ovs config file {path} error");
                return Err(Error::io(what, &e).with_code(Code::IO));
            }
        }
    }
    Ok(None)
}

/// What is zero counts as left out, as in the original; `vlan` is so only if it is absent.
fn merged(mut conf: Conf, file: Conf) -> Conf {
    fill(&mut conf.bridge, file.bridge);
    fill(&mut conf.vlan, file.vlan);
    fill(&mut conf.vlan_mode, file.vlan_mode);
    if conf.trunk.is_empty() {
        conf.trunk = file.trunk;
    }
    fill(&mut conf.mtu, file.mtu);
    fill(&mut conf.accept_ra, file.accept_ra);
    fill(&mut conf.ofport_request, file.ofport_request);
    fill(&mut conf.interface_type, file.interface_type);
    fill(&mut conf.device_id, file.device_id);
    fill(&mut conf.socket_file, file.socket_file);
    fill(&mut conf.link_state_check_retries, file.link_state_check_retries);
    fill(&mut conf.link_state_check_interval, file.link_state_check_interval);
    conf
}

fn fill<T: Default + PartialEq>(own: &mut T, of_file: T) {
    if *own == T::default() {
        *own = of_file;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn of(keys: &str, file: &str) -> Result<Conf> {
        let scratch = Scratch::new();
        scratch.write("ovs.conf", file);
        let path = scratch.path().join("ovs.conf");
        let keys = conf::document(keys.as_bytes()).unwrap();
        let mut conf: Conf = decode::from_value(&keys).unwrap();
        conf.configuration_path = path.display().to_string();
        completed(&conf)
    }

    #[test]
    fn the_file_fills_what_is_zero() {
        let file = r#"{"bridge":"of-file","vlan":7,"mtu":1400,"socket_file":"/of/file","ofport_request":3,"trunk":[{"id":5}],"link_state_check_retries":2}"#;
        let own = of(r#"{"bridge":"own","vlan":0,"mtu":1300,"trunk":[{"id":6}]}"#, file).unwrap();
        assert_eq!((own.bridge.as_str(), own.vlan, own.mtu), ("own", Some(0), 1300));
        assert_eq!(own.vlans().trunks, [6]);
        assert_eq!((own.socket(), own.ofport_request), ("/of/file", 3));
        let filled = of("{}", file).unwrap();
        assert_eq!((filled.bridge.as_str(), filled.vlan, filled.mtu), ("of-file", Some(7), 1400));
        assert_eq!(filled.patience().as_millis(), 1200);
    }

    #[test]
    fn a_file_that_does_not_serve_is_named() {
        for (file, problem) in [
            ("{", "EOF"),
            (r#"{"mtu":"x"}"#, "mtu"),
            (r#"{"vlan":5000}"#, "vlan: 5000 is out of range, expected 0 to 4094"),
        ] {
            let msg = of("{}", file).unwrap_err().msg.clone();
            assert!(msg.starts_with("parse ovs config file /"), "{msg}");
            assert!(msg.contains("/ovs.conf: error: ") && msg.contains(problem), "{msg}");
        }
        let configuration_path = "/nonexistent/ovs.conf".into();
        let missing = Conf { configuration_path, ..Conf::default() };
        assert!(completed(&missing).is_ok(), "none is no error");
    }
}
