//! Every kind of finding. docs/validate.md has them from here.

use crate::commands::fault::Fault;

macro_rules! faults {
    ($($severity:ident $code:literal: $title:literal;)*) => {
        /// All kinds, by code.
        pub static FAULTS: [Fault; [$($code),*].len()] = [$(Fault::$severity($code, $title)),*];
    };
}

faults! {
    error "bridge-gateway": "Two networks share a bridge and want different addresses for it. One ADD fails.";
    warning "bridge-gateway-replaced": "The same with `forceAddress`: each removes the other's address.";
    warning "bridge-vlan": "Two networks share a bridge, and only one wants VLAN filtering. The first to create it decides.";
    warning "duplicate-key": "A key is in an object more than once, perhaps in another case. The last one counts.";
    warning "duplicate-name": "Two files have a network of the same name.";
    error "invalid-name": "The network's name is missing or has invalid characters.";
    error "invalid-value": "A value has the right type, but the plugin refuses it.";
    error "list-in-plugin": "A list of plugins in a `.conf` or `.json`.";
    warning "long-name": "The name is too long for the specification's schema.";
    warning "missing-capability": "The plugin has no effect without a capability: `portMappings`, `bandwidth`, `ips`.";
    error "no-answer": "A program does not report its versions within five seconds.";
    warning "no-effect": "A key that the plugin accepts for another program's sake.";
    warning "no-files": "A directory without configurations.";
    warning "no-gateway": "A default route has no gateway, or that of a bridge without `isGateway`; or sbr gets none.";
    error "no-host": "A range or a gateway has the address of the network, or the broadcast address.";
    error "no-plugin": "No plugin of this name on the path, nor compiled in.";
    error "no-plugins": "A list without plugins.";
    warning "no-version": "`cniVersion` is missing, which means 0.1.0.";
    error "not-loaded": "libcni would refuse the file; with its message.";
    warning "not-on-path": "Only `cni-multi net` finds the plugin: it is compiled in, and not on the path.";
    warning "not-read": "A file looks like a configuration, but no runtime reads files of its name.";
    warning "order": "A plugin at a place where it cannot work.";
    warning "overlap": "Two networks allocate the same addresses, or have one subnet on two bridges.";
    error "plugin-in-list": "A single plugin in a `.conflist`.";
    warning "repeated": "A plugin of the group meta, other than tuning, is in the list twice.";
    warning "reserved-key": "`runtimeConfig`, `prevResult` or `cni.dev/…`, which runtimes write.";
    warning "router-address": "A bridge with dhcp and `isGateway`: it takes the router's address.";
    error "second-interface": "A plugin creates the interface that one before it has created.";
    error "syntax": "Invalid JSON: truncated, empty, in UTF-16, or typing errors, which are all reported at once.";
    warning "unknown-key": "A key that no plugin reads; below `args` and `runtimeConfig` only near misses.";
    error "unknown-version": "Plugins would be called with a version that does not exist.";
    error "unreachable-gateway": "A gateway outside the subnet, and no route to it.";
    error "unreadable": "A file cannot be read, or is not a regular file.";
    warning "unused-capability": "A capability that the plugin does not read.";
    warning "unused-version": "A list names a version that does not exist, and another one is chosen.";
    error "version-of-plugin": "A plugin does not support the network's version.";
    error "wrong-ipam": "`ipam.type` is not an IPAM plugin.";
    error "wrong-type": "A value of the wrong type.";
}
