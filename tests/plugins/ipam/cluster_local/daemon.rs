//! Machines whose daemons borrow blocks from a real etcd.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;

use crate::support::call::binary;
use crate::support::etcd::Etcd;
use crate::support::node::{LISTENING, Node};

/// etcd for machines in other namespaces.
pub fn etcd() -> Option<Etcd> {
    etcd_with(&[])
}

/// The same with further options.
pub fn etcd_with(options: &[&str]) -> Option<Etcd> {
    Etcd::one_with(&[&LISTENING, options].concat())
}

/// Fourteen addresses, of which one is the gateway's.
pub const SMALL: &str = "10.1.0.0/28";
/// 8189 addresses in blocks of eight.
pub const WIDE: &str = "10.1.0.0/19";

pub fn add_all(node: &Node, subnet: &str, ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| node.add(subnet, id)).collect()
}

#[test]
fn machines_share_a_subnet_to_its_last_address() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    let mut all = add_all(&one, SMALL, &["a", "b", "c", "d", "e", "f", "g"]);
    all.extend(add_all(&two, SMALL, &["h", "i", "j", "k", "l", "m"]));
    assert_eq!(all.len(), 13, "each address has one owner: {all:?}");
    let full = two.try_add(SMALL, "n").err();
    assert_eq!(full.code, 101, "{full:?}\n{}", two.log());
    one.del(SMALL, "c");
    assert!(all.contains(&two.add(SMALL, "n")), "what one machine frees, another gets");
    two.del(SMALL, "h");
    one.add(SMALL, "c");
}

#[test]
fn a_machine_that_starts_again_goes_on_with_its_blocks() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    let two = Node::join(&etcd, 2);
    let mut all = add_all(&one, WIDE, &["a", "b", "c", "d", "e"]);
    one.kill();
    all.extend(add_all(&one, WIDE, &["f"]));
    all.extend(add_all(&two, WIDE, &["g", "h"]));
    one.start();
    all.extend(add_all(&one, WIDE, &["i", "j", "k", "l", "m"]));
    assert_eq!(all.len(), 13, "each address has one owner: {all:?}");
}

/// Blocks that are confirmed with an empty id would stay confirmed after a reboot.
#[test]
fn without_the_id_of_the_boot_no_daemon_starts() {
    let Some(etcd) = etcd() else { return };
    let one = Node::named(&etcd, 1, "n1");
    let path = "/proc/sys/kernel/random/boot_id";
    one.lab.host.sh(&format!("touch /run/boot_id && mount --bind /run/boot_id {path}"));
    let refused = one.lab.host.try_sh(&format!("timeout 10 {} ipam daemon", binary().display()));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("read {path}: it is empty")), "{text}");
    one.lab.host.sh(&format!("umount {path}"));
    one.start();
    one.add(SMALL, "a");
}

#[test]
fn a_pool_grows_with_its_range() {
    let Some(etcd) = etcd() else { return };
    let [one, two] = [1, 2].map(|number| Node::join(&etcd, number));
    let ids: Vec<String> = (0..13).map(|number| format!("c{number}")).collect();
    let mut all: BTreeSet<String> = ids.iter().map(|id| one.add(SMALL, id)).collect();
    assert_eq!(two.try_add(SMALL, "d").err().code, 101);
    let larger = "10.1.0.0/27";
    all.extend(add_all(&two, larger, &["d", "e", "f"]));
    all.extend(add_all(&one, larger, &["g", "h"]));
    assert_eq!(all.len(), 18, "each address has one owner: {all:?}");
    one.del(larger, "c3");
    two.del(SMALL, "d");
}

#[test]
fn held_blocks_serve_while_etcd_is_away() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    one.add(WIDE, "a");
    etcd.members[0].signal(Signal::SIGSTOP);
    add_all(&one, WIDE, &["b", "c"]);
    let more = (0..16).map(|number| one.try_add(WIDE, &format!("more{number}")));
    let away = more.into_iter().find(|outcome| outcome.status != 0).unwrap().err();
    assert_eq!(away.code, 11, "{away:?}\n{}", one.log());
    assert!(away.msg.starts_with("the store cannot be used"), "{away:?}");
    assert_eq!(one.status(WIDE).err().code, 50);
    etcd.members[0].signal(Signal::SIGCONT);
    one.wait_until(|node| node.try_add(WIDE, "f").status == 0);
}

#[test]
fn the_etcd_of_a_control_plane_is_refused() {
    let Some(etcd) = etcd() else { return };
    etcd.members[0].ctl("put /registry/secrets/default/x y");
    let one = Node::join(&etcd, 1);
    let refused = one.try_add(WIDE, "a").err();
    assert!(refused.msg.contains("Kubernetes control plane"), "{refused:?}\n{}", one.log());
    assert!(refused.msg.contains("etcd.acceptControlPlane"), "{refused:?}");
    assert_eq!(etcd.members[0].ctl("get --prefix --keys-only /cni-multi/").trim(), "");
}

#[test]
fn a_second_machine_under_a_live_name_is_refused() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    one.add(WIDE, "a");
    let two = Node::named(&etcd, 2, "n1");
    two.start();
    let refused = two.try_add(WIDE, "b").err();
    assert_eq!(refused.msg, "another machine has the name of this node", "{}", two.log());
    assert_eq!(refused.code, 50, "{refused:?}");
    one.add(WIDE, "c");
}

#[test]
fn the_daemon_keeps_no_capability_and_few_system_calls() {
    let Some(etcd) = etcd() else { return };
    let one = Node::join(&etcd, 1);
    one.add(WIDE, "a");
    let none = "0000000000000000";
    let sets = ["CapEff", "CapPrm", "CapBnd"].map(|set| one.daemon_status(set));
    assert_eq!(sets, [none; 3]);
    assert_eq!(one.daemon_status("NoNewPrivs"), "1");
    let threads = std::fs::read_dir(format!("/proc/{}/task", one.daemon_pid())).unwrap();
    let status = |thread: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap()
    };
    let threads: Vec<String> = threads.map(status).collect();
    assert_eq!(threads.len(), 3, "the event loop, the worker and the watcher");
    for thread in threads {
        assert!(thread.contains("\nSeccomp:\t2\n"), "a filter of system calls: {thread}");
        assert!(thread.contains(&format!("\nCapEff:\t{none}\n")), "{thread}");
    }
}

#[test]
fn a_wrong_configuration_is_refused_with_its_place() {
    let Some(etcd) = etcd() else { return };
    let node = Node::named(&etcd, 1, "n1");
    let good = r#"{"cluster":"c","etcd":{"endpoints":["http://127.0.0.1"]}}"#;
    for (text, mode, said) in [
        (good, "644", "mode 0644 of user 0, expected 0600 or stricter of root; chown root"),
        (
            r#"{"cluster":"c","etcd":{"endpoints":["127.0.0.1"]}}"#,
            "600",
            "etcd.endpoints[0]: \"127.0.0.1\", expected http://HOST:PORT",
        ),
        (
            r#"{"cluster":"c","etcd":{"endpoints":["https://127.0.0.1"]}}"#,
            "600",
            "etcd.ca: missing, expected the path of a file",
        ),
        (r#"{"cluster":"c","etcd":{"endpoints":"#, "600", "/run/conf"),
    ] {
        let daemon = node.lab.host.sh(&format!(
            "echo '{text}' >/run/conf; chmod {mode} /run/conf
             {} ipam daemon --config /run/conf 2>&1 && exit 9; echo status $?",
            binary().display()
        ));
        assert!(daemon.contains(said) && daemon.ends_with("status 1\n"), "{text}: {daemon}");
    }
}
