//! bandwidth DEL and GC: without the namespace, without prevResult, without the limits.

use super::*;
use crate::support::synced::net;

/// A runtime can reuse a path, and ifindexes in two containers are often equal.
#[test]
fn del_with_a_reused_path_keeps_the_limits_of_the_new_container() {
    for_able_ours(|lab| {
        let (gone, other) = (lab.chain(&network(), &both()), lab.chain(&network(), &both()));
        let limited = other.add();
        let result = gone.add();
        lab.host.sh(&format!("ip link del {}", host_end(&gone)));
        (*gone).clone().netns(Some(&other.container.netns)).del();
        assert!(lab.host.link(&interface(&result, 2)).is_none());
        other.check(&limited).ok();
    });
}

/// An administrator has deleted a part: CHECK reports it, DEL removes the rest, and the other
/// container keeps its limits.
#[test]
fn del_after_a_part_was_deleted_leaves_nothing() {
    for_able_ours(|lab| {
        for damage in [
            "tc qdisc del dev $end root",
            "tc qdisc del dev $end ingress",
            "tc filter del dev $end ingress",
            "tc qdisc del dev $ifb root",
            "ip link set $ifb down",
            "ip link del $ifb",
            "ip link del $ifb; tc qdisc del dev $end root",
            "tc filter del dev $end ingress; tc qdisc del dev $ifb root; tc qdisc del dev $end root",
        ] {
            eprintln!("{damage}"); // shown when the case fails
            let (chain, other) = (lab.chain(&network(), &both()), lab.chain(&network(), &both()));
            let before = Watch::start(lab, &[]);
            let (result, end) = (chain.add(), host_end(&chain));
            let ifb = interface(&result, 2);
            lab.host.sh(&format!("end={end}; ifb={ifb}; {damage}"));
            let limited = other.add();
            other.check(&limited).ok();
            assert_eq!(chain.check(&result).err().code, 103);
            chain.bare().del();
            other.check(&limited).ok();
            other.bare().del();
            before.assert_unchanged("ADD, the damage and DEL");
            chain.add();
            chain.check(&result).ok();
            chain.bare().del();
            [chain, other].iter().for_each(|chain| chain.main.del());
        }
    });
}

/// The kernel accepts an alias only for an existing link, so an ADD killed between the two requests
/// leaves an ifb without one.
#[test]
fn an_ifb_without_alias_still_belongs_to_its_attachment() {
    for_able_ours(|lab| {
        bridge::warm_up(lab, &network());
        let before = Watch::start(lab, &[]);
        let nameless = || {
            let chain = lab.chain_added(&with(&network(), json!({"cniVersion": "1.1.0"})), &both());
            lab.host.sh(
                "link=$(ip -br link show type ifb | cut -d ' ' -f 1); ip link set $link alias ''; tc qdisc del dev $link root",
            );
            chain.container.vanish();
            chain
        };
        let chain = nameless();
        chain.bare().del();
        chain.main.clone().netns(None).del();
        before.assert_unchanged("DEL");
        let chain = nameless();
        let is_there = || lab.host.json("ip -j link show type ifb") != json!([]);
        chain.gc(&[(&chain.container_id, &chain.ifname)]).ok();
        assert!(is_there(), "it is spared while it is valid");
        chain.clone().conf(json!({"name": "net2"})).gc(&[]).ok();
        assert!(is_there(), "it is no other network's");
        chain.gc(&[]).ok();
        chain.main.gc(&[]).ok();
        before.assert_unchanged("GC");
    });
}

/// In a chain the limits go with the host's end. A chain that fails before that is deleted takes
/// the limits off it.
#[test]
fn a_chain_that_fails_at_del_has_taken_the_limits_off() {
    for_able_ours(|lab| {
        bridge::warm_up(lab, &network());
        let before = Watch::start(lab, &[]);
        let attached = attach(lab, &[network(), both()], "");
        let end = attached.container.link("eth0").unwrap()["link_index"].as_u64().unwrap();
        let end = lab.host.sh(&format!("ip -o link | sed -n 's/^{end}: \\([^@]*\\)@.*/\\1/p'"));
        let limits = || {
            let script = format!("tc qdisc show dev {}; ip -o link show type ifb", end.trim());
            lab.host.sh(&script)
        };
        assert!(limits().contains("tbf") && limits().contains("bwp"), "{}", limits());

        // DEL goes from the last plugin to the first.
        lab.host.sh(r#"mkdir /run/plugins; printf '#!/bin/sh\nexit 1\n' >/run/plugins/fails; chmod +x /run/plugins/fails
            sed -i 's/{[^{}]*"type":"bandwidth"/{"type":"fails"},&/' /run/net.d/pods.conflist"#);
        let mut del = net(lab, &format!("del pods {}", attached.container.netns));
        del.args.last_mut().unwrap().push_str(":/run/plugins");
        let failed = del.run();
        assert!(failed.status != 0 && failed.stderr.contains("fails"), "{failed:?}");
        assert_eq!(limits().trim(), "qdisc noqueue 0: root refcnt 2", "{failed:?}");

        lab.host.sh("rm -r /run/plugins");
        lab.host.sh(r#"sed -i 's/{"type":"fails"},//' /run/net.d/pods.conflist"#);
        attached.del();
        lab.host.sh("rm /run/net.d/pods.conflist");
        before.assert_unchanged("ADD and DEL");
    });
}
