//! Deliberate differences from the reference plugins 1.9.1. docs/differences.md has those that a
//! user meets; the comment of each test says what the reference does.
//!
//! Each row and each test is one difference: it makes the same observation on both sides and asserts
//! what each of them does, so it fails when a newer reference behaves as ours.

mod bandwidth;
mod bridge;
mod call;
mod dhcp;
mod dummy;
mod firewall;
mod host_device;
mod host_local;
mod links;
mod masquerade;
mod portmap;
mod sbr;
mod stacked;
mod tap;
mod tuning;
mod vrf;

use std::fmt::Debug;

use serde_json::Value;

use crate::support::attachment::{Attachment, for_ours, for_reference, with};
use crate::support::netns::{Container, Lab};
use crate::support::networks::bridge::conf;
use crate::support::table::cells;

/// Makes one observation on both sides.
fn differs<T: PartialEq + Debug>(plugin: &str, ours: T, reference: T, observe: impl Fn(&Lab) -> T) {
    differs_where(plugin, |_| true, ours, reference, observe);
}

/// As `differs`, where the kernel can do what it needs.
fn differs_where<T: PartialEq + Debug>(
    plugin: &str,
    can: impl Fn(&Lab) -> bool,
    ours: T,
    reference: T,
    observe: impl Fn(&Lab) -> T,
) {
    assert_ne!(ours, reference, "no difference is claimed");
    let case = |expected: &T, lab: &Lab| {
        if can(lab) {
            assert_eq!(observe(lab), *expected, "{:?}", lab.peer);
        }
    };
    for_ours(plugin, |lab| case(&ours, lab));
    for_reference(plugin, |lab| case(&reference, lab));
}

const OK: i32 = 0;
const FAILED: i32 = 1;

/// Prepares a lab for the rows of a table: a container, and its attachment before the ADD, with these changes of the
/// configuration.
type Arrange = for<'a> fn(&'a Lab, Value) -> (Container, Attachment<'a>);

/// Differences, a line each: what the reference does; changes of the configuration, where DUAL stands for ranges of both
/// families; a script; and the words that it prints, with ours and with the reference.
///
/// In the script, `add` and `del` run the plugin and have to succeed; `try COMMAND` prints the exit status, `check` that of
/// a CHECK with the result of the ADD, and `code COMMAND` the code of the error. `with KEYS` adds keys to the configuration.
/// `inside` runs a command in the container, where `has` prints the name of a link or `none`, as `here` does on the host,
/// and `pings` prints the addresses that answer. `end` is the host's end of the container's pair, and
/// `rules` counts the container's rules about a source.
fn differ(plugin: &str, table: &'static str, arrange: Arrange) {
    for [what, changes, script, ours, reference] in cells(table) {
        let dual = r#""ranges": [[{"subnet": "10.10.0.0/24"}], [{"subnet": "2001:db8:10::/64"}]], "subnet": null"#;
        let changes: Value = serde_json::from_str(&changes.replace("DUAL", dual))
            .unwrap_or_else(|error| panic!("{changes}: {error}"));
        let plugin = changes["type"].as_str().unwrap_or(plugin);
        differs(plugin, ours.to_owned(), reference.to_owned(), |lab| {
            eprintln!("the reference {what}: {script}"); // shown when the case fails
            let (container, attachment) = arrange(lab, changes.clone());
            printed(lab, &container, &attachment, script)
        });
    }
}

/// The words that a script prints on the host.
fn printed(lab: &Lab, container: &Container, at: &Attachment<'_>, script: &str) -> String {
    let mut conf = at.conf.clone();
    let previous = conf.as_object_mut().unwrap().remove("prevResult");
    let variables = [
        ("program", lab.peer.dir().join(conf["type"].as_str().unwrap()).display().to_string()),
        ("path", lab.peer.dir().display().to_string()),
        ("conf", conf.to_string()),
        ("prev", previous.map_or_else(String::new, |previous| previous.to_string())),
        ("id", at.container_id.clone()),
        ("ifname", at.ifname.clone()),
        ("netns", container.netns.clone()),
        ("container", container.netns.clone()),
    ];
    let variables =
        variables.map(|(name, value)| format!("{name}='{}'\n", value.replace('\'', r"'\''")));
    let printed = lab.host.sh(&format!("{}{FUNCTIONS}{script}\n:", variables.concat()));
    printed.split_whitespace().collect::<Vec<_>>().join(" ")
}

const FUNCTIONS: &str = r#"
args= store=/var/lib/cni/networks/net1
run() {
    printf %s "${conf%?}${prev:+,\"prevResult\":$prev}}" | CNI_COMMAND=$1 CNI_CONTAINERID=$id CNI_NETNS=$netns \
        CNI_IFNAME=$ifname CNI_ARGS=$args CNI_PATH=$path "$program" >/run/$1 2>/run/stderr
}
must() { run $1 || { cat /run/$1 /run/stderr >&2; exit 9; }; }
add() { must ADD; }
del() { must DEL; }
try() { run $1; set -- $?; echo $1; return $1; }
check() { prev=$(cat /run/ADD); try CHECK; }
code() { run $1; sed -n 's/.*"code": \([0-9]*\).*/\1/p' /run/$1; }
with() { conf="${conf%?},$1}"; }
inside() { nsenter --net=$container "$@"; }
has() { inside ip link show $1 >/dev/null 2>&1 && echo $1 || echo none; }
here() { ip link show $1 >/dev/null 2>&1 && echo $1 || echo none; }
mtu() { inside ip link show eth0 | grep -o 'mtu [0-9]*'; }
backup() { [ ! -e /run/cni/tuning/${id}_eth0.json ] || echo backup; }
rules() { for f in -4 -6; do inside ip $f rule; done | grep -vc 'from all'; }
end() { ip -br link show type veth | grep -o '^veth[^@ ]*'; }
pings() { for to; do inside ping -n -q -c1 -w5 $to >/dev/null && echo $to; done; }
vanish() { umount --lazy $container && rm $container; }
"#;

/// Rows begin with a network of bridge and host-local, whose plugin they may change.
fn network(lab: &Lab, changes: Value) -> (Container, Attachment<'_>) {
    let container = lab.container();
    let attachment = lab.attach(&container, &with(&conf(), changes));
    (container, attachment)
}
