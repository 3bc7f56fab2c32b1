//! bandwidth: how long packets wait in a saturated limit, by `latency` and by `qdisc`; and what `net sync` sets again.

use super::*;
use crate::plugins::meta::bandwidth::failed_add::with_failing_message;
use crate::support::networks::bandwidth::is_able;

/// The figures of docs/bandwidth.md: 10 Mbit/s, and a burst of 6.4 milliseconds.
fn limited(more: Value) -> Value {
    with(&bandwidth(json!({"ingressRate": 10_000_000, "ingressBurst": 64_000})), more)
}

fn fair() -> Value {
    let egress = json!({"egressRate": 10_000_000, "egressBurst": 64_000, "qdisc": "fq_codel"});
    limited(egress)
}

/// The mean time in milliseconds of a ping to the container, before and beside a TCP stream that
/// saturates the limit.
fn waits(lab: &Lab, plugin: &Value) -> [f64; 2] {
    let chain = lab.chain_added(&network(), plugin);
    let address = &chain.ips()[0];
    let [_, idle, _] = pings(&lab.host, address);
    let flow = Flow::start(&lab.host, &chain.container, address, 3);
    std::thread::sleep(Duration::from_millis(500));
    let [_, busy, _] = pings(&lab.host, address);
    drop(flow);
    chain.del_all();
    eprintln!("{plugin}: a ping takes {idle} ms, beside a stream {busy} ms");
    [idle, busy]
}

/// Runs a case of ours where the kernel has these queues.
pub fn for_ours_with(queues: &[&'static str], case: impl Fn(&Lab)) {
    for_ours("bandwidth", |lab| match queues.iter().find(|needs| !is_able(lab, needs)) {
        Some(missing) => skip(missing),
        None => case(lab),
    });
}

#[test]
fn a_shorter_latency_makes_packets_wait_less() {
    for_ours_with(&["tbf"], |lab| {
        let usual = waits(lab, &limited(json!({})));
        let short = waits(lab, &limited(json!({"latency": 5})));
        assert!(usual[1] > 3.0, "{usual:?}: there was no load");
        assert!(short[1] < usual[1], "{short:?}, by default {usual:?}");
    });
}

#[test]
fn a_latency_is_that_of_the_queue_and_check_compares_it() {
    for_ours_with(&["tbf"], |lab| {
        let chain = lab.chain(&network(), &limited(json!({"latency": 5})));
        let before = Watch::start(lab, &[&chain.container]);
        let result = chain.add();
        let end = host_end(&chain);
        assert_eq!(queue(&lab.host, &end), "qdisc tbf 1: rate 10Mbit burst 8000b lat 5ms");
        chain.check(&result).ok();
        let usual = chain.also(&limited(json!({})));
        assert!(usual.check(&result).err().text().contains("limit 14250, expected 39250"));
        // DEL that has lost the limits knows the queue by its latency.
        chain.also(&bandwidth(json!({"latency": 5}))).del();
        before.assert_unchanged("DEL");
    });
}

/// Both of these lose nothing at DEL: with and without subnets.
#[test]
fn fq_codel_is_below_each_bucket_and_packets_wait_less() {
    for_ours_with(&["ifb", "tbf", "u32", "fq_codel"], |lab| {
        let chain = lab.chain(&network(), &fair());
        let before = Watch::start(lab, &[&chain.container]);
        let result = chain.add();
        let [end, ifb] = [host_end(&chain), interface(&result, 2)];
        for link in [&end, &ifb] {
            let shown = lab.host.sh(&format!("tc qdisc show dev {link}"));
            assert!(shown.contains("qdisc fq_codel 2: parent 1:1 "), "{shown}");
        }
        chain.check(&result).ok();
        lab.host.sh(&format!("tc qdisc replace dev {ifb} parent 1:1 handle 3: pfifo"));
        let error = chain.check(&result).err();
        assert!(error.text().contains("has qdisc pfifo at 1:1, expected fq_codel"), "{error:?}");
        chain.del();
        before.assert_unchanged("DEL");
        let usual = waits(lab, &limited(json!({})));
        let short = waits(lab, &limited(json!({"qdisc": "fq_codel"})));
        assert!(short[1] < usual[1], "{short:?}, by default {usual:?}");
    });
}

#[test]
fn fq_codel_in_a_limit_of_subnets_is_repaired() {
    for_ours_with(&["ifb", "tbf", "u32", "fq_codel", "htb"], |lab| {
        let shaped = with(&fair(), json!({"shapedSubnets": ["10.0.0.0/8"]}));
        let synced = attach(lab, &[network(), shaped], "");
        let end = end(&synced);
        let shown = lab.host.sh(&format!("tc qdisc show dev {end}"));
        assert!(shown.contains("qdisc fq_codel 31: parent 30:1 "), "{shown}");
        let fault = format!("tc qdisc replace dev {end} parent 30:1 handle 7: pfifo");
        synced.assert_repaired(&fault, &["limit ingress"]);
        synced.del();
    });
}

#[test]
fn a_missing_fq_codel_is_an_error_that_names_its_module() {
    for_ours_with(&["tbf"], |lab| {
        let plugin = limited(json!({"qdisc": "fq_codel"}));
        // STATUS asks for tbf, then for fq_codel.
        let call = in_network(lab, &plugin).call("STATUS", None);
        let Some(call) = with_failing_message(call, "ENOENT", 2) else { return };
        let error = call.run().err();
        assert_eq!((error.code, error.msg.as_str()), (50, "the kernel has no qdisc fq_codel"));
        assert_eq!(error.details, "is the module sch_fq_codel available?");
        if is_able(lab, "fq_codel") {
            return; // so ADD succeeds
        }
        let chain = lab.chain(&network(), &plugin);
        let before = Watch::start(lab, &[&chain.container]);
        let error = chain.try_add().err();
        let details = "the kernel has no fq_codel: is the module sch_fq_codel available?";
        assert!(error.text().contains(details), "{error:?}");
        before.assert_unchanged("a failed ADD");
    });
}

/// The link of the host that leads to the container.
fn end(synced: &Synced<'_>) -> String {
    let index = &synced.container.link("eth0").unwrap()["link_index"];
    let links = synced.lab.host.json("ip -j link show type veth");
    let found = links.as_array().unwrap().iter().find(|link| link["ifindex"] == *index).unwrap();
    found["ifname"].as_str().unwrap().to_owned()
}

/// The limit of the runtime, which only the record has.
#[test]
fn a_limit_of_the_runtime_is_set_again() {
    for_able_ours(|lab| {
        let capable = bandwidth(json!({"capabilities": {"bandwidth": true}}));
        let synced = attach(lab, &[network(), capable], "--bandwidth ingress=20M");
        let end = end(&synced);
        let fault = format!("tc qdisc del dev {end} root");
        synced.assert_repaired(&fault, &[&format!("limit ingress at {end:?} to 20000000 bit/s")]);
    });
}

#[test]
fn a_qdisc_of_an_administrator_stays() {
    for_able_ours(|lab| {
        let synced = attach(lab, &[bridge::dual_stack(), both()], "");
        let end = end(&synced);
        lab.host.sh(&format!("tc qdisc replace dev {end} root handle 7: pfifo limit 9"));
        let outcome = synced.net("sync pods");
        assert_eq!(outcome.status, 1, "{outcome:?}");
        assert!(format!("{outcome:?}").contains("has another qdisc"), "{outcome:?}");
        assert!(lab.host.sh(&format!("tc qdisc show dev {end}")).contains("pfifo 7:"));
    });
}
