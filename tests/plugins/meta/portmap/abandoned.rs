//! A port whose container is gone, without a DEL that closed it: after a rollback the reference's DEL
//! removes link and lease, and does not know our elements. ADD takes the port over, and says so.

use super::*;
use crate::support::call::Outcome;
use crate::support::tracer::Stop;

/// A network whose addresses no other test has: a namespace of the machine that has the address
/// might be the container's.
pub fn alone(test: u8) -> Value {
    let (v4, v6) = (format!("10.217.{test}.0/24"), format!("2001:db8:217:{test}::/64"));
    let ranges = json!([[{"subnet": v4}], [{"subnet": v6}]]);
    with(&network(), json!({"name": "net7", "bridge": "br7", "ipam": {"ranges": ranges}}))
}

/// The same with one address of each family to give.
fn narrow(test: u8) -> Value {
    let mut narrow = alone(test);
    for (family, only) in
        [format!("10.217.{test}.9"), format!("2001:db8:217:{test}::9")].iter().enumerate()
    {
        let range = &mut narrow["ipam"]["ranges"][family][0];
        *range = with(range, json!({"rangeStart": only, "rangeEnd": only}));
    }
    narrow
}

fn publish<'a>(lab: &'a Lab, main: &Value, backend: Option<&str>) -> Chain<'a> {
    lab.chain_added(main, &portmap(backend, json!([web()])))
}

/// The next container has the port, and a late DEL of the first one leaves it alone.
#[track_caller]
fn assert_taken_over(lab: &Lab, gone: &Chain<'_>, next: &Chain<'_>) {
    let added = next.try_add();
    added.ok();
    for words in [&gone.container_id, "its container is gone"] {
        assert!(added.stderr.contains(words), "{added:?}");
    }
    let _server = TcpServer::start(&next.container, 80);
    assert_eq!(is_open(lab, 8080), [true, true]);
    next.check(&next.result).ok();
    gone.del();
    assert_eq!(is_open(lab, 8080), [true, true], "DEL of the one that is gone");
    next.del_all();
    let rules = lab.host.sh("nft list tables; iptables-save -t nat | grep CNI-DN- || true");
    assert!(!rules.contains("portmap") && !rules.contains("CNI-DN-"), "{rules}");
}

/// Also where the lease says that its address is another container's.
#[test]
fn a_container_that_is_gone_does_not_keep_its_port() {
    for_ours_with_each_backend(|lab, backend| {
        for (main, of_next, is_given) in [
            (alone(1), alone(1), false),
            (narrow(1), narrow(1), false),
            (narrow(3), other_network(), true),
        ] {
            let gone = publish(lab, &main, backend);
            gone.main.del(); // all that the reference's DEL does
            let third = lab.container();
            if is_given {
                lab.attach(&third, &main).add();
            }
            let next = lab.chain(&of_next, &portmap(backend, json!([web()])));
            assert_taken_over(lab, &gone, &next);
            lab.host.sh("ip link del br7"); // the next case has other addresses
        }
    });
}

/// Another plugin made the host's end, which does not name the attachment; the container has removed
/// its address; or both.
#[test]
fn a_container_that_lives_keeps_its_port() {
    let strange =
        "for l in $(ls /sys/class/net); do ip link set $l alias '' 2>/dev/null; done; true";
    for_ours_with_each_backend(|lab, backend| {
        let flush = "ip addr flush dev eth0";
        for (on_host, in_container) in [(strange, "true"), ("true", flush), (strange, flush)] {
            let lives = publish(lab, &alone(4), backend);
            lab.host.sh(on_host);
            lives.container.sh(in_container);
            let late = lab.chain(&alone(4), &portmap(backend, json!([web()])));
            let added = late.try_add();
            assert_eq!(added.err().code, 102, "{on_host}, {in_container}: {added:?}");
            assert_eq!(added.stderr, "", "{on_host}, {in_container}");
            late.main.del();
            lives.del_all();
        }
    });
}

/// Whether a batch of nf_tables (NFNL_MSG_BATCH_BEGIN) is about to be sent.
pub fn is_batch(stop: &Stop) -> bool {
    let is_sent = stop.call == libc::SYS_sendto && stop.is_own && stop.result.is_none();
    is_sent && stop.is_netlink() && stop.netlink_type() == 0x10
}

/// ADD, and what happens before its first batch.
fn add_beside(next: &Chain<'_>, happens: impl FnOnce() + Send) -> Outcome {
    let mut happens = Some(happens);
    let added = trace(&next.call("ADD", None), |stop| {
        if is_batch(stop) {
            happens.take().into_iter().for_each(|happens| happens());
        }
        Then::Go
    });
    assert!(happens.is_none());
    added.outcome
}

/// It is added again after it was found gone, and before its ports are closed.
#[test]
fn a_container_that_comes_back_meanwhile_keeps_its_port() {
    for_ours("portmap", |lab| {
        let gone = publish(lab, &alone(6), None);
        gone.main.del();
        let next = lab.chain(&alone(6), &portmap(None, json!([web()])));
        let mut back = json!({});
        let outcome = add_beside(&next, || {
            back = gone.main.add();
            (*gone).clone().conf(json!({"prevResult": back})).add();
        });
        outcome.fails(102, "");
        assert!(!outcome.stderr.contains("its container is gone"), "{outcome:?}");
        gone.check(&back).ok();
        let _server = TcpServer::start(&gone.container, 80);
        assert_eq!(is_open(lab, 8080), [true, true]);
    });
}

/// Another ADD that wants another port of the same container has closed both.
#[test]
fn a_port_that_another_add_has_closed_is_free() {
    for_ours("portmap", |lab| {
        let other_port = with(&web(), json!({"hostPort": 9090}));
        let gone = lab.chain_added(&alone(9), &portmap(None, json!([web(), other_port])));
        gone.main.del();
        let [next, third] = [web(), other_port]
            .map(|mapping| lab.chain(&alone(9), &portmap(None, json!([mapping]))));
        add_beside(&next, || drop(third.add())).ok();
        for (chain, port) in [(&next, 8080), (&third, 9090)] {
            let _server = TcpServer::start(&chain.container, 80);
            assert_eq!(is_open(lab, port), [true, true], "{port}");
        }
    });
}

#[test]
fn a_holder_that_cannot_be_judged_is_named_with_the_reason() {
    for_ours("portmap", |lab| {
        let gone = publish(lab, &alone(7), None);
        gone.main.del();
        let next = lab.chain(&alone(7), &portmap(None, json!([web()])));
        let added = trace(&next.call("ADD", None), |stop| {
            let is_lease = stop.result.is_none()
                && stop.call == libc::SYS_openat
                && stop.text(1).starts_with("/var/lib/cni/networks/net7/");
            if is_lease { Then::fail(Errno::EMFILE) } else { Then::Go }
        });
        let error = added.outcome.fails(102, "");
        let reason = "whether its container is gone is unknown: read lease";
        assert!(error.details.contains(reason), "{error:?}");
        assert!(error.details.contains(&gone.container_id), "{error:?}");
    });
}
