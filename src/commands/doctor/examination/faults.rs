//! Every kind of fault: code, title, cause and fix. docs/findings.md and `--explain` have them from here.

use crate::commands::fault::Fault;

/// Each as a constant, and all of them as [`FAULTS`].
macro_rules! faults {
    ($($name:ident: $severity:ident($code:literal, $title:literal, $cause:literal, $fix:literal);)*) => {
        $(pub const $name: Fault = Fault::$severity($code, $title).explained($cause, $fix);)*
        /// In the order of their codes.
        pub static FAULTS: &[Fault] = &[$($name),*];
    };
}

faults! {
    // Configuration and records.
    NOT_ATTACHED: error("D180", "the container is attached to no network",
        "No cache below `/var/lib/cni` has it.", "Attach it.");
    RECORD_UNREADABLE: warning("D181", "a record cannot be read",
        "Torn, or another program's. GC keeps what it may name.",
        "Detach its container, or delete that by its runtime; remove a file that names none.");
    NO_RESULT: warning("D182", "a record has no result that can be read",
        "An interrupted ADD, or an edited file.", "Attach again.");
    NETNS_OF_HOST: error("D183", "the namespace of a record is the host's",
        "The recorded process has exited, and its number is another's.", "Detach the container.");

    // The node.
    FACT_UNREADABLE: error("D201", "a fact cannot be read",
        "Missing rights, or a hanging file system.", "Run doctor as root.");
    KERNEL_LACKS: error("D210", "the kernel lacks what a configured plugin needs",
        "A module is not loaded or not installed.", "Load it.");
    LOWER_LINK_MISSING: error("D211", "the link that a network is made on does not exist",
        "`master` was renamed, or is elsewhere.", "Correct `master`.");
    LOWER_LINK_DOWN: error("D212", "the link that a network is made on is down",
        "Nothing configures it.", "Set it up.");
    NOT_READY: error("D213", "a network can attach no container now",
        "Its STATUS says so: no daemon, no file of flanneld.", "See the finding.");
    NO_STORE: warning("D214", "other nodes may give the same addresses",
        "A node of Kubernetes has whereabouts or cluster-local with `scope` `machine`.",
        "Remove `scope`, and run the IPAM daemon.");
    DAEMON_IDLE: warning("D215", "the IPAM daemon of this node claims no addresses",
        "It does not run or cannot use its store, or another machine has the node's name.",
        "See the finding.");
    BLOCK_OF_TWO: error("D216", "another node has addresses of this node, too",
        "A restored store, a copied machine, or a reclaimed node that runs.",
        "Detach the containers in the block, and attach them again.");
    FORWARDING_OFF_V4: error("D220", "IPv4 forwarding is off",
        "Switched off since ADD, such as by `sysctl --system`.",
        "Switch it on; keep it on in `/etc/sysctl.d`.");
    FORWARDING_OFF_V6: error("D221", "IPv6 forwarding is off",
        "Switched off since ADD, such as by `sysctl --system`.",
        "Switch it on; keep it on in `/etc/sysctl.d`.");
    DISK_FULL: error("D230", "the file system of leases or records is full",
        "Less than 64 KiB, or no file, is left.", "Remove or enlarge something.");
    DISK_READ_ONLY: error("D231", "leases or records are on a read-only file system",
        "The kernel does that after errors.", "Check it, and mount it writable.");
    NOT_PRIVATE: warning("D232", "others may write leases or records",
        "DEL and GC go by these files.", "Set owner and mode.");
    NO_PLUGIN_DIR: warning("D240", "a plugin directory does not exist",
        "CNI_PATH, or the runtime, names it.", "Install the plugins there.");
    FOREIGN_PROGRAM: warning("D241", "another program has the name of a plugin of ours",
        "A package has replaced our links.", "Install them again.");
    NOT_EXECUTABLE: error("D242", "a plugin's file is not executable",
        "A copy has lost its mode.", "Set it.");
    MOUNTED_NOEXEC: error("D243", "a plugin directory is mounted noexec",
        "A hardened `/opt`.", "Remount it; correct `/etc/fstab`.");
    CONNTRACK_FULL: error("D250", "the table of connections is full",
        "The host drops new connections.", "Double the limit.");
    CONNTRACK_NEARLY_FULL: warning("D251", "the table of connections is nearly full",
        "Nine tenths are used.", "Double the limit.");
    BOTH_IPTABLES: warning("D260", "iptables-legacy and iptables-nft have the same table",
        "Packets have to pass both; each program shows only its own.", "Move the rules to one.");
    LEFTOVERS: warning("D270", "gone containers have left something",
        "DEL was never called, or failed.", "Remove it.");
    STRICT_RP_FILTER: warning("D280", "a strict rp_filter drops what comes in by a second network",
        "The default route is by another interface.", "Make the check loose, or add sbr.");
    NO_ROUTE_OUT: error("D290", "the host has no route to other networks",
        "No default route, and a container has one by the host.", "Add it.");
    ROUTING_REFUSES: error("D291", "the host's routing refuses a container's packets",
        "A rule or a route is a blackhole or prohibits; a strict rp_filter.",
        "The finding's `show:` names it.");
    ROUTE_BACK_ELSEWHERE: error("D292", "the host routes answers to another link",
        "A stray route to the container.", "Delete it.");
    UPLINK_UNUSABLE: error("D293", "the host's link to other networks is unusable",
        "It is down, or without carrier or address.",
        "Set it up, connect it, or give it an address.");
    ROUTING_INSIDE_REFUSES: error("D294", "the container's routing refuses its packets",
        "A rule or a route of the container is a blackhole or prohibits.",
        "The finding's `show:` names it.");

    // Links.
    BRIDGE_MISSING: error("D301", "the bridge is missing",
        "A network service, for example, has deleted it.", "`net sync`.");
    BRIDGE_DOWN: error("D302", "the bridge is down",
        "A network service, for example, has set it down.", "`net sync`.");
    LOWER_WITHOUT_CARRIER: error("D305", "the host's link below has no carrier",
        "A cable is out, or the other end is down.", "Connect it.");
    NOT_IN_VLAN: error("D306", "the bridge's uplink is not in the VLAN",
        "`bridge vlan` of the uplink lacks the network's `vlan`, and the gateway is beyond it.",
        "Add it, also where the uplink is configured.");
    INTERFACE_MISSING: error("D310", "the container's interface is missing",
        "The container deleted or renamed it.", "Attach again.");
    NOT_A_PORT: error("D311", "the host's end is not a port of the bridge",
        "The bridge was made again, or a network service took its ports.", "`net sync`.");
    END_MISSING: error("D312", "the host's end of the pair is missing",
        "It was moved to another namespace.", "Attach again.");
    END_DOWN: error("D313", "the host's end of the pair is down",
        "Something has set it down.", "`net sync`.");
    INTERFACE_DOWN: error("D314", "the container's interface is down",
        "The container set it down and lost its routes.", "Attach again.");
    LOOPBACK_DOWN: error("D315", "the container's loopback is down",
        "Something has set `lo` of a pod down.", "Set it up.");
    ANOTHER_INTERFACE: error("D316", "the interface is not the one that was recorded",
        "It was changed, or the path is another container's.", "Attach again.");
    MTU_OF_ENDS: warning("D320", "the two ends of a pair have different MTUs",
        "Packets longer than the smaller one are dropped.",
        "Set the container's end to the host's.");
    MTU_OF_BRIDGE: warning("D321", "the bridge's MTU is below that of a port",
        "It was changed.", "Raise it.");
    SAME_MAC: error("D322", "two containers of a bridge have one MAC address",
        "A container copied it, or `mac` was used twice.", "Attach again.");
    CHECK_DIFFERS: error("D330", "a plugin's CHECK reports a difference",
        "Something without a code was changed.", "`net sync`, or attach again.");
    PORTS_GONE: error("D331", "published ports are gone",
        "The rules were flushed.", "`net sync`.");
    LIMITS_GONE: warning("D332", "bandwidth limits are gone",
        "A qdisc, or the ifb, was deleted.", "`net sync`.");
    ADMISSION_GONE: error("D333", "the firewall's rules for the container are gone",
        "`nft flush ruleset`, or a reload of firewalld.", "`net sync`.");
    SETTINGS_GONE: warning("D334", "settings of the tuning plugin are gone",
        "A sysctl or an attribute was changed.", "`net sync`, or attach again.");
    SOURCE_ROUTING_GONE: error("D335", "source routing is gone",
        "Rules or routes were deleted.", "`net sync`, or attach again.");
    NOT_IN_VRF: error("D336", "the interface is not in its VRF",
        "The VRF was deleted.", "`net sync`, or attach again.");

    // Policy.
    POLICY_DROP: warning("D401", "forwarded packets are dropped unless a rule accepts them",
        "The policy of a chain, such as Docker's, and a network without firewall.",
        "Add firewall, or accept the network.");

    // Addresses and packets.
    GATEWAY_MISSING: error("D501", "the host lacks the gateway's address",
        "It was removed.", "`net sync`.");
    ADDRESS_LOST: error("D502", "the container lacks an address of its record",
        "The container removed it.", "Add it.");
    ADDRESS_TWICE: error("D503", "two containers of a network have one address",
        "One was added by hand.", "Attach that one again.");
    NO_DEFAULT_ROUTE: error("D504", "the container has no default route",
        "The container removed it.", "Add it.");
    GATEWAY_OF_NO_HOST: error("D505", "the default route's gateway is no host's address",
        "The container changed it, or the gateway is gone.", "Restore it.");
    NOT_MASQUERADED: error("D506", "the container's addresses are not masqueraded",
        "`nft flush ruleset`, most often.", "`net sync`.");
    STRAY_ADDRESS: warning("D507", "the container has an address that no plugin gave",
        "Added by hand or by a program in it. Other containers may get it.",
        "Delete it, or request it by `ips`.");
    STRAY_ROUTE: error("D508", "another default route goes before the recorded one",
        "Added by hand or by a program in it.", "Delete it.");
    STRAY_ON_END: warning("D509", "the host's end has an address that no plugin gave",
        "dhcpcd or NetworkManager manages every link.",
        "Delete it; make that service ignore `veth*`.");
    ROUTE_INTO_CONTAINER: error("D510", "the host's default route leads into a container",
        "dhcpcd or NetworkManager manages every link.",
        "Delete it; make that service ignore `veth*`.");
    ADDRESS_ON_HOST: error("D511", "the host has the container's address",
        "A service's, or added by hand.", "Delete it, or choose another range.");
    PORT_OF_SERVICE: warning("D512", "a port is published at the address of a service",
        "`hostIP`; the container gets the service's packets.", "Publish at a node's address.");
    RANGE_FULL: error("D520", "a range of addresses is full",
        "Every address has a lease.", "Free those of gone containers; otherwise add a range.");
    RANGE_NEARLY_FULL: warning("D521", "a range of addresses is nearly full",
        "Nine tenths are held.", "Free those of gone containers; otherwise add a range.");
    LEASE_OF_ANOTHER: error("D523", "the lease of an address is another container's",
        "It was freed and allocated again.", "Attach again.");
    NO_LEASE: warning("D524", "an address in use has no lease",
        "The directory was emptied; another ADD will get it.", "`net sync`.");
    RANGE_OVERLAPS: error("D525", "a range overlaps another network of the host",
        "A VPN's, most often.", "Choose another subnet.");
    GATEWAY_SILENT: error("D530", "the gateway does not answer ARP or neighbour discovery",
        "No host has the gateway's address, or its host does not answer for it.", "Run the finding's `fix:` or `show:`.");
    NO_ECHO: warning("D531", "the gateway does not answer a ping",
        "It may refuse only ICMP.", "Accept ICMP at input.");
    WRONG_MAC: error("D533", "the container has a wrong hardware address of its gateway",
        "A permanent neighbour, most often.", "Remove it.");
    DUPLICATE_ADDRESS: error("D534", "another host has the container's address",
        "It answers on the link.", "Attach again; or exclude the address.");
    PACKET_DROPPED: error("D540", "a container's packet is dropped on its way",
        "The finding names the rule, or function and reason of the kernel.",
        "Run the finding's `show:`.");
    DROPPED_FROM_HOST: warning("D542", "the host's packets to a container are dropped",
        "Health checks of the kubelet fail.", "Run the finding's `show:`.");
    DROPPED_BETWEEN: warning("D543", "packets between containers of a network are dropped",
        "With br_netfilter, chains of IP see them.", "Run the finding's `show:`.");
    NO_DNS_SERVER: error("D544", "nothing listens at the container's name servers",
        "The server does not run, or has another address.", "Correct `dns`, or start it.");
    FOREIGN_SOURCE: error("D545", "packets leave from an address that is not the host's",
        "Another program's rule is before the masquerade, or the packets are not tracked.",
        "Remove that rule.");
    PORT_NOT_LED: error("D546", "a published port does not lead to its container",
        "A rule drops or redirects the connection.", "Run the finding's `show:`.");
    PORT_UNSERVED: warning("D547", "nothing listens at a published port",
        "The program does not run, or listens on loopback alone.", "Start it.");

    // Names.
    NO_ROUTE_TO_SERVER: error("D601", "the container has no route to a nameserver",
        "The default route is missing. Only if no nameserver has a route.", "Add it.");
    SERVER_ON_LOOPBACK: error("D602", "the container's nameserver is on a loopback that has none",
        "systemd-resolved's 127.0.0.53 was copied from the host.",
        "Set others in `dns`, in `resolvConf` of host-local, or in the runtime.");
    NO_RESOLV_CONF: warning("D603", "the nameservers of the result are in no resolv.conf",
        "That is the runtime's task; `ip netns` does not write it.", "Write it.");
    NO_SERVER: warning("D604", "the container's resolv.conf has no nameserver",
        "Programs ask 127.0.0.1 then.", "Write the result's.");
    OTHER_SERVERS: warning("D605", "resolv.conf has none of the nameservers of the result",
        "It is an earlier container's.", "Write the result's.");
}
