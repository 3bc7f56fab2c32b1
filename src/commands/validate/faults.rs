//! Every kind of finding. docs/validate.md has them from here.

use crate::commands::fault::Fault;

/// All kinds, by code.
pub static FAULTS: [Fault; 38] = [
    Fault::error(
        "bridge-gateway",
        "Two networks share a bridge and want different addresses for it. One ADD fails.",
    ),
    Fault::warning(
        "bridge-gateway-replaced",
        "The same with `forceAddress`: each removes the other's address.",
    ),
    Fault::warning(
        "bridge-vlan",
        "Two networks share a bridge, and only one wants VLAN filtering. The first to create it decides.",
    ),
    Fault::warning(
        "duplicate-key",
        "A key is in an object more than once, perhaps in another case. The last one counts.",
    ),
    Fault::warning("duplicate-name", "Two files have a network of the same name."),
    Fault::error("invalid-name", "The network's name is missing or has invalid characters."),
    Fault::error("invalid-value", "A value has the right type, but the plugin refuses it."),
    Fault::error("list-in-plugin", "A list of plugins in a `.conf` or `.json`."),
    Fault::warning("long-name", "The name is too long for the specification's schema."),
    Fault::warning(
        "missing-capability",
        "The plugin has no effect without a capability: `portMappings`, `bandwidth`, `ips`.",
    ),
    Fault::error("no-answer", "A program does not report its versions within five seconds."),
    Fault::warning("no-effect", "A key that the plugin accepts for another program's sake."),
    Fault::warning("no-files", "A directory without configurations."),
    Fault::warning(
        "no-gateway",
        "A default route has no gateway, or that of a bridge without `isGateway`; or sbr gets none.",
    ),
    Fault::error(
        "no-host",
        "A range or a gateway has the address of the network, or the broadcast address.",
    ),
    Fault::error("no-plugin", "No plugin of this name on the path, nor compiled in."),
    Fault::error("no-plugins", "A list without plugins."),
    Fault::warning("no-version", "`cniVersion` is missing, which means 0.1.0."),
    Fault::error("not-loaded", "libcni would refuse the file; with its message."),
    Fault::warning(
        "not-on-path",
        "Only `cni-multi net` finds the plugin: it is compiled in, and not on the path.",
    ),
    Fault::warning(
        "not-read",
        "A file looks like a configuration, but no runtime reads files of its name.",
    ),
    Fault::warning("order", "A plugin at a place where it cannot work."),
    Fault::warning(
        "overlap",
        "Two networks allocate the same addresses, or have one subnet on two bridges.",
    ),
    Fault::error("plugin-in-list", "A single plugin in a `.conflist`."),
    Fault::warning(
        "repeated",
        "A plugin of the group meta, other than tuning, is in the list twice.",
    ),
    Fault::warning(
        "reserved-key",
        "`runtimeConfig`, `prevResult` or `cni.dev/…`, which runtimes write.",
    ),
    Fault::warning(
        "router-address",
        "A bridge with dhcp and `isGateway`: it takes the router's address.",
    ),
    Fault::error(
        "second-interface",
        "A plugin creates the interface that one before it has created.",
    ),
    Fault::error(
        "syntax",
        "Invalid JSON: truncated, empty, in UTF-16, or typing errors, which are all reported at once.",
    ),
    Fault::warning(
        "unknown-key",
        "A key that no plugin reads; below `args` and `runtimeConfig` only near misses.",
    ),
    Fault::error("unknown-version", "Plugins would be called with a version that does not exist."),
    Fault::error("unreachable-gateway", "A gateway outside the subnet, and no route to it."),
    Fault::error("unreadable", "A file cannot be read, or is not a regular file."),
    Fault::warning("unused-capability", "A capability that the plugin does not read."),
    Fault::warning(
        "unused-version",
        "A list names a version that does not exist, and another one is chosen.",
    ),
    Fault::error("version-of-plugin", "A plugin does not support the network's version."),
    Fault::error("wrong-ipam", "`ipam.type` is not an IPAM plugin."),
    Fault::error("wrong-type", "A value of the wrong type."),
];
