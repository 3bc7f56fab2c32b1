//! Our five nftables tables survive the commands of an administrator: flush, delete, and `nft list
//! ruleset > f; nft -f f`.

mod beside;
mod iptables;

use std::cell::RefCell;

use serde_json::{Value, json};

use super::main::fastpath::assert_is_fast;
use super::meta::firewall::isolation;
use super::meta::portmap::services::start_services;
use crate::support::attachment::{Attachment, for_ours, ips, with};
use crate::support::case;
use crate::support::netns::{Container, Lab, OUTSIDE};
use crate::support::networks::fastpath;
use crate::support::networks::firewall::{DROPPING, network as forwarded, route_from_outside};
use crate::support::networks::portmap::{at, is_open, network as published, portmap, web};
use crate::support::peers::tests;
use crate::support::synced::attach;
use crate::support::traffic::{
    TcpServer, UdpServer, ask_by_udp, assert_masqueraded, assert_no_ping, assert_not_masqueraded,
    assert_pings,
};

/// A container on a network, optionally with a chained plugin.
struct One<'a> {
    container: Container,
    main: Attachment<'a>,
    chained: Option<Attachment<'a>>,
    result: RefCell<Value>,
}

impl<'a> One<'a> {
    fn add(lab: &'a Lab, conf: &(Value, Option<Value>)) -> One<'a> {
        let container = lab.container();
        let main = lab.attach(&container, &conf.0);
        let of_network = |chained: &Value| {
            with(chained, json!({"name": conf.0["name"], "cniVersion": conf.0["cniVersion"]}))
        };
        let chained = conf.1.as_ref().map(|chained| lab.attach(&container, &of_network(chained)));
        let one = One { container, main, chained, result: RefCell::default() };
        one.add_again();
        one
    }

    #[track_caller]
    fn add_again(&self) {
        self.result.replace(self.main.add());
        if let Some(chained) = &self.chained {
            chained.call("ADD", Some(&self.result.borrow())).run().ok();
        }
    }

    #[track_caller]
    fn check(&self) {
        self.main.check(&self.result.borrow()).ok();
        if let Some(chained) = &self.chained {
            chained.check(&self.result.borrow()).ok();
        }
    }

    /// DEL of a runtime that has the result but no longer the port mappings.
    #[track_caller]
    fn del(&self) {
        if let Some(chained) = &self.chained {
            let chained = chained.clone().conf(json!({"runtimeConfig": null}));
            assert_eq!(chained.call("DEL", Some(&self.result.borrow())).run().ok(), Value::Null);
        }
        self.main.del();
    }

    fn ips(&self) -> Vec<String> {
        ips(&self.result.borrow())
    }
}

/// One of our tables, as `family name`, with the configuration that fills it.
struct Subject {
    table: &'static str,
    plugin: &'static str,
    conf: fn() -> (Value, Option<Value>),
    works: fn(&Lab, &One<'_>),
}

const SUBJECTS: [Subject; 5] = [
    Subject {
        table: "inet cni_multi_masquerade",
        plugin: "bridge",
        conf: || (with(&published(), json!({"ipMasq": true, "ipMasqBackend": "nftables"})), None),
        works: |lab, one| {
            one.ips().iter().for_each(|ip| assert_masqueraded(lab, &one.container, ip))
        },
    },
    Subject {
        table: "bridge cni_multi_spoofcheck",
        plugin: "bridge",
        conf: || (with(&published(), json!({"macspoofchk": true})), None),
        works: |_, one| {
            assert_pings(&one.container, "10.10.0.1");
            let own = one.container.link("eth0").unwrap()["address"].clone();
            one.container.sh("ip link set eth0 address 02:00:00:00:00:99");
            assert_no_ping(&one.container, "10.10.0.1");
            one.container.sh(&format!("ip link set eth0 address {own}"));
        },
    },
    Subject {
        table: "inet cni_multi_portmap",
        plugin: "portmap",
        conf: || {
            (published(), Some(with(&portmap(None, json!([])), json!({"runtimeConfig": null}))))
        },
        works: |lab, one| {
            let _server = TcpServer::start(&one.container, 80);
            assert_eq!(is_open(lab, one.port()), [true, true]);
        },
    },
    Subject {
        table: "inet cni_multi_firewall",
        plugin: "firewall",
        conf: || (forwarded(), Some(isolation::policy(None, "isolated"))),
        works: |_, one| OUTSIDE.iter().for_each(|outside| assert_pings(&one.container, outside)),
    },
    Subject {
        table: fastpath::TABLE,
        plugin: "bridge",
        conf: || (with(&published(), json!({"fastPath": true})), None),
        works: |lab, one| {
            let _server = UdpServer::start(&lab.outside, 80);
            assert_is_fast(lab, &one.container, &at(OUTSIDE[0], 80));
        },
    },
];

/// They hold for the peer outside.
fn conditions() -> Value {
    json!({"conditionsV4": ["ip", "saddr", "198.51.96.0/21"], "conditionsV6": ["ip6", "saddr", "{ 2001:db8::/32, fd00::1 }"]})
}

impl Subject {
    /// A new attachment. Published ports are unique for each, and only some clients reach a
    /// container.
    fn add<'a>(&self, lab: &'a Lab, number: u64) -> One<'a> {
        let (main, chained) = (self.conf)();
        let ports = json!([
            with(&web(), json!({"hostPort": 8000 + number})),
            with(&web(), json!({"hostPort": 9000 + number, "hostIP": "198.51.100.1"})),
            with(&web(), json!({"hostPort": 9000 + number, "hostIP": "2001:db8:ffff::1"})),
        ]);
        let chained = chained.map(|chained| match self.plugin {
            "portmap" => with(
                &with(&chained, conditions()),
                json!({"runtimeConfig": {"portMappings": ports}}),
            ),
            _ => chained,
        });
        One::add(lab, &(main, chained))
    }

    /// Forwarded packets need a way back, and a drop policy that the rules override. False after a
    /// skip.
    fn prepare(&self, lab: &Lab) -> bool {
        if self.plugin == "firewall" {
            route_from_outside(lab);
            lab.host.sh(DROPPING);
        }
        if self.table != fastpath::TABLE {
            return true;
        }
        route_from_outside(lab);
        fastpath::prepare(lab)
    }

    fn is_left(&self, lab: &Lab) -> String {
        lab.host.sh("nft -s list ruleset | grep -e cni_multi -e CNI- -e 10.10.0 || true")
    }

    /// Scripts that flush or delete parts of the table.
    fn damages(&self, lab: &Lab) -> Vec<String> {
        let table = self.table;
        let listing = lab.host.json(&format!("nft -j list table {table}"));
        let objects = listing["nftables"].as_array().unwrap();
        let named = |kind: &str| -> Vec<String> {
            objects.iter().filter_map(|o| Some(o.get(kind)?["name"].as_str()?.to_owned())).collect()
        };
        let (chains, sets, maps) = (named("chain"), named("set"), named("map"));
        assert!(!chains.is_empty() && sets.contains(&"attachments".to_owned()), "{listing:#}");
        let flush_all: String =
            maps.iter().map(|map| format!("nft flush map {table} {map}; ")).collect();
        let mut damages = vec![
            format!("nft flush table {table}"),
            format!("nft delete table {table}"),
            format!("nft add table {table} '{{ flags dormant; }}'"),
            "nft flush ruleset".to_owned(),
        ];
        for chain in &chains {
            // The chain of conditions is named after its attachment.
            let chain = match chain.starts_with("if") {
                true => format!(
                    "$(nft list table {table} | grep -o '{}[0-9a-f-]*' | head -1)",
                    &chain[..4]
                ),
                false => chain.clone(),
            };
            damages.push(format!("nft flush chain {table} {chain}"));
            damages.push(format!(
                "nft flush table {table}; {flush_all} nft delete chain {table} {chain}"
            ));
        }
        for (kind, name) in
            sets.iter().map(|set| ("set", set)).chain(maps.iter().map(|map| ("map", map)))
        {
            damages.push(format!("nft flush {kind} {table} {name}"));
            damages.push(format!("nft flush table {table}; nft delete {kind} {table} {name}"));
        }
        for name in named("flowtable") {
            damages.push(format!(
                "nft flush chain {table} {}; nft delete flowtable {table} {name}",
                chains[0]
            ));
        }
        damages
    }
}

impl One<'_> {
    fn port(&self) -> u16 {
        let conf = &self.chained.as_ref().unwrap().conf;
        let port = &conf["runtimeConfig"]["portMappings"][0]["hostPort"];
        u16::try_from(port.as_u64().unwrap()).unwrap()
    }
}

/// After the damage ADD works in full, and DEL leaves nothing of the attachments made before or
/// after it.
fn survives_damage(subject: &Subject) {
    for_ours(subject.plugin, |lab| {
        if !subject.prepare(lab) {
            return;
        }
        let first = subject.add(lab, 0);
        let damages = subject.damages(lab);
        first.del();
        assert_eq!(subject.is_left(lab), "");
        let mut number = 0;
        for damage in &case::in_turn(damages, 3) {
            eprintln!("{damage}"); // shown when the case fails
            number += 2;
            let before = subject.add(lab, number);
            lab.host.sh(damage);
            let after = subject.add(lab, number + 1);
            (subject.works)(lab, &after);
            after.check();
            before.del();
            (subject.works)(lab, &after);
            after.del();
            assert_eq!(subject.is_left(lab), "", "{damage}, then ADD and both DELs");
            let alone = subject.add(lab, number);
            lab.host.sh(damage);
            alone.del();
            assert_eq!(subject.is_left(lab), "", "{damage}, then DEL");
            alone.add_again();
            (subject.works)(lab, &alone);
            alone.del();
            assert_eq!(subject.is_left(lab), "", "{damage}, DEL, ADD and DEL");
        }
    });
}

tests! {
    masquerade_after_flush_or_delete_add_works_and_del_is_whole = survives_damage(&SUBJECTS[0]);
    spoofcheck_after_flush_or_delete_add_works_and_del_is_whole = survives_damage(&SUBJECTS[1]);
    portmap_after_flush_or_delete_add_works_and_del_is_whole = survives_damage(&SUBJECTS[2]);
    firewall_after_flush_or_delete_add_works_and_del_is_whole = survives_damage(&SUBJECTS[3]);
    fastpath_after_flush_or_delete_add_works_and_del_is_whole = survives_damage(&SUBJECTS[4]);
}

/// Rules of the administrator come before what we decide, and stay after the last DEL.
#[test]
fn issue_40_the_administrator_s_chain_comes_first_in_each_table() {
    type Exempt<'a> = (&'a Subject, &'a str, fn(&Lab, &One<'_>));
    let exempts: [Exempt<'_>; 4] = [
        (&SUBJECTS[0], "oifname \"uplink\" accept", |lab, one| {
            one.ips().iter().for_each(|ip| assert_not_masqueraded(lab, &one.container, ip))
        }),
        (&SUBJECTS[1], "ether saddr 02:00:00:00:00:99 accept", |_, one| {
            one.container.sh("ip link set eth0 address 02:00:00:00:00:99");
            assert_pings(&one.container, "10.10.0.1");
        }),
        (&SUBJECTS[2], "tcp dport 8000 accept", |lab, one| {
            let _server = TcpServer::start(&one.container, 80);
            assert_eq!(is_open(lab, one.port()), [false, false]);
        }),
        (&SUBJECTS[4], "udp sport 80 accept", |lab, one| {
            let _server = UdpServer::start(&lab.outside, 80);
            (0..4).for_each(|_| drop(ask_by_udp(&one.container, &at(OUTSIDE[0], 80)).unwrap()));
            let flows = lab.host.sh("conntrack -L -p udp --orig-port-dst 80 2>/dev/null");
            assert!(flows.contains("dport=80") && !flows.contains("OFFLOAD"), "{flows}");
        }),
    ];
    for (subject, rule, is_exempt) in exempts {
        for_ours(subject.plugin, |lab| {
            if !subject.prepare(lab) {
                return;
            }
            let table = subject.table;
            lab.host.sh(&format!(
                "nft 'add table {table}; add chain {table} admin; add rule {table} admin {rule}'"
            ));
            let one = subject.add(lab, 0);
            one.check();
            is_exempt(lab, &one);
            // Without the jumps, too, the rules are the administrator's.
            lab.host.sh(&format!(
                "for chain in $(nft list table {table} | grep -B1 ' hook ' | sed -n 's/.*chain \\(.*\\) {{/\\1/p'); do
                    nft flush chain {table} $chain
                done"
            ));
            one.del();
            let left = lab.host.sh(&format!("nft list chain {table} admin"));
            assert!(left.contains(rule), "{left}");
            lab.host.sh(&format!("nft flush chain {table} admin"));
            let other = subject.add(lab, 1);
            (subject.works)(lab, &other);
            other.check();
            other.del();
            assert_eq!(subject.is_left(lab), "", "{table}");
        });
    }
}

/// CHECK reports what was flushed, and `net sync` fills it again.
#[test]
fn each_flushed_chain_or_set_is_reported_and_repaired() {
    for subject in &SUBJECTS {
        for_ours(subject.plugin, |lab| {
            if !subject.prepare(lab) {
                return;
            }
            let (main, chained) = (subject.conf)();
            let mut plugins = vec![main];
            plugins.extend(chained);
            let mut options = "";
            if subject.plugin == "portmap" {
                start_services(lab, "kube-ipvs0");
                options = "-p 8080:80 -p 198.51.100.1:9000:80 -p [2001:db8:ffff::1]:9000:80";
                let capable = json!({"capabilities": {"portMappings": true}});
                plugins[1] = with(&with(&plugins[1], conditions()), capable);
            }
            let synced = attach(lab, &plugins, options);
            let content = || {
                let list = format!("nft -s list table {}", subject.table);
                lab.host.sh(&format!("{list} | grep -o '[^ ,={{}}\t]*' | sort"))
            };
            let listing = lab.host.json(&format!("nft -j list table {}", subject.table));
            let mut flushed = 0;
            for object in listing["nftables"].as_array().unwrap() {
                let kind =
                    ["chain", "set", "map"].into_iter().find(|kind| object.get(kind).is_some());
                let Some(kind) = kind else { continue };
                let name = object[kind]["name"].as_str().unwrap();
                let whole = content();
                lab.host.sh(&format!("nft flush {kind} {} {name}", subject.table));
                if content() == whole {
                    continue; // it is empty
                }
                flushed += 1;
                // Without what it has recorded for DEL, firewall's DEL searches.
                let is_record = subject.plugin == "firewall"
                    && ["attachments", "accepts4", "accepts6"].contains(&name);
                let found = synced.check();
                assert_eq!(found.status, i32::from(!is_record), "{kind} {name}: {found:?}");
                let repair = synced.net("sync pods");
                assert_eq!(repair.status, 0, "{kind} {name}: {repair:?}");
                synced.check().ok();
                // Which other attachments share an element is not known without the ledger.
                let may_differ = is_record || name == "attachments";
                assert!(content() == whole || may_differ, "{kind} {name}: {}", content());
            }
            assert!(flushed > 2, "{}: {flushed}", subject.table);
        });
    }
}

/// Debian's nftables.service does this when the host stops and starts; and iptables-save and iptables-restore for the
/// tables that iptables manages.
#[test]
fn ruleset_listed_and_loaded_again_serves_check_add_and_del() {
    let by_nft =
        "nft list ruleset > /run/rules; nft flush ruleset; nft -f /run/rules; cat /run/rules";
    let by_iptables =
        "for f in iptables ip6tables; do $f-save > /run/saved && $f-restore < /run/saved; done";
    let firewalls = [None, Some("iptables")].map(|backend| (&SUBJECTS[3], by_iptables, backend));
    let all = SUBJECTS.iter().map(|subject| (subject, by_nft, None)).chain(firewalls);
    for (subject, reload, backend) in all {
        for_ours(subject.plugin, |lab| {
            if !subject.prepare(lab) {
                return;
            }
            let add = |number| match reload == by_nft {
                true => subject.add(lab, number),
                false => One::add(lab, &(forwarded(), Some(isolation::policy(backend, "open")))),
            };
            let before = add(0);
            before.check();
            eprintln!("{}", lab.host.sh(reload)); // shown when the case fails
            (subject.works)(lab, &before);
            before.check();
            let after = add(1);
            after.check();
            (subject.works)(lab, &after);
            before.del();
            (subject.works)(lab, &after);
            after.check();
            after.del();
            assert_eq!(subject.is_left(lab), "", "{} with {backend:?}", subject.table);
        });
    }
}

/// CHECK detects rules with a changed meaning, after a reload too.
#[test]
fn ruleset_loaded_again_with_a_changed_rule_fails_check() {
    let changes = [
        (0, "s/ip6 daddr ff00::\\/8 return/ip6 daddr fe00::\\/7 return/"),
        (0, "s/ip daddr 10.10.0.0\\/24 return/ip daddr 10.10.0.0\\/23 return/"),
        (1, "s/ != @allowed drop/ @allowed drop/"),
        (2, "s/ip daddr 127.0.0.0\\/8 return/ip daddr 126.0.0.0\\/7 return/"),
        (2, "s/ct status dnat ip daddr vmap @snat4/ip daddr vmap @snat4/"),
        (3, "s/@isolated drop/@isolated accept/"),
    ];
    for (subject, change) in changes {
        let subject = &SUBJECTS[subject];
        for_ours(subject.plugin, |lab| {
            let one = subject.add(lab, 0);
            one.check();
            lab.host.sh(&format!(
                "nft list ruleset > /run/rules; sed '{change}' /run/rules > /run/changed
                 ! cmp -s /run/rules /run/changed; nft flush ruleset; nft -f /run/changed"
            ));
            let result = one.result.borrow();
            let checked = one.chained.as_ref().unwrap_or(&one.main).check(&result);
            assert_eq!(checked.err().code, 103, "{change}");
        });
    }
}
