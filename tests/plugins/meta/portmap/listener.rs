//! A process of the host that listens at a published port: ADD succeeds, as the reference's does,
//! and warns of the process.

use std::net::TcpListener;

use cni_multi::net::sock_diag::{Local, SocketDiag};

use super::*;

/// Whether the kernel finds sockets; skips the case if it does not.
fn has_sock_diag() -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let local = Local { protocol: libc::IPPROTO_TCP as u8, address: at.ip(), port: at.port() };
    let found = SocketDiag::open().unwrap().receiver(&local).unwrap().is_some();
    if !found {
        skip("CONFIG_INET_DIAG");
    }
    found
}

fn warnings(lab: &Lab, backend: Option<&str>, mapping: Value) -> String {
    let chain = lab.chain(&network(), &portmap(backend, json!([mapping])));
    let outcome = chain.try_add();
    outcome.ok();
    chain.del_all();
    outcome.stderr
}

/// The process in a warning really has a listening socket of the port.
#[track_caller]
fn assert_names_the_process(lab: &Lab, warning: &str, port: &str) {
    let pid = warning.split(' ').nth(2).unwrap();
    let comm = lab.host.sh(&format!("cat /proc/{pid}/comm"));
    let expected = format!(
        "portmap: process {pid} ({:?}) of the host listens at port {port}, which leads to the container now\n",
        comm.trim()
    );
    assert_eq!(warning, expected);
    assert!(comm.starts_with("integration"), "{comm}: the test program itself serves");
}

#[test]
fn a_process_at_the_port_is_a_warning_that_names_it() {
    for_ours_with_each_backend(|lab, backend| {
        if !has_sock_diag() {
            return;
        }
        // A process in a container, or behind a published port, is no process of the host.
        let _elsewhere = TcpServer::start(&lab.container(), 8080);
        assert_eq!(warnings(lab, backend, web()), "");
        let _server = TcpServer::start(&lab.host, 8080);
        assert_names_the_process(lab, &warnings(lab, backend, web()), "8080/tcp");
        let at_uplink = with(&web(), json!({"hostIP": UPLINK[0]}));
        let port = format!("{}:8080/tcp", UPLINK[0]);
        assert_names_the_process(lab, &warnings(lab, backend, at_uplink), &port);
        for other in [json!({"hostPort": 8082}), json!({"protocol": "udp"})] {
            assert_eq!(warnings(lab, backend, with(&web(), other)), "");
        }
    });
}

/// One question for each family of a port, and no process is read unless a socket is found.
#[test]
fn a_free_port_costs_one_question_for_each_family() {
    for_ours("portmap", |lab| {
        let chain = lab.chain(&network(), &portmap(None, json!([web()])));
        let (mut questions, mut processes) = (0, 0);
        let traced = trace(&chain.call("ADD", None), |stop| {
            let is_entry = stop.result.is_none();
            if is_entry && stop.call == libc::SYS_sendto && stop.netlink_type() == 20 {
                questions += 1; // SOCK_DIAG_BY_FAMILY
                assert_eq!(stop.memory(stop.args[1] + 6, 2), [1, 0], "no dump");
            }
            let opens = is_entry && stop.call == libc::SYS_openat;
            processes += usize::from(opens && stop.text(1) == "/proc");
            Then::Go
        });
        traced.outcome.ok();
        assert_eq!((questions, processes), (2, 0));
        chain.del_all();
    });
}
