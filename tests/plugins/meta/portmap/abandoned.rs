//! A port whose container is gone, without a DEL that closed it: after a rollback the reference's DEL
//! removes link and lease, and does not know our elements. ADD takes the port over, and says so.

use nix::errno::Errno;
use serde_json::{Value, json};

use super::for_ours_with_each_backend;
use crate::support::attachment::{for_ours, reference_with, with};
use crate::support::call::{Outcome, Peer};
use crate::support::chain::Chain;
use crate::support::netns::Lab;
use crate::support::networks::portmap::{is_open, network, other_network, portmap, web};
use crate::support::tracer::{Stop, Then, trace};
use crate::support::traffic::TcpServer;

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
    for set in narrow["ipam"]["ranges"].as_array_mut().unwrap() {
        let subnet = set[0]["subnet"].as_str().unwrap();
        let only = match subnet.strip_suffix("0/24") {
            Some(v4) => format!("{v4}9"),
            None => subnet.replace("/64", "9"),
        };
        set[0] = with(&set[0], json!({"rangeStart": only, "rangeEnd": only}));
    }
    narrow
}

fn publish<'a>(lab: &'a Lab, main: &Value, backend: Option<&str>) -> Chain<'a> {
    let chain = lab.chain(main, &portmap(backend, json!([web()])));
    chain.add();
    chain
}

/// The next container has the port, and a late DEL of the first one leaves it alone.
fn assert_taken_over(lab: &Lab, gone: &Chain<'_>, next: &Chain<'_>, added: &Outcome) {
    added.ok();
    assert!(added.stderr.contains(&gone.container_id), "{added:?}");
    assert!(added.stderr.contains("its container is gone"), "{added:?}");
    let _server = TcpServer::start(&next.container, 80);
    assert_eq!(is_open(lab, 8080), [true, true]);
    next.check(&next.result).ok();
    gone.del();
    assert_eq!(is_open(lab, 8080), [true, true], "DEL of the one that is gone");
    next.del_all();
    let rules = lab.host.sh("nft list tables; iptables-save -t nat | grep CNI-DN- || true");
    assert!(!rules.contains("portmap") && !rules.contains("CNI-DN-"), "{rules}");
}

#[test]
fn a_container_that_is_gone_does_not_keep_its_port() {
    for_ours_with_each_backend(|lab, backend| {
        for main in [alone(1), narrow(1)] {
            let gone = publish(lab, &main, backend);
            gone.main.del(); // all that the reference's DEL does
            let next = lab.chain(&main, &portmap(backend, json!([web()])));
            assert_taken_over(lab, &gone, &next, &next.try_add());
        }
    });
}

/// Its address is another container's, by the lease.
#[test]
fn an_address_of_a_third_container_keeps_no_port() {
    for_ours_with_each_backend(|lab, backend| {
        let gone = publish(lab, &narrow(3), backend);
        gone.main.del();
        let third = lab.container();
        let _has_the_address = lab.attach(&third, &narrow(3)).add();
        let next = lab.chain(&other_network(), &portmap(backend, json!([web()])));
        assert_taken_over(lab, &gone, &next, &next.try_add());
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

/// It is added again after it was found gone, and before its ports are closed.
#[test]
fn a_container_that_comes_back_meanwhile_keeps_its_port() {
    for_ours("portmap", |lab| {
        let gone = publish(lab, &alone(6), None);
        gone.main.del();
        let next = lab.chain(&alone(6), &portmap(None, json!([web()])));
        let mut back = None;
        let added = trace(&next.call("ADD", None), |stop| {
            if back.is_none() && is_batch(stop) {
                let result = gone.main.add();
                (*gone).clone().conf(json!({"prevResult": result})).add();
                back = Some(result);
            }
            Then::Go
        });
        added.outcome.fails(102, "");
        assert!(!added.outcome.stderr.contains("its container is gone"), "{:?}", added.outcome);
        gone.check(&back.unwrap()).ok();
        let _server = TcpServer::start(&gone.container, 80);
        assert_eq!(is_open(lab, 8080), [true, true]);
    });
}

/// Another ADD that wants another port of the same container has closed both.
#[test]
fn a_port_that_another_add_has_closed_is_free() {
    for_ours("portmap", |lab| {
        let other_port = with(&web(), json!({"hostPort": 9090}));
        let gone = lab.chain(&alone(9), &portmap(None, json!([web(), other_port.clone()])));
        gone.add();
        gone.main.del();
        let next = lab.chain(&alone(9), &portmap(None, json!([web()])));
        let third = lab.chain(&alone(9), &portmap(None, json!([other_port])));
        let mut is_closed = false;
        let added = trace(&next.call("ADD", None), |stop| {
            if !is_closed && is_batch(stop) {
                is_closed = true;
                third.add();
            }
            Then::Go
        });
        added.outcome.ok();
        assert!(is_closed);
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

/// ADD of ours, rollback, the reference's DEL, upgrade, ADD of the next container with the port.
#[test]
fn after_a_rollback_a_port_is_free_again() {
    let Some(reference) = reference_with("portmap") else { return };
    for_ours("portmap", |_| {
        let lab = Lab::new(Peer::Ours).without_dad();
        let gone = publish(&lab, &alone(5), None);
        (*gone).clone().by(&reference).del();
        gone.main.clone().by(&reference).del();
        let next = lab.chain(&alone(5), &portmap(None, json!([web()])));
        let added = next.try_add();
        added.ok();
        assert!(added.stderr.contains(&gone.container_id), "{added:?}");
        let _server = TcpServer::start(&next.container, 80);
        assert_eq!(is_open(&lab, 8080), [true, true]);
    });
}
