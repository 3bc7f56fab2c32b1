//! bandwidth ADD that fails: the error names the cause, and host and container are unchanged.

use std::time::{Duration, Instant};

use serde_json::json;

use super::{for_able_ours, for_each_able_peer, host_end};
use crate::support::attachment::{for_each_peer, with};
use crate::support::call::Peer;
use crate::support::failed_add::{Case, assert_fails_at, rows};
use crate::support::networks::bandwidth::{bandwidth, both, can_limit, network};
use crate::support::patience;
use crate::support::snapshot::Watch;
use crate::support::table::cells;

const FAILING: &str = r#"
rate without burst | {"ingressBurst": null} | 7: ingressBurst: 0 with a rate of 20000000
burst without rate | {"egressRate": 0} | 7: egressRate: 0 with a burst of 2000000
negative rate | {"ingressRate": -8} | 7: ingressRate: -8 is out of range, expected an integer from 0
rate is no integer | {"ingressRate": 1.5} | 6: ingressRate: expected an integer from 0
rate is a text | {"egressRate": "10M"} | 6: egressRate: expected an integer
no prevResult | {"prevResult": null} | 7: prevResult:
the peer is not in prevResult | {"prevResult": {"interfaces": [{"name": "other"}]}} | 7: prevResult.interfaces
the container's interface is another | {} | 7: no veth peer of container interface found in host ns | in: ip link del eth0; ip link add eth0 type veth peer name other
the container's interface is no veth | {} | 7: bandwidth can limit veth only | in: ip link del eth0; ip link add eth0 type bridge
no interface in the container | {} | 100: find link "eth0" | in: ip link del eth0
burst too large | {"egressBurst": 34359738360} | 7: egressBurst: 34359738360 is too large, expected at most 34359738359
runtime: burst without rate | {"ingressRate": null, "ingressBurst": null, "egressRate": null, "egressBurst": null, "runtimeConfig": {"bandwidth": {"ingressBurst": 80}}} | 7: runtimeConfig.bandwidth.ingressRate: 0 with a burst of 80
runtime: negative | {"ingressRate": null, "ingressBurst": null, "egressRate": null, "egressBurst": null, "runtimeConfig": {"bandwidth": {"egressRate": -1, "egressBurst": 80}}} | 7: runtimeConfig.bandwidth.egressRate: -1
runtime: no object | {"ingressRate": null, "ingressBurst": null, "egressRate": null, "egressBurst": null, "runtimeConfig": {"bandwidth": []}} | 6: runtimeConfig.bandwidth: expected an object
"#;

#[test]
fn add_fails_and_nothing_has_changed() {
    for case in rows(FAILING).into_iter().map(Case::reference_leaves_nothing) {
        for_each_able_peer(|lab| {
            let chain = lab.chain(&network(), &both());
            assert_fails_at(lab, &chain.container, &chain, &case);
        });
    }
}

/// Errors that only ours detects; the reference accepts these configurations or reads them
/// differently.
#[test]
fn add_that_only_ours_refuses_changes_nothing() {
    for_able_ours(|lab| {
        let cases = r#"
{"ingressRate": 7} | ingressRate: 7 is less than a byte a second, expected 0 or at least 8
{"egressRate": 47} | egressRate: with 47 no packet of 1500 bytes ever passes, expected 0 or at least 48
{"ingressRate": null, "ingressBurst": null, "egressRate": null, "egressBurst": null, "runtimeConfig": {"bandwidth": {"ingressRate": 40, "ingressBurst": 80}}} | runtimeConfig.bandwidth.ingressRate: with 40 no packet
{"unshapedSubnets": ["10.0.0.0/8", "hello"]} | unshapedSubnets[1]: invalid CIDR address: hello
{"shapedSubnets": ["10.0.0.0/33"]} | shapedSubnets[0]: invalid CIDR address: 10.0.0.0/33
{"shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": ["fd00::/8"]} | unshapedSubnets and shapedSubnets cannot be both specified
"#;
        let chain = lab.chain(&network(), &both());
        let before = Watch::start(lab, &[&chain.container]);
        for [changes, names] in cells(cases) {
            let changes = serde_json::from_str(changes).unwrap();
            chain.clone().conf(changes).try_add().fails(7, names);
        }
        before.assert_unchanged("the failed ADDs");
    });
}

/// Each object that ADD creates already exists once. The reference leaves the objects it made
/// before the failure; see tests/differences.
#[test]
fn what_is_in_the_way_is_left_alone() {
    for_able_ours(|lab| {
        let cases = r#"
tc qdisc add dev $v root handle 7: tbf rate 1mbit burst 10kb latency 25ms | add qdisc tbf 1:
tc qdisc add dev $v root handle 1: tbf rate 1mbit burst 10kb latency 25ms | add qdisc tbf 1:
tc qdisc add dev $v root handle 1: htb | add qdisc tbf 1:
tc qdisc add dev $v ingress | add qdisc ingress ffff:
tc qdisc add dev $v ingress; tc filter add dev $v parent ffff: protocol ip u32 match u32 0 0 flowid 1: | add qdisc ingress ffff:
tc qdisc add dev $v clsact | add qdisc ingress ffff:
"#;
        for [script, names] in cells(cases) {
            let chain = lab.chain(&network(), &both());
            lab.host.sh(&format!("v={}; {script}", host_end(&chain)));
            let before = Watch::start(lab, &[&chain.container]);
            eprintln!("{script}:"); // shown when the case fails
            chain.try_add().fails(102, names);
            before.assert_unchanged("the failed ADD");
            // Runtimes call DEL after a failed ADD.
            chain.del();
            chain.bare().del();
            before.assert_unchanged(&format!("DEL with {script}"));
        }
    });
}

/// Without limits in the configuration, DEL recognises its own queues by the shape that ADD gives
/// them.
#[test]
fn del_that_knows_no_limits_leaves_an_administrator_s_queue() {
    for_able_ours(|lab| {
        for script in [
            "tc qdisc add dev $v root handle 1: tbf rate 1mbit burst 10kb latency 10ms",
            "tc qdisc add dev $v root handle 1: htb; tc class add dev $v parent 1: classid 1:30 htb rate 1mbit",
        ] {
            let chain = lab.chain(&network(), &bandwidth(json!({})));
            lab.host.sh(&format!("v={}; {script}", host_end(&chain)));
            let before = Watch::start(lab, &[&chain.container]);
            chain.del();
            before.assert_unchanged(&format!("DEL with {script}"));
        }
    });
}

/// DEL removes the filter that leads to the deleted ifb. The ingress qdisc stays: it has a foreign
/// filter as well.
#[test]
fn del_leaves_an_ingress_qdisc_with_another_s_filter() {
    for_able_ours(|lab| {
        let chain = lab.chain(&network(), &both());
        chain.add();
        let link = host_end(&chain);
        lab.host.sh(&format!(
            "tc filter add dev {link} parent ffff: protocol ip pref 7 u32 match u32 0 0 flowid 1:7"
        ));
        chain.del();
        assert!(
            lab.host.sh(&format!("tc filter show dev {link} parent ffff:")).contains("flowid 1:7")
        );
    });
}

/// The reference fails halfway, and its DEL removes the first ADD's ifb.
#[test]
fn a_second_add_is_refused_and_leaves_the_first() {
    for_able_ours(|lab| {
        for limits in [both(), with(&both(), json!({"ingressRate": null, "ingressBurst": null}))] {
            let chain = lab.chain(&network(), &limits);
            let result = chain.add();
            let before = Watch::start(lab, &[&chain.container]);
            chain.try_add().fails(102, "");
            before.assert_unchanged("the second ADD");
            chain.check(&result).ok();
            chain.del_all();
        }
    });
}

#[test]
fn add_into_a_namespace_that_is_gone_changes_nothing() {
    for_each_peer("bandwidth", |lab| {
        if !can_limit(lab) {
            return;
        }
        let chain = lab.chain(&network(), &both());
        let link = host_end(&chain);
        chain.container.vanish();
        // The kernel deletes the namespace's links with a delay.
        let deadline = Instant::now() + patience(3);
        while lab.host.link(&link).is_some() {
            assert!(Instant::now() < deadline, "{link} stays");
            std::thread::sleep(Duration::from_millis(20));
        }
        let before = Watch::start(lab, &[]);
        let error = chain.try_add().err();
        before.assert_unchanged("the failed ADD");
        if lab.peer == Peer::Ours {
            assert_eq!(error.code, 4, "{error:?}");
        }
    });
}

/// A call that fails to send its Nth message to the kernel; None if strace cannot inject
/// that.
pub fn with_failing_message(
    mut call: crate::support::call::Call,
    errno: &str,
    nth: usize,
) -> Option<crate::support::call::Call> {
    let strace = format!(
        "strace -f -qq -o /dev/null -e trace=sendto -e inject=sendto:error={errno}:when={nth}"
    );
    let tried =
        std::process::Command::new("sh").args(["-c", &format!("{strace} true")]).output().unwrap();
    if !tried.status.success() {
        crate::support::attachment::skip("strace that can make system calls fail");
        return None;
    }
    call.wrapper.extend(strace.split(' ').map(str::to_owned));
    Some(call)
}

/// STATUS probes tbf with its first message and ifb with its second. The reference's STATUS always
/// succeeds.
#[test]
fn status_says_what_the_kernel_lacks() {
    for_able_ours(|lab| {
        let chain = lab.chain(&with(&network(), json!({"cniVersion": "1.1.0"})), &both());
        for (nth, errno, names) in
            [(1, "ENOENT", "qdisc tbf"), (2, "EOPNOTSUPP", "links of type ifb")]
        {
            let Some(call) = with_failing_message(chain.call("STATUS", None), errno, nth) else {
                return;
            };
            let error = call.run().err();
            let msg = format!("the kernel has no {names}");
            assert_eq!((error.code, error.msg.as_str()), (50, msg.as_str()));
            // A network where the runtime sets no limits needs neither, so this is only a warning.
            let of_runtime = chain.also(&bandwidth(json!({"capabilities": {"bandwidth": true}})));
            let Some(call) = with_failing_message(of_runtime.call("STATUS", None), errno, nth)
            else {
                return;
            };
            let told = call.run();
            told.ok();
            assert!(
                told.stderr.starts_with(&format!("bandwidth: no container can be limited: {msg}")),
                "{told:?}"
            );
        }
    });
}
