//! Shared chains of iptables that an administrator flushes or deletes: the
//! next ADD works in full, and each DEL leaves nothing of its container.

use serde_json::{Value, json};

use super::One;
use crate::plugins::meta::firewall::isolation;
use crate::support::attachment::{for_ours, with};
use crate::support::netns::{Lab, OUTSIDE};
use crate::support::networks::firewall::{
    DROPPING, firewall, network as forwarded, route_from_outside,
};
use crate::support::networks::portmap::{is_open, network as published, portmap, web};
use crate::support::traffic::{
    TcpServer, assert_masqueraded, assert_no_ping, assert_pings, connect,
};

/// A plugin whose rules are in a table of iptables.
struct Subject {
    plugin: &'static str,
    /// The configuration of the container with this number.
    conf: fn(u16) -> (Value, Option<Value>),
    prepare: &'static str,
    works: fn(&Lab, &One<'_>, u16),
    /// As scripts for `$f`, the program of one family.
    damages: &'static [&'static str],
    /// What must not be in the ruleset after the last DEL.
    leftover: &'static str,
}

const MASQUERADE: Subject = Subject {
    plugin: "bridge",
    conf: |_| (with(&published(), json!({"ipMasq": true, "ipMasqBackend": "iptables"})), None),
    prepare: "true",
    works: |lab, one, _| {
        one.ips().iter().for_each(|ip| assert_masqueraded(lab, &one.container, ip))
    },
    damages: &[
        "$f -t nat -F",
        "$f -t nat -F POSTROUTING",
        "$f -t nat -F; $f -t nat -X",
        "nft flush ruleset",
        "for c in $($f -t nat -S | sed -n 's/^-N \\(CNI-\\)/\\1/p'); do $f -t nat -F $c; done",
        "for c in $($f -t nat -S | sed -n 's/^-N \\(CNI-\\)/\\1/p'); do $f -t nat -D $c 2; done",
    ],
    leftover: "-e 10.10.0 -e 2001:db8:10: -e CNI-",
};

fn ports(number: u16, backend: &str) -> Value {
    portmap(Some(backend), json!([with(&web(), json!({"hostPort": 8000 + number}))]))
}

const PORTMAP: Subject = Subject {
    plugin: "portmap",
    conf: |number| (published(), Some(ports(number, "iptables"))),
    prepare: "true",
    works: |lab, one, number| {
        let _server = TcpServer::start(&one.container, 80);
        assert_eq!(is_open(lab, 8000 + number), [true, true]);
        assert!(
            connect(&lab.host, &format!("127.0.0.1:{}", 8000 + number)).is_some(),
            "by the mark and its chain"
        );
    },
    damages: &[
        "$f -t nat -F",
        "$f -t nat -F; $f -t nat -X",
        "$f -t nat -F PREROUTING",
        "$f -t nat -F OUTPUT",
        "$f -t nat -F POSTROUTING",
        "$f -t nat -F CNI-HOSTPORT-DNAT",
        "$f -t nat -F CNI-HOSTPORT-SETMARK",
        "$f -t nat -F CNI-HOSTPORT-MASQ",
        "$f -t nat -F; for c in DNAT SETMARK MASQ; do $f -t nat -X CNI-HOSTPORT-$c; done",
    ],
    leftover: "-e 10.10.0 -e 2001:db8:10: -e CNI-DN-",
};

/// An administrator's chain with a rule of the administrator's.
const ADMIN: &str = "for f in iptables ip6tables; do $f -P FORWARD DROP; $f -N CNI-ADMIN 2>/dev/null; $f -F CNI-ADMIN; \
    $f -A CNI-ADMIN -p tcp --dport 9 -j DROP; done";

fn is_admitted(lab: &Lab, one: &One<'_>, _: u16) {
    OUTSIDE.iter().for_each(|outside| assert_pings(&one.container, outside));
    for program in ["iptables", "ip6tables"] {
        let rules = lab.host.sh(&format!("{program} -S CNI-FORWARD 2>/dev/null || true"));
        let is_missing = rules.is_empty(); // a chain is printed with its name first
        let first = rules.lines().nth(1).unwrap_or_default();
        assert!(
            is_missing || first.ends_with("-j CNI-ADMIN"),
            "{program}: the administrator's chain comes first: {rules}"
        );
    }
}

const FIREWALLS: [Subject; 2] = [
    Subject {
        plugin: "firewall",
        conf: |_| (forwarded(), Some(firewall(None))),
        prepare: ADMIN,
        works: is_admitted,
        damages: &[
            "$f -F",
            "$f -F; $f -X",
            "$f -F FORWARD",
            "$f -F CNI-FORWARD",
            "$f -F CNI-ADMIN",
            "$f -D CNI-FORWARD 1",
            "nft delete table ip filter; nft delete table ip6 filter",
        ],
        leftover: "-e 10.10.0 -e 2001:db8:10: -e CNI-FORWARD -e cni_multi",
    },
    Subject {
        plugin: "firewall",
        conf: |_| (forwarded(), Some(firewall(Some("iptables")))),
        prepare: ADMIN,
        works: is_admitted,
        damages: &["$f -F", "$f -F; $f -X", "$f -D CNI-FORWARD 1"],
        leftover: "-e 10.10.0 -e 2001:db8:10: -e CNI-FORWARD -e cni_multi",
    },
];

impl Subject {
    fn add<'a>(&self, lab: &'a Lab, number: u16) -> One<'a> {
        One::add(lab, &(self.conf)(number))
    }

    #[track_caller]
    fn assert_nothing_left(&self, lab: &Lab, when: &str) {
        let left = lab.host.sh(&format!(
            "(iptables-save; ip6tables-save; nft list tables) | grep {} || true",
            self.leftover
        ));
        assert_eq!(left, "", "{when}");
    }
}

/// ADD after the damage works in full, and no DEL leaves anything, neither of what was there before
/// nor of what came after.
fn survives_damage(subject: &Subject) {
    for_ours(subject.plugin, |lab| {
        route_from_outside(lab);
        for (damage, number) in subject.damages.iter().zip((0..).step_by(2)) {
            eprintln!("{damage}"); // shown when the case fails
            let damage = format!("for f in iptables ip6tables; do {damage}; done");
            lab.host.sh(subject.prepare);
            let before = subject.add(lab, number);
            lab.host.try_sh(&damage);
            let after = subject.add(lab, number + 1);
            (subject.works)(lab, &after, number + 1);
            after.check();
            before.del();
            (subject.works)(lab, &after, number + 1);
            after.check();
            after.del();
            subject.assert_nothing_left(lab, "ADD and both DELs");
            lab.host.sh(subject.prepare);
            let alone = subject.add(lab, number);
            lab.host.try_sh(&damage);
            alone.del();
            subject.assert_nothing_left(lab, "DEL");
        }
    });
}

#[test]
fn masquerade_by_iptables_after_flush_works_and_del_is_whole() {
    survives_damage(&MASQUERADE);
}

#[test]
fn portmap_by_iptables_after_flush_works_and_del_is_whole() {
    survives_damage(&PORTMAP);
}

#[test]
fn firewall_chains_after_flush_work_and_del_is_whole() {
    FIREWALLS.iter().for_each(survives_damage);
}

/// A port whose way was cut off in PREROUTING is still its container's: the next ADD with iptables
/// opens the way again.
#[test]
fn port_without_its_jumps_is_refused_to_the_other_backend() {
    for_ours("portmap", |lab| {
        let first = One::add(lab, &(published(), Some(ports(0, "iptables"))));
        lab.host.sh(
            "for f in iptables ip6tables; do $f -t nat -F PREROUTING; $f -t nat -F OUTPUT; done",
        );
        let second = lab.chain(&published(), &ports(0, "nftables"));
        let error = second.try_add().err();
        assert!(error.code == 102 && error.msg.contains("8000"), "{error:?}");
        first.del();
        second.add();
    });
}

/// What drops between bridges stands before what accepts a container's packets, also when the
/// accepts went with the last container and come back with the next.
#[test]
fn isolation_by_iptables_outlives_the_last_container() {
    // Another program may remove the jump to the accepts with the last of them.
    let removed = "for f in iptables ip6tables; do $f -D FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD; done";
    let backends = [
        (Some("iptables"), Some("iptables"), "true"),
        (Some("iptables"), Some("iptables"), removed),
        (None, None, removed),
    ];
    for (first, next, meanwhile) in backends {
        for_ours("firewall", |lab| {
            lab.host.sh(DROPPING);
            let isolated = |name: &str, bridge: &str| {
                let ranges = json!([[{"subnet": format!("10.10.{bridge}.0/24")}], [{"subnet": format!("2001:db8:1{bridge}::/64")}]]);
                with(
                    &forwarded(),
                    json!({"name": name, "bridge": format!("br{bridge}"), "ipam": {"ranges": ranges}}),
                )
            };
            let policy = isolation::policy(Some("iptables"), "same-bridge");
            let once = One::add(lab, &(isolated("net0", "0"), Some(policy.clone())));
            once.del();
            lab.host.sh(meanwhile);
            let open = One::add(lab, &(isolated("net7", "7"), Some(firewall(first))));
            let one = One::add(
                lab,
                &(isolated("net1", "1"), Some(isolation::policy(next, "same-bridge"))),
            );
            let other = One::add(lab, &(isolated("net2", "2"), Some(policy.clone())));
            let rules = lab.host.sh("iptables -S FORWARD; ip6tables -S FORWARD");
            for jumps in rules.split("-P FORWARD").skip(1) {
                let at =
                    |chain: &str| jumps.find(chain).unwrap_or_else(|| panic!("{chain}: {jumps}"));
                assert!(
                    at("CNI-ISOLATION-STAGE-1") < at("CNI-FORWARD"),
                    "{first:?}, {next:?}: {jumps}"
                );
            }
            if next.is_some() {
                assert_no_ping(&one.container, &other.ips()[0]);
                assert_no_ping(&other.container, &one.ips()[1]);
            }
            [&open, &one, &other].iter().for_each(|one| one.check());
            lab.host.sh("rule=$(iptables -S FORWARD | grep STAGE-1 | cut -d ' ' -f 2-); eval iptables -D $rule; eval iptables -A $rule");
            let chained = other.chained.as_ref().unwrap();
            let error = chained.check(&other.result.borrow()).err();
            assert!(error.code == 103 && error.msg.contains("CNI-ISOLATION-STAGE-1"), "{error:?}");
            chained.call("ADD", Some(&other.result.borrow())).run().ok();
            other.check();
        });
    }
}
