//! bandwidth ADD that fails: the error names the cause, and host and container are unchanged.

use super::*;
use crate::support::call::Call;

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
    let assert_refused = |lab: &Lab, case: &Case| {
        let chain = lab.chain(&network(), &both());
        assert_fails_at(lab, &chain.container, &chain, case);
    };
    for case in rows(FAILING).into_iter().map(Case::reference_leaves_nothing) {
        for_each_able_peer(|lab| assert_refused(lab, &case));
    }
    for_able_ours(|lab| rows(ONLY_OURS).iter().for_each(|case| assert_refused(lab, case)));
}

/// Errors that only ours detects; the reference accepts these configurations or reads them
/// differently.
const ONLY_OURS: &str = r#"
a part of a byte | {"ingressRate": 7} | 7: ingressRate: 7 is less than a byte a second, expected 0 or at least 8
no packet passes | {"egressRate": 47} | 7: egressRate: with 47 no packet of 1500 bytes ever passes, expected 0 or at least 48
runtime: no packet passes | {"ingressRate": null, "ingressBurst": null, "egressRate": null, "egressBurst": null, "runtimeConfig": {"bandwidth": {"ingressRate": 40, "ingressBurst": 80}}} | 7: runtimeConfig.bandwidth.ingressRate: with 40 no packet
no subnet | {"unshapedSubnets": ["10.0.0.0/8", "hello"]} | 7: unshapedSubnets[1]: invalid CIDR address: hello
no prefix | {"shapedSubnets": ["10.0.0.0/33"]} | 7: shapedSubnets[0]: invalid CIDR address: 10.0.0.0/33
both lists | {"shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": ["fd00::/8"]} | 7: unshapedSubnets and shapedSubnets cannot be both specified
"#;

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
        // DEL removes the filter that leads to the deleted ifb. The ingress qdisc stays: it has a foreign filter as well.
        let chain = lab.chain_added(&network(), &both());
        let link = host_end(&chain);
        lab.host.sh(&format!(
            "tc filter add dev {link} parent ffff: protocol ip pref 7 u32 match u32 0 0 flowid 1:7"
        ));
        chain.del();
        let left = lab.host.sh(&format!("tc filter show dev {link} parent ffff:"));
        assert!(left.contains("flowid 1:7"), "{left}");
    });
}

#[test]
fn add_into_a_namespace_that_is_gone_changes_nothing() {
    for_each_able_peer(|lab| {
        let chain = lab.chain(&network(), &both());
        chain.container.vanish();
        // The kernel deletes the namespace's links with a delay.
        let link = host_end(&chain);
        lab.host.sh(&format!("until ! ip link show {link} 2>/dev/null; do sleep 0.02; done"));
        let before = Watch::start(lab, &[]);
        let error = chain.try_add().err();
        before.assert_unchanged("the failed ADD");
        assert!(lab.peer != Peer::Ours || error.code == 4, "{error:?}");
    });
}

/// A call that fails to send its Nth message to the kernel; None if strace cannot inject
/// that.
pub fn with_failing_message(mut call: Call, errno: &str, nth: usize) -> Option<Call> {
    let strace = format!(
        "strace -f -qq -o /dev/null -e trace=sendto -e inject=sendto:error={errno}:when={nth}"
    );
    let tried = std::process::Command::new("sh").args(["-c", &format!("{strace} true")]).output();
    if !tried.unwrap().status.success() {
        skip("strace that can make system calls fail");
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
        let fixed = in_network(lab, &both());
        // A network where the runtime sets no limits needs neither, so this is only a warning.
        let of_runtime = in_network(lab, &bandwidth(json!({"capabilities": {"bandwidth": true}})));
        for (nth, errno, names) in
            [(1, "ENOENT", "qdisc tbf"), (2, "EOPNOTSUPP", "links of type ifb")]
        {
            let calls = [&fixed, &of_runtime]
                .map(|at| with_failing_message(at.call("STATUS", None), errno, nth));
            let [Some(fixed), Some(of_runtime)] = calls else { return };
            let msg = format!("the kernel has no {names}");
            let error = fixed.run().err();
            assert_eq!((error.code, &error.msg), (50, &msg));
            let warning = format!("bandwidth: no container can be limited: {msg}");
            let told = of_runtime.run();
            assert!(told.status == 0 && told.stderr.starts_with(&warning), "{told:?}");
        }
    });
}
