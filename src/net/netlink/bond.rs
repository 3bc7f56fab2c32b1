//! Bonds: `ip link add NAME type bond`, Documentation/networking/bonding.rst of the kernel.

use std::fmt;
use std::net::Ipv4Addr;

use rtnetlink::packet_route::link::{InfoBond, InfoData};

use super::attr::Attrs;
use crate::error::Word;

// linux/if_link.h, within IFLA_INFO_DATA
const IFLA_BOND_MODE: u16 = 1;

/// A bond, with the settings that it is created with; None for the kernel's default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bond {
    /// How it distributes packets.
    pub mode: BondMode,
    /// The interval of its looks at the carriers, in milliseconds.
    pub miimon: Option<u32>,
    /// Which hardware addresses its ports have.
    pub fail_over_mac: Option<FailOverMac>,
    /// What it chooses the port of a packet by.
    pub xmit_hash_policy: Option<XmitHashPolicy>,
    /// Whether inactive ports receive.
    pub all_ports_active: Option<bool>,
    /// Whether flows move to other ports by load.
    pub tlb_dynamic_lb: Option<bool>,
    /// How often the other side sends LACPDUs.
    pub lacp_rate: Option<LacpRate>,
    /// How it chooses among aggregators.
    pub ad_select: Option<AdSelect>,
    /// With how many ports it has a carrier.
    pub min_links: Option<u32>,
    /// The interval of its ARP requests, in milliseconds.
    pub arp_interval: Option<u32>,
    /// The addresses that it asks for; empty for none.
    pub arp_ip_targets: Vec<Ipv4Addr>,
    /// ifindex of the port that it prefers.
    pub primary: Option<u32>,
}

impl Bond {
    /// Reads the mode of a bond; the other settings do not identify it.
    pub(super) fn read(data: Attrs<'_>) -> Option<Bond> {
        let mode = BondMode(data.u8(IFLA_BOND_MODE)?);
        Some(Bond { mode, ..Bond::default() })
    }

    /// The settings, in the kernel's order of dependence: the mode decides what the others may be.
    pub(super) fn info(&self) -> InfoData {
        let active = |on: bool| InfoBond::AllPortsActive(u8::from(on).into());
        let further = [
            self.miimon.map(InfoBond::MiiMon),
            self.fail_over_mac.map(|it| InfoBond::FailOverMac(it.0.into())),
            self.xmit_hash_policy.map(|it| InfoBond::XmitHashPolicy(it.0.into())),
            self.all_ports_active.map(active),
            self.tlb_dynamic_lb.map(InfoBond::TlbDynamicLb),
            self.lacp_rate.map(|it| InfoBond::AdLacpRate(it.0.into())),
            self.ad_select.map(|it| InfoBond::AdSelect(it.0.into())),
            self.min_links.map(InfoBond::MinLinks),
            self.arp_interval.map(InfoBond::ArpInterval),
            Some(&self.arp_ip_targets)
                .filter(|targets| !targets.is_empty())
                .map(|targets| InfoBond::ArpIpTarget(targets.clone())),
            self.primary.map(InfoBond::Primary),
        ];
        let mode = InfoBond::Mode(self.mode.0.into());
        InfoData::Bond(std::iter::once(mode).chain(further.into_iter().flatten()).collect())
    }
}

/// A setting of a few values of the kernel, each with the word that iproute2 has for it: its type,
/// its default, possibly another word for that, the refusal of a word, and the words.
macro_rules! setting {
    ($(#[$doc:meta])* $name:ident($type:ty) = $default:literal $(or $other:literal, $refusal:literal)?:
     $($word:literal = $value:literal),*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub(super) $type);

        impl Default for $name {
            fn default() -> $name {
                $name($default)
            }
        }

        impl Word for $name {
            $(const REFUSAL: &'static str = $refusal;)?
            const WORDS: &'static [&'static str] = &[$($word),*];

            fn of(word: &str) -> Option<$name> {
                match word {
                    $($word => Some($name($value)),)*
                    $($other => Some($name::default()),)?
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($value => f.write_str($word),)*
                    other => write!(f, "{other}"),
                }
            }
        }
    };
}
pub(super) use setting;

setting! {
    /// BOND_MODE_* of linux/if_bonding.h.
    BondMode(u8) = 0:
    "balance-rr" = 0, "active-backup" = 1, "balance-xor" = 2, "broadcast" = 3, "802.3ad" = 4,
    "balance-tlb" = 5, "balance-alb" = 6
}

setting! {
    /// BOND_FOM_* of the kernel's include/net/bonding.h.
    FailOverMac(u8) = 0: "none" = 0, "active" = 1, "follow" = 2
}

setting! {
    /// BOND_XMIT_POLICY_* of linux/if_bonding.h.
    XmitHashPolicy(u8) = 0:
    "layer2" = 0, "layer3+4" = 1, "layer2+3" = 2, "encap2+3" = 3, "encap3+4" = 4,
    "vlan+srcmac" = 5
}

setting! {
    /// AD_LACP_* of the kernel's include/net/bond_3ad.h.
    LacpRate(u8) = 0: "slow" = 0, "fast" = 1
}

setting! {
    /// BOND_AD_* of the kernel's include/net/bond_3ad.h.
    AdSelect(u8) = 0: "stable" = 0, "bandwidth" = 1, "count" = 2
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rtnetlink::packet_core::Emitable as _;
    use rtnetlink::packet_route::link::LinkInfo;

    use super::*;

    fn bytes(bond: &Bond) -> Vec<u8> {
        let data = LinkInfo::Data(bond.info());
        let mut buffer = vec![0; data.buffer_len()];
        data.emit(&mut buffer);
        buffer[4..].to_vec()
    }

    /// The numbers of IFLA_BOND_* in linux/if_link.h.
    #[test]
    fn settings_have_the_numbers_of_the_kernel() {
        let bond = Bond {
            mode: BondMode::of("balance-tlb").unwrap(),
            miimon: Some(100),
            fail_over_mac: FailOverMac::of("follow"),
            xmit_hash_policy: XmitHashPolicy::of("vlan+srcmac"),
            all_ports_active: Some(true),
            tlb_dynamic_lb: Some(false),
            lacp_rate: LacpRate::of("fast"),
            ad_select: AdSelect::of("count"),
            min_links: Some(2),
            arp_interval: Some(200),
            arp_ip_targets: vec![Ipv4Addr::new(10, 0, 0, 1)],
            primary: Some(7),
        };
        let all = bytes(&bond);
        let found: Vec<(u16, u8)> = Attrs::of(&all).iter().map(|(kind, v)| (kind, v[0])).collect();
        let expected = [
            (1, 5),
            (3, 100),
            (13, 2),
            (14, 5),
            (17, 1),
            (27, 0),
            (21, 1),
            (22, 2),
            (18, 2),
            (7, 200),
            (8, 8),
            (11, 7),
        ];
        assert_eq!(found, expected);
        assert_eq!(Bond::read(Attrs::of(&all)).unwrap().mode.to_string(), "balance-tlb");
        assert_eq!(bytes(&Bond::default()), [5, 0, 1, 0, 0, 0, 0, 0], "only the mode");
    }

    #[test]
    fn modes_have_the_names_of_the_kernel() {
        assert_eq!(BondMode::default().to_string(), "balance-rr");
        assert_eq!(BondMode::of("802.3ad").unwrap(), BondMode(4));
        assert_eq!(BondMode(9).to_string(), "9", "a mode of a later kernel");
        assert_eq!(BondMode::of("lacp"), None);
    }
}
