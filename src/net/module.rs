//! Modules of the kernel: what an error says when one is missing, and whether one can be loaded.

pub mod loading;

/// The device driver behind tap interfaces.
pub const TUN: &str = "tun";

/// The module that has links of this kind. All but two have the kind's name.
pub fn of_links(kind: &str) -> &str {
    match kind {
        "vlan" => "8021q",
        "bond" => "bonding",
        _ => kind,
    }
}

/// The advice for an operation that the kernel cannot do without the module. The kernel has tried
/// to load it already; modprobe says why that failed.
pub fn advice(module: &str) -> String {
    format!("the kernel's module {module} is missing; load it with: modprobe {module}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_link_leads_to_the_name_that_modprobe_takes() {
        for (kind, module) in [
            ("vlan", "8021q"),
            ("bond", "bonding"),
            ("macvlan", "macvlan"),
            ("ipvlan", "ipvlan"),
            ("bridge", "bridge"),
            ("veth", "veth"),
            ("ifb", "ifb"),
            ("dummy", "dummy"),
            ("vrf", "vrf"),
        ] {
            assert_eq!(of_links(kind), module);
        }
        assert_eq!(
            advice(of_links("vlan")),
            "the kernel's module 8021q is missing; load it with: modprobe 8021q"
        );
    }
}
