//! The configuration of `bridge`.

use serde::Deserialize;

use crate::cni::attachment::IfName;
use crate::cni::conf::ConfArgs;
use crate::error::{Error, Result};
use crate::net::mac::MacAddr;
use crate::net::netlink::Link;
use crate::plugin::{Context, PluginConf};
use crate::steps::addresses::DuplicateDetection;
use crate::steps::dns::DnsConf;
use crate::steps::hardware_address::{self, MacConf};
use crate::steps::rules::Backend;
use crate::steps::settings::AcceptRa;
use crate::steps::veth::{self, Wishes};
use crate::steps::vlan_trunk::{Trunk, VLAN_MAX};
use crate::steps::{ipam, masquerade};

/// The keys of the configuration, which `KEYS` describes.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    #[serde(default = "cni0")]
    pub(super) bridge: String,
    is_gateway: bool,
    pub(super) is_default_gateway: bool,
    pub(super) force_address: bool,
    pub(super) ip_masq: bool,
    #[serde(deserialize_with = "masquerade::backend")]
    pub(super) ip_masq_backend: Option<Backend>,
    #[serde(rename = "nonMasqueradeCIDRs")]
    pub(super) non_masquerade_cidrs: masquerade::Exempt,
    mtu: u32,
    pub(super) hairpin_mode: bool,
    pub(super) promisc_mode: bool,
    pub(super) vlan: i64,
    pub(super) vlan_trunk: Option<Vec<Trunk>>,
    preserve_default_vlan: bool,
    pub(super) macspoofchk: bool,
    pub(super) fast_path: bool,
    enabledad: bool,
    pub(super) disable_container_interface: bool,
    pub(super) port_isolation: bool,
    group_fwd_mask: i64,
    #[serde(rename = "acceptRA")]
    pub(super) accept_ra: AcceptRa,
    pub(super) dns: DnsConf,
    args: ConfArgs<MacConf>,
    runtime_config: MacConf,
    /// The container's hardware address, from the one of its three sources that takes precedence.
    #[serde(skip)]
    mac: Option<MacAddr>,
}

fn cni0() -> String {
    "cni0".into()
}

/// The error of `fastPath` on a bridge that only switches.
fn needless_fast_path(lacking: &str) -> Error {
    let problem =
        format_args!("true without {lacking}: the host forwards no packets of the bridge");
    Error::config("fastPath", problem).expecting("false, or a bridge that is a gateway")
}

/// All bits of the kernel's group_fwd_mask.
const GROUPS: i64 = 0xffff;
/// BR_GROUPFWD_RESTRICTED of the kernel: what it never forwards.
const REFUSED_GROUPS: [(u32, &str); 3] = [(0, "STP"), (1, "pause frames"), (2, "LACP")];

impl PluginConf for Conf {
    const KEYS: &'static [&'static str] = &[
        "bridge | string | `cni0` | The bridge's name, at most 15 bytes. Created if it does not exist. An existing bridge is used as it is, see below.
        isGateway | boolean | false | The bridge has the gateway's address. Without a gateway from IPAM that is the first address of the subnet.
        isDefaultGateway | boolean | false | As `isGateway`, and each family gets a default route through it, unless IPAM has one.
        forceAddress | boolean | false | Replaces conflicting addresses of the bridge, which are an error otherwise: any IPv4 address that is not a gateway of this attachment, and an IPv6 address in the same subnet.
        ipMasq | boolean | false | Traffic that leaves the containers' subnet gets the host's address. No effect without IPAM.
        ipMasqBackend | string | `nftables` | `nftables` or `iptables`. By default nftables over netlink; iptables on a kernel without nf_tables, with a warning on stderr.",
        masquerade::Exempt::KEYS,
        "mtu | integer | 0 | MTU of a new bridge and of the pair, 68 to 65535; 0 leaves it to the kernel.
        hairpinMode | boolean | false | A container reaches itself through the bridge. Excludes `promiscMode`.
        promiscMode | boolean | false | The bridge accepts every packet. Never switched off again.
        vlan | integer | 0 | The container's untagged VLAN, 1 to 4094; 0 for none. A new bridge then filters by VLAN, and the gateway's address is on `<bridge>.<vlan>`.
        vlanTrunk | list | none | The VLANs that the container receives with their tags. An empty list also makes a new bridge filter. Without `vlan`, VLAN 1 is the untagged one.
        vlanTrunk[].id | integer | none | One VLAN, 1 to 4094.
        vlanTrunk[].minID | integer | none | The first VLAN of a range; with `maxID` only.
        vlanTrunk[].maxID | integer | none | The last VLAN of a range; with `minID` only.
        preserveDefaultVlan | boolean | false | The port stays in the bridge's default VLAN as well.
        macspoofchk | boolean | false | The container can send only with its own hardware address.
        fastPath | boolean | false | Established flows of TCP and UDP go from link to link by a flowtable of nftables, past the rules of the host: see [fast path](fast-path.md). Needs `isGateway` and IPAM; excludes `vlan` and `vlanTrunk`.
        enabledad | boolean | false | IPv6 duplicate address detection, which takes a second or two; a duplicate is an error.
        disableContainerInterface | boolean | false | The container's end stays down. Excludes IPAM.
        portIsolation | boolean | false | No packets between this port and other isolated ones.
        groupFwdMask | integer | 0 | A mask of reserved multicast addresses: if bit N is set, the bridge forwards frames to 01:80:c2:00:00:0N. 16384 (bit 14) forwards LLDP and PTP. The kernel refuses bits 0 (STP), 1 (pause frames) and 2 (LACP). Bits of other networks stay; never switched off again.",
        AcceptRa::KEY,
        DnsConf::KEYS,
        "runtimeConfig.mac | string | random | The container's hardware address, six octets; capability `mac`.
        args.cni.mac | string | random | The same; `runtimeConfig.mac` overrides it.
        CNI_ARGS: MAC | string | random | The same; both keys override it. `IgnoreUnknown=1` allows other arguments, which are an error otherwise on ADD and CHECK.
        ipam.type | string | none | The IPAM plugin, such as [host-local](host-local.md) or [static](static.md).",
    ];

    fn validate(&mut self, cx: &Context<'_>) -> Result<()> {
        self.validate_bridge()?;
        veth::validate_mtu(self.mtu)?;
        let vlan = self.vlan;
        if !(0..=VLAN_MAX).contains(&vlan) {
            return Err(Error::out_of_range("vlan", vlan, 0..=VLAN_MAX)
                .saying(format_args!("invalid VLAN ID {vlan} (must be between 0 and 4094)")));
        }
        let mask = self.group_fwd_mask;
        if !(0..=GROUPS).contains(&mask) {
            return Err(Error::out_of_range("groupFwdMask", mask, 0..=GROUPS));
        }
        let bits = REFUSED_GROUPS.iter().filter(|(bit, _)| mask & (1 << bit) != 0);
        let refused: Vec<String> = bits.map(|(bit, of)| format!("bit {bit} ({of})")).collect();
        if !refused.is_empty() {
            let problem =
                format_args!("{mask} has {}, which the kernel refuses", refused.join(", "));
            return Err(Error::config("groupFwdMask", problem).expecting("bits 3 to 15 only"));
        }
        for (index, trunk) in self.vlan_trunk.iter().flatten().enumerate() {
            trunk.validate(&format!("vlanTrunk[{index}]"))?;
        }
        if self.hairpin_mode && self.promisc_mode {
            return Err(Error::exclusive("hairpinMode", "promiscMode")
                .saying("cannot set hairpin mode and promiscuous mode at the same time"));
        }
        self.validate_fast_path()?;
        self.validate_gateway_interface()?;
        let of_args = hardware_address::of_args(cx.args)?;
        self.mac = hardware_address::strongest([
            ("runtimeConfig.mac", self.runtime_config.mac.as_ref()),
            ("args.cni.mac", self.args.cni.mac.as_ref()),
            ("CNI_ARGS: MAC", of_args.as_ref()),
        ])?;
        Ok(())
    }

    fn validate_add(&self, cx: &Context<'_>) -> Result<()> {
        ipam::require_type_or_layer_two(cx)?;
        match cx.config.ipam_type()?.is_empty() {
            true if self.fast_path => Err(needless_fast_path("an ipam section")),
            // An interface that stays down can have no addresses.
            false if self.disable_container_interface => {
                Err(Error::exclusive("disableContainerInterface", "ipam")
                    .saying("cannot use IPAM when DisableContainerInterface flag is set"))
            }
            _ => Ok(()),
        }
    }
}

impl Conf {
    fn validate_bridge(&self) -> Result<()> {
        // The kernel takes `br%d` as a pattern for the first free name, and a NUL as a name's end:
        // each ADD would create one more bridge, which could never be found again.
        let problem = match self.bridge.contains(['%', '\0']) {
            true => "interface name contains % or NUL".to_owned(),
            false => match IfName::parse(&self.bridge) {
                Ok(_) => return Ok(()),
                Err(error) => error.to_string(),
            },
        };
        let problem = format_args!("{:?} is not a link name: {problem}", self.bridge);
        Err(Error::config("bridge", problem))
    }

    /// Only packets that the host forwards between its links can take a fast path. The kernel finds
    /// no way through the gateway's interface in a VLAN to the port.
    fn validate_fast_path(&self) -> Result<()> {
        if !self.fast_path {
            return Ok(());
        }
        if self.vlan != 0 {
            return Err(Error::exclusive("fastPath", "vlan"));
        }
        if self.vlan_trunk.is_some() {
            return Err(Error::exclusive("fastPath", "vlanTrunk"));
        }
        if !self.is_gateway() {
            return Err(needless_fast_path("isGateway or isDefaultGateway"));
        }
        Ok(())
    }

    /// Checks the name of the gateway's interface in a VLAN, which consists of the bridge's name
    /// and the VLAN.
    fn validate_gateway_interface(&self) -> Result<()> {
        let name = self.gateway_interface().filter(|_| self.is_gateway());
        match name.filter(|name| IfName::parse(name).is_err()) {
            Some(name) => Err(Error::config(
                "bridge",
                format_args!(
                    "{:?} is too long: the gateway's interface would be {name:?}, of more than 15 bytes",
                    self.bridge
                ),
            )),
            None => Ok(()),
        }
    }

    /// Whether the bridge gets the gateway's address.
    pub fn is_gateway(&self) -> bool {
        self.is_gateway || self.is_default_gateway
    }

    /// The configured MTU, if any.
    pub fn mtu(&self) -> Option<u32> {
        Some(self.mtu).filter(|mtu| *mtu != 0)
    }

    /// The requested properties of the veth pair.
    pub fn wishes(&self) -> Wishes {
        Wishes { mtu: self.mtu(), mac: self.mac.clone() }
    }

    /// The mask that the bridge needs for the groups that it forwards.
    pub fn group_fwd_mask(&self) -> u16 {
        u16::try_from(self.group_fwd_mask).unwrap_or_default()
    }

    /// The VLAN of the container; 0 for none.
    pub fn vlan(&self) -> u16 {
        u16::try_from(self.vlan).unwrap_or_default()
    }

    /// The bridge's default VLAN if the port has to leave it: a port with VLANs of its own does,
    /// unless `preserveDefaultVlan` is set.
    pub fn left_vlan(&self, bridge: &Link) -> Option<u16> {
        Some(bridge.default_pvid).filter(|vlan| *vlan != 0 && !self.preserve_default_vlan)
    }

    /// Whether addresses are probed for duplicates before they are used.
    pub fn detection(&self) -> DuplicateDetection {
        if self.enabledad { DuplicateDetection::Enhanced } else { DuplicateDetection::Off }
    }

    /// The name of the link that has the gateways' addresses.
    pub fn gateway_link(&self) -> String {
        self.gateway_interface().unwrap_or_else(|| self.bridge.clone())
    }

    /// The name of the interface that has the gateway's address if the network has a VLAN:
    /// `<bridge>.<vlan>`.
    pub fn gateway_interface(&self) -> Option<String> {
        (self.vlan != 0).then(|| format!("{}.{}", self.bridge, self.vlan))
    }
}
