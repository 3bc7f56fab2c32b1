//! Modules of the kernel: what an error says when one is missing, and whether one can be loaded.

use std::fs;
use std::path::Path;

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

/// The directories of modprobe.d(5).
const CONFIGURATIONS: [&str; 5] = [
    "etc/modprobe.d",
    "run/modprobe.d",
    "usr/local/lib/modprobe.d",
    "usr/lib/modprobe.d",
    "lib/modprobe.d",
];

/// Whether a request that needs the module starts no program, or starts modprobe once: the module
/// is loaded, is part of the kernel, or can be loaded. If the module is missing or blacklisted, the
/// kernel starts modprobe (kmod(8)) at each request again. Of a kernel that loads no modules the
/// answer is yes, because a request starts no program there.
pub fn is_there_or_loads(module: &str) -> bool {
    is_there_or_loads_on(Path::new("/"), module)
}

fn is_there_or_loads_on(root: &Path, module: &str) -> bool {
    // The kernel was built without modules, or the path is empty.
    let has_no_modprobe = text(&root.join("proc/sys/kernel/modprobe")).trim().is_empty();
    if has_no_modprobe || root.join("sys/module").join(module).exists() {
        return true;
    }
    // A module that is part of the kernel has no directory there unless it has parameters.
    let release = text(&root.join("proc/sys/kernel/osrelease"));
    let modules = root.join("lib/modules").join(release.trim());
    let file = format!("/{module}.ko");
    let is_in = |list: &str| text(&modules.join(list)).contains(&file);
    let is_blocked_in = |dir: &&str| {
        let files = fs::read_dir(root.join(dir)).into_iter().flatten().flatten();
        files.map(|file| text(&file.path())).any(|config| blocks(&config, module))
    };
    is_in("modules.builtin") || is_in("modules.dep") && !CONFIGURATIONS.iter().any(is_blocked_in)
}

/// Whether a configuration of modprobe excludes the module, or replaces it by a command.
fn blocks(config: &str, module: &str) -> bool {
    config.lines().any(|line| {
        let mut words = line.split_whitespace();
        matches!(words.next(), Some("blacklist" | "install"))
            && words.next().is_some_and(|name| name.replace('-', "_") == module)
    })
}

/// The content of a file; empty if it cannot be read.
fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

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

    /// A machine with modules, of which none is loaded.
    fn machine() -> Scratch {
        let root = Scratch::new();
        for dir in ["proc/sys/kernel", "lib/modules/6.1", "etc/modprobe.d", "sys/module/loaded"] {
            fs::create_dir_all(root.path().join(dir)).unwrap();
        }
        root.write("proc/sys/kernel/modprobe", "/sbin/modprobe\n");
        root.write("proc/sys/kernel/osrelease", "6.1\n");
        root.write("lib/modules/6.1/modules.builtin", "kernel/net/builtin.ko\n");
        root.write(
            "lib/modules/6.1/modules.dep",
            "kernel/net/there.ko.xz: kernel/net/base.ko.xz\nkernel/net/base.ko.xz:\n",
        );
        root
    }

    #[test]
    fn a_module_is_asked_for_if_it_is_there_or_loads() {
        let root = machine();
        let answers = |module: &str| is_there_or_loads_on(root.path(), module);
        for (module, asked) in
            [("loaded", true), ("builtin", true), ("there", true), ("base", true), ("miss", false)]
        {
            assert_eq!(answers(module), asked, "{module}");
        }
        root.write("etc/modprobe.d/a.conf", "# blacklist base\nblacklist  there\n");
        assert!(!answers("there") && answers("base"));
        root.write("etc/modprobe.d/a.conf", "install base /bin/false\nblacklist loaded");
        assert!(answers("there") && !answers("base") && answers("loaded"));
        root.write("proc/sys/kernel/modprobe", "\n");
        assert!(answers("base") && answers("miss"), "no program is started");
    }

    #[test]
    fn names_have_either_of_two_signs() {
        assert!(blocks("blacklist tcp-diag", "tcp_diag"));
        assert!(!blocks("options tcp_diag x=1\nalias a tcp_diag", "tcp_diag"));
    }
}
